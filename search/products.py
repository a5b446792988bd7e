"""Which matrix products might better be computed by a template than by a library.

A library stores a product, and another kernel reads it again. A template takes in what follows
element by element, and computes at a lower rate than a library does. That pays where each element
is a sum over few values. Offers only; a prediction and a measurement come after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Node, Problem
from fusewise.schedule.products import template_choice
from fusewise.schedule.schedule import Choice

_Names = tuple[str, ...]
#: Operators that there are templates for, as far as choices about them go.
_PRODUCTS: Final = frozenset({"aten.mm.default", "aten.addmm.default"})
#: Of the time that a library computes for, what a template may take longer.
_SLOWER: Final = 0.5
#: Rows of a block.
_ROWS: Final = 64
#: Bytes of an element whose products the device has a rate of its own for.
_HALF: Final = 2


def templated(
    problem: Problem, plan: Plan, profile: DeviceProfile
) -> list[tuple[tuple[Choice, ...], float]]:
    """Products to compute by templates, like ones together, each with microseconds to gain.

    Args:
        problem: the graph as it was lowered.
        plan: of it, which says what is computed from a product in the same kernel.
        profile: of the device; on a CPU there are none.
    """
    if profile.kind != "cuda":
        return []
    kernels = {name: group for group in plan.groups for name in group}
    alike: dict[str, list[Choice]] = defaultdict(list)
    gains: dict[str, float] = defaultdict(float)
    for node in problem.nodes:
        if node.kind != "extern" or not node.fx_names or node.origins[-1] not in _PRODUCTS:
            continue
        us = _gain_us(problem, kernels, profile, node)
        if us > 0.0:
            alike[node.signature].append(template_choice(node.fx_names[-1], _ROWS))
            gains[node.signature] += us
    found = [(tuple(sorted(choices)), gains[key]) for key, choices in alike.items()]
    return sorted(found)


def _gain_us(
    problem: Problem, kernels: Mapping[str, _Names], profile: DeviceProfile, product: Node
) -> float:
    """What it saves to take in what follows, less what the product itself may take longer."""
    written = product.writes[0]
    buffer = problem.buffer_by_name[written.buffer]
    followers = [_takes_in(problem, product, kernels[name]) for name in buffer.users]
    if not any(followers):
        return 0.0
    # Where somebody else needs it, too, it is stored all the same.
    ways = 2 if all(followers) and not buffer.is_output else 1
    rate_gfs = profile.half if written.itemsize == _HALF else profile.flops_gfs
    # GB/s are 10^3 bytes a microsecond, GFLOP/s as many operations.
    saved_us = ways * written.bytes / (profile.copy_gbs * 1e3)
    return saved_us - _SLOWER * product.flops / (rate_gfs * 1e3)


def _takes_in(problem: Problem, product: Node, kernel: _Names) -> bool:
    """Whether a product's template could compute a kernel as well: element by element.

    What a kernel reduces it has to read anyhow.
    """
    nodes = [problem.node_by_name[name] for name in kernel]
    return all(
        node.kind == "pointwise"
        and node.numel == product.numel
        and all(access.kind not in ("atomic", "opaque") for access in node.writes)
        for node in nodes
    )
