"""The way of one graph: known from before, or surveyed, measured and chosen.

Raises where it fails; whoever sent the graph on it steps back to Inductor's own result.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fusewise.compiler.block_savings import by_signature, read_survey
from fusewise.compiler.building import compile_in_pool
from fusewise.compiler.choosing import compile_default
from fusewise.compiler.chosen_before import chosen_before
from fusewise.compiler.contest import announce, graph_job
from fusewise.compiler.deciding import Contest
from fusewise.compiler.inductor.blocks_ahead import compiles_blocks
from fusewise.compiler.inductor.compiling_ahead import Ahead
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import GraphKey, graph_key
from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.inductor.rounds import going_on
from fusewise.compiler.inductor.worth_trying import ranked_by
from fusewise.compiler.looking import LOOKS_PREDICTED, Begun, looks_begun, survey_all
from fusewise.compiler.measuring.cuda_clock import waking
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.memory import remember
from fusewise.compiler.notices import warn_once
from fusewise.compiler.own_program import OwnProgram, begin_own
from fusewise.compiler.predicting import choose_predicted
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.ruled import lower_by_rules
from fusewise.compiler.session import (
    LEAST_OPERATORS,
    Session,
    device_of,
    many_ranks,
    operators,
    unmeasurable,
)
from fusewise.compiler.survey import Predictor, Survey, default_candidate
from fusewise.compiler.tuned_after import note_blocks, remember_tuning
from fusewise.costmodel.block_model import blocks_of
from fusewise.costmodel.gains import gains_of
from fusewise.schedule.errors import MeasureError, PlanError
from fusewise.schedule.schedule import Candidate, Schedule

log = logging.getLogger(__name__)

#: Choices that a graph is looked at under beside Inductor's own, by mode: a look takes about a
#: tenth of the time that Inductor's own compile does.
_LOOKS = {"given": 6, "measure": 4, "predict": LOOKS_PREDICTED, "replay": 0}


@dataclass(frozen=True)
class _Decided:
    """What a choice rests on."""

    surveys: Sequence[Survey]
    #: Under which times were taken.
    conditions: dict[str, float]
    #: What was compiled before it was chosen, or was not.
    ahead: Ahead | None = None


class GraphWay:
    """One graph on its way."""

    def __init__(self, session: Session, graph: GraphCompile, report: GraphReport) -> None:
        self._session = session
        self._graph = graph
        self._report = report
        #: What others are held to, compiled; None where it was not.
        self.default_output: Any | None = None
        #: What was chosen, compiled; None where it was not yet.
        self._output: Any | None = None
        #: What was compiled in the hope that it is chosen.
        self._ahead: Ahead | None = None
        #: What deciding may cost.
        self._purse = session.spending.graph()

    def run(self) -> Any:
        """Choose a schedule, compile it, and leave a report."""
        session, graph, report = self._session, self._graph, self._report
        device = device_of(graph.gm, graph.example_inputs)
        report.device = str(device)
        self._purse.kind = device.type
        self._purse.forward = graph.kind == "forward"
        with report.phase("prepare"):
            # A graph's plans are gone over again and again until one is chosen.
            predictor = replace(session.predictor(device), costs={})
            with graph.settings(None):
                key = graph_key(
                    graph.gm,
                    graph.example_inputs,
                    graph.kwargs,
                    predictor.profile.key,
                    predictor.model.id,
                    session.options.rules,
                )
        report.key, report.model = key.key, predictor.model.name
        with ranked_by(blocks_of(predictor.model)):
            known = chosen_before(session, graph, report, key, predictor.profile.key)
            if known is not None:
                return self._compile(known)
            if session.options.mode == "replay":
                raise PlanError(
                    f"no schedule is stored for the {report.kind} graph {report.key}",
                    subject=f"store {session.options.store}",
                    remedy="compile once in mode measure or predict, or give fusewise.plan",
                )
            # Kernels are timed with several block sizes as soon as they run for the first time.
            with waking(device):
                return self._new(key, predictor)

    def _new(self, key: GraphKey, predictor: Predictor) -> Any:
        session, report = self._session, self._report
        job = self._announce(key) if session.options.mode == "measure" else None
        ruled = session.options.rules is not None
        # What a contest found in the seconds there were is not the last word. Asking whether block
        # sizes can be compiled starts Inductor's pool, which no kernel of a CPU needs.
        goes_on = job is not None and not (ruled or self._purse.given)
        goes_on = goes_on and self._purse.kind != "cpu" and compiles_blocks()
        with going_on(goes_on):
            if ruled:
                decided = self._decide(key, predictor, job)
            else:
                decided = self._decide_meanwhile(key, predictor, job)
            self._ahead = decided.ahead
            output = self._compile_chosen()
        if not goes_on:
            note_blocks(report, self._graph, output)
        told = remember(
            session.store,
            report,
            parts=dict(key.parts),
            surveys=decided.surveys,
            profile=predictor.profile,
            model_id=predictor.model.id,
            conditions=decided.conditions,
        )
        remember_tuning(report, self._graph, output, session.store, told)
        if session.met is not None:
            session.met.note()
        return output

    def _decide_meanwhile(
        self, key: GraphKey, predictor: Predictor, job: GraphJob | None
    ) -> _Decided:
        """Decide while Inductor's own compile waits, which goes on under what was chosen.

        Where it cannot, since what the graph returns would have other strides, it ends there.
        """
        report = self._report
        decided: list[_Decided] = []
        failures: list[Exception] = []
        spent = 0.0

        def decide() -> Schedule | bool:
            nonlocal spent
            # So far the graph was lowered.
            self._purse.own(time.perf_counter() - began, again=True)
            start = time.perf_counter()
            try:
                decided.append(self._decide(key, predictor, job))
            except Exception as error:  # noqa: BLE001 - Inductor would wrap it; it is raised below
                failures.append(error)
                return True
            finally:
                spent = time.perf_counter() - start
            chosen = report.chosen
            assert chosen is not None
            if chosen.origin == "default":
                return True
            ahead = decided[0].ahead
            compiled = ahead is not None and ahead.schedule == chosen.schedule
            return False if compiled else chosen.schedule

        began = time.perf_counter()
        try:
            output = self._graph.compile_after(decide, measured=job is not None)
        except Exception:
            if not decided or report.chosen is None or report.chosen.origin == "default":
                raise
            # Compiling what was chosen by itself tells why.
            log.debug("the compile that went on failed", exc_info=True)
            output = None
        report.seconds["compile default"] = time.perf_counter() - began - spent
        if failures:
            raise failures[0]
        if report.chosen is not None and report.chosen.origin != "default":
            self._output = output
        else:
            self.default_output = output
        # Where nothing waited, the compiled graph came out of Inductor's cache.
        if decided:
            return decided[0]
        self._purse.cached()
        return self._decide(key, predictor, job)

    def _decide(self, key: GraphKey, predictor: Predictor, job: GraphJob | None) -> _Decided:
        """Choose a schedule, and write into the report what led to it."""
        session, report, graph = self._session, self._report, self._graph
        purse = self._purse
        lowered = None
        if session.options.rules is not None:
            with report.phase("rules"):
                lowered = lower_by_rules(graph, session.options.rules)
        ranked = blocks_of(predictor.model) is not None and predictor.profile.kind == "cuda"
        # Ranks that tune might come to other sizes each, and sum in another order.
        ranked = ranked and (job is not None or not many_ranks())
        # Kernels that are called from C++ are tuned before they run, step by step.
        ranked = ranked and not graph.kwargs.get("cpp_wrapper")
        gains = gains_of(predictor.model, predictor.profile.kind)
        asked: dict[str, Any] = {
            "key": key.key,
            "kind": report.kind,
            "gains": gains,
            "only": job is None,
            "most": _LOOKS["given" if purse.given and job is not None else session.options.mode],
        }

        def looking_s() -> float | None:
            # Grows with what is known of Inductor's own work on the graph.
            return None if job is None else purse.looking_s

        early = ranked and lowered is None
        looks = looks_begun(graph, predictor, budget_s=looking_s(), **asked)
        with looks if early else nullcontext() as begun:
            own = OwnProgram()
            if lowered is None and (job is not None or ranked):
                # Compilers are at work while the graph is looked at.
                own = begin_own(graph, report, purse, ranked=ranked, measured=job is not None)
            # Where there can be no store nothing is decided: it would not be remembered.
            session.store  # noqa: B018
            with report.phase("search"):
                surveys = survey_all(
                    graph,
                    predictor,
                    budget_s=looking_s(),
                    lowered=lowered,
                    told=report.left_out.append,
                    begun=begun,
                    **asked,
                )
            report.rules = surveys[0].rules
            report.nodes = len(surveys[0].problem.nodes)
            savings = by_signature(own.savings, own.nodes, surveys[0])
            # In seconds that a user gives for measuring, block sizes are measured with the rest.
            tunes = ranked and compiles_blocks() and (job is None or not purse.given)
            predictor = replace(predictor, savings=savings, tunes=tunes)
            if job is None:
                read = functools.partial(self._read, begun) if early else None
                choose_predicted(report, surveys, predictor, read=read)
                return _Decided(surveys, {})
        program = own.program
        if program is None:
            default = default_candidate(surveys)
            start = time.perf_counter()
            self.default_output, program = compile_default(graph, report, default)
            purse.own(time.perf_counter() - start)
        contest = Contest(
            report, surveys, graph, job, session.options, predictor, program, own.building, purse
        )
        conditions = contest.run()
        report.cost = purse.end()
        return _Decided(surveys, conditions, contest.ahead)

    def _read(self, begun: Begun | None, other: Survey) -> Mapping[str, float]:
        """What other block sizes are expected to save of kernels under the choices of a survey.

        These kernels, which are likely to be the program's, are on their way in the pool by then.
        """
        with self._report.phase("block sizes"):
            found = None if begun is None else begun.reading(other.choices)
            try:
                program, savings = found or read_survey(self._graph, other)
            except (PlanError, RuntimeError):
                # If it is chosen all the same, compiling it tells why.
                log.debug("no code under %s", other.choices, exc_info=True)
                return {}
            compile_in_pool(program, self._purse.kind)
        return savings

    def _announce(self, key: GraphKey) -> GraphJob | None:
        """What the measuring process is to be told; None, with the reason, where it cannot be.

        It is told at once where making ready takes long.
        """
        session, report, graph = self._session, self._report, self._graph
        reason = unmeasurable(graph, session)
        if reason is None:
            try:
                job = graph_job(
                    graph,
                    key=key.key,
                    device=report.device,
                    observed=session.observed,
                    forward_key=session.forward_key,
                )
                # The CPU is as busy with this as with what is done here, and may never be asked.
                if self._purse.kind != "cpu" and operators(graph.gm) >= LEAST_OPERATORS:
                    announce(job)
            except MeasureError as error:
                warn_once(str(error))
                reason = str(error)
            else:
                if report.kind == "forward":
                    session.forward_key = key.key
                return job
        report.fallback = f"not measured: {reason}"
        return None

    def _compile_chosen(self) -> Any:
        """Compile what was chosen; if that does not compile, what the report has instead of it."""
        report, chosen = self._report, self._report.chosen
        assert chosen is not None
        if self._output is not None:
            return self._output
        while chosen.origin != "default":
            try:
                return self._compile(chosen)
            except Exception as error:
                warn_once(f"candidate {chosen.schedule.id} does not compile: {error}")
                report.fallback = f"the chosen candidate does not compile: {error}"
                failed = msgspec.structs.replace(
                    chosen, status="failed", accepted=False, reason=str(error)
                )
                report.candidates = [failed if c is chosen else c for c in report.candidates]
                if chosen.baseline:
                    raise
                if report.instead is None:
                    report.chosen, report.source = report.default, "inductor"
                    break
                report.chosen = chosen = report.instead
                report.instead = None
        if self.default_output is not None:
            return self.default_output
        assert report.chosen is not None
        return self._compile(report.chosen)

    def _compile(self, chosen: Candidate) -> Any:
        with self._report.phase("compile"):
            if chosen.origin == "default":
                return self._graph.compile(None, None)
            if self._ahead is not None and self._ahead.schedule == chosen.schedule:
                return self._ahead.take()
            applier = Applier(chosen.schedule.plan)
            output = self._graph.compile(chosen.schedule, applier, chosen.blocks)
            self._graph.compile_for_tuning(chosen.schedule, output)
            return output
