"""Which reductions might better be computed in one kernel than in two.

The compiler cuts a reduction of few results into parts, so that they fill the device, and puts them
together in a second kernel. Where what each result takes in is short, the second launch costs more
than the parts gain. Offers only; a prediction and a measurement come after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.problem import Node, Problem
from fusewise.schedule.reductions import split_choice
from fusewise.schedule.schedule import Choice

#: Elements that one block goes through in about the time of a launch.
_SHORT: Final = 32_768


def uncut(
    problem: Problem, decisions: Sequence[InliningDecision], profile: DeviceProfile
) -> list[tuple[tuple[Choice, ...], float]]:
    """Reductions to compute in one kernel, like ones together, each with microseconds to gain.

    Args:
        problem: the graph as it was lowered.
        decisions: what was stored where: they know the nodes of the graph by name.
        profile: of the device; on a CPU no reduction is cut.
    """
    if profile.kind != "cuda":
        return []
    writers = {access.buffer: node for node in problem.nodes for access in node.writes}
    alike: dict[object, list[Choice]] = defaultdict(list)
    for decision in decisions:
        last = writers.get(decision.buffer) if decision.kind == "reduction" else None
        first = None if last is None else _first_of(last, writers)
        if first is None or last is None:
            continue
        if first.rnumel * last.rnumel <= _SHORT:
            kind = (decision.operator, first.numel, first.rnumel, last.rnumel)
            alike[kind].append(split_choice(decision.node, 1))
    return [
        (tuple(choices), len(choices) * profile.launch_us)
        for _, choices in sorted(alike.items(), key=lambda item: item[1])
    ]


def _first_of(last: Node, writers: dict[str, Node]) -> Node | None:
    """The first kernel's node of a reduction that is cut, by the second one's."""
    if last.kind != "reduction" or len(last.reads) != 1:
        return None
    first = writers.get(last.reads[0].buffer)
    if first is None or first.kind != "reduction" or first.device != last.device:
        return None
    same_type = first.reduction_type == last.reduction_type
    return first if same_type and first.numel == last.numel * last.rnumel else None
