"""One graph without each stage: programs generated, timed together, and judged.

Works where Inductor compiles the graph. Which stages there are is said elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fusewise.compiler.ablating.capture import Capture, one_line
from fusewise.compiler.ablating.result import GraphAblation, StageResult
from fusewise.compiler.ablating.uncompiled import uncompiled_program
from fusewise.compiler.ablating.worker import StageJob, StageProcess, StagesResult, StageTimes
from fusewise.compiler.contest import draws_random_numbers, graph_job
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.stages import (
    STAGE,
    Generated,
    Stage,
    generate_schedule,
    generate_stage,
    has_templates,
)
from fusewise.compiler.looking import survey_all
from fusewise.compiler.measuring.job import Budget, ProgramJob
from fusewise.compiler.session import Session, device_of
from fusewise.compiler.survey import default_candidate
from fusewise.compiler.visiting import size_of
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.schedule.errors import FusewiseError, MeasureError
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.gate import judge
from fusewise.search.interleave import ratios
from fusewise.search.samples import summary
from fusewise.search.shortlist import shortlist

#: Shortlisted for each candidate that is to be measured: half of them give code seen before.
_SPARE = 3
#: Rounds that a stage takes part in at least, but for one that is clearly slower.
_LEAST_ROUNDS = 7
#: Compiling all programs of a graph in the measuring process may take this long.
_COMPILING_S = 900.0
_MEANINGS = {
    "default": "Inductor as it is, a second time: what it differs by from itself is noise",
    "learned": "fusewise's own choice in mode measure",
    "uncompiled": "torch's operators, one by one",
}


@dataclass
class _Entry:
    """A program to be timed, under the name of its stage or of a candidate."""

    name: str
    program: Program
    graph_id: str
    generated: Generated | None = None
    times: StageTimes | None = None
    candidate: Candidate | None = None


class GraphContest:
    """All stages of one graph."""

    def __init__(
        self,
        graph: GraphCompile,
        session: Session,
        process: StageProcess,
        *,
        stages: Sequence[str],
        seconds: float,
        search_s: float,
        rewritten: Capture | None,
        why_not_rewritten: str,
    ) -> None:
        self._graph = graph
        self._session = session
        self._process = process
        self._wanted = ("everything", *(name for name in stages if name != "everything"))
        self._seconds = seconds
        self._search_s = search_s
        self._rewritten = rewritten
        self._why_not_rewritten = why_not_rewritten
        self._device = device_of(graph.gm, graph.example_inputs)
        self._predictor = session.predictor(self._device)
        with graph.settings(None):
            self._key = graph_key(
                graph.gm,
                graph.example_inputs,
                graph.kwargs,
                self._predictor.profile.key,
                self._predictor.model.id,
            ).key
        #: Programs in the order in which they are sent, Inductor's own first.
        self._entries: dict[str, _Entry] = {}
        #: Stages without a program of their own: why, and whose figures are theirs if any's are.
        self._absent: dict[str, tuple[str, str, str]] = {}
        self._random = draws_random_numbers(graph.gm)
        #: Fusewise's choice in words.
        self._choice = ""

    def run(self, watch: Callable[[str], None]) -> GraphAblation:
        """Generate, time and judge.

        Raises:
            MeasureError: the graph's inputs cannot be made, or nothing could be timed.
        """
        graph, session = self._graph, self._session
        job = graph_job(
            graph,
            key=self._key,
            device=str(self._device),
            observed=session.observed,
            forward_key=session.forward_key,
        )
        if graph.kind == "forward":
            session.forward_key = self._key
        self._process.prepare_beside(job)
        if self._rewritten is not None:
            self._process.prepare_beside(self._rewritten.job)
        # What eager is off by is what others are held to, also where nobody asks for its time.
        for name in dict.fromkeys((*self._wanted, "uncompiled")):
            self._generate(name, job.graph_id)
        if "learned" in self._wanted:
            watch("searching fusewise's own choice")
            self._candidates(job.graph_id)
        watch(f"timing {len(self._entries)} programs of the {graph.kind} graph")
        result = self._measure()
        base = self._entries["everything"].times
        assert base is not None
        if base.failure or not base.samples:
            raise MeasureError(
                f"Inductor's own program failed: {base.failure}",
                subject=f"{graph.kind} graph",
                remedy="run it with torch.compile's stock backend to see why",
            )
        if "learned" in self._wanted:
            self._choose()
        return GraphAblation(
            kind=graph.kind,
            key=self._key,
            device=str(self._device),
            operators=size_of(graph),
            stages=tuple(self._told(name, base) for name in self._wanted),
            clock=result.clock,
            reference=result.reference,
            rounds=len(base.samples),
            conditions=result.conditions,
        )

    def _generate(self, name: str, graph_id: str) -> None:
        stage = STAGE.get(name)
        if stage is None:
            self._generate_other(name, graph_id)
            return
        if not stage.rewrites:
            self._without_rewrites(name)
            return
        try:
            found = generate_stage(self._graph, stage, self._device.type, self._key)
        except Exception as error:
            if name == "everything":
                raise
            self._absent[name] = ("failed", one_line(error), "")
            return
        self._enter(stage, found, graph_id)

    def _enter(self, stage: Stage, found: Generated, graph_id: str) -> None:
        if stage.name == "no_template_epilogues" and not has_templates(found.problem):
            why = "no matrix product of this graph is a template"
            self._absent[stage.name] = ("not applicable", why, "")
            return
        for entry in self._entries.values():
            if entry.program.code_hash == found.program.code_hash:
                self._absent[stage.name] = ("same code", f"same code as {entry.name}", entry.name)
                return
        self._entries[stage.name] = _Entry(stage.name, found.program, graph_id, found)

    def _without_rewrites(self, name: str) -> None:
        capture = self._rewritten
        if capture is None or capture.generated is None:
            why = self._why_not_rewritten if capture is None else capture.failure
            self._absent[name] = ("failed", why, "")
            return
        # Not compared by code: its inputs and what it saves may differ under the same names.
        entry = _Entry(name, capture.generated.program, capture.job.graph_id, capture.generated)
        self._entries[name] = entry
        if capture.uncompiled is not None:
            held_to = f"uncompiled {capture.job.graph_id}"
            self._entries[held_to] = _Entry(held_to, capture.uncompiled, capture.job.graph_id)

    def _generate_other(self, name: str, graph_id: str) -> None:
        own = self._entries["everything"]
        if name == "default":
            self._entries[name] = _Entry(name, own.program, graph_id, own.generated)
        elif name == "uncompiled":
            try:
                program = uncompiled_program(self._graph.gm)
            except FusewiseError as error:
                self._absent[name] = ("failed", str(error), "")
                return
            self._entries[name] = _Entry(name, program, graph_id)

    def _candidates(self, graph_id: str) -> None:
        """Enter what fusewise would time in mode measure."""
        try:
            surveys = survey_all(
                self._graph,
                self._predictor,
                key=self._key,
                kind=self._graph.kind,
                budget_s=self._search_s,
            )
        except Exception as error:  # noqa: BLE001 - the other stages are still worth measuring
            self._absent["learned"] = ("failed", one_line(error), "")
            return
        default = default_candidate(surveys)
        top_k = self._session.options.top_k
        every = [c for survey in surveys for c in survey.candidates]
        seen = {self._entries["everything"].program.code_hash}
        kept = 0
        for candidate in shortlist(default, every, 1 + top_k * _SPARE):
            if kept == top_k:
                break
            found = None if candidate is default else self._candidate(candidate.schedule)
            if found is None or found.program.code_hash in seen:
                continue
            seen.add(found.program.code_hash)
            kept += 1
            name = f"candidate {candidate.schedule.id}"
            self._entries[name] = _Entry(name, found.program, graph_id, found, candidate=candidate)

    def _candidate(self, schedule: Schedule) -> Generated | None:
        try:
            return generate_schedule(self._graph, schedule, self._key)
        except Exception:  # noqa: BLE001 - code generators may assert on unusual plans
            return None

    def _measure(self) -> StagesResult:
        entries = list(self._entries.values())
        library = build_library(
            [(e.program.source, e.program.settings) for e in entries], timeout_s=_COMPILING_S
        )
        jobs = [
            StageJob(
                e.graph_id,
                ProgramJob(
                    e.name, e.program.source, e.program.constants, e.program.settings, library
                ),
                timed=e.candidate is not None or e.name in self._wanted,
            )
            for e in entries
        ]
        budget = Budget(seconds=self._seconds, min_rounds=_LEAST_ROUNDS)
        found = self._process.measure_stages(jobs, budget, _COMPILING_S + 4 * self._seconds)
        for entry, times in zip(entries, found.programs, strict=True):
            entry.times = times
        return found

    def _choose(self) -> None:
        """Let the gate choose among the candidates, as in mode measure."""
        if "learned" in self._absent:
            return
        own = self._entries["everything"]
        candidates = [e for e in self._entries.values() if e.candidate is not None]
        entries = [own, *candidates]
        times = [e.times for e in entries if e.times is not None]
        ruling = judge(
            [t.samples for t in times],
            [t.errors for t in times],
            resolutions=times[0].resolutions,
        )
        chosen = entries[ruling.chosen]
        if chosen is own:
            tried = f"{len(candidates)} candidates were timed" if candidates else "no other code"
            why = f"Inductor's own schedule: {tried}"
            if candidates:
                best = min(
                    (r for r in ruling.rulings[1:] if r.ratio is not None),
                    key=lambda r: r.ratio.median if r.ratio is not None else math.inf,
                    default=None,
                )
                why += f"; the best of them {best.reason}" if best is not None else ""
            self._absent["learned"] = ("same code", why, "everything")
            return
        assert chosen.candidate is not None
        self._entries["learned"] = chosen
        self._choice = chosen.candidate.schedule.describe()

    def _told(self, name: str, base: StageTimes) -> StageResult:
        meaning = _MEANINGS.get(name) or STAGE[name].meaning
        status, reason, of = self._absent.get(name, ("measured", "", name))
        told: dict[str, Any] = {"name": name, "meaning": meaning, "status": status}
        if not of:
            return msgspec.convert({**told, "reason": reason}, StageResult)
        entry = self._entries[of]
        times = entry.times
        if name == "learned" and not reason:
            reason = self._choice
        assert times is not None
        told["reason"] = reason or times.failure
        if times.failure or not times.samples:
            failed = told | {"status": "failed", "reason": times.failure or "was not timed"}
            return msgspec.convert(failed, StageResult)
        told |= self._figures(entry) | _timed(times, base)
        told |= self._accuracy(entry, base)
        return msgspec.convert(told, StageResult)

    def _figures(self, entry: _Entry) -> dict[str, Any]:
        found = entry.generated
        if found is None:
            return {"kernels": 0, "extern_calls": size_of(self._graph)}
        return {
            "kernels": found.kernels,
            "extern_calls": found.externs,
            "nodes": len(found.problem.nodes),
            "bytes": self._bytes(found),
        }

    def _bytes(self, found: Generated) -> int:
        kinds = {node.name: node.kind for node in found.problem.nodes}
        moving = [g for g in found.groups if any(kinds[name] != "nop" for name in g)]
        if not moving:
            return 0
        rows = Featurizer(found.problem, self._predictor.profile).batch(moving)
        return round(float(np.sum(np.exp2(rows[:, COLUMN["distinct"]]) - 1.0)))

    def _allowed(self, entry: _Entry, base: StageTimes) -> list[float]:
        """Twice what eager, or Inductor as it is, is off by at each output."""
        ours = entry.graph_id == self._entries["everything"].graph_id
        eager = self._entries.get("uncompiled" if ours else f"uncompiled {entry.graph_id}")
        found = [base.errors] if ours else []
        if eager is not None and eager.times is not None and not self._random:
            found.append(eager.times.errors)
        assert entry.times is not None
        outputs = range(len(entry.times.errors))
        # What autograd saves differs from capture to capture, and so do the outputs' places.
        worst = max(base.errors, default=0.0)
        return [2 * max((e[i] for e in found if i < len(e)), default=worst) for i in outputs]

    def _accuracy(self, entry: _Entry, base: StageTimes) -> dict[str, Any]:
        times = entry.times
        assert times is not None
        errors = [error for error in times.errors if math.isfinite(error)]
        told: dict[str, Any] = {"error": max(errors, default=None)}
        if not times.errors or (self._random and entry.name == "uncompiled"):
            # There is nothing to compare with: torch draws other numbers than Inductor.
            return {"error": None, "accurate": None}
        sound = all(
            error <= most + grain
            for error, most, grain in zip(
                times.errors, self._allowed(entry, base), times.resolutions, strict=True
            )
        )
        return told | {"accurate": sound and len(errors) == len(times.errors)}


def _timed(times: StageTimes, base: StageTimes) -> dict[str, Any]:
    timing = summary(times.samples)
    ratio = summary(ratios(times.samples, base.samples))
    return {
        "us": timing.median,
        "spread": timing.spread,
        "ratio": ratio.median,
        "ratio_low": ratio.low if math.isfinite(ratio.low) else None,
        "ratio_high": ratio.high if math.isfinite(ratio.high) else None,
        "peak_bytes": times.peak_bytes,
    }
