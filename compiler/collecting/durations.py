"""How long a run of a graph takes at the least, to leave out those that would hold up the rest.

Looks at the problem alone; measures nothing.
"""

from __future__ import annotations

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import HALVES, Problem

#: How much longer a CPU without matrix units for half precision takes for a product in it.
_SLOW_HALF = 60.0


def least_seconds(problem: Problem, profile: DeviceProfile) -> float:
    """What a run of a graph takes at the least, roughly.

    CPUs without matrix units for half precision convert it piece by piece, at a small part of
    their rate.
    """
    seconds = 0.0
    for node in problem.nodes:
        accesses = (*node.reads, *node.writes)
        seconds += sum(access.bytes for access in accesses) / (profile.copy_gbs * 1e9)
        buffers = [problem.buffer_by_name.get(access.buffer) for access in accesses]
        half = any(b is not None and b.dtype in HALVES for b in buffers)
        slow = _SLOW_HALF if half and profile.kind == "cpu" else 1.0
        seconds += slow * node.flops / (profile.flops_gfs * 1e9)
    return seconds
