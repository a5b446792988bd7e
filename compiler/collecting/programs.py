"""The programs of one graph that are worth timing: under other lowerings, plans and choices.

Runs in a worker. Generates and compiles them; nothing here is timed or run on the device.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fusewise.compiler.alternatives import drawn
from fusewise.compiler.collecting.durations import least_seconds, long_enough
from fusewise.compiler.collecting.plans import covering_plans, generated
from fusewise.compiler.collecting.work import Call, KernelRun, Settings
from fusewise.compiler.inductor.choices import (
    rewrites,
    schedule_of,
    stage_of,
    unpredictable,
    variants,
)
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import LiveGraph, Program
from fusewise.compiler.inductor.launches import Launch, generate_with_launches
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.program import precompile
from fusewise.compiler.measuring.job import ProgramJob
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.cpu_accesses import unforeseen_flags
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.datasets.rows import ScheduleRow
from fusewise.schedule.errors import FusewiseError, PlanError, first_line
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.problem import Problem, group_signature
from fusewise.schedule.schedule import Choice, Schedule, problem_key
from fusewise.search.reductions import uncut

_T = TypeVar("_T")

#: Seconds for the C++ compiler on the kernels of one graph.
_BUILD_S = 180.0
#: Code for one plan of a larger graph takes longer, and most of its kernels are those of another:
#: it gets fewer plans.
_FULL_NODES = 40
#: Shares of a graph's time after which no further lowering is looked at, no further plan is
#: generated for its kernels, and none for whole schedules.
_LOWERING_SHARE, _KERNELS_SHARE, _GENERATING_SHARE = 0.2, 0.35, 0.5
#: Draws of single values stored or inlined otherwise, among the other lowerings of each graph.
_NODE_DRAWS = 3
#: Whole schedules under codegen choices of each graph, which share the kernels' problem.
_CODEGEN_SCHEDULES = 2


class Known(Protocol):
    """What has been timed already."""

    def is_wanted(self, signature: str) -> bool:
        """Whether a kernel or extern call is to be timed."""
        ...

    def claim(self, signature: str) -> bool:
        """Whether it was never timed; is taken for timed from now on."""
        ...


@dataclass(frozen=True)
class Context:
    """What a worker collects with, whatever the graph."""

    settings: Settings
    profile: DeviceProfile
    known: Known
    predictor: Predictor | None = None


@dataclass(frozen=True)
class Lowered:
    """The problem under some choices, and the plans of it that are taken."""

    choices: tuple[Choice, ...]
    problem: Problem
    default: Plan
    plans: list[Plan]
    #: What was stored and what inlined.
    decisions: tuple[InliningDecision, ...]


class GraphPrograms:
    """What is made of one graph, within its share of a worker's time."""

    def __init__(
        self,
        context: Context,
        graph: GraphCompile,
        key: str,
        generator: random.Random,
        failures: list[str],
        name: str,
    ) -> None:
        self._settings = context.settings
        self._profile = context.profile
        self._known = context.known
        self._predictor = context.predictor
        self._graph = graph
        self._key = key
        self._generator = generator
        self._failures = failures
        self._name = f"{name} ({graph.kind})"
        #: Of the plans and schedules that are asked for, how many a graph of this size gets.
        self._share = 1.0
        self._whole = generator.random() < context.settings.schedule_share
        self._started = time.monotonic()
        self.schedule_rows: list[ScheduleRow] = []

    def _spent(self, share: float) -> bool:
        """Whether so much of a graph's time is gone: the rest of its plans is left to others."""
        return time.monotonic() - self._started > share * self._settings.graph_s

    @property
    def seconds_left(self) -> float:
        """Of the graph's time."""
        return max(0.0, self._settings.graph_s - (time.monotonic() - self._started))

    def lowered(self) -> list[Lowered] | None:
        """The graph under Inductor's own lowering and some others.

        None where it is too large, or does nothing but look at its inputs in other shapes.
        """
        taken: set[str] = set()
        first = self._lower((), taken, unfused_too=True, random_plans=self._settings.plans)
        if first is None or not 0 < len(first.problem.nodes) <= self._settings.most_nodes:
            return None
        seconds = least_seconds(first.problem, self._profile)
        if seconds > self._settings.most_run_s:
            self._failed(f"a run of it takes some {seconds * 1e3:.0f} ms, which is too long")
            return None
        self._share = min(1.0, _FULL_NODES / len(first.problem.nodes))
        first = dataclasses.replace(first, plans=first.plans[: 2 + self._few(self._settings.plans)])
        found = [first]
        shapes = {_shape(first)}
        others = [
            choices
            for choices in variants(self._profile.kind)
            if all(stage_of(choice) == "lowering" for choice in choices)
        ]
        draws = [drawn(first.decisions, self._generator) for _ in range(_NODE_DRAWS)]
        others += [choices for choices in dict.fromkeys(draws) if choices]
        others += [choices for choices, _ in uncut(first.problem, first.decisions, self._profile)]
        self._generator.shuffle(others)
        for choices in others:
            if len(found) > self._few(self._settings.lowerings) or self._spent(_LOWERING_SHARE):
                break
            other = self._lower(choices, taken, unfused_too=False, random_plans=1)
            if other is not None and _shape(other) not in shapes:
                shapes.add(_shape(other))
                found.append(other)
        return found

    def _few(self, wanted: int) -> int:
        return math.ceil(wanted * self._share)

    def _lower(
        self, choices: tuple[Choice, ...], taken: set[str], *, unfused_too: bool, random_plans: int
    ) -> Lowered | None:
        found: list[Lowered] = []

        def visit(live: LiveGraph) -> None:
            legality = InductorLegality(live)
            problem = extract_problem(
                live.scheduler,
                live.nodes,
                # Another lowering has other nodes under the same names: a problem of its own.
                key=problem_key(self._key, choices),
                kind=self._graph.kind,
                possible_fusions=legality.possible_fusions(),
            )
            plans = [live.default_plan]
            if unfused_too:
                plans.append(unfused([node.name for node in problem.nodes]))
            for plan in plans:
                taken.update(generated(problem, plan))
            plans += covering_plans(
                problem,
                legality,
                self._generator,
                random_plans,
                known={s for s in taken if not self._known.is_wanted(s)} | taken,
                predictor=self._predictor,
            )
            for plan in plans:
                taken.update(generated(problem, plan))
            distinct = list({plan.groups: plan for plan in plans}.values())
            default = live.default_plan
            found.append(Lowered(choices, problem, default, distinct, live.decisions))

        # Which values can be stored or inlined otherwise a graph tells only when it is lowered.
        self._attempt(self._graph.survey, choices, visit, unless=PlanError if choices else ())
        return found[0] if found else None

    def kernel_runs(self, lowered: Sequence[Lowered]) -> list[KernelRun]:
        """Programs of the plans that have kernels whose time is wanted."""
        runs: list[KernelRun] = []
        taken: set[str] = set()
        for low in lowered:
            featurizer = Featurizer(low.problem, self._profile)
            flags = unforeseen_flags(low.problem)
            for plan in low.plans:
                if runs and self._spent(_KERNELS_SHARE):
                    return runs
                fresh = self._fresh(low.problem, plan, taken, featurizer)
                if not fresh:
                    continue
                schedule = schedule_of(low.choices, plan)
                made = self._attempt(generate_with_launches, self._graph, schedule)
                if made is None:
                    continue
                program, launches = made
                calls = _calls(low.problem, launches, featurizer, fresh)
                taken |= {call.signature for call in calls if call.wanted}
                if any(call.wanted for call in calls):
                    runs.append(KernelRun(_job(schedule, program), low.problem.key, calls, flags))
        return runs

    def _fresh(
        self, problem: Problem, plan: Plan, taken: set[str], featurizer: Featurizer
    ) -> set[str]:
        """Signatures of what a plan calls whose time is wanted."""
        externs = {
            node.signature
            for node in (problem.node_by_name[group[0]] for group in plan.groups)
            if node.kind == "extern"
        }
        kernels = long_enough(generated(problem, plan), featurizer, self._settings.least_us)
        return {s for s in kernels | externs if s not in taken and self._known.is_wanted(s)}

    def contest(self, lowered: Sequence[Lowered], runs: Sequence[KernelRun]) -> list[ProgramJob]:
        """Whole programs to be timed against each other, Inductor's own first."""
        first = lowered[0]
        most = self._few(self._settings.schedules) if self._whole else 0
        candidates: list[tuple[str, Schedule]] = [
            ("default", schedule_of((), first.default)),
            *(("choices", schedule_of(low.choices, low.default)) for low in lowered[1:]),
            *(
                ("random", schedule_of(low.choices, plan))
                for low in lowered
                for plan in low.plans
                if plan != low.default
            ),
        ]
        kind = self._profile.kind
        # The time of a kernel that is written otherwise tells nothing of its nodes.
        codegen = [
            choices
            for choices in (*variants(kind), *unpredictable(kind))
            if stage_of(choices[0]) == "codegen" and not rewrites(choices)
        ]
        self._generator.shuffle(codegen)
        # Inductor's own plan under a codegen choice is what that choice makes of the graph: often
        # the same code, so all are tried until some are not.
        candidates[len(lowered) : len(lowered)] = [
            ("choices", Schedule(codegen=choices)) for choices in codegen
        ]
        # On a GPU a program is the same whether it is timed whole or kernel by kernel.
        ready = {run.program.id: run.program for run in runs if self._profile.kind == "cuda"}
        jobs: dict[str, ProgramJob] = {}
        of_codegen = 0
        for origin, schedule in candidates:
            if len(jobs) == most or (jobs and self._spent(_GENERATING_SHARE)):
                break
            if schedule.codegen and of_codegen == _CODEGEN_SCHEDULES:
                continue
            job = ready.get(schedule.id)
            if job is None:
                program = self._attempt(self._graph.generate, schedule)
                if program is None:
                    if origin == "default":
                        return []
                    continue
                job = _job(schedule, program)
            if job.code_hash in jobs:
                continue
            jobs[job.code_hash] = job
            of_codegen += bool(schedule.codegen)
            groups = len(schedule.plan.groups) if schedule.plan else 0
            self.schedule_rows.append(
                ScheduleRow(
                    id=schedule.id,
                    graph_key=self._key,
                    schedule=schedule,
                    origin=origin,
                    groups=groups,
                )
            )
        # One schedule says nothing about which of several is faster.
        return list(jobs.values()) if len(jobs) > 1 else []

    def compiled(
        self, runs: Sequence[KernelRun], contest: Sequence[ProgramJob]
    ) -> tuple[list[KernelRun], list[ProgramJob]]:
        """The same with their kernels in the compiler's caches; what fails to compile left out."""
        jobs = {id(job): job for job in (*(run.program for run in runs), *contest)}
        library = ""
        if self._profile.kind == "cpu":
            library = build_library(
                [(job.source, job.settings) for job in jobs.values()],
                processes=1,
                timeout_s=_BUILD_S,
                apart=False,
            )
        ready: dict[int, ProgramJob] = {}
        for number, job in jobs.items():
            if self._profile.kind == "cuda" and (
                self._spent(1.0) or self._attempt(_precompiled, job) is None
            ):
                continue
            ready[number] = dataclasses.replace(job, library=library)
        return (
            [
                dataclasses.replace(run, program=ready[id(run.program)])
                for run in runs
                if id(run.program) in ready
            ],
            # Without Inductor's own there is nothing to compare with.
            [ready[id(job)] for job in contest if id(job) in ready]
            if contest and id(contest[0]) in ready
            else [],
        )

    def _attempt(
        self,
        make: Callable[..., _T],
        *arguments: Any,
        unless: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> _T | None:
        """What ``make`` gives; None where it fails, which costs that one schedule.

        Failures are told, ``unless`` they are such.
        """
        try:
            return make(*arguments)
        except unless:
            return None
        except (FusewiseError, RuntimeError, AssertionError) as error:
            self._failed(first_line(error))
            return None

    def _failed(self, told: str) -> None:
        self._failures.append(f"{self._name}: {told}")


def _shape(low: Lowered) -> tuple[tuple[str, ...], Plan]:
    """What a lowering is to the scheduler: equal shapes give equal code."""
    return tuple(node.signature for node in low.problem.nodes), low.default


def _calls(
    problem: Problem, launches: Sequence[Launch], featurizer: Featurizer, fresh: set[str]
) -> tuple[Call, ...]:
    """The launches of a program with what each is, and which of them are to be timed.

    A group that needs several launches is not: its time is of several kernels, and which part is
    whose cannot be told.
    """
    launched = Counter(launch.nodes for launch in launches if launch.kind == "kernel")
    left = set(fresh)
    calls = []
    for launch in launches:
        if launch.kind == "graphs":
            continue
        extern = launch.kind == "extern"
        signature = (
            problem.node_by_name[launch.nodes[0]].signature
            if extern
            else group_signature(problem, launch.nodes)
        )
        wanted = signature in left and (extern or launched[launch.nodes] == 1)
        left.discard(signature)
        features = tuple(featurizer.group(launch.nodes).tolist()) if wanted and not extern else None
        calls.append(Call(launch.kind, launch.kernel, signature, launch.nodes, features, wanted))
    return tuple(calls)


def _job(schedule: Schedule, program: Program) -> ProgramJob:
    return ProgramJob(
        schedule.id,
        program.source,
        program.constants,
        program.settings,
        code_hash=program.code_hash,
    )


def _precompiled(job: ProgramJob) -> ProgramJob:
    precompile(job.source, job.constants, job.settings)
    return job
