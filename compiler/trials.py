"""The study of one graph: trials under lowering and codegen choices, then a last contest.

Works where Inductor compiles the graph, on what AOTAutograd handed over. Knows nothing of the
program that the graph is part of, and of files only the store that its measurements go to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from fusewise.compiler.alternatives import Alternative, alternatives
from fusewise.compiler.choosing import compile_default, settle
from fusewise.compiler.contest import announce, generate_distinct, graph_job, hold
from fusewise.compiler.inductor.choices import CHOICES
from fusewise.compiler.inductor.driver import GraphCompile, Program
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.memory import recall, remember
from fusewise.compiler.plan_files import planned_graph
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.ruled import Lowered, lower_by_rules
from fusewise.compiler.session import Session, device_of, unmeasurable
from fusewise.compiler.survey import Survey, default_candidate, survey
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.rows import CandidateSummary, DecisionRow
from fusewise.schedule.errors import FusewiseError, MeasureError, UnsupportedError
from fusewise.schedule.plan_file import PlannedGraph
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Candidate, Choice
from fusewise.search.beam import Budget
from fusewise.search.shortlist import shortlist
from fusewise.search.study import (
    Choices,
    ChoiceSpace,
    ChoiceValue,
    StudyResult,
    Trial,
    run_study,
)

#: Value of a choice that is left to Inductor.
_INDUCTOR = "inductor"
#: Shortlisted for each that is to be measured: half of all decisions give code seen before.
_SPARE = 3
#: Of a graph's time, what is kept back for the last contest.
_LAST_SHARE = 0.2
#: Seconds that one contest may be given, code generation left out.
_CONTEST_S = (4.0, 80.0)


@dataclass(frozen=True)
class Effort:
    """How long and where to search."""

    store: Path
    #: Name or path of the cost model; None for the newest one that fits the device.
    model: str | None = None
    #: Trials of each graph, earlier sittings included.
    trials: int = 20
    #: Candidates to measure in each trial, and in the last contest.
    top_k: int = 4
    #: Seconds for all graphs together.
    budget_s: float = 600.0
    #: Under which the studies are kept beside the store, to go on with later; None keeps nothing.
    name: str | None = None
    seed: int = 0
    #: Rules of the user's, which hold in every candidate.
    rules: RuleSet | None = None


@dataclass(frozen=True)
class SearchedGraph:
    """What was found for one graph."""

    #: Its candidates are those of the last contest, Inductor's own first.
    report: GraphReport
    #: The graph as a plan file has it.
    planned: PlannedGraph
    #: Trials in all, those of earlier sittings included, and those that failed.
    trials: int
    failed: int
    #: Candidates that were timed in this sitting, Inductor's own left out.
    measured: int


def choice_space(device_type: str, offered: Sequence[Alternative] = ()) -> ChoiceSpace:
    """All choices that apply to a kind of device, Inductor's own value of each by default.

    ``offered`` are verdicts on single values of the graph, each taken for all its values or none.
    """
    values: dict[str, tuple[ChoiceValue, ...]] = {
        kind.name: (_INDUCTOR, *kind.values) for kind in CHOICES if device_type in kind.devices
    }
    values |= {alike.name: (_INDUCTOR, alike.choices[0].value) for alike in offered}
    return ChoiceSpace(values=values, default=dict.fromkeys(values, _INDUCTOR))


class GraphSearch:
    """The study of one graph."""

    def __init__(
        self,
        session: Session,
        graph: GraphCompile,
        sample: GraphSample,
        effort: Effort,
        seconds: float,
    ) -> None:
        self._session = session
        self._graph = graph
        self._sample = sample
        self._effort = effort
        self._seconds = seconds
        device = device_of(graph.gm, graph.example_inputs)
        self._report = GraphReport(
            graph.kind, "measure", device=str(device), store=str(effort.store)
        )
        # Its start takes seconds, which pass while the graph is looked at.
        measuring_process(self._report.device)
        self._predictor = session.predictor(device)
        model, profile = self._predictor.model, self._predictor.profile
        with graph.settings(None):
            self.key = graph_key(
                graph.gm, graph.example_inputs, graph.kwargs, profile.key, model.id, effort.rules
            )
        self._report.key, self._report.model = self.key.key, model.name
        self._study = StudyResult((), 0, False)
        self._conditions: dict[str, float] = {}
        #: The user's rules with what they want of the lowering; None where there are none.
        self._lowered: Lowered | None = None
        #: What an earlier search or compile chose for the graph.
        self._known = recall(session.store, self.key.key, profile.key, "measure")
        #: What was timed, by its code, with times brought to the default's in the first contest.
        self._timed: dict[str, Candidate] = {}
        self.default_us: float | None = None
        self.interrupted = False

    @property
    def measured(self) -> int:
        """Candidates that were timed."""
        return len(self._timed)

    @property
    def best_us(self) -> float | None:
        """The least time of what was accepted, or the default's."""
        accepted = self._accepted()
        return accepted[0].measured_us if accepted else self.default_us

    def run(self, on_trial: Callable[[Trial], None], *, tried: bool) -> Any:
        """Search, or where not ``tried`` take Inductor's own; gives the graph compiled by that."""
        report = self._report
        with report.phase("survey"):
            if self._effort.rules is not None:
                self._lowered = lower_by_rules(self._graph, self._effort.rules)
            self._first = self._survey(())
        report.rules = self._first.rules
        report.nodes = len(self._first.problem.nodes)
        self._default = default_candidate([self._first])
        output, self._program = compile_default(self._graph, report, self._default)
        reason = unmeasurable(self._graph, self._session) if tried else "the search was ended"
        try:
            if reason is None:
                self._announce()
                with report.phase("trials"):
                    self._try(on_trial)
                with report.phase("last contest"):
                    self._decide()
        except MeasureError as error:
            reason = str(error)
        except KeyboardInterrupt:
            self.interrupted = True
        if report.chosen is None:
            # Each was faster in a contest of its own, and a user who interrupts does not wait for
            # another.
            accepted = self._accepted() if self.interrupted else []
            self._take(accepted[0] if accepted else None, reason or "no other one was accepted")
        report.fallback = None if reason is None else f"not measured: {reason}"
        return output

    def result(self) -> SearchedGraph:
        """What was found; call it where the graph is being compiled."""
        trials = self._study.trials
        return SearchedGraph(
            report=self._report,
            planned=self._planned(),
            trials=len(trials),
            failed=sum(trial.candidate is None for trial in trials),
            measured=self.measured,
        )

    def _planned(self) -> PlannedGraph:
        report = self._report
        chosen, default = report.chosen, report.default
        assert chosen is not None
        return planned_graph(
            self._graph,
            self.key,
            chosen.schedule,
            self._predictor,
            device=report.device,
            measured_us=chosen.measured_us,
            default_us=default.measured_us if default is not None else None,
        )

    def _survey(self, choices: tuple[Choice, ...]) -> Survey:
        return survey(
            self._graph,
            self._predictor,
            key=self.key.key,
            kind=self._graph.kind,
            choices=choices,
            budget=Budget(seconds=max(1.0, self._seconds / 10)),
            lowered=self._lowered,
        )

    def _announce(self) -> None:
        graph, session = self._graph, self._session
        self._job = graph_job(
            graph,
            key=self.key.key,
            device=self._report.device,
            observed=session.observed,
            forward_key=session.forward_key,
        )
        announce(self._job)
        if graph.kind == "forward":
            session.forward_key = self.key.key

    def _try(self, on_trial: Callable[[Trial], None]) -> None:
        effort = self._effort
        offered = alternatives(self._first, self._predictor.profile)
        self._offered = {alike.name: alike.choices for alike in offered}
        space = choice_space(torch.device(self._report.device).type, offered)
        storage = f"sqlite:///{effort.store.parent / 'studies.db'}" if effort.name else None
        self._study = run_study(
            space,
            self._evaluate,
            name=f"{effort.name or 'search'} {self._graph.kind} {self.key.key}",
            storage=storage,
            n_trials=effort.trials,
            seconds=self._seconds * (1 - _LAST_SHARE),
            seed=effort.seed,
            first=[{**space.default, a.name: a.choices[0].value} for a in offered],
            on_trial=on_trial,
        )
        self.interrupted = self._study.interrupted

    def _evaluate(self, choices: Choices) -> list[Candidate]:
        """The default and the accepted candidates under ``choices``, with measured times."""
        asked = tuple(
            choice
            for name, value in choices.items()
            if value != _INDUCTOR
            for choice in self._offered.get(name, (Choice(name, value),))
        )
        try:
            found = self._survey(asked) if asked else self._first
        except FusewiseError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"Inductor fails: {type(error).__name__}: {error}",
                subject=", ".join(f"{choice.name}={choice.value}" for choice in asked),
                remedy="the other choices are tried",
            ) from error
        top_k = self._effort.top_k
        listed = shortlist(self._default, found.candidates, 1 + top_k * _SPARE)
        kept, _ = generate_distinct(self._graph, self._program, listed[1:], top_k)
        fresh = [pair for pair in kept if pair[1].code_hash not in self._timed]
        if fresh:
            low, high = _CONTEST_S
            share = self._seconds * (1 - _LAST_SHARE) / self._effort.trials
            outcome = self._contest(fresh, min(max(share, low), high))
            # What was timed stays, whatever comes of the search; a trial decides nothing.
            outcome.chosen = None
            self._remember(outcome)
        if self.default_us is None:
            raise MeasureError(
                "no candidate gives other code than Inductor's own",
                subject="trial",
                remedy="other choices are tried",
            )
        own = msgspec.structs.replace(
            self._default, measured_us=self.default_us, status="measured", accepted=True
        )
        timed = [self._timed[program.code_hash] for _, program in kept]
        return [own, *(candidate for candidate in timed if candidate.accepted)]

    def _contest(self, pairs: Sequence[tuple[Candidate, Program]], seconds: float) -> GraphReport:
        """Time candidates against the default in one interleaved run; the outcome."""
        try:
            result = hold(self._job, [(self._default, self._program), *pairs], seconds)
        except MeasureError:
            # A process that died has forgotten the graph.
            announce(self._job)
            raise
        outcome = GraphReport(self._graph.kind, "measure", key=self.key.key)
        settle(outcome, [self._default, *(candidate for candidate, _ in pairs)], result)
        self._conditions = result.conditions
        own, *others = outcome.candidates
        assert own.measured_us is not None
        if self.default_us is None:
            self.default_us = own.measured_us
        # Drift from one contest to the next hits the default alike.
        scale = self.default_us / own.measured_us
        for candidate, (_, program) in zip(others, pairs, strict=True):
            us = None if candidate.measured_us is None else candidate.measured_us * scale
            self._timed[program.code_hash] = msgspec.structs.replace(candidate, measured_us=us)
        return outcome

    def _accepted(self) -> list[Candidate]:
        """Accepted candidates of this sitting and of earlier ones, the fastest first."""
        tried = [trial.candidate for trial in self._study.trials if trial.candidate is not None]
        known = [] if self._known is None else [self._known.chosen]
        every = [*self._timed.values(), *tried, *known]
        accepted = {
            c.schedule: c
            for c in reversed(every)
            if c.accepted and not c.baseline and c.measured_us is not None
        }
        return sorted(accepted.values(), key=lambda c: (c.measured_us, c.schedule.id))

    def _decide(self) -> None:
        """Time the best of all trials once more, in one run, and take the winner."""
        accepted = self._accepted()
        if not accepted:
            return
        if self.interrupted:
            # Each was faster in a contest of its own, and the user waits.
            self._take(accepted[0], "")
            return
        pairs, dropped = generate_distinct(self._graph, self._program, accepted, self._effort.top_k)
        if not pairs:
            return
        low, high = _CONTEST_S
        # A quarter of what a contest is given goes into timing: see contest.hold.
        outcome = self._contest(pairs, min(max(4 * self._seconds * _LAST_SHARE, low), high))
        report = self._report
        report.candidates = [*outcome.candidates, *dropped]
        report.chosen, report.source = outcome.chosen, "measured"
        self._remember(report)

    def _take(self, best: Candidate | None, reason: str) -> None:
        """Choose without a last contest: ``best``, or for None what is known, or the default."""
        report = self._report
        if self.default_us is None and self._known is not None:
            report.candidates, report.chosen = self._known.candidates, self._known.chosen
            report.source = "store"
            return
        own = msgspec.structs.replace(
            self._default,
            measured_us=self.default_us,
            status="predicted" if self.default_us is None else "measured",
            accepted=best is None,
            reason=reason if best is None else "",
        )
        others = [c for c in self._timed.values() if best is None or c.schedule != best.schedule]
        report.candidates = [own, *([] if best is None else [best]), *others]
        report.chosen = own if best is None else best
        if self.default_us is None:
            # Nothing was found out that would be worth keeping.
            report.source = "inductor"
            return
        # All times are in the store already; only what was made of them is not.
        report.source = "measured"
        self._session.store.append(
            DecisionRow(
                graph_key=report.key,
                device_key=self._predictor.profile.key,
                mode=report.mode,
                model_id=self._predictor.model.id,
                schedule_id=report.chosen.schedule.id,
                candidates=tuple(CandidateSummary.of(c) for c in report.candidates),
            )
        )

    def _remember(self, report: GraphReport) -> None:
        remember(
            self._session.store,
            report,
            parts=dict(self.key.parts),
            surveys=[self._first],
            profile=self._predictor.profile,
            model_id=self._predictor.model.id,
            conditions=self._conditions,
            family=self._sample.family,
            source=self._sample.name,
        )
