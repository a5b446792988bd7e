"""Block sizes in rounds: what is tried on a kernel next, once it is known what was best so far.

The first round is what a model ranked highest, or what is nearest to Inductor's own. Where that was
wrong by a lot, or steps lead on, the neighbours of the best so far are compiled while the program
goes on, and are timed when the kernel runs next: coordinate descent whose every step is a look at
all directions, none of them compiled while somebody waits. Times nothing; whoever runs kernels
asks what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._inductor.output_code import CompiledFxGraph

from fusewise.compiler.inductor.block_sizes import sizes_of, steps_from, trades_from
from fusewise.compiler.inductor.replacing import holding
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.schedule import Choice

#: Waits for block sizes that are being compiled, and gives those that could be.
Coming = Callable[[], tuple[BlockSizes, ...]]
#: Begins to compile some.
Begin = Callable[[Sequence[BlockSizes]], Coming]

#: Rounds of neighbours, at the most, and block sizes in one of them.
_MOST_ROUNDS: Final = 4
_EACH: Final = 10


@dataclass
class Rounds:
    """What one kernel is tried with, round after round."""

    #: Those of the round that is next.
    coming: Coming
    #: None where nothing follows the first one.
    begin: Begin | None = None
    #: The fastest so far; None before the first round.
    best: BlockSizes | None = None
    #: Whether the kernel is what it will be.
    over: bool = False
    _tried: set[BlockSizes] = field(default_factory=set)
    _begun: int = 0

    def take(self, own: BlockSizes) -> tuple[BlockSizes, ...]:
        """What is to be timed now, ``own`` first, which the kernel has; waits for it.

        Nothing where nothing else came. What was best for another kernel of the source is among it.
        """
        sizes = self.coming()
        self._tried.update(sizes, [own])
        found = () if self.best is None else (self.best,)
        others = tuple(one for one in dict.fromkeys((*found, *sizes)) if one != own)
        if not others:
            self.stop()
        return (own, *others) if others else ()

    def stop(self) -> None:
        """The kernel stays as it is."""
        self.over = True

    def settle(self, kernel: Any, best: Any, *, gained: bool) -> bool:
        """Begin the next round, if there is one; whether it was the last.

        Args:
            kernel: as Inductor has it in a loaded program.
            best: the fastest configuration of it so far.
            gained: whether that is another one than before.
        """
        self.best = sizes_of(best)
        # Neighbours of what a model chose are looked at once, whatever came of that.
        ends = self._begun >= _MOST_ROUNDS or (self._begun > 0 and not gained)
        # Without a step nobody would ask for another one.
        if not ends and self.begin is not None and _step.get() is not None:
            around = (*steps_from(kernel, best), *trades_from(kernel, best))
            near = [one for one in around if one not in self._tried]
            if near:
                self.coming = self.begin(near[:_EACH])
                self._begun += 1
                return False
        self.stop()
        return True


@dataclass
class _Step:
    """One run of a compiled graph whose kernels are tuned while it is used."""

    #: Whether all run as they are, since nothing was waited for yet.
    waits_for_nothing: bool
    #: Kernels that asked what is due, and their rounds.
    asked: list[tuple[Any, Rounds]] = field(default_factory=list)


_rounds: dict[str, Rounds] = {}
_goes_on: ContextVar[bool] = ContextVar("fusewise_rounds_go_on", default=False)
_step: ContextVar[_Step | None] = ContextVar("fusewise_tuning_step", default=None)


def offer_rounds(offered: Mapping[str, Rounds]) -> None:
    """Have kernels tuned in rounds, by the paths of their sources."""
    _rounds.update(offered)


@contextmanager
def going_on(wanted: bool) -> Iterator[None]:
    """Have kernels that are loaded in this context go on from what was found for them elsewhere.

    A process that measures has one round for each. Every kernel that is loaded so has to be offered
    rounds before it runs.
    """
    with holding(_goes_on, wanted):
        yield


def go_on(kernel: Any) -> None:
    """See that a kernel that was just loaded asks for rounds, if those of this context do."""
    if _goes_on.get():
        for launcher in kernel.launchers:
            launcher.config.found_by_coordesc = False


def has_rounds(kernel: Any) -> bool:
    """Whether a kernel is to be tuned in rounds, or was."""
    return kernel.filename in _rounds


def due(kernel: Any) -> Rounds | None:
    """The rounds of a kernel that has some, if it is to go on with them now."""
    rounds, step = _rounds[kernel.filename], _step.get()
    if rounds.over:
        return None
    if step is not None:
        step.asked.append((kernel, rounds))
        if step.waits_for_nothing:
            return None
    # What a user captures is not to hold launches that take times.
    return None if torch.cuda.is_current_stream_capturing() else rounds


def ended(kernel: Any) -> Rounds | None:
    """The rounds of a kernel that has some, if they are over and it may be loaded anew.

    A source is loaded once for each program and device that runs it, and tuned once.
    """
    rounds = _rounds[kernel.filename]
    return rounds if rounds.over and not torch.cuda.is_current_stream_capturing() else None


@contextmanager
def tuning_step(*, first: bool) -> Iterator[_Step]:
    """One run of a graph whose kernels go on with their rounds; the ``first`` waits for nothing."""
    step = _Step(waits_for_nothing=first)
    try:
        with holding(_step, step):
            yield step
    finally:
        for kernel, _ in step.asked:
            # Releases of Inductor that remember what they launched would never ask again.
            kernel._cached_launcher = None


class _InUse:
    """What runs a compiled graph whose kernels are tuned while it is used."""

    def __init__(self, output: CompiledFxGraph, run: Callable[..., Any]) -> None:
        self._output, self._run, self._ran = output, run, False
        #: Called once all rounds are over.
        self.then: Callable[[], None] = lambda: None

    def __call__(self, inputs: Sequence[Any]) -> Any:
        runs: object = self._output.current_callable
        # Whoever keeps this calls it again.
        if runs is not self:
            return self._run(inputs)
        first, self._ran = not self._ran, True
        with tuning_step(first=first) as now:
            result = self._run(inputs)
        if not first and all(rounds.over for _, rounds in now.asked):
            self._output.current_callable = self._run
            self.then()
        return result


def tune_while_used(output: CompiledFxGraph) -> None:
    """Have a compiled graph run once as it is, and then a round of its kernels each time."""
    run = output.current_callable
    assert run is not None, "it was compiled here"
    output.current_callable = _InUse(output, run)


def when_over(output: Any, then: Callable[[], None]) -> None:
    """Have something done once the rounds of a compiled graph's kernels are over, if it has any."""
    step: object = getattr(output, "current_callable", None)
    if isinstance(step, _InUse):
        step.then = then


def blocks_found(kernels: Mapping[str, Sequence[str]]) -> tuple[Choice, ...]:
    """What the rounds of kernels came to, as far as they are over and something was timed.

    Args:
        kernels: names of the choices to have each tuned, by the path of its source.
    """
    found = []
    for path, names in kernels.items():
        rounds = _rounds.get(path)
        if rounds is not None and rounds.over and rounds.best is not None:
            found += [Choice(name, rounds.best.text) for name in names]
    return tuple(sorted(found))
