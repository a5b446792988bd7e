"""How often the C++ kernel of some nodes sends threads off within its loops.

Told from the problem, as ``cpu_loops`` tells it. Says nothing of what else a kernel does.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewise.costmodel.cpu_loops import nest_of, node_loops
from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Problem


def sent_off_within(problem: Problem, names: Sequence[str], profile: DeviceProfile) -> float:
    """Times beyond the first that reductions of these nodes have threads sent off for them.

    It is counted for each by itself: what shares loops with it is in the same turns.
    """
    most = 0.0
    for name in names:
        node = problem.node_by_name[name]
        if node.kind == "reduction":
            loops = node_loops(node, problem)
            most = max(most, nest_of([loops], profile.threads, profile.vector_bytes).sent - 1.0)
    return most
