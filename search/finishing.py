"""What is worth trying on a chosen plan that the cost model cannot see.

A prediction is of the kernels of a plan, each in a launch of its own, written as the compiler's
rules of thumb have it. Which launches to share, which kernels to tune and which reductions to
compute otherwise is therefore offered by rules that rest on predicted times, each with the reason,
and decided by measuring. Measures and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fusewise.costmodel.attribution import masked_turns, moved_bytes
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.launches import (
    MOST_IN_LAUNCH,
    SMALL,
    is_loop,
)
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.kernel_choices import Tuning, blocks_choice, combo_choice
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import group_signature
from fusewise.schedule.reductions import Shape, shape_choice
from fusewise.schedule.schedule import Choice
from fusewise.search.cpp_offers import CppOffers
from fusewise.search.launch_sets import launch_sets
from fusewise.search.offers import LEAST_SHARE, Offer, best_two
from fusewise.search.planned_kernel import MOST_GAIN, PlannedKernel, alike, in_one_launch

#: Up to so many launches' time a kernel does little but be launched, and no block size helps it.
_BARE: Final = 2.0
#: Kernels of one launch where there is time to try.
_MANY_IN_LAUNCH: Final = 32
#: Different kernels that are tried by themselves where there is time.
_MOST_TRIED: Final = 12
#: Reductions over more than this are launched apart from shorter ones.
_LONG_REDUCTION: Final = 2048
#: Part of the roofline's rate that a well tuned kernel reaches.
_REACHED: Final = 0.9
#: Part of a plan's time that a kernel is worth tuning for, whatever the model thinks of it.
_HEAVY: Final = 0.05
#: Elements of a row up to which the compiler has a block hold all of it: where neighbours in a row
#: are neighbours in memory, and elsewhere.
_HELD, _HELD_ACROSS = 1024, 64
#: Elements from which on a row is worth several blocks.
_LONG_ROW: Final = 16_384
#: Turns over rows, their ends looked for in each, from which on several at once are worth a try,
#: and the part of a kernel's time that these take off: of 24 reductions of rows of 50,257 on an
#: H100 0.11 in the mean.
_SEVERAL_TURNS, _TURNS_SAVE = 4, 0.1
#: Different kernels that are tuned in one candidate, all of them step by step if there is time.
_MOST_TUNED = 8


class Finishes:
    """Offers for one plan on one device."""

    def __init__(
        self, plan: Plan, cost: PlanCost, savings: Mapping[str, float] | None = None
    ) -> None:
        """Args:
        plan: to make offers for.
        cost: of plans of its problem.
        savings: part of a kernel's time that other block sizes are predicted to save, by
            signature, as far as they are known.
        """
        self._plan = plan
        self._savings = savings or {}
        self._problem = cost.problem
        self._launch_us = cost.profile.launch_us
        self._cores = cost.profile.cores
        self._on_gpu = cost.profile.kind == "cuda"
        self._cache_bytes = cost.profile.cache_bytes
        costs = cost.breakdown(plan)
        self.total_us = sum(group.us for group in costs)
        generated = [group for group in costs if is_loop(self._problem, group.names)]
        features = cost.featurizer.batch([group.names for group in generated])
        least = roofline_us(features, cost.profile)
        self.kernels = [
            self._kernel(group.names, group.us, float(us) / _REACHED, row)
            for group, us, row in zip(generated, least, features, strict=True)
        ]
        #: What there is for kernels in C++.
        self.cpp = CppOffers(self._problem, self.kernels, cost.profile, self.total_us)

    def _kernel(
        self, names: tuple[str, ...], us: float, least_us: float, features: FloatArray
    ) -> PlannedKernel:
        nodes = [self._problem.node_by_name[name] for name in names]
        reductions = [node.rnumel for node in nodes if node.kind == "reduction"]
        signature = group_signature(self._problem, names)
        return PlannedKernel(
            names,
            us,
            least_us,
            signature,
            (nodes[0].device, bool(reductions), max(reductions, default=1) > _LONG_REDUCTION),
            max(node.numel * node.rnumel for node in nodes),
            moved_bytes(features)[0],
            masked_turns(features),
            self._savings.get(signature),
        )

    def few(self, most_descended: int = _MOST_TUNED, *, blocks: bool = True) -> list[Offer]:
        """At most two offers, for when every try is waited for: the best, and it with the next.

        On a GPU kernels that are worth it are tuned, which is most likely to pay and so comes
        first; small ones share launches, reductions are computed otherwise. On a CPU kernels are
        written otherwise.

        Args:
            most_descended: different kernels to tune by coordinate descent, at most.
            blocks: whether any are tuned.
        """
        if not self._on_gpu:
            return self.cpp.few()
        tuned = self.tuned(most_descended) if blocks else None
        others = [self.together(), self.shaped(), self.unrolled()]
        if tuned is None or not most_descended:
            return best_two([tuned, *others])
        return [tuned, *(tuned + other for other in best_two(others)[:1])]

    def every(self, whole: Sequence[tuple[Choice, ...]] = ()) -> list[Offer]:
        """All that may be tried, each by itself, for when there is time.

        Args:
            whole: choices about the whole graph to try as well.
        """
        offers = [Offer(choices, 0.0, "all kernels") for choices in whole]
        if self._on_gpu:
            some = (self.together(), self.tuned(), self.shaped(), self.unrolled())
            offers += [offer for offer in some if offer is not None]
            offers += self.each_together() + self.each_together(_MANY_IN_LAUNCH)
            offers += self.each_tuned()[:_MOST_TRIED] + self.each_shaped()[:_MOST_TRIED]
        return list({offer.choices: offer for offer in offers}.values())

    def tuned(self, most_descended: int = _MOST_TUNED) -> Offer | None:
        """Block sizes of the kernels that the model sees a gain in, or that take much of the time.

        None where the others take so much that this cannot count.
        """
        worth = [
            kernels
            for kernels in alike(self.kernels)
            if self._is_long(kernels[0]) and self._is_worth_tuning(kernels)
        ]
        # Of those that nothing is known of, the one that takes most of the time comes first.
        worth = sorted(worth, key=lambda ks: -sum(k.hoped_us for k in ks))[:_MOST_TUNED]
        gain = sum(k.hoped_us for kernels in worth for k in kernels)
        possible = sum(k.possible_us for kernels in worth for k in kernels)
        if possible < LEAST_SHARE * self.total_us:
            return None
        choices: list[Choice] = []
        for at, kernels in enumerate(worth):
            tuning: Tuning = "descent" if at < most_descended else "autotune"
            choices += [blocks_choice(k.names[0], tuning) for k in kernels]
        share = sum(k.us for kernels in worth for k in kernels) / self.total_us
        return Offer(
            tuple(sorted(choices)),
            gain,
            f"{len(worth)} different kernels that take {share:.0%} of the time are tuned",
        )

    def tuned_by_prediction(
        self, least_share: float, *, heavy: bool = False, sets: Sequence[Sequence[str]] = ()
    ) -> Offer | None:
        """Block sizes of kernels that are known to gain; None where that is less than a share.

        Args:
            least_share: part of the plan's time that has to be gained together.
            heavy: whether those that take much of the time count, too, of which nothing is known
                or expected: predictions of it are often wrong.
            sets: kernels that share a launch, by a node of each; such a launch is one kernel.
        """
        worth = [
            kernels
            for kernels in alike(self._launched(sets))
            if (kernels[0].saving is not None and self._is_worth_tuning(kernels))
            or (heavy and self._is_heavy(kernels))
        ]
        worth = sorted(worth, key=lambda ks: -sum(k.hoped_us for k in ks))[:_MOST_TUNED]
        tuned = [k for kernels in worth for k in kernels]
        gain = sum(k.gain_us for k in tuned if k.saving is not None)
        possible = max(gain, MOST_GAIN * sum(k.us for k in tuned)) if heavy else gain
        if possible < least_share * self.total_us:
            return None
        choices = [blocks_choice(k.names[0], "descent") for k in tuned]
        share = sum(k.us for k in tuned) / self.total_us
        reason = f"{len(worth)} different kernels that take {share:.0%} of the time are tuned"
        return Offer(tuple(sorted(choices)), gain, reason)

    def _is_long(self, kernel: PlannedKernel) -> bool:
        return kernel.us > _BARE * self._launch_us

    def _is_heavy(self, kernels: Sequence[PlannedKernel]) -> bool:
        return self._is_long(kernels[0]) and sum(k.us for k in kernels) > _HEAVY * self.total_us

    def _is_worth_tuning(self, kernels: Sequence[PlannedKernel]) -> bool:
        gains = sum(k.gain_us for k in kernels) > LEAST_SHARE * self.total_us / 2
        unknown = all(k.saving is None for k in kernels)
        return gains or (unknown and sum(k.us for k in kernels) > _HEAVY * self.total_us)

    def each_tuned(self) -> list[Offer]:
        """One offer for each different kernel, the one that takes most time first."""
        return [
            Offer(
                tuple(blocks_choice(k.names[0], "descent") for k in kernels),
                sum(k.gain_us for k in kernels),
                f"{len(kernels)} kernels of {kernels[0].us:.1f} us",
            )
            for kernels in alike(self.kernels)
        ]

    def _launched(self, sets: Sequence[Sequence[str]]) -> list[PlannedKernel]:
        """The kernels, those of each set as one."""
        by_name = {name: kernel for kernel in self.kernels for name in kernel.names}
        shared = [[by_name[name] for name in names if name in by_name] for names in sets]
        within = {id(kernel) for kernels in shared for kernel in kernels}
        alone = [kernel for kernel in self.kernels if id(kernel) not in within]
        return [*alone, *(in_one_launch(kernels) for kernels in shared if kernels)]

    def together(self) -> Offer | None:
        """Small independent kernels in common launches; None where that cannot count."""
        offers = self.each_together()
        if not offers:
            return None
        gain = sum(offer.gain_us for offer in offers)
        if gain < LEAST_SHARE * self.total_us:
            return None
        kernels = sum(len(_members(offer.choices[0])) for offer in offers)
        return Offer(
            tuple(sorted(choice for offer in offers for choice in offer.choices)),
            gain,
            f"{kernels} small kernels in {len(offers)} launches",
        )

    def each_together(self, most: int = MOST_IN_LAUNCH, *, sure: bool = False) -> list[Offer]:
        """One offer for each set of small kernels, ``most`` in one.

        Args:
            most: kernels in one launch.
            sure: as for :func:`launch_sets`.
        """
        sets = launch_sets(
            self._problem,
            self._plan,
            [kernel for kernel in self.kernels if kernel.us <= SMALL * self._launch_us],
            most,
            sure=sure,
            cache_bytes=self._cache_bytes,
        )
        return [self._set(kernels) for kernels in sets]

    def shaped(self) -> Offer | None:
        """Reductions whose kernels had better look otherwise; None where that cannot count."""
        offers = [offer for offer in self.each_shaped() if offer.gain_us > 0.0]
        gain = sum(offer.gain_us for offer in offers)
        if gain < LEAST_SHARE * self.total_us:
            return None
        return Offer(
            tuple(sorted(choice for offer in offers for choice in offer.choices)),
            gain,
            "; ".join(offer.reason for offer in offers),
        )

    def each_shaped(self) -> list[Offer]:
        """One offer for each different reduction for which another kernel might be better.

        Small ones are left out: those that share a launch cannot share rows.
        """
        offers = []
        for kernels in alike(self.kernels):
            found = self._other_shape(kernels[0])
            if found is None or kernels[0].us <= SMALL * self._launch_us:
                continue
            shape, share, why = found
            offers.append(
                Offer(
                    tuple(shape_choice(k.names[0], shape) for k in kernels),
                    share * sum(k.us for k in kernels),
                    f"{len(kernels)} reductions {why} are {shape}",
                )
            )
        return offers

    def unrolled(self) -> Offer | None:
        """Loops over rows that take several turns at once; None where that cannot count."""
        worth = [k for k in self.kernels if k.masked_turns >= _SEVERAL_TURNS]
        gain = _TURNS_SAVE * sum(k.us for k in worth)
        if not worth or gain < LEAST_SHARE * self.total_us:
            return None
        reason = f"{len(worth)} kernels go through rows several turns at once"
        return Offer((Choice("unrolled_loops", True),), gain, reason)

    def _other_shape(self, kernel: PlannedKernel) -> tuple[Shape, float, str] | None:
        """What a reduction's kernel might look like, the part of its time to gain, and why."""
        nodes = [self._problem.node_by_name[name] for name in kernel.names]
        reductions = [node for node in nodes if node.kind == "reduction"]
        if not reductions:
            return None
        rows = min(node.numel for node in reductions)
        length = max(node.rnumel for node in reductions)
        inner = reductions[0].hint == "inner"
        if rows < self._cores / 2 and length >= _LONG_ROW:
            # The rest of the device has nothing to do.
            idle = 1.0 - rows / self._cores
            return "cooperative", MOST_GAIN * idle, f"of {rows} rows of {length}"
        held = _HELD if inner else _HELD_ACROSS
        if held < length <= 4 * held:
            # What goes over its rows again need not read them again; else there is little in it.
            again = any(n.kind == "pointwise" and n.numel == rows * length for n in nodes)
            return "persistent", MOST_GAIN if again else 0.0, f"of {length}, just above {held},"
        return None

    def _set(self, kernels: Sequence[PlannedKernel]) -> Offer:
        order = {group[0]: at for at, group in enumerate(self._plan.groups)}
        names = sorted((k.names[0] for k in kernels), key=lambda name: order[name])
        return Offer(
            (combo_choice(names),),
            (len(names) - 1) * self._launch_us,
            f"{len(names)} kernels of {sum(k.us for k in kernels) / len(kernels):.1f} us",
        )


def _members(choice: Choice) -> list[str]:
    return [choice.name, *str(choice.value).split()]
