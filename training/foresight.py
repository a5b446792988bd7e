"""What comes of choosing by prediction: the record that a model carries, and how it does unseen.

Schedules that were measured beside the compiler's own are predicted by models that saw nothing of
their family. For each kind of choice the best predicted schedule of each graph is taken, as mode
``predict`` would, and held to what was measured. A kind passes by the demands with which few enough
of what is taken were slower, family by family (risk control as in Angelopoulos et al. 2022, with
the count of slower ones in place of a bound on its mean). Fits nothing itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import (
    CAUTIONS,
    KINDS,
    LAUNCH_SHARE,
    LEAST_LAUNCHES,
    RISK,
    SHARES,
    TOLERATED,
    USUAL,
    Demand,
    Difference,
    GainKind,
    Gains,
    Record,
    difference,
    kernels_of,
    kinds_of,
    sure_total,
)
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.launches import launches_saved
from fusewise.costmodel.overheads import Overheads
from fusewise.costmodel.plan_cost import GroupCost, PlanCost
from fusewise.datasets.samples import ScheduleSample, ScheduleSamples
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import combos
from fusewise.schedule.plan import Plan, check_plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice

#: Families below which no kind can pass: with fewer the one that is added is too many.
ENOUGH: Final = round(1 / RISK)
#: Choosing by prediction of schedules made by these is choosing among the compiler's own plans.
_OWN_PLANS: Final = frozenset({"choices", "default"})
#: The compiler's own common launches, of all that it can put together.
_ALL_TOGETHER: Final = (Choice("combo_kernels", True),)


class Foresight(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of choosing by prediction on graphs that the model has not seen."""

    #: Graphs with the compiler's own and other schedules measured.
    graphs: int
    #: Those in which another one is taken, and in which that was slower by more than a percent.
    taken: int
    slower: int
    #: The default's time over that of what is chosen, least of all graphs.
    worst: float
    #: Geometric mean of that over all graphs, and what always choosing the fastest would give.
    gain: float
    best_gain: float
    #: The same for each kind by itself, of those that are taken.
    records: dict[str, Record] = {}

    @property
    def share(self) -> float | None:
        """Part of what the fastest would give, in logs; None where that gives nothing."""
        best = np.log(self.best_gain)
        return float(np.log(self.gain) / best) if best > 0.0 else None


@dataclass(frozen=True)
class Tried:
    """A schedule that was measured beside the compiler's own."""

    #: The graph, on one device.
    graph: str
    #: Its family, or the graph where it has none.
    family: str
    kinds: frozenset[GainKind]
    #: What it was predicted to take less.
    gain: Difference
    #: Predicted time of the compiler's own, in microseconds.
    total_us: float
    #: Log of the own time over its own, as measured.
    log_gain: float
    #: Launches that it saves, times that of one; 0 where it says nothing of launches.
    launches_us: float = 0.0
    #: By how much it was faster, in microseconds.
    measured_us: float = 0.0

    def surely_us(self, demand: Demand) -> float:
        """What it surely saves; 0 where it is not taken."""
        return demand.surely_us(self.gain, self.total_us)


def tried_schedules(
    samples: ScheduleSamples,
    profile: DeviceProfile,
    extern_us: Mapping[str, float],
    model_of: Callable[[ScheduleSample], CostModel | None],
    overheads: Overheads | None = None,
) -> list[Tried]:
    """Schedules that were measured on the device beside the compiler's own, predicted.

    Args:
        samples: measured schedules.
        profile: of the device.
        extern_us: microseconds of extern kernels by signature.
        model_of: the model to predict one by; None for one that is to be left out.
        overheads: what plans take beyond their kernels; None for what the models know of it.

    Raises:
        StoreError: a stored problem cannot be read.
        DatasetError: a published one cannot be read.
    """
    by_graph: dict[str, list[ScheduleSample]] = defaultdict(list)
    for sample in samples:
        if sample.device_key == profile.key:
            by_graph[sample.graph_key].append(sample)
    found = []
    for members in by_graph.values():
        own = next((s for s in members if s.origin == "default"), None)
        if own is None or len(members) < 2:  # noqa: PLR2004 - it and another one
            continue
        model = model_of(own)
        if model is not None:
            found += _Graph(samples, own, profile, model, extern_us, overheads).tried(members)
    return found


class _Graph:
    """One graph by one model."""

    def __init__(
        self,
        samples: ScheduleSamples,
        own: ScheduleSample,
        profile: DeviceProfile,
        model: CostModel,
        extern_us: Mapping[str, float],
        overheads: Overheads | None,
    ) -> None:
        self._samples, self._own, self._profile = samples, own, profile
        self._model, self._extern_us, self._overheads = model, extern_us, overheads
        self._costs: dict[str, PlanCost] = {}

    def tried(self, members: Iterable[ScheduleSample]) -> list[Tried]:
        own = self._groups(self._own, self._own.schedule.plan)
        if own is None:
            return []
        total_us = sure_total(own)
        kernels = kernels_of(self._problem(self._own), own)
        found = []
        for sample in members:
            if sample.schedule == self._own.schedule:
                continue
            measured_us = self._own.median_us - sample.median_us
            log_gain = float(np.log(self._own.median_us / sample.median_us))
            launches_us = self._launches_us(sample, own)
            if launches_us is not None:
                gain = Difference(LAUNCH_SHARE * launches_us, 0.0)
                kinds: frozenset[GainKind] = frozenset({"launches"})
            else:
                groups = self._groups(sample, sample.schedule.plan)
                if groups is None or sample.schedule.codegen:
                    continue
                gain = difference(kernels, kernels_of(self._problem(sample), groups))
                own_plan = sample.origin in _OWN_PLANS
                kinds = kinds_of(sample.schedule.lowering, (), own_plan=own_plan)
            found.append(
                Tried(
                    f"{sample.graph_key} on {sample.device_key}",
                    sample.family or sample.graph_key,
                    kinds,
                    gain,
                    total_us,
                    log_gain,
                    launches_us or 0.0,
                    measured_us,
                )
            )
        return found

    def _launches_us(self, sample: ScheduleSample, own: Sequence[GroupCost]) -> float | None:
        """Time of the launches that are saved, if it is about nothing else and they can be told."""
        schedule, launch_us = sample.schedule, self._profile.launch_us
        if schedule.lowering or self._own.schedule.plan is None:
            return None
        if schedule.plan is None and schedule.codegen == _ALL_TOGETHER:
            us = [group.us for group in own]
            problem = self._problem(self._own)
            saved = launches_saved(problem, self._own.schedule.plan, us, launch_us)
            return None if not saved else saved * launch_us
        sets = combos(schedule.codegen)
        if schedule.plan != self._own.schedule.plan or len(sets) < len(schedule.codegen):
            return None
        return sum(len(names) - 1 for names in sets) * launch_us or None

    def _problem(self, sample: ScheduleSample) -> Problem:
        return self._samples.problem(sample)

    def _groups(self, sample: ScheduleSample, plan: Plan | None) -> tuple[GroupCost, ...] | None:
        """What each group costs; None for another fusion than the problem's."""
        if plan is None or not self._samples.has_problem(sample):
            return None
        problem = self._problem(sample)
        try:
            check_plan(problem, plan)
        except PlanError:
            return None
        cost = self._costs.get(sample.problem_key)
        if cost is None:
            known = self._extern_us, self._overheads
            cost = PlanCost(problem, self._profile, self._model, *known)
            self._costs[sample.problem_key] = cost
        return cost.breakdown(plan)


def gains_from(tried: Sequence[Tried], device_kind: str) -> Gains:
    """Which kinds may be taken, by what came of schedules predicted by models that saw nothing.

    Of a kind that too few were taken of, what is usual on such a device holds.
    """
    usual = USUAL[device_kind]
    demands: dict[str, Demand | None] = {}
    records: dict[str, Record] = {}
    for kind in KINDS:
        some = [one for one in tried if one.kinds == {kind}]
        asked = [Demand(share, caution) for share in SHARES for caution in CAUTIONS]
        if kind == "launches":
            # A launch less is one less, whatever the kernels take.
            asked = [Demand(LEAST_LAUNCHES)]
        found = [(demand, record_of(some, demand)) for demand in asked]
        if found[0][1].families < ENOUGH:
            demands[kind], records[kind] = usual.demands[kind], found[0][1]
            continue
        passing = [(demand, record) for demand, record in found if record.passes]
        # To be slower nowhere comes before being faster. Of equals the first, which asks for least.
        best = min(passing, key=lambda pair: (pair[1].unlucky, -pair[1].gained), default=None)
        demands[kind], records[kind] = (None, found[0][1]) if best is None else best
    shares = [one.measured_us / one.launches_us for one in tried if one.launches_us > 0.0]
    share = LAUNCH_SHARE if len(shares) < ENOUGH else float(np.clip(np.median(shares), 0.0, 1.0))
    return Gains(demands=demands, launch_share=share, records=records)


def record_of(tried: Iterable[Tried], demand: Demand) -> Record:
    """What comes of taking the best of each graph's schedules."""
    taken = _taken(tried, lambda one: one.surely_us(demand)).values()
    by_family: dict[str, list[float]] = defaultdict(list)
    for one in taken:
        by_family[one.family].append(one.log_gain)
    slower = [sum(gain < -np.log1p(TOLERATED) for gain in gains) for gains in by_family.values()]
    parts = [n / len(gains) for n, gains in zip(slower, by_family.values(), strict=True)]
    means = [float(np.mean(gains)) for gains in by_family.values()]
    return Record(
        taken=len(taken),
        slower=int(sum(slower)),
        families=len(by_family),
        unlucky=float(sum(parts)),
        gain=float(np.mean(means)) if means else 0.0,
    )


def _taken(tried: Iterable[Tried], surely: Callable[[Tried], float]) -> dict[str, Tried]:
    best: dict[str, tuple[float, Tried]] = {}
    for one in tried:
        us = surely(one)
        if us > 0.0 and us > best.get(one.graph, (0.0, one))[0]:
            best[one.graph] = (us, one)
    return {key: one for key, (_, one) in best.items()}


def foresight(tried: Sequence[Tried], gains: Gains) -> Foresight | None:
    """What comes of choosing among schedules by ``gains``; None where there are none."""
    if not tried:
        return None

    def surely(one: Tried) -> float:
        demand = gains.asked(one.kinds)
        return 0.0 if demand is None else one.surely_us(demand)

    taken = _taken(tried, surely)
    best: dict[str, float] = {}
    for one in tried:
        best[one.graph] = max(best.get(one.graph, 0.0), one.log_gain)
    logs = np.array([taken[key].log_gain if key in taken else 0.0 for key in best])
    kinds = {
        kind: record_of((one for one in tried if one.kinds == {kind}), demand)
        for kind, demand in gains.demands.items()
        if demand is not None
    }
    return Foresight(
        graphs=len(best),
        taken=len(taken),
        slower=int((logs < -np.log1p(TOLERATED)).sum()),
        worst=float(np.exp(logs.min())),
        gain=float(np.exp(logs.mean())),
        best_gain=float(np.exp(np.mean(list(best.values())))),
        records=kinds,
    )
