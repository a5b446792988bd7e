"""Single values to compute otherwise than Inductor would, the most promising first.

What one survey recorded says what could be decided otherwise; a rough estimate ranks it, since
every try is a lowering of the whole graph; then the tried ones that were predicted to gain are put
together. Predicts only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.inlining_gain import InliningGain
from fusewise.schedule.inlining import InliningDecision, node_choice, node_choices
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice
from fusewise.search.gate import MARGIN
from fusewise.search.products import templated
from fusewise.search.reductions import uncut

#: Alternatives tried by themselves, for a graph that is lowered in a fraction of a second.
MOST = 6
#: Nodes lowered again in all for them: a graph of a hundred nodes takes a second or two.
_LOWERED_NODES = 400
#: Share of a graph's predicted time below which an estimated gain is not worth a try. The gate
#: takes no gain below one percent.
_LEAST_SHARE = 0.005
#: Choices about a whole graph, by how often they were the fastest in the benchmarks.
_GAINED: tuple[tuple[str, object], ...] = (
    ("two_step_variance", 1 << 30),
    ("inline_reads", 16),
    ("inline_ops", 8),
    ("inline_reads", 2),
    ("loop_ordering", False),
    ("fuse_across_tilings", True),
    ("cat_at_once", True),
)
#: Of so many looks one at least is at single values, if there are any to decide on.
_EVERY = 3


@dataclass(frozen=True)
class Alternative:
    """Another verdict on values that are alike, such as those of the layers of one model."""

    #: One for each value, in the order of the graph.
    choices: tuple[Choice, ...]
    #: What they might save together, by a rough estimate.
    gain_us: float

    @property
    def name(self) -> str:
        """What it is called among choices: the choice about the first of the values."""
        return self.choices[0].name


class Surveyed(Protocol):
    """A graph under some choices, as far as it matters here."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Choices other than Inductor's own."""
        ...

    @property
    def problem(self) -> Problem:
        """The graph as lowered."""
        ...

    @property
    def default_plan(self) -> Plan:
        """Inductor's plan under the choices."""
        ...

    @property
    def decisions(self) -> tuple[InliningDecision, ...]:
        """What was stored and what inlined."""
        ...

    @property
    def suited(self) -> frozenset[str]:
        """Nodes whose matrices lie as templates want them."""
        ...

    @property
    def best_us(self) -> float:
        """Predicted time of the best plan, in microseconds."""
        ...


_Surveyed = TypeVar("_Surveyed", bound=Surveyed)


def alternatives(first: Surveyed, profile: DeviceProfile) -> tuple[Alternative, ...]:
    """What might be worth deciding otherwise than ``first`` has it, the greatest gain first.

    Values that are computed alike for alike users are decided alike: stored or inlined, or reduced
    in one kernel. What is estimated to gain next to nothing is left out.
    """
    gain = InliningGain(first.problem, first.default_plan, first.decisions, profile)
    operators = {decision.node: decision.operator for decision in first.decisions}
    alike: dict[object, list[tuple[Choice, float]]] = defaultdict(list)
    for decision in first.decisions:
        us = gain.us(decision)
        verdict = decision.alternative
        if us <= 0.0 or verdict is None:
            continue
        alike[_likeness(decision, operators)].append((node_choice(decision.node, verdict), us))
    found = [
        Alternative(tuple(choice for choice, _ in members), sum(us for _, us in members))
        for members in alike.values()
    ]
    found += [
        Alternative(choices, us) for choices, us in uncut(first.problem, first.decisions, profile)
    ]
    worth = [a for a in found if a.gain_us > _LEAST_SHARE * first.best_us]
    most = max(1, min(MOST, _LOWERED_NODES // max(1, len(first.problem.nodes))))
    return tuple(sorted(worth, key=lambda a: (-a.gain_us, a.choices))[:most])


def multiplied(first: Surveyed, profile: DeviceProfile, *, timed: bool) -> tuple[Alternative, ...]:
    """Products that templates might compute, all together; empty where that cannot count.

    ``timed``: whether Inductor times both ways by itself: where no template is, it had lost.
    """
    if timed:
        return ()
    found = templated(first.problem, first.default_plan, profile, first.suited)
    if found is None or found[1] <= MARGIN * first.best_us:
        return ()
    return (Alternative(*found),)


def _likeness(decision: InliningDecision, operators: dict[str, str]) -> object:
    """What values have in common that one verdict suits all."""
    return (
        decision.operator,
        decision.rule,
        decision.ops,
        decision.reads,
        decision.bytes,
        decision.read_bytes,
        tuple(operators.get(node, "") for node in decision.inlined_into),
    )


def try_alternatives(
    first: _Surveyed,
    offered: Sequence[Alternative],
    look: Callable[[tuple[Choice, ...]], _Surveyed | None],
    most_together: int | None = None,
) -> list[_Surveyed]:
    """Each alternative by itself, then those that gain put together as long as that gains more.

    Args:
        first: the graph as Inductor lowers it.
        offered: what to try, in this order.
        look: surveys the graph under choices; None where they cannot be, change nothing, or where
            time is up.
        most_together: looks at what is put together, at most; None for as many as gained.

    Returns:
        What was looked at, in this order; of what was put together only what gains by it.
    """
    found: list[_Surveyed] = []
    gained: list[tuple[_Surveyed, Alternative]] = []
    for alternative in offered:
        other = look(together(first.choices, alternative.choices))
        if other is not None:
            found.append(other)
            if other.best_us < first.best_us:
                gained.append((other, alternative))
    # Stable, so that of equals the one that was estimated to gain more comes first.
    gained.sort(key=lambda pair: pair[0].best_us)
    standing = gained[0][0] if gained else first
    for _, alternative in gained[1:][:most_together]:
        other = look(together(standing.choices, alternative.choices))
        if other is not None and other.best_us < standing.best_us:
            found.append(other)
            standing = other
    return found


def few(
    whole: Sequence[tuple[Choice, ...]], offered: Sequence[Alternative], most: int
) -> tuple[list[tuple[Choice, ...]], list[Alternative]]:
    """The most promising of all that could be looked at, where a program waits for its compile.

    Args:
        whole: choices about the whole graph. No estimate tells them apart, so that those come first
            that gained most often where they were measured.
        offered: verdicts on single values, the greatest gain first.
        most: of both together.
    """
    ranked = sorted(whole, key=lambda choices: min(map(_rank, choices)))
    for_values = min(len(offered), max(most // _EVERY, most - len(ranked)))
    return ranked[: most - for_values], list(offered[:for_values])


def _rank(choice: Choice) -> int:
    known = (choice.name, choice.value)
    return _GAINED.index(known) if known in _GAINED else len(_GAINED)


def drawn(decisions: Sequence[InliningDecision], generator: random.Random) -> tuple[Choice, ...]:
    """Another verdict on some values, at random: on few of them, or on up to half of all."""
    share = generator.choice((0.1, 0.25, 0.5))
    possible = [(d.node, d.alternative) for d in decisions if d.alternative is not None]
    taken = {node: verdict for node, verdict in possible if generator.random() < share}
    if possible and not taken:
        taken = dict([generator.choice(possible)])
    return node_choices(taken)


def together(choices: Sequence[Choice], more: Sequence[Choice]) -> tuple[Choice, ...]:
    """Both, in an order that does not depend on which came first."""
    return tuple(sorted((*choices, *more)))
