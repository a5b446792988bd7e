"""The study of one graph: trials under lowering and codegen choices, then a last contest.

Works where Inductor compiles the graph, on what AOTAutograd handed over. Knows nothing of the
program that the graph is part of, and of files only the store that its measurements go to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from fusewise.compiler.alternatives import alternatives, multiplied
from fusewise.compiler.choosing import compile_default
from fusewise.compiler.contest import announce, generate_distinct, graph_job
from fusewise.compiler.finishing_search import finish_search
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.looking import survey_all
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.memory import recall, remember
from fusewise.compiler.offering import choice_space, worth_trying
from fusewise.compiler.plan_files import planned_graph
from fusewise.compiler.predicting import choose_predicted
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.ruled import Lowered, lower_by_rules
from fusewise.compiler.searched import Effort, FrontPoint, SearchedGraph
from fusewise.compiler.session import Session, device_of, unmeasurable
from fusewise.compiler.survey import Survey, default_candidate
from fusewise.compiler.trying import Subject, Tries
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.rows import CandidateSummary, DecisionRow
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan_file import PlannedGraph
from fusewise.schedule.schedule import Candidate
from fusewise.search.objective import figures, front, picked
from fusewise.search.study import Study, Trial

#: Of a graph's time, what is kept back for the last contest, and what the first look may take.
_LAST_SHARE, _LOOK_SHARE = 0.2, 0.15
#: And for choices about single kernels.
_FINISH_SHARE = 0.15
#: Seconds that one contest may be given, code generation left out.
_CONTEST_S = (4.0, 80.0)


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
        self._predictor = session.predictor(device)
        model, profile = self._predictor.model, self._predictor.profile
        with graph.settings(None):
            self.key = graph_key(
                graph.gm, graph.example_inputs, graph.kwargs, profile.key, model.id, effort.rules
            )
        self._report.key, self._report.model = self.key.key, model.name
        self._study: Study | None = None
        self._tries: Tries | None = None
        #: What an earlier search or compile chose for the graph.
        self._known = recall(session.store, self.key.key, profile.key, "measure")
        self._front: tuple[Candidate, ...] = ()
        self.interrupted = False

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those that came to an end, earlier sittings included."""
        return () if self._study is None else self._study.trials

    @property
    def measured(self) -> int:
        """Candidates that were timed."""
        return 0 if self._tries is None else len(self._tries.timed)

    @property
    def own(self) -> Candidate | None:
        """Inductor's own schedule as it was measured; None until then."""
        return None if self._tries is None else self._tries.own

    @property
    def best(self) -> Candidate | None:
        """What would be taken now; Inductor's own where nothing better is known."""
        own = self.own
        if own is None:
            return None
        return picked(self._accepted(), own, self._effort.objective) or own

    def run(
        self, watch: Callable[[str], None], *, reason: str | None = None, hurried: bool = False
    ) -> Any:
        """Search, or for a ``reason`` not to only predict; gives the graph compiled by Inductor.

        Args:
            watch: told what is done next, and after each trial.
            reason: why nothing is to be measured.
            hurried: whether no choices are to be looked at but Inductor's own.
        """
        report = self._report
        reason = reason or unmeasurable(self._graph, self._session)
        if reason is None:
            # Its start takes seconds, which pass while the graph is looked at.
            measuring_process(report.device)
        watch("looking at choices")
        # What is only predicted is not to depend on the clock.
        limit = self._seconds * _LOOK_SHARE if reason is None else None
        surveys = self._look(0.0 if hurried else limit)
        default = default_candidate(surveys)
        output, program = compile_default(self._graph, report, default)
        try:
            if reason is None:
                self._begin(surveys, default, program)
                with report.phase("trials"):
                    self._try(surveys, watch)
                watch("single kernels")
                with report.phase("finish"):
                    self._finish()
                watch("last contest")
                with report.phase("last contest"):
                    self._decide()
        except MeasureError as error:
            reason = str(error)
        except KeyboardInterrupt:
            self.interrupted = True
        if report.chosen is None:
            self._without_contest(surveys, reason)
        report.fallback = None if reason is None else f"not measured: {reason}"
        return output

    def result(self) -> SearchedGraph:
        """What was found; call it where the graph is being compiled."""
        chosen = self._report.chosen
        assert chosen is not None
        trials = self.trials
        return SearchedGraph(
            report=self._report,
            planned=self._planned(chosen),
            trials=len(trials),
            failed=sum(trial.candidate is None for trial in trials),
            pruned=sum(trial.pruned for trial in trials),
            measured=self.measured,
            foreseen=() if self._tries is None else tuple(self._tries.foreseen),
            front=tuple(FrontPoint(c, self._planned(c)) for c in self._front),
        )

    def _planned(self, candidate: Candidate) -> PlannedGraph:
        default = self._report.default
        return planned_graph(
            self._graph,
            self.key,
            candidate.schedule,
            self._predictor,
            device=self._report.device,
            measured_us=candidate.measured_us,
            default_us=default.measured_us if default is not None else None,
        )

    def _look(self, budget_s: float | None) -> list[Survey]:
        """The graph under Inductor's choices, and under others that might be worth trying."""
        report, effort = self._report, self._effort
        #: The user's rules with what they want of the lowering; None where there are none.
        self._lowered: Lowered | None = None
        with report.phase("survey"):
            if effort.rules is not None:
                self._lowered = lower_by_rules(self._graph, effort.rules)
            surveys = survey_all(
                self._graph,
                self._predictor,
                key=self.key.key,
                kind=self._graph.kind,
                budget_s=budget_s,
                lowered=self._lowered,
            )
        report.rules = surveys[0].rules
        report.nodes = len(surveys[0].problem.nodes)
        return surveys

    def _begin(self, surveys: Sequence[Survey], default: Candidate, program: Program) -> None:
        graph, session, effort = self._graph, self._session, self._effort
        job = graph_job(
            graph,
            key=self.key.key,
            device=self._report.device,
            observed=session.observed,
            forward_key=session.forward_key,
        )
        announce(job)
        if graph.kind == "forward":
            session.forward_key = self.key.key
        first, profile = surveys[0], self._predictor.profile
        products = multiplied(first, profile, timed=graph.times_products)
        self._alternatives = alternatives(first, profile) + products
        low, high = _CONTEST_S
        share = self._seconds * (1 - _LAST_SHARE) / effort.trials
        self._tries = Tries(
            Subject(graph, self.key.key, job, surveys[0], default, program, self._lowered),
            self._predictor,
            offered={alike.name: alike.choices for alike in self._alternatives},
            objective=effort.objective,
            top_k=effort.top_k,
            survey_s=max(1.0, self._seconds / 10),
            contest_s=min(max(share, low), high),
            until=time.monotonic() + self._seconds,
        )

    def _try(self, surveys: Sequence[Survey], watch: Callable[[str], None]) -> None:
        effort, tries = self._effort, self._tries
        assert tries is not None
        space = choice_space(torch.device(self._report.device).type, self._alternatives)
        storage = f"sqlite:///{effort.store.parent / 'studies.db'}" if effort.name else None
        self._study = Study(
            space,
            name=f"{effort.name or 'search'} {self._graph.kind} {self.key.key}",
            storage=storage,
            seed=effort.seed,
            objective=effort.objective,
        )
        tries.default_us = self._study.baseline_us
        tries.relearn(self._study.learned)

        def keep() -> None:
            for outcome in tries.outcomes:
                self._remember(outcome)
            tries.outcomes.clear()

        def told(trial: Trial) -> None:
            # Written down at once, so that it outlives a process that is killed.
            keep()
            watch(f"trial {trial.number + 2}")

        watch(f"trial {len(self.trials) + 1}")
        done = self._study.run(
            tries,
            n_trials=effort.trials,
            seconds=self._seconds * (1 - _LAST_SHARE - _FINISH_SHARE),
            first=worth_trying(space, self._alternatives, surveys),
            on_trial=told,
            again=tries.may_find_more,
            baseline=lambda: tries.default_us,
            learned=tries.lessons,
        )
        # An interrupt may have come between timing and telling.
        keep()
        self.interrupted = done.interrupted

    def _finish(self) -> None:
        """Try on the best so far what no prediction tells of; it changes times, not memory."""
        tries, effort, best = self._tries, self._effort, self.best
        if tries is None or best is None or tries.default_us is None or self.interrupted:
            return
        if effort.objective == "memory":
            return

        def contest(pairs: Sequence[tuple[Candidate, Program]], seconds: float) -> GraphReport:
            outcome = tries.contest(pairs, seconds)
            # What was timed stays, whatever comes of the search; this decides nothing.
            outcome.chosen = None
            self._remember(outcome)
            return outcome

        finish_search(
            self._graph,
            tries.subject.program,
            best,
            self._predictor,
            key=self.key.key,
            contest=contest,
            default_us=tries.default_us,
            together=effort.top_k,
            contest_s=_CONTEST_S[0] * 2,
            until=time.monotonic() + self._seconds * _FINISH_SHARE,
        )

    def _accepted(self) -> list[Candidate]:
        """Accepted candidates of this sitting and of earlier ones, the best first."""
        tried = [trial.candidate for trial in self.trials if trial.candidate is not None]
        known = self._known_before()
        timed = [] if self._tries is None else list(self._tries.timed.values())
        objective = self._effort.objective
        accepted = {
            c.schedule: c
            for c in reversed([*timed, *tried, *known])
            if c.accepted
            and not c.baseline
            and c.measured_us is not None
            and (objective == "time" or c.peak_bytes is not None)
        }
        return sorted(accepted.values(), key=lambda c: (figures(c, objective), c.schedule.id))

    def _known_before(self) -> list[Candidate]:
        """What an earlier search or compile chose, its time brought to this one's default."""
        now = None if self._tries is None else self._tries.default_us
        if self._known is None or now is None:
            return []
        chosen = self._known.chosen
        own = next((c for c in self._known.candidates if c.baseline), None)
        if own is None or not own.measured_us or not chosen.measured_us:
            return []
        us = chosen.measured_us * now / own.measured_us
        return [msgspec.structs.replace(chosen, measured_us=us)]

    def _decide(self) -> None:
        """Time the best of all trials once more, in one run, and take the winner."""
        tries, effort = self._tries, self._effort
        accepted = self._accepted()
        # A user who interrupts does not wait for another contest.
        if not accepted or self.interrupted or tries is None:
            return
        if effort.objective == "pareto":
            best = front(accepted)
            accepted = [*best, *(c for c in accepted if c not in best)]
        pairs, dropped = generate_distinct(
            self._graph, tries.subject.program, accepted, effort.top_k
        )
        if not pairs:
            return
        low, high = _CONTEST_S
        # A quarter of what a contest is given goes into timing: see contest.hold.
        seconds = min(max(4 * self._seconds * _LAST_SHARE, low), high)
        outcome = tries.contest(pairs, seconds, more=False)
        own, *others = outcome.candidates
        may = [c for c in others if c.accepted]
        chosen = picked(may, own, effort.objective) or own
        if effort.objective == "pareto":
            self._front = front([own, *may])
        report = self._report
        report.candidates = [*outcome.candidates, *dropped]
        report.chosen, report.source = chosen, "measured"
        self._remember(report)

    def _without_contest(self, surveys: Sequence[Survey], reason: str | None) -> None:
        """Choose without a last contest: the best that is known, or what is predicted, or known."""
        report, tries = self._report, self._tries
        if tries is None or tries.own is None:
            if self._known is not None:
                report.candidates, report.chosen = self._known.candidates, self._known.chosen
                report.source = "store"
            else:
                choose_predicted(report, surveys, self._predictor)
            return
        # Each was better in a contest of its own.
        accepted = self._accepted()
        best = picked(accepted, tries.own, self._effort.objective)
        own = msgspec.structs.replace(
            tries.own,
            accepted=best is None,
            reason="" if best is not None else reason or "no other one was accepted",
        )
        if self._effort.objective == "pareto":
            self._front = front([own, *accepted])
        others = [c for c in tries.timed.values() if best is None or c.schedule != best.schedule]
        report.candidates = [own, *([] if best is None else [best]), *others]
        report.chosen, report.source = best or own, "measured"
        # All times are in the store already; only what was made of them is not.
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
        tries = self._tries
        assert tries is not None
        remember(
            self._session.store,
            report,
            parts=dict(self.key.parts),
            surveys=[tries.subject.first],
            profile=self._predictor.profile,
            model_id=self._predictor.model.id,
            conditions=tries.conditions,
            family=self._sample.family,
            source=self._sample.name,
        )
