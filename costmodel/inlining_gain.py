"""What it might gain to store a value that is inlined, or to inline one that is stored.

A rough estimate from what one lowering recorded, as a roofline without overlap: bytes over the
bandwidth plus operations over their rate, for the kernels of one plan. Good for ranking what is
worth lowering again, which takes a thousand times as long; it decides nothing and knows nothing
of what the compiler would fuse then.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.operations import CLASSES, operation_class
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Node, Problem

_DIVISION, _TRANSCENDENTAL = CLASSES.index("division"), CLASSES.index("transcendental")
#: Cost of a division in additions, as in the roofline.
_DIVISION_ADDITIONS = 8.0


class InliningGain:
    """Estimates for the values of one problem, with its kernels as a plan has them."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        decisions: Iterable[InliningDecision],
        profile: DeviceProfile,
    ) -> None:
        self._problem = problem
        self._group_of = plan.group_of()
        self._size_of = [len(group) for group in plan.groups]
        self._profile = profile
        self._buffer_of = {decision.node: decision.buffer for decision in decisions}
        self._writer: dict[str, Node] = {
            access.buffer: node for node in problem.nodes for access in node.writes
        }

    def us(self, decision: InliningDecision) -> float:
        """Microseconds that the alternative to a decision might save; 0 where there is none."""
        if decision.alternative is None:
            return 0.0
        return self._inlined(decision) if decision.outcome == "store" else self._stored(decision)

    def _stored(self, decision: InliningDecision) -> float:
        """Stored instead: one kernel computes and writes it, the others read it.

        A kernel computes an inlined value for each of its own iterations, which are more than the
        value has elements where it is broadcast.
        """
        inlined = [self._writer.get(self._buffer_of.get(n, "")) for n in decision.inlined_into]
        iterations: dict[int, int] = {}
        for node in inlined:
            if node is not None and node.name in self._group_of:
                group = self._group_of[node.name]
                most = max(iterations.get(group, 0), node.numel * node.rnumel)
                iterations[group] = most
        if not iterations:
            return 0.0
        computed = sum(max(n, decision.iterations) for n in iterations.values())
        again = self._operations_us(decision, computed - decision.iterations)
        others = len(iterations) - 1
        moved = others * (decision.read_bytes - decision.bytes) - decision.bytes
        return again + self._bytes_us(moved)

    def _inlined(self, decision: InliningDecision) -> float:
        """Inlined instead: nobody writes it, and each kernel that read it reads what it is made of.

        Its own kernel goes if it is alone there.
        """
        own = self._writer.get(decision.buffer)
        buffer = self._problem.buffer_by_name.get(decision.buffer)
        if own is None or buffer is None or own.name not in self._group_of:
            return 0.0
        group = self._group_of[own.name]
        users = {self._group_of[name] for name in buffer.users if name in self._group_of}
        others = len(users - {group})
        if not others:
            # What only its own kernel needs is kept in registers already.
            return 0.0
        moved = decision.bytes + others * (decision.bytes - decision.read_bytes)
        computed = others * decision.iterations
        saved = 0.0
        if self._size_of[group] == 1:
            moved += decision.read_bytes
            computed -= decision.iterations
            saved = self._profile.launch_us
        return saved + self._bytes_us(moved) - self._operations_us(decision, computed)

    def _bytes_us(self, count: int) -> float:
        # GB/s are 10^3 bytes a microsecond.
        return count / (self._profile.copy_gbs * 1e3)

    def _operations_us(self, decision: InliningDecision, iterations: int) -> float:
        kinds = [operation_class(name) for name in decision.operations]
        additions = decision.ops + kinds.count(_DIVISION) * (_DIVISION_ADDITIONS - 1)
        each = additions / (self._profile.flops_gfs / 2.0 * 1e3)
        each += kinds.count(_TRANSCENDENTAL) / (self._profile.transcendental_gops * 1e3)
        return iterations * each
