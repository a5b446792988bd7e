"""When a predicted gain is taken without being measured: how sure it has to be, by kind of choice.

Two schedules of one graph share most of their kernels, and what is not known of these cancels out.
What is left is held to a record: on graphs whose family the model did not see, how often was a
choice of that kind, taken by prediction, slower in truth? ``train-costmodel`` keeps the record
with the model. Nothing here predicts a time or chooses a schedule.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import msgspec

from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.overheads import Overheads
from fusewise.costmodel.plan_cost import GroupCost
from fusewise.costmodel.plan_margins import PlanMargins
from fusewise.schedule.kernel_choices import COMBO
from fusewise.schedule.problem import FINISHED_KINDS, Problem, call_signature, group_signature
from fusewise.schedule.products import TEMPLATE
from fusewise.schedule.reductions import SPLIT
from fusewise.schedule.schedule import NODE, Choice

#: ``setting``: about how all of a graph is lowered, fused as the compiler does. ``value``: store or
#: inline single values. ``split``: parts of reductions. ``plan``: another partition. ``launches``:
#: small kernels in common ones. ``code``: all else about how kernels are fused and written.
#: ``products``: products in another precision, of which the rates are probed. ``library``: products
#: by another library, of which they are too, and at one and the same product. ``template``:
#: products in generated code.
GainKind = Literal[
    "setting", "value", "split", "plan", "launches", "code", "products", "library", "template"
]
#: Version of the rule that :class:`Gains` are made for.
RULE_VERSION: Final = 5
#: Part of a graph's predicted time that a choice has to save, and that common launches have to: in
#: the times of launches there is less to be wrong about.
LEAST_SHARE: Final = 0.02
LEAST_LAUNCHES: Final = 0.01
#: Relative time by which a schedule that is taken may be slower, and the part of those taken that
#: may be. One that was slower is added to what was seen, since there was no more to be seen.
TOLERATED: Final = 0.01
RISK: Final = 0.1
#: Parts of a graph's time and half intervals that may be asked for, the least first. Of other
#: kernels that are predicted to gain less than the least part of their doubt, as many were slower
#: as faster on the H200, some by a third.
SHARES: Final = (LEAST_SHARE, 0.05, 0.1)
CAUTIONS: Final = (0.2, 0.3, 0.5, 0.7, 1.0)
#: Part of a launch's time that is saved where two kernels share one.
LAUNCH_SHARE: Final = 0.7
#: Choices about all of a graph that change how reductions are cut.
_SPLITTING: Final = "split_reductions"
#: Choices about all of a graph: in which precision it multiplies, and by which library.
_PRODUCTS: Final[Mapping[str, GainKind]] = {
    "wide_products": "products",
    "onednn_products": "library",
}


class Demand(msgspec.Struct, frozen=True):
    """What a predicted gain has to be for it to be taken."""

    #: Part of the graph's predicted time, at least.
    share: float
    #: Half intervals of the kernels that differ, with which held against it something is left.
    caution: float = 0.0

    def surely_us(self, gain: Difference, total_us: float) -> float:
        """Microseconds that it surely saves of ``total_us``; 0 where that is not enough."""
        if gain.saved_us < self.share * total_us:
            return 0.0
        return max(gain.at_least(self.caution), 0.0)

    def and_that(self, other: Demand) -> Demand:
        """Both."""
        return Demand(max(self.share, other.share), max(self.caution, other.caution))


#: For what rests on no record of the datasets but on what was probed on the device itself. Two
#: libraries that multiply the same matrices mostly miss their rates together; so do a library and a
#: template, and what else is in its kernel has to save a part of the graph's time that counts.
PROBED: Final[Mapping[GainKind, Demand]] = {
    "products": Demand(LEAST_SHARE, 0.5),
    "library": Demand(LEAST_SHARE, 0.25),
    "template": Demand(SHARES[1]),
}
#: Kinds that there are records of.
KINDS: Final[tuple[GainKind, ...]] = tuple(k for k in get_args(GainKind) if k not in PROBED)


class Record(msgspec.Struct, frozen=True):
    """What came of choices that were taken by prediction, on graphs that the model had not seen."""

    taken: int
    #: Of these, the ones that were slower than :data:`TOLERATED` lets pass.
    slower: int
    #: Families that they are of, and the parts of each one's that were slower, all together: graphs
    #: of one family gain and lose together.
    families: int
    unlucky: float
    #: Mean over the families of their means of the log of the default's time over theirs.
    gain: float

    @property
    def risk(self) -> float:
        """Part of the families in which one is slower, if the next one is of those."""
        return (self.unlucky + 1.0) / (self.families + 1.0)

    @property
    def passes(self) -> bool:
        """Whether few enough were slower, of enough families that one was taken in."""
        return self.risk < RISK

    @property
    def gained(self) -> float:
        """Sum of the families' gains."""
        return self.families * self.gain


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """Which kinds of choices a prediction may take, and what it has to promise for that."""

    version: int = RULE_VERSION
    #: For each kind; None for never.
    demands: dict[str, Demand | None]
    #: Part of a launch's time that is saved where two kernels share one.
    launch_share: float = LAUNCH_SHARE
    #: What the demands rest on, by kind; empty where another model's are taken.
    records: dict[str, Record] = {}
    #: How far whole plans lie from the sums over their groups; None where nothing is known of it.
    plans: PlanMargins | None = None
    #: What plans take beyond their kernels; None where nothing is known of it.
    overheads: Overheads | None = None

    def asked(self, kinds: Iterable[GainKind]) -> Demand | None:
        """What is asked of a schedule that is of all these kinds; None for never."""
        found = [self.demands.get(kind, PROBED.get(kind)) for kind in kinds]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        return functools.reduce(Demand.and_that, known) if known else Demand(LEAST_SHARE)

    def may(self, kinds: Iterable[GainKind]) -> bool:
        """Whether a schedule of all these kinds is ever taken by prediction."""
        return self.asked(kinds) is not None

    def on_another_device(self) -> Gains:
        """For a model that was not trained on the device: what counts has to be sure."""
        sure = Demand(LEAST_SHARE, CAUTIONS[-1])
        demands = {
            kind: one if one is None or kind == "launches" else one.and_that(sure)
            for kind, one in self.demands.items()
        }
        # Of templates nothing is probed, and how fast they are elsewhere nobody has seen.
        demands["template"] = None
        return msgspec.structs.replace(
            self, demands=demands, records={}, plans=None, overheads=None
        )


def _never(**but: Demand) -> dict[str, Demand | None]:
    return {kind: but.get(kind) for kind in KINDS}


#: For models that have no record of their own: what came out on the published datasets.
USUAL: Final[Mapping[str, Gains]] = {
    "cuda": Gains(
        demands=_never(setting=Demand(SHARES[1], CAUTIONS[0]), launches=Demand(LEAST_LAUNCHES))
    ),
    "cpu": Gains(demands=_never()),
}


@runtime_checkable
class Experienced(Protocol):
    """A model that has a record."""

    @property
    def gains(self) -> Gains | None:
        """Its record, where it has one, as it holds on the device that it predicts for."""


def gains_of(model: CostModel, device_kind: str) -> Gains:
    """What predictions of ``model`` may take on a device of that kind.

    Where it has no record, or one for another version of the rule, that is :data:`USUAL`; what was
    not trained on the device at all has to be surer.
    """
    usual = USUAL.get(device_kind, USUAL["cpu"])
    if not isinstance(model, Experienced):
        return usual.on_another_device()
    own = model.gains
    return own if own is not None and own.version == RULE_VERSION else usual


def kinds_of(
    lowering: Iterable[Choice], codegen: Iterable[Choice], *, own_plan: bool
) -> frozenset[GainKind]:
    """Of which kinds a schedule is; none for the compiler's own.

    ``own_plan``: whether it is fused as the compiler does under these choices.
    """
    found: set[GainKind] = set() if own_plan else {"plan"}
    for choice in lowering:
        if choice.name.startswith(SPLIT) or choice.name == _SPLITTING:
            found.add("split")
        elif choice.name.startswith(TEMPLATE):
            found.add("template")
        elif choice.name in _PRODUCTS:
            found.add(_PRODUCTS[choice.name])
        else:
            found.add("value" if choice.name.startswith(NODE) else "setting")
    for choice in codegen:
        found.add("launches" if choice.name.startswith(COMBO) else "code")
    return frozenset(found)


@dataclass(frozen=True)
class Kernel:
    """A kernel that is the same wherever its signature is, with its time and its interval."""

    signature: str
    us: float
    low_us: float
    high_us: float
    #: Whether it is generated and unlike what the model was trained on: the roofline predicts it.
    strange: bool = False


def kernels_of(problem: Problem, groups: Iterable[GroupCost]) -> Counter[Kernel]:
    """The kernels of a plan for ``problem``, with how often each occurs."""
    finished = {node.name: node for node in problem.nodes if node.kind in FINISHED_KINDS}

    def signature(names: Sequence[str]) -> str:
        alone = finished.get(names[0]) if len(names) == 1 else None
        return group_signature(problem, names) if alone is None else call_signature(alone)

    return Counter(
        Kernel(
            signature(g.names),
            g.us,
            g.low_us,
            g.high_us,
            strange=g.source == "roofline" and finished.keys().isdisjoint(g.names),
        )
        for g in groups
    )


@dataclass(frozen=True)
class Difference:
    """What one schedule takes less than another, in microseconds."""

    saved_us: float
    #: By how much less it would be, were all kernels that differ at the worse end of their 90 %
    #: intervals.
    unsure_us: float
    #: What of that is of kernels unlike what the model was trained on: no record is of such.
    strange_us: float = 0.0

    def at_least(self, caution: float) -> float:
        """What is saved with so many half intervals held against it, and all of strange kernels."""
        return self.saved_us - caution * (self.unsure_us - self.strange_us) - self.strange_us


def difference(default: Counter[Kernel], other: Counter[Kernel]) -> Difference:
    """What ``other`` takes less than ``default``; kernels that both have cancel out.

    Whatever is known of them: of two lowerings the library calls of one may have been timed, and
    those of the other not.
    """
    without, with_ = _beyond(default, other), _beyond(other, default)
    saved = sum(k.us * n for k, n in without) - sum(k.us * n for k, n in with_)
    doubts = [(k, (k.us - k.low_us) * n) for k, n in without]
    doubts += [(k, (k.high_us - k.us) * n) for k, n in with_]
    strange = sum(doubt for kernel, doubt in doubts if kernel.strange)
    return Difference(saved, sum(doubt for _, doubt in doubts), strange)


def _beyond(some: Counter[Kernel], others: Counter[Kernel]) -> list[tuple[Kernel, int]]:
    """Those of ``some`` that ``others`` lack, by their signatures, with how often."""
    left: Counter[str] = Counter()
    for kernel, count in others.items():
        left[kernel.signature] += count
    found = []
    for kernel, count in sorted(some.items(), key=lambda pair: (pair[0].signature, pair[0].us)):
        both = min(count, left[kernel.signature])
        left[kernel.signature] -= both
        if count > both:
            found.append((kernel, count - both))
    return found


def sure_total(groups: Iterable[GroupCost]) -> float:
    """Microseconds of a plan, with what only the roofline knows (most library calls) at its least.

    Parts of a time are held against it, and one that is thought too long would hide them.
    """
    return sum(g.low_us if g.source == "roofline" else g.us for g in groups)
