"""Collecting kernel timings: every kernel of a graph's default, unfused and random legal plans.

A backend of its own for ``torch.compile``: it compiles like Inductor and, on the way, has the
kernels of several schedules timed and written into the store. It chooses nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config

from fusewise.compiler.contest import announce, graph_job, has_collectives
from fusewise.compiler.inductor.choices import schedule_of, variants
from fusewise.compiler.inductor.driver import GraphCompile, LiveGraph, compile_whole
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.graph_key import GraphKey, graph_key
from fusewise.compiler.inductor.launches import Launch, generate_with_launches
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.inputs import Observed, observe
from fusewise.compiler.measuring.job import ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort, undisturbed
from fusewise.compiler.memory import device_row
from fusewise.compiler.session import device_of
from fusewise.costmodel.device import DeviceProfile, device_key, device_profile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.datasets.corpus import GraphSample, scalar_loss
from fusewise.datasets.rows import GraphRow, KernelRow, MeasurementRow, Row, encode_problem
from fusewise.datasets.store import Store
from fusewise.schedule.errors import FusewiseError, MeasureError
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.problem import Problem, group_signature
from fusewise.schedule.schedule import Choice
from fusewise.search.random_plan import random_plan
from fusewise.search.samples import Summary, summary

#: A program's kernels are compiled and timed within this, or the program is given up.
_TIMEOUT_S = 300.0


@dataclass
class Collected:
    """What came of collecting one sample."""

    graphs: int = 0
    programs: int = 0
    #: Kernels timed for the first time on this device.
    kernels: int = 0
    #: Launches of kernels that were known already.
    repeats: int = 0
    #: Why programs or graphs were given up.
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Target:
    """Where timings of one graph go."""

    store: Store
    profile: DeviceProfile
    key: GraphKey
    sample: GraphSample
    corpus: str


class Collector:
    """Collects samples one after the other into one store."""

    def __init__(
        self, store: Store, *, plans: int = 3, seed: int = 0, effort: Effort | None = None
    ) -> None:
        """``plans`` random plans a graph, beside Inductor's own and the unfused one."""
        self._store = store
        self._plans = plans
        self._seed = seed
        self._effort = effort or Effort()
        self._known: dict[str, set[str]] = {}

    def collect(self, sample: GraphSample, corpus: str) -> Collected:
        """Compile a sample, forward and backward, and time the kernels of its schedules.

        A failure of the sample is in the result; nothing is raised for it.
        """
        result = Collected()
        session = _SampleBackend(self, sample, corpus, result)
        torch._dynamo.reset()
        try:
            compiled = torch.compile(sample.module, backend=session, dynamic=False)
            outputs = compiled(*sample.args, **sample.kwargs)
            if sample.training:
                scalar_loss(outputs).backward()
        except Exception as error:  # noqa: BLE001 - a sample that fails costs that sample
            result.failures.append(f"{sample.name}: {type(error).__name__}: {_first_line(error)}")
        finally:
            torch._dynamo.reset()
        return result

    def known(self, key: str) -> set[str]:
        """Signatures of kernels that were timed on a device; grows as more are."""
        if key not in self._known:
            self._known[key] = self._store.measured_signatures(key)
        return self._known[key]

    def time(
        self,
        graph: GraphCompile,
        target: _Target,
        observed: Sequence[Observed | None],
        forward_key: str | None,
        result: Collected,
    ) -> None:
        """Time the kernels of one graph's schedules and write them down."""
        job = graph_job(
            graph,
            key=target.key.key,
            device=str(device_of(graph.gm, graph.example_inputs)),
            observed=observed,
            forward_key=forward_key,
            with_reference=False,
        )
        announce(job)
        result.graphs += 1
        generator = random.Random(f"{self._seed} {target.key.key}")
        # One lowering other than Inductor's own: its nodes hold more or less than the usual ones.
        for choices in ((), generator.choice(variants(target.profile.kind))):
            problem, plans = self._plans_of(graph, target, choices, generator)
            self._store.append([device_row(target.profile), _graph_row(problem, target)])
            featurizer = Featurizer(problem, target.profile)
            for plan in plans:
                schedule = schedule_of(choices, plan)
                try:
                    program, launches = generate_with_launches(graph, schedule)
                    skipped = self._skipped(problem, launches, target)
                    calls = measuring_process(job.device).time_kernels(
                        ProgramJob(
                            schedule.id, program.source, program.constants, program.settings
                        ),
                        self._effort,
                        _TIMEOUT_S,
                        skipped,
                    )
                except (FusewiseError, RuntimeError, AssertionError) as error:
                    result.failures.append(f"{target.sample.name}: {_first_line(error)}")
                    if isinstance(error, MeasureError):
                        announce(job)
                    continue
                result.programs += 1
                matched = list(match(launches, calls))
                self._store.append(self._rows(problem, featurizer, matched, target, result))

    def _plans_of(
        self,
        graph: GraphCompile,
        target: _Target,
        choices: tuple[Choice, ...],
        generator: random.Random,
    ) -> tuple[Problem, list[Plan]]:
        """The problem under some choices, and its default, unfused and random plans."""
        found: list[tuple[Problem, list[Plan]]] = []
        # Another lowering has other nodes under the same names: a problem of its own.
        key = "-".join([target.key.key, *(f"{c.name}={c.value}" for c in choices)])

        def visit(live: LiveGraph) -> None:
            legality = InductorLegality(live)
            problem = extract_problem(
                live.scheduler,
                live.nodes,
                key=key,
                kind=graph.kind,
                possible_fusions=legality.possible_fusions(),
            )
            plans = [live.default_plan]
            if not choices:
                plans.append(unfused([node.name for node in problem.nodes]))
                plans += [random_plan(problem, legality, generator) for _ in range(self._plans)]
            found.append((problem, list({plan.groups: plan for plan in plans}.values())))

        graph.survey(choices, visit)
        return found[0]

    def _skipped(
        self, problem: Problem, launches: Sequence[Launch], target: _Target
    ) -> frozenset[tuple[str, int]]:
        """Calls of kernels that are known, by kernel name and occurrence."""
        known = self.known(target.profile.key)
        seen: Counter[str] = Counter()
        skipped = set()
        for launch in launches:
            if _signature(problem, launch) in known:
                skipped.add((launch.kernel, seen[launch.kernel]))
            seen[launch.kernel] += 1
        return frozenset(skipped)

    def _rows(
        self,
        problem: Problem,
        featurizer: Featurizer,
        matched: Sequence[tuple[Launch, CallTimes]],
        target: _Target,
        result: Collected,
    ) -> list[Row]:
        rows: list[Row] = []
        known = self.known(target.profile.key)
        for launch, times in matched:
            signature = _signature(problem, launch)
            if signature in known or not times.samples:
                result.repeats += 1
                continue
            known.add(signature)
            if launch.kind == "kernel":
                result.kernels += 1
                rows.append(
                    KernelRow(
                        signature=signature,
                        device_key=target.profile.key,
                        graph_key=problem.key,
                        nodes=launch.nodes,
                        features_version=FEATURES_VERSION,
                        features=featurizer.group(launch.nodes).tolist(),
                    )
                )
            timing = summary(undisturbed(times.samples))
            rows.append(
                MeasurementRow(
                    subject=launch.kind,
                    subject_id=signature,
                    graph_key=problem.key,
                    device_key=target.profile.key,
                    threads=target.profile.threads,
                    median_us=timing.median,
                    spread=timing.spread,
                    rounds=len(times.samples),
                    interval=_interval(timing),
                    clock={"cache": "warm", "samples": "faster half"},
                    torch_version=str(torch.__version__),
                )
            )
        return rows


class _SampleBackend:
    """The ``torch.compile`` backend that collects one sample."""

    def __init__(
        self, collector: Collector, sample: GraphSample, corpus: str, result: Collected
    ) -> None:
        self._collector = collector
        self._sample = sample
        self._corpus = corpus
        self._result = result
        self._observed: Sequence[Observed | None] = ()
        self._forward_key: str | None = None

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        self._observed = observe(example_inputs)
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_whole(gm, example_inputs, self._graph, {})

    def _graph(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        graph = GraphCompile(gm, example_inputs, kwargs)
        computes = any(node.op == "call_function" for node in gm.graph.nodes)
        if computes and not has_collectives(gm):
            try:
                self._time(graph)
            except Exception as error:  # noqa: BLE001 - a graph that fails costs that graph
                self._result.failures.append(f"{self._sample.name}: {_first_line(error)}")
        return graph.compile(None, None)

    def _time(self, graph: GraphCompile) -> None:
        device = device_of(graph.gm, graph.example_inputs)
        profile = device_profile(device, self._collector._store.path.parent)
        key = graph_key(
            graph.gm, graph.example_inputs, graph.kwargs, device_key(device), "collected"
        )
        target = _Target(self._collector._store, profile, key, self._sample, self._corpus)
        self._collector.time(graph, target, self._observed, self._forward_key, self._result)
        if graph.kind == "forward":
            self._forward_key = key.key


def match(
    launches: Sequence[Launch], calls: Sequence[CallTimes]
) -> Iterator[tuple[Launch, CallTimes]]:
    """Pair the launches of a program with the calls that were timed, each kind in its order.

    A group that needs several launches is left out: its time is of several kernels, and which part
    is whose cannot be told. Extern calls are left out altogether where their numbers differ.
    """
    kernels = [launch for launch in launches if launch.kind == "kernel"]
    timed = [call for call in calls if call.kernel]
    if [launch.kernel for launch in kernels] == [call.kernel for call in timed]:
        count: dict[tuple[str, ...], int] = {}
        for launch in kernels:
            count[launch.nodes] = count.get(launch.nodes, 0) + 1
        yield from (pair for pair in zip(kernels, timed, strict=True) if count[pair[0].nodes] == 1)
    externs = [launch for launch in launches if launch.kind == "extern"]
    extern_calls = [call for call in calls if not call.kernel]
    if len(externs) == len(extern_calls):
        yield from zip(externs, extern_calls, strict=True)


def _signature(problem: Problem, launch: Launch) -> str:
    """What a launch is known by: equal ones run equal code on equal shapes."""
    if launch.kind == "extern":
        return problem.node_by_name[launch.nodes[0]].signature
    return group_signature(problem, launch.nodes)


def _graph_row(problem: Problem, target: _Target) -> GraphRow:
    return GraphRow(
        key=problem.key,
        parts=dict(target.key.parts),
        kind=problem.kind,
        family=target.sample.family,
        source=f"{target.corpus}:{target.sample.name}",
        licence=target.sample.licence,
        nodes=len(problem.nodes),
        problem=encode_problem(problem),
        torch_version=str(torch.__version__),
    )


def _interval(timing: Summary) -> tuple[float, float] | None:
    return (timing.low, timing.high) if math.isfinite(timing.low) else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
