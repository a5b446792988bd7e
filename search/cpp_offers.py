"""What is worth trying on C++ kernels: writing them otherwise, or running them on one thread.

Rests on predicted times, and on how long what is replaced was seen to take. Decides nothing: where
no result changes, or none but in a last digit, it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice
from fusewise.search.lanes import saved_ns, sums_columns
from fusewise.search.offers import LEAST_SHARE, Offer
from fusewise.search.planned_kernel import MOST_GAIN, PlannedKernel
from fusewise.search.sent_off import sent_off_within

#: Iterations for each thread from which on a CPU loop is run on several, and what to try instead.
#: Where a second thread begins to pay was between 4000 and 12,000 for simple loops.
_PARALLEL: Final = 512
_GRAINS: Final = (2048, 8192)
#: Nanoseconds of a thread that are saved on an element by an operation that is written into a C++
#: kernel rather than called, on an AMD EPYC of family 26 and on a Xeon; and the bytes of their
#: vectors. Shorter ones save it as much oftener.
_WRITTEN_SAVES: Final = {
    "exp": 0.1,
    "expm1": 0.1,
    "sigmoid": 0.1,
    "erf": 0.12,
    "log": 0.15,
    "log1p": 0.1,
    "tanh": 1.0,
}
_VECTOR: Final = 64
#: Part of a graph's time that it takes off at most.
_MOST_WRITTEN: Final = 0.5
#: Part of a kernel's time that whole vectors take off at most.
_MOST_OF_LANES: Final = 0.9
#: Part of the time of a kernel that reduces columns which vectors side by side take off: of
#: matrices of 0.3 to 4 million elements 0.2 to 0.7 on AMD EPYCs, where it calls no function.
_COLUMNS_SAVE: Final = 0.4
#: Microseconds that sending threads off once more takes, at the least: 0.8 to 1.2 on two threads.
_SENT_OFF_US: Final = 0.8
#: Part of a kernel's time that it is at most.
_MOST_OF_SENT: Final = 0.95
#: Part of a plan's time that short loops are worth another look for.
_MUCH: Final = 0.10


class CppOffers:
    """Offers for the C++ kernels of one plan."""

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[PlannedKernel],
        profile: DeviceProfile,
        total_us: float,
    ) -> None:
        """``kernels`` of a plan of ``problem``, which takes ``total_us`` in all."""
        self._problem = problem
        self._kernels = kernels
        self._profile = profile
        self._threads = max(1, profile.threads)
        self._vectors = _VECTOR / max(1, profile.vector_bytes)
        self._total_us = total_us

    def few(self) -> list[Offer]:
        """At most two: all that makes nothing slower, and short loops on one thread with it."""
        sure, grain = self.sure(), self.grain()
        offers = [] if sure is None else [sure]
        if grain is not None:
            offers.append(grain if sure is None else sure + grain)
        return offers

    def sure(self) -> Offer | None:
        """All that makes nothing slower; None where that takes nothing off."""
        offers = [o for o in (*self.exact(), self.sent_once(), self.written_out()) if o is not None]
        return reduce(add, offers) if offers else None

    def written_out(self) -> Offer | None:
        """Elementary functions written into C++ kernels; None where they take little of the time.

        A library's cannot overlap with what is around the call, and needs all registers.
        """
        saved = 0.0
        for kernel in self._kernels:
            for name in kernel.names:
                node = self._problem.node_by_name[name]
                each = sum(_WRITTEN_SAVES.get(op, 0.0) * count for op, count in node.ops)
                saved += 1e-3 * each * self._vectors * node.numel * node.rnumel / self._threads
        if saved < LEAST_SHARE * self._total_us:
            return None
        saved = min(saved, _MOST_WRITTEN * self._total_us)
        reason = "exponentials and the like are written into their kernels"
        return Offer((Choice("vector_math", True),), saved, reason, saved)

    def sent_once(self) -> Offer | None:
        """Threads that share the loops around reductions; None where that takes little time off.

        What one of them sums up by itself may differ from what several do, in a last digit.
        """
        times = [
            sent_off_within(self._problem, k.names, self._profile) * _SENT_OFF_US
            for k in self._kernels
        ]
        saved = sum(
            min(us, _MOST_OF_SENT * k.us) for us, k in zip(times, self._kernels, strict=True)
        )
        if not saved or saved < LEAST_SHARE * self._total_us:
            return None
        reason = "threads share the rows of reductions of few columns"
        return Offer((Choice("outer_threads", True),), saved, reason, saved)

    def exact(self) -> list[Offer]:
        """C++ kernels written otherwise with the same results, in less time wherever it counts."""
        lanes = sum(
            min(1e-3 * saved_ns(self._problem, k.names) / self._threads, _MOST_OF_LANES * k.us)
            for k in self._kernels
        )
        columns = _COLUMNS_SAVE * sum(
            k.us
            for k in self._kernels
            if sums_columns(self._problem, k.names, self._threads) and not self._calls(k)
        )
        offers = (
            ("whole_vectors", lanes, "flags and random numbers go by whole vectors"),
            ("wide_columns", columns, "columns are reduced with vectors side by side"),
        )
        return [
            Offer((Choice(name, True),), saved, reason, saved)
            for name, saved, reason in offers
            if saved >= LEAST_SHARE * self._total_us and saved
        ]

    def _calls(self, kernel: PlannedKernel) -> bool:
        """Whether it calls elementary functions, which take as long for each vector as alone."""
        nodes = [self._problem.node_by_name[name] for name in kernel.names]
        return any(op in _WRITTEN_SAVES for node in nodes for op, _ in node.ops)

    def grain(self) -> Offer | None:
        """Short loops on one thread, on a CPU; None where they take little of the time.

        Starting threads, and waiting for the last of them, takes as long as a short loop does.
        """
        share = 0.0
        most = 0
        for kernel in self._kernels:
            each = kernel.iterations // self._threads
            if _PARALLEL <= each < _GRAINS[-1]:
                share += kernel.us / self._total_us
                most = max(most, each)
        if share < _MUCH:
            return None
        value = next(grain for grain in _GRAINS if most < grain)
        return Offer(
            (Choice("parallel_grain", value),),
            MOST_GAIN * share * self._total_us,
            f"short loops that take {share:.0%} of the time run on one thread",
        )
