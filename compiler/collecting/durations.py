"""How long graphs and kernels take, roughly: some are not worth the time that timing them takes.

Looks at the problem alone; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.roofline import roofline_us
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


def long_enough(
    groups: Mapping[str, tuple[str, ...]], featurizer: Featurizer, least_us: float
) -> set[str]:
    """Signatures of the groups that take ``least_us`` microseconds or more by the roofline.

    Args:
        groups: names of nodes that become one kernel, by signature.
        featurizer: of the problem that they are of.
        least_us: 0 for all of them, which takes no looking.
    """
    if not least_us or not groups:
        return set(groups)
    us = roofline_us(featurizer.batch(list(groups.values())))
    return {
        signature for signature, foretold in zip(groups, us, strict=True) if foretold >= least_us
    }
