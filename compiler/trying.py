"""Trying a graph under one set of choices after the other, each try learning from those before.

A try lowers the graph, searches plans by what the model predicts and the run has corrected, and
times the most promising of those that give new code. What is tried, and what comes of it in the
end, is decided elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from fusewise.compiler.choosing import settle
from fusewise.compiler.contest import announce, generate_distinct, hold
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.ruled import Lowered
from fusewise.compiler.survey import Predictor, Survey, survey
from fusewise.costmodel.feedback import Feedback, Measured, Parts, read, written
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.errors import FusewiseError, MeasureError, UnsupportedError
from fusewise.schedule.schedule import Candidate, Choice
from fusewise.search.beam import Budget
from fusewise.search.objective import Objective, acceptable, listed
from fusewise.search.peak import peak_bytes
from fusewise.search.shortlist import shortlist
from fusewise.search.study import Choices

#: Value of a choice that is left to Inductor.
INDUCTOR = "inductor"
#: Shortlisted for each that is to be measured: half of all decisions give code seen before.
_SPARE = 3
#: Programs measured before a prediction may end a try, and the standard deviations by which it has
#: to be sure.
_LEARNED, _SURE = 4, 3.0


@dataclass(frozen=True)
class Foreseen:
    """A measured candidate with what was predicted for it before; times over the default's."""

    schedule_id: str
    #: By the model alone, and as what the run had measured by then corrected it.
    predicted: float
    corrected: float
    measured: float


@dataclass(frozen=True)
class Subject:
    """The graph that is tried, and what it is held to."""

    graph: GraphCompile
    key: str
    job: GraphJob
    #: The graph under Inductor's own choices.
    first: Survey
    default: Candidate
    program: Program
    #: The user's rules with what they want of the lowering; None where there are none.
    lowered: Lowered | None


class Tries:
    """What was tried of one graph, and what was learned by it."""

    def __init__(
        self,
        subject: Subject,
        predictor: Predictor,
        *,
        offered: Mapping[str, tuple[Choice, ...]],
        objective: Objective,
        top_k: int,
        survey_s: float,
        contest_s: float,
        until: float,
    ) -> None:
        """Args:
        subject: the graph.
        predictor: times of kernels, before anything was measured.
        offered: choices about single parts of the graph, by the name that they go by together.
        objective: what is made small.
        top_k: candidates to measure in each try.
        survey_s: seconds for a search of plans.
        contest_s: seconds for a contest.
        until: moment of the monotonic clock after which a contest that failed is not held again.
        """
        self.subject = subject
        self._predictor = predictor
        self._offered = offered
        self._objective = objective
        self._top_k = top_k
        self._survey_s = survey_s
        self._contest_s = contest_s
        self._until = until
        self.feedback = Feedback(predictor.model)
        #: Microseconds of the default, to which all times are brought; set it to go on from times
        #: that were taken before.
        self.default_us: float | None = None
        #: The default as it was measured last; None until it was.
        self.own: Candidate | None = None
        #: What was timed, by its code, with times brought to the default's.
        self.timed: dict[str, Candidate] = {}
        self.foreseen: list[Foreseen] = []
        self.conditions: dict[str, float] = {}
        self.outcomes: list[GraphReport] = []
        self._sound: set[str] = set()
        #: Code of what was generated, by schedule; and by choices, what was timed under them.
        self._codes: dict[str, str] = {}
        self._under: dict[tuple[Choice, ...], dict[str, None]] = {}
        self._parts: dict[str, Parts] = {}
        self._lessons: list[Measured] = []
        #: Programs that were measured when choices were last tried.
        self._tried_at: dict[tuple[Choice, ...], int] = {}

    def __call__(self, choices: Choices) -> list[Candidate]:
        """Candidates under ``choices`` that are as accurate as the default, with measured times.

        Those that may take its place alone, where there are any. Where the choices give no code
        but its own, the default; where by prediction nothing under them can win, what is predicted
        best, not measured.

        Raises:
            FusewiseError: nothing is possible under the choices.
        """
        asked = self._asked(choices)
        self._tried_at[asked] = self.feedback.count
        found, costs = self._survey(asked)
        marks = tuple(f"{c.name}={c.value}" for c in found.candidates[0].schedule.codegen)
        beyond = self.feedback.beyond_us(marks)
        pool = [_moved(candidate, beyond) for candidate in found.candidates]
        parts = {
            c.schedule.id: Parts(*costs.parts(c.schedule.plan), marks)
            for c in pool
            if c.schedule.plan is not None
        }
        peaks = {
            c.schedule.id: peak_bytes(found.problem, c.schedule.plan)
            for c in pool
            if c.schedule.plan is not None
        }
        if self._hopeless(pool, parts):
            best = min(pool, key=lambda c: (c.predicted_us or 0.0, c.schedule.id))
            reason = "by prediction nothing under these choices can win"
            return [msgspec.structs.replace(best, reason=reason)]
        fresh = self._fresh(pool, peaks)
        under = self._under.setdefault(asked, {})
        if fresh or self.own is None:
            self._measure(fresh, parts)
        under.update((self._codes[c.schedule.id], None) for c in pool if self._known(c))
        timed = [self.timed[code] for code in under]
        accepted = [c for c in timed if c.accepted]
        sound = [c for c in timed if c.schedule.id in self._sound]
        assert self.own is not None
        return accepted or sound or ([] if timed else [self.own])

    def may_find_more(self, choices: Choices) -> bool:
        """Whether choices that were tried are worth another try with what was learned since."""
        at = self._tried_at.get(self._asked(choices))
        # Choices of an earlier sitting have not been looked at in this one.
        return at is None or self.feedback.count >= at + 2 * self._top_k

    def lessons(self) -> str:
        """What was learned since this was last asked, for :meth:`relearn`; "" for nothing."""
        fresh, self._lessons = self._lessons, []
        return written(fresh) if fresh else ""

    def relearn(self, lessons: Iterable[str]) -> None:
        """Take in what earlier sittings learned, from times brought to the same default's."""
        for text in lessons:
            for measured in read(text):
                self.feedback.observe(*measured)

    def contest(
        self, pairs: Sequence[tuple[Candidate, Program]], seconds: float, *, more: bool = True
    ) -> GraphReport:
        """Time candidates against the default in one interleaved run; the outcome.

        Raises:
            MeasureError: nothing could be timed.
        """
        subject = self.subject
        try:
            result = hold(
                subject.job,
                [(subject.default, subject.program), *pairs],
                seconds,
                memory=self._objective != "time",
                more=more,
            )
        except MeasureError:
            # A process that died has forgotten the graph.
            announce(subject.job)
            raise
        outcome = GraphReport(subject.graph.kind, "measure", key=subject.key)
        gate = settle(outcome, [subject.default, *(candidate for candidate, _ in pairs)], result)
        self.conditions = result.conditions
        own = outcome.candidates[0]
        assert own.measured_us is not None
        if self.default_us is None:
            self.default_us = own.measured_us
        # Drift from one contest to the next hits the default alike.
        scale = self.default_us / own.measured_us
        self.own = msgspec.structs.replace(own, measured_us=self.default_us)
        for i, (_, program) in enumerate(pairs, 1):
            candidate, sound = outcome.candidates[i], gate.rulings[i].sound
            may = acceptable(candidate, own, self._objective, sound=sound)
            candidate = msgspec.structs.replace(candidate, accepted=may)
            outcome.candidates[i] = candidate
            if sound:
                self._sound.add(candidate.schedule.id)
            us = None if candidate.measured_us is None else candidate.measured_us * scale
            self.timed[program.code_hash] = msgspec.structs.replace(candidate, measured_us=us)
            self._codes[candidate.schedule.id] = program.code_hash
        return outcome

    def _asked(self, choices: Choices) -> tuple[Choice, ...]:
        return tuple(
            choice
            for name, value in choices.items()
            if value != INDUCTOR
            for choice in self._offered.get(name, (Choice(name, value),))
        )

    def _survey(self, asked: tuple[Choice, ...]) -> tuple[Survey, PlanCost]:
        subject = self.subject
        predictor = replace(self._predictor, model=self.feedback.corrected())
        if not asked and not self.feedback.count:
            return subject.first, predictor.plans(subject.first.problem)
        try:
            found = survey(
                subject.graph,
                predictor,
                key=subject.key,
                kind=subject.graph.kind,
                choices=asked,
                budget=Budget(seconds=self._survey_s),
                lowered=subject.lowered,
            )
        except FusewiseError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"Inductor fails: {type(error).__name__}: {error}",
                subject=", ".join(f"{choice.name}={choice.value}" for choice in asked),
                remedy="the other choices are tried",
            ) from error
        return found, predictor.plans(found.problem)

    def _hopeless(self, pool: Sequence[Candidate], parts: Mapping[str, Parts]) -> bool:
        """Whether the run has taught enough to be sure that none of ``pool`` is the fastest."""
        if self._objective != "time" or self.own is None or self.feedback.count < _LEARNED:
            return False
        standing = min(
            (c for c in (self.own, *self.timed.values()) if c.baseline or c.accepted),
            key=lambda c: c.measured_us or 0.0,
        )
        held_to = self._parts.get(standing.schedule.id)
        if held_to is None or len(parts) < len(pool):
            return False
        for one in parts.values():
            mean, deviation = self.feedback.difference(one, held_to)
            if mean - _SURE * deviation <= 0:
                return False
        return True

    def _fresh(
        self, pool: Sequence[Candidate], peaks: Mapping[str, int]
    ) -> list[tuple[Candidate, Program]]:
        """The most promising of ``pool`` that give code not timed before."""
        subject, most = self.subject, self._top_k
        by_time = shortlist(subject.default, pool, 1 + most * _SPARE)[1:]
        others = [c for c in pool if c.schedule != subject.default.schedule]
        found: dict[str, tuple[Candidate, Program]] = {}
        tried = 0
        for candidate in listed(others, peaks, by_time, self._objective):
            if len(found) == most or tried == most * _SPARE:
                break
            if candidate.schedule.id in self._codes:
                continue
            tried += 1
            kept, _ = generate_distinct(subject.graph, subject.program, [candidate], 1)
            code = kept[0][1].code_hash if kept else subject.program.code_hash
            self._codes[candidate.schedule.id] = code
            if kept and code not in self.timed:
                found.setdefault(code, kept[0])
        return list(found.values())

    def _known(self, candidate: Candidate) -> bool:
        return self._codes.get(candidate.schedule.id) in self.timed

    def _measure(
        self, pairs: Sequence[tuple[Candidate, Program]], parts: Mapping[str, Parts]
    ) -> None:
        """Time candidates, and learn from what comes of it."""
        try:
            outcomes = [self.contest(pairs, self._contest_s)]
        except MeasureError as error:
            outcomes = self._one_by_one(pairs, error)
        for outcome in outcomes:
            # What was timed stays, whatever comes of the search; a try decides nothing.
            outcome.chosen = None
            self.outcomes.append(outcome)
        assert self.own is not None and self.default_us is not None
        subject = self.subject
        default_id = subject.default.schedule.id
        if default_id not in self._parts:
            plan = subject.default.schedule.plan
            assert plan is not None
            rows, rest = self._predictor.plans(subject.first.problem).parts(plan)
            self._learn(default_id, Measured(Parts(rows, rest), self.default_us, _noise(self.own)))
        default = self._parts[default_id]
        plain = self.feedback.plain_us(default)
        learned: list[tuple[str, Measured]] = []
        for candidate, program in pairs:
            timed = self.timed.get(program.code_hash)
            one = parts.get(candidate.schedule.id)
            if timed is None or timed.measured_us is None or one is None:
                continue
            mean, _ = self.feedback.difference(one, default)
            self.foreseen.append(
                Foreseen(
                    schedule_id=candidate.schedule.id,
                    predicted=self.feedback.plain_us(one) / plain if plain else 1.0,
                    corrected=max(0.0, 1 + mean / self.default_us),
                    measured=timed.measured_us / self.default_us,
                )
            )
            known = Measured(one, timed.measured_us, _noise(timed))
            learned.append((candidate.schedule.id, known))
        for schedule_id, known in learned:
            self._learn(schedule_id, known)

    def _learn(self, schedule_id: str, measured: Measured) -> None:
        self._parts[schedule_id] = measured.parts
        self._lessons.append(measured)
        self.feedback.observe(*measured)

    def _one_by_one(
        self, pairs: Sequence[tuple[Candidate, Program]], error: MeasureError
    ) -> list[GraphReport]:
        """Contests of one candidate each, after one in which some candidate broke the process."""
        outcomes = []
        if len(pairs) > 1:
            for pair in pairs:
                if time.monotonic() > self._until:
                    break
                try:
                    outcomes.append(self.contest([pair], self._contest_s / len(pairs)))
                except MeasureError as again:
                    error = again
        if not outcomes:
            raise error
        return outcomes


def _noise(candidate: Candidate) -> float:
    """Relative standard deviation of a measured median.

    Half the interquartile range is 0.674 standard deviations of a normal distribution, and a median
    of n has 1.253 times the standard deviation of a mean of n.
    """
    return 1.253 * (candidate.spread or 0.0) / 0.674 / math.sqrt(max(1, candidate.rounds))


def _moved(candidate: Candidate, us: float) -> Candidate:
    """A candidate whose predicted time is later by ``us``."""
    if candidate.predicted_us is None:
        return candidate
    low, high = candidate.predicted_low_us, candidate.predicted_high_us
    return msgspec.structs.replace(
        candidate,
        predicted_us=max(0.0, candidate.predicted_us + us),
        predicted_low_us=None if low is None else max(0.0, low + us),
        predicted_high_us=None if high is None else max(0.0, high + us),
    )
