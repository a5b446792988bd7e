"""The time of a complete plan: what each group costs in it, remembered, and their sum.

Many plans share their groups, so a group is featurised and predicted once. What it costs in a plan
is its kernel's time alone and what a program adds to that (:mod:`fusewise.costmodel.overheads`).
Nothing here chooses a plan, measures one or checks that it is legal.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN, FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.interface import CostModel, FloatArray, Prediction, Source
from fusewise.costmodel.overheads import NONE, Amounts, KnowsOverheads, Leaving, Overheads
from fusewise.costmodel.plan_margins import UNSURE, KnowsPlans
from fusewise.costmodel.products import Product, library_us, product_of, template_us
from fusewise.costmodel.roofline import INTERVAL_FACTOR, roofline_us
from fusewise.schedule.errors import ModelError
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import FINISHED_KINDS, HALVES, Node, Problem

#: Factor of the interval of a time that a probed rate decides, whatever the shape.
_PROBED_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class GroupCost:
    """What one group of a plan costs in it, in microseconds."""

    names: tuple[str, ...]
    us: float
    low_us: float
    high_us: float
    source: Source
    #: What of each of these the program adds to the kernel alone.
    around_us: float = 0.0

    @property
    def alone(self) -> GroupCost:
        """Its kernel by itself, as one is measured."""
        around_us = self.around_us
        return replace(
            self,
            us=self.us - around_us,
            low_us=self.low_us - around_us,
            high_us=self.high_us - around_us,
            around_us=0.0,
        )


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """Time of a plan, in microseconds: the sum over its groups and what a graph takes itself."""

    us: float
    #: Sums of the groups' 90 % interval ends, moved by what the model knows of whole plans. Errors
    #: of one model are alike from group to group, so they are not taken to cancel.
    low_us: float
    high_us: float


def is_unsure(costs: Iterable[GroupCost]) -> bool:
    """Whether :data:`UNSURE` or more of a plan's time rests on the roofline alone."""
    every = list(costs)
    rough = sum(cost.us for cost in every if cost.source == "roofline")
    return rough >= UNSURE * sum(cost.us for cost in every) > 0.0


class PlanCost:
    """Times of groups and plans of one problem on one device, by one model."""

    def __init__(
        self,
        problem: Problem,
        profile: DeviceProfile,
        model: CostModel,
        extern_us: Mapping[str, float] | None = None,
        overheads: Overheads | None = None,
    ) -> None:
        """Args:
        problem: that plans are of.
        profile: of the device.
        model: of kernels.
        extern_us: measured microseconds of extern and template nodes by signature.
        overheads: what plans take beyond their kernels; None for what the model knows of it.

        Raises:
            ModelError: the model expects features of another version.
        """
        if model.features_version != FEATURES_VERSION:
            raise ModelError(
                f"it expects features of version {model.features_version}, "
                f"these are version {FEATURES_VERSION}",
                subject=f"model {model.name}",
                remedy="train it again with train-costmodel",
            )
        self.problem = problem
        self.profile = profile
        self.model = model
        self.featurizer = Featurizer(problem, profile)
        if overheads is None and isinstance(model, KnowsOverheads):
            overheads = model.overheads
        self._overheads = overheads or NONE
        self._leaving = Leaving(problem)
        self._extern_us = dict(extern_us or {})
        self._halves = {buffer.name for buffer in problem.buffers if buffer.dtype in HALVES}
        self._known: dict[Hashable, GroupCost] = {}
        self._generated: set[Hashable] = set()
        #: Features of extern and template nodes by themselves, by their names.
        self._alone: dict[str, FloatArray] = {}

    def score(self, groups: Sequence[Collection[str]]) -> Prediction:
        """What ``groups`` [n] cost in a plan, in order; unseen ones go to the model in one batch.

        Raises:
            PlanError: a group is empty or names a node that the problem does not have.
        """
        costs = self._costs(groups)
        return Prediction(
            np.array([cost.us for cost in costs], dtype=np.float64),
            np.array([cost.low_us for cost in costs], dtype=np.float64),
            np.array([cost.high_us for cost in costs], dtype=np.float64),
            tuple(cost.source for cost in costs),
        )

    def plan(self, plan: Plan) -> PlanPrediction:
        """Time of the whole plan.

        Raises:
            PlanError: a group names a node that the problem does not have.
        """
        costs = self._costs(plan.groups)
        graph_us = self._overheads.around_us(Amounts(graphs=1.0))
        us = graph_us + sum(cost.us for cost in costs)
        ends = (
            graph_us + sum(cost.low_us for cost in costs),
            graph_us + sum(cost.high_us for cost in costs),
        )
        margins = self.model.plans if isinstance(self.model, KnowsPlans) else None
        if margins is not None:
            ends = margins.ends(us, *ends, unsure=is_unsure(costs))
        return PlanPrediction(us, *ends)

    def breakdown(self, plan: Plan) -> tuple[GroupCost, ...]:
        """What each group of the plan costs, in the plan's order of groups and nodes.

        Raises:
            PlanError: a group names a node that the problem does not have.
        """
        return self.groups(plan.groups)

    def groups(self, groups: Sequence[Collection[str]]) -> tuple[GroupCost, ...]:
        """What each of ``groups`` costs in a plan, in order and with its nodes in theirs.

        Raises:
            PlanError: a group is empty or names a node that the problem does not have.
        """
        return tuple(
            replace(cost, names=tuple(names))
            for names, cost in zip(groups, self._costs(groups), strict=True)
        )

    def amounts(self, plan: Plan) -> Amounts:
        """What a plan has that it takes longer by than its kernels alone.

        Raises:
            PlanError: a group names a node that the problem does not have.
        """
        costs = self._costs(plan.groups)
        every = [
            self._amounts(names, cost.alone.us, generated=key in self._generated)
            for names, cost, key in zip(plan.groups, costs, self._keys(plan.groups), strict=True)
            if cost.source != "free"
        ]
        return Amounts(1.0, *map(sum, zip(*(one[1:] for one in every), strict=True)))

    def parts(self, plan: Plan) -> tuple[FloatArray, float]:
        """Features of the kernels that are generated for a plan [n, F], and the time of all else.

        Raises:
            PlanError: a group names a node that the problem does not have.
        """
        costs = self._costs(plan.groups)
        keys = self._keys(plan.groups)
        kernels = [
            names for names, key in zip(plan.groups, keys, strict=True) if key in self._generated
        ]
        rest = self._overheads.around_us(Amounts(graphs=1.0)) + sum(
            cost.around_us if key in self._generated else cost.us
            for cost, key in zip(costs, keys, strict=True)
        )
        return self.featurizer.batch(kernels), rest

    def _keys(self, groups: Iterable[Collection[str]]) -> list[Hashable]:
        return [self.featurizer.key(names) for names in groups]

    def _costs(self, groups: Sequence[Collection[str]]) -> list[GroupCost]:
        keys = self._keys(groups)
        unseen = {
            key: names for key, names in zip(keys, groups, strict=True) if key not in self._known
        }
        if unseen:
            self._learn(unseen)
        return [self._known[key] for key in keys]

    def _learn(self, groups: Mapping[Hashable, Collection[str]]) -> None:
        generated = {}
        finished: dict[Hashable, list[Node]] = {}
        for key, names in groups.items():
            # Unknown names go to the featuriser, which refuses them.
            nodes = [n for n in map(self.problem.node_by_name.get, names) if n is not None]
            running = [node for node in nodes if node.kind != "nop"]
            if nodes and not running and len(nodes) == len(names):
                self._known[key] = GroupCost(tuple(names), 0.0, 0.0, 0.0, "free")
            elif any(node.kind in FINISHED_KINDS for node in running):
                finished[key] = running
            else:
                generated[key] = names
        self._look_at_alone(node for running in finished.values() for node in running)
        for key, running in finished.items():
            alone = self._finished(groups[key], running)
            self._known[key] = self._in_plan(alone, generated=False)
        if not generated:
            return
        self._generated.update(generated)
        predicted = self.model.predict(self.featurizer.batch(list(generated.values())))
        for (key, names), us, low, high, source in zip(
            generated.items(),
            predicted.us.tolist(),
            predicted.low_us.tolist(),
            predicted.high_us.tolist(),
            predicted.source,
            strict=True,
        ):
            alone = GroupCost(tuple(names), us, low, high, source)
            self._known[key] = self._in_plan(alone, generated=True)

    def _amounts(self, names: Collection[str], us: float, *, generated: bool) -> Amounts:
        """Of a group that takes ``us`` alone."""
        times = {"generated_us" if generated else "library_us": us}
        return self._leaving.of(names)._replace(calls=1.0, **times)

    def _in_plan(self, alone: GroupCost, *, generated: bool) -> GroupCost:
        """A group in a plan, from its kernel alone. What is added has no doubt of its own."""
        amounts = self._amounts(alone.names, alone.us, generated=generated)
        more = self._overheads.around_us(amounts)
        return replace(
            alone,
            us=alone.us + more,
            low_us=alone.low_us + more,
            high_us=alone.high_us + more,
            around_us=more,
        )

    def _look_at_alone(self, nodes: Iterable[Node]) -> None:
        """Have features of those extern and template nodes that need them, all at once."""
        wanted = {
            node.name: (node.name,)
            for node in nodes
            if node.kind in FINISHED_KINDS
            and node.name not in self._alone
            and node.signature not in self._extern_us
            and not self._rate_decides(node)
            and self._product(node) is None
        }
        rows = self.featurizer.batch(list(wanted.values()))
        self._alone |= zip(wanted, rows, strict=True)

    def _rate_decides(self, node: Node) -> bool:
        """Whether the time of a library call follows from a probed rate and its bytes."""
        return bool(self.profile.kind == "cpu" and node.flops and self._probed_gfs(node))

    def _finished(self, names: Collection[str], nodes: Iterable[Node]) -> GroupCost:
        """Cost of a group around extern or template nodes.

        These bring their own time. What is fused into them adds what the roofline gives for the
        bytes and operations that the group has beyond them.
        """
        us = low = high = 0.0
        sources: list[Source] = []
        alone = [node for node in nodes if node.kind in FINISHED_KINDS]
        for node in sorted(alone, key=lambda node: node.order):
            one, factor, source = self._finished_node(node)
            us, low, high = us + one, low + one / factor, high + one * factor
            sources.append(source)
        if len(names) > len(alone):
            rows = self.featurizer.batch([names, [node.name for node in alone]])
            whole, kernel = roofline_us(rows, self.profile).tolist()
            more = max(whole - kernel, 0.0)
            us, low, high = us + more, low + more / INTERVAL_FACTOR, high + more * INTERVAL_FACTOR
            if more > 0.0:
                sources.append("roofline")
        # The least certain part names the whole.
        source = max(sources, key=("measured", "roofline").index)
        return GroupCost(tuple(names), us, low, high, source)

    def _finished_node(self, node: Node) -> tuple[float, float, Source]:
        """Time alone, the factor of its interval, and where both come from."""
        measured = self._extern_us.get(node.signature)
        if measured is not None:
            return measured, 1.0, "measured"
        product = self._product(node)
        if product is not None:
            takes_us = template_us if node.kind == "template" else library_us
            return takes_us(product, self.profile), _PROBED_FACTOR, "roofline"
        gfs = self._probed_gfs(node)
        if not gfs or not node.flops:
            return self._roofline_us(self._alone[node.name]), INTERVAL_FACTOR, "roofline"
        # GFLOP/s are 10^3 operations a microsecond.
        arithmetic = node.flops / (gfs * 1e3)
        if self._rate_decides(node):
            us = self.profile.launch_us + max(arithmetic, self._moving_us(node))
        else:
            # As many operations of fp32 as take the time. That they are of halves, a template's
            # accesses tell and a library's do not.
            row = self._alone[node.name].copy()
            row[COLUMN["half"]] = 0.0
            row[COLUMN["flops"]] = math.log2(1.0 + node.flops * self.profile.flops_gfs / gfs)
            us = self._roofline_us(row)
        # What mostly waits for a rate that was probed is known better than the rest.
        return us, _PROBED_FACTOR if arithmetic > us / 2 else INTERVAL_FACTOR, "roofline"

    def _product(self, node: Node) -> Product | None:
        """The product of matrices that a node is on a GPU; None for what is none."""
        return product_of(self.problem, node) if self.profile.kind == "cuda" else None

    def _roofline_us(self, row: FloatArray) -> float:
        return float(roofline_us(row[np.newaxis], self.profile)[0])

    def _probed_gfs(self, node: Node) -> float:
        """Rate that was probed for a product as this, GFLOP/s; 0 where none was."""
        if self.profile.half and self._is_half(node):
            return self.profile.half
        if self.profile.kind == "cuda":
            return 0.0
        return self.profile.onednn_gfs if node.library == "onednn" else self.profile.flops_gfs

    def _is_half(self, node: Node) -> bool:
        return any(access.buffer in self._halves for access in node.reads)

    def _moving_us(self, node: Node) -> float:
        """Microseconds that what a library call reads and writes takes on its way."""
        moved = sum(access.bytes for access in (*node.reads, *node.writes))
        near = moved <= self.profile.cache_bytes and self.profile.cache_gbs
        return moved / (1e3 * (near or self.profile.copy_gbs))
