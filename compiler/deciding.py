"""Choosing by a contest on the device, within what it may cost.

Inductor's own schedule is there from the start, and everything else is tried in the order of what
it promises for as long as it fits (see ``spending``); what does not fit is not begun, and the
report says so. Predicts nothing and judges nothing itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from fusewise.compiler.asking import Asked, worth_timing
from fusewise.compiler.building import BUILD_AT_LEAST, Building, compile_in_pool
from fusewise.compiler.choosing import settle
from fusewise.compiler.contest import Generating, announce, generate_while, hold
from fusewise.compiler.finishing import (
    PRODUCTS_S,
    SECOND_S,
    finish,
    first_offers,
    left_to_try,
    let_go,
    may_finish,
    products_count,
    with_sums,
)
from fusewise.compiler.foreseen import Foreseen
from fusewise.compiler.inductor.blocks_ahead import compiling_s, timing_s
from fusewise.compiler.inductor.compiling_ahead import Ahead
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Applier, Program
from fusewise.compiler.inductor.kernel_codes import kernel_codes
from fusewise.compiler.inductor.triton_ahead import await_pool
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.notices import warn_once
from fusewise.compiler.options import Options
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.spending import GraphSpending
from fusewise.compiler.survey import Predictor, Survey, default_candidate
from fusewise.compiler.tuned_after import tune_after
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate
from fusewise.search.gate import MARGIN
from fusewise.search.offers import Offer
from fusewise.search.shortlist import shortlist

#: Of a budget in seconds, what goes into timing at most where a program waits for its compile.
_TIMING_SHARE = 1 / 12
#: Of what is left without one, what goes into timing, and seconds of it at the least and the most.
_TIMED_OF_LEFT, _LEAST_TIMING_S, _MOST_TIMING_S = 0.3, 0.3, 3.0
#: Shortlisted for each that is to be measured: half of all decisions give code seen before.
_SPARE = 3
#: Seconds for loading a candidate and running it for the first time.
_LOAD_S = 0.15
#: Part of a graph's time that products with a vector promise where they are sums instead.
_PRODUCTS_PROMISE = 0.2
#: Times that it takes Inductor to build its own kernels up to which it pays to compile a candidate
#: to the end while others' are built: one that wins half of the time.
_HOPED_S = 1.2
#: Seconds for which a measuring process that starts is waited for in any case.
_MOMENT_S = 0.5
#: A program that is generated in so many seconds is while compilers are at work on another one.
_SOON_S = 2.0

log = logging.getLogger(__name__)
_Entry = tuple[Candidate, Program]


@dataclass
class Contest:
    """Everything that one graph's contest rests on."""

    report: GraphReport
    surveys: Sequence[Survey]
    graph: GraphCompile
    job: GraphJob
    options: Options
    predictor: Predictor
    #: Inductor's own program, and its kernels on their way.
    program: Program
    building: Building | None
    purse: GraphSpending
    #: What was compiled while kernels were built, in the hope that it wins; None where nothing was.
    ahead: Ahead | None = field(default=None, init=False)
    _own_kernels_s: float | None = field(default=None, init=False)
    #: Whether products with a vector are sums in one of the candidates.
    _summed: bool = field(default=False, init=False)

    def run(self) -> dict[str, float]:
        """Time the best candidates against Inductor's own; takes the fastest that is as accurate.

        The outcome goes into the report.

        Returns:
            The conditions under which the times were taken; empty where none were.
        """
        report = self.report
        default = default_candidate(self.surveys)
        with report.phase("generate"):
            asked = self._asked(default)
            if self.purse.given and asked.candidates:
                self._announce()
            made = generate_while(
                self.graph, self.program, asked.candidates, self.options.top_k, self._generating()
            )
            self._await_own_kernels()
            kept = self._affordable(made.kept)
        dropped = [*made.dropped]
        self._tell_unbegun(made.left)
        if not self._has_rivals(kept) or not self._process_ready():
            return self._untimed(default, [*(c for c, _ in kept), *dropped])
        started = time.monotonic()
        entries = [(default, self.program), *kept]
        try:
            with report.phase("measure"):
                result = hold(
                    self.job,
                    entries,
                    self._waiting_s(),
                    more=self._more(),
                    timing_s=self._timing_s(),
                    race=not self.purse.given,
                    meanwhile=self._hoping(asked.favourite([candidate for candidate, _ in kept])),
                )
            settle(report, [candidate for candidate, _ in entries], result)
        except MeasureError as error:
            warn_once(str(error))
            report.fallback = f"not measured: {error}"
            report.candidates = [_default(default, "nothing was measured"), *(c for c, _ in kept)]
            report.chosen = report.candidates[0]
            report.source = "inductor"
            return {}
        report.seconds |= {f"measure.{name}": value for name, value in result.seconds.items()}
        report.candidates += dropped
        again = self._again(entries, time.monotonic() - started)
        if not self.purse.given:
            self._foreseen.take([*(candidate for candidate, _ in entries), *dropped])
            tune_after(report, self.surveys, self.predictor)
        return again or result.conditions

    def _asked(self, default: Candidate) -> Asked:
        """What is worth timing; what it promises decides what it may cost."""
        every = [c for s in self.surveys for c in s.candidates]
        listed = shortlist(default, every, 1 + self.options.top_k * _SPARE)[1:]
        if self.purse.given:
            return Asked(tuple(listed), 0.0, 0, {})
        foreseen = self._foreseen
        asked = worth_timing(
            default, listed, self.surveys, self.predictor, self._offers, foreseen.share
        )
        sums = self._sums()
        if sums is not None:
            # No prediction tells what they save, and most of what is promised is theirs.
            asked = asked.beginning_with(sums)
        if not foreseen.sure:
            # What would be taken without a contest is not to be lost by one. What makes nothing
            # slower goes with what is timed, and is taken where nothing of that wins.
            asked = asked.beginning_with(foreseen.chosen)
            self.purse.due = foreseen.contested
        if asked.hopeless:
            self.report.untried.append(
                f"{asked.hopeless} plans that could not gain {MARGIN:.0%} if all "
                "predictions were off by as much as they may be"
            )
        return asked

    def _has_rivals(self, kept: Sequence[_Entry]) -> bool:
        """Whether any of these has to be timed: what makes nothing slower has not."""
        known = None
        if self._foreseen.sure and not self.purse.given:
            known = self._foreseen.chosen.schedule
        return any(candidate.schedule != known for candidate, _ in kept)

    def _sums(self) -> Candidate | None:
        """The graph with products with a vector as sums; None where that cannot count or fit."""
        if not self._products_fit():
            return None
        descents = self._descents()
        made = with_sums(self.predictor, self.graph, self.job.graph_id, (), descents)
        if made is None:
            return None
        self.surveys = [*self.surveys, made[0]]
        self._summed = True
        return made[1]

    def _descents(self) -> int:
        """How many kernels there is time to tune step by step."""
        return int(self.purse.left() / compiling_s())

    def _offers(self, candidate: Candidate, promise: float) -> list[Offer]:
        # How many kernels are tuned step by step is a matter of time.
        sums = products_count(self.surveys, self.predictor, self.graph)
        self.purse.promise = max(promise, _PRODUCTS_PROMISE if sums else 0.0)
        return first_offers(self.surveys, self.predictor, candidate.schedule, self._descents())

    def _generating(self) -> Generating | None:
        if self.purse.given:
            return None
        building = self.building
        due = self.purse.due

        def may() -> bool:
            nonlocal due
            if due:
                due = False
                return True
            needed = self.purse.again_s / 2 + _LOAD_S + _LEAST_TIMING_S
            under_way = building is not None and not building.done
            # There is nothing else to do here while compilers are at work on the own kernels.
            if under_way and (self.purse.again_s < _SOON_S or self.purse.fits(needed)):
                return True
            self._await_own_kernels()
            # Kernels of another one, if it has any, take their time once it is generated.
            return self.purse.fits(needed + (self._own_kernels_s or 0.0) * BUILD_AT_LEAST)

        def made(program: Program) -> None:
            # Before there is one, nothing might be measured at all.
            self._announce()
            compile_in_pool(program, self.purse.kind)

        return Generating(may, self.options.top_k if self.graph.copies_help else 1, made)

    def _announce(self) -> None:
        """Tell the measuring process of the graph, if that was not done before."""
        try:
            if measuring_process(self.job.device).graph_id != self.job.graph_id:
                announce(self.job)
        except MeasureError as error:
            # The contest starts another one, or tells why it cannot.
            log.debug("the measuring process: %s", error)

    def _hoping(self, favourite: Candidate) -> Callable[[Callable[[], object]], None] | None:
        """What compiles the favourite to the end while candidates' kernels are built.

        It then need not be lowered once more if it wins. On a GPU a kernel that is loaded before it
        is measured would find its block sizes anew.
        """
        if self.purse.kind != "cpu" or self.purse.again_s > _HOPED_S * (self._own_kernels_s or 0.0):
            return None
        schedule = favourite.schedule

        def compile_favourite(built: Callable[[], object]) -> None:
            try:
                with self.report.phase("compile"):
                    applier = Applier(schedule.plan, built)
                    self.ahead = self.graph.compile_ahead(schedule, applier)
            except Exception:
                # If it is wanted it is compiled where that is told.
                log.debug("not compiled ahead: %s", schedule.id, exc_info=True)

        return compile_favourite

    def _await_own_kernels(self) -> None:
        if self._own_kernels_s is None:
            self._own_kernels_s = 0.0
            if self.building is not None:
                self._own_kernels_s = self.building.wait()
                self.purse.own(self.building.alone_s(self._own_kernels_s))

    def _affordable(self, made: Sequence[_Entry]) -> list[_Entry]:
        """Those of the candidates whose kernels can be built, loaded and timed in what is left."""
        if self.purse.given:
            return list(made)
        own = kernel_codes(self.program.source)
        each = (self._own_kernels_s or 0.0) * (1 - BUILD_AT_LEAST) / max(1, len(own))
        first = (self._own_kernels_s or 0.0) * BUILD_AT_LEAST
        if self.purse.kind != "cpu":
            # They have been on their way since their code was there.
            first = 0.0
        known, kept, late = set(own), [], 0
        seconds = _LOAD_S + _LEAST_TIMING_S
        for candidate, program in made:
            new = kernel_codes(program.source) - known
            # Their block sizes are being compiled by now.
            needed = seconds + _LOAD_S + timing_s(new) + each * len(new)
            if new and known == own:
                needed += first
            due = self.purse.due and candidate.schedule == self._foreseen.chosen.schedule
            if not (due or self.purse.fits(needed)):
                late += 1
                continue
            seconds = needed
            known |= new
            kept.append((candidate, program))
        if late:
            self.report.untried.append(f"{late} candidates whose kernels would have taken too long")
        return kept

    def _tell_unbegun(self, left: Sequence[Candidate]) -> None:
        if left and not self.purse.given and self.purse.left() < self.purse.again_s + 1.0:
            self.report.untried.append(f"{len(left)} candidates that there was no time to generate")

    def _process_ready(self) -> bool:
        if self.purse.given:
            return True
        process = measuring_process(self.job.device)
        if process.graph_id != self.job.graph_id:
            return True
        starts = not process.answered
        waits = not starts or self.purse.awaits_start
        starting_s = self.purse.starting_s if starts else 0.0
        try:
            with self.purse.waiting() if starts else nullcontext():
                ready = process.ready(self.purse.left() + starting_s if waits else _MOMENT_S)
        except MeasureError:
            # The contest starts another one, or tells why it cannot.
            return True
        if ready and self.purse.kind != "cpu":
            # Kernels that no pool compiles are compiled one after the other where they are timed.
            with self.purse.waiting():
                await_pool(self.purse.starting_s)
        if not ready:
            if process.unproven:
                # A copy of this process that hangs would be asked in vain for ever.
                process.kill()
            reason = "the measuring process was not ready in the time there was"
            if waits:
                self.report.fallback = f"not measured: {reason}"
            else:
                reason = "the measuring process was still starting, and too little is promised"
            self.report.untried.append(reason)
        return ready

    def _untimed(self, default: Candidate, others: Sequence[Candidate]) -> dict[str, float]:
        """No contest: Inductor's own stands, unless the second one is the only one."""
        report, purse = self.report, self.purse
        none = "no other candidate gives other code"
        if report.untried:
            none = f"nothing else was timed: {'; '.join(report.untried)}"
        report.candidates = [_default(default, none), *others]
        report.chosen = report.candidates[0]
        report.source = "predicted"
        conditions: dict[str, float] = {}
        if purse.given or self._products_fit():
            conditions = self._finish([(default, self.program)])
        else:
            let_go(self.job)
        if not purse.given:
            self._foreseen.take(())
        return conditions

    @cached_property
    def _foreseen(self) -> Foreseen:
        return Foreseen(self.report, self.surveys, self.predictor)

    def _again(self, entries: Sequence[_Entry], first_s: float) -> dict[str, float]:
        """The second contest, where there may be one and it pays."""
        report, purse = self.report, self.purse
        chosen = report.chosen
        assert chosen is not None
        if not purse.given:
            left = left_to_try(report, self.surveys, self.predictor, max(purse.left(), SECOND_S))
            # On a CPU what could be tried on the default and on the best was in the first one.
            counts = purse.kind != "cpu" or chosen.origin not in ("default", "finish")
            open_still = (counts and bool(left)) or self._products_fit()
            if not open_still or not purse.fits(max(first_s, SECOND_S)):
                if open_still and self._more():
                    report.untried.append("choices about single kernels of what was chosen")
                let_go(self.job)
                return {}
        return self._finish(entries)

    def _finish(self, entries: Sequence[_Entry]) -> dict[str, float]:
        """Try choices about single kernels of what was chosen, in what is left."""
        return finish(
            self.report,
            entries,
            self.surveys,
            self.predictor,
            self.graph,
            self.job,
            self.purse.left(),
        )

    def _products_fit(self) -> bool:
        return (
            not self._summed
            and self.purse.fits(PRODUCTS_S)
            and products_count(self.surveys, self.predictor, self.graph)
        )

    def _more(self) -> bool:
        return (self.purse.given or self.purse.fits(SECOND_S)) and may_finish(
            self.surveys, self.predictor, self.graph
        )

    def _waiting_s(self) -> float:
        given_s = self.purse.program.given_s
        return self.purse.left() if given_s is None else given_s

    def _timing_s(self) -> float:
        given_s = self.purse.program.given_s
        if given_s is not None:
            return min(max(given_s * _TIMING_SHARE, 1.0), 20.0)
        return min(max(self.purse.left() * _TIMED_OF_LEFT, _LEAST_TIMING_S), _MOST_TIMING_S)


def _default(default: Candidate, reason: str) -> Candidate:
    return msgspec.structs.replace(default, accepted=True, reason=reason)
