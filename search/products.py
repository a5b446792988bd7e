"""Which matrix products might better be computed by a template than by a library.

A library stores a product, and another kernel reads it again. A template takes in what follows
element by element, and computes at a lower rate than a library where sums are long. So it pays
where each element is a sum over few values. Offers only; a prediction and a measurement come after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.plan_cost import TEMPLATE_SLOWER
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import HALVES, Buffer, Node, Problem
from fusewise.schedule.products import template_choice
from fusewise.schedule.schedule import Choice

_Names = tuple[str, ...]
#: Operators that there are templates for, as far as choices about them go.
_PRODUCTS: Final = frozenset({"aten.mm.default", "aten.addmm.default"})
#: Bytes of the matrices for each of the result, at the most: with more a product is about how fast
#: they are read, and of that a library knows more.
_READ: Final = 4
#: Rows of a block, and where sums are long and there is work for all of the device nevertheless.
_ROWS, _MANY_ROWS = 64, 128
#: Values that each element of a product is a sum over from which on sums are long.
_LONG: Final = 512
#: Types that there are templates for.
_TYPES: Final = HALVES | {"torch.float32"}


def templated(
    problem: Problem, plan: Plan, profile: DeviceProfile
) -> tuple[tuple[Choice, ...], float] | None:
    """Products to compute by templates, with microseconds to gain; None where there are none.

    Args:
        problem: the graph as it was lowered.
        plan: of it, which says what is computed from a product in the same kernel.
        profile: of the device; on a CPU there are none.
    """
    if profile.kind != "cuda":
        return None
    kernels = {name: group for group in plan.groups for name in group}
    choices: list[Choice] = []
    gain_us = 0.0
    for node in problem.nodes:
        if node.kind != "extern" or not node.fx_names or node.origins[-1] not in _PRODUCTS:
            continue
        us = _gain_us(problem, kernels, profile, node)
        if us > 0.0:
            choices.append(template_choice(node.fx_names[-1], _rows(problem, profile, node)))
            gain_us += us
    return (tuple(sorted(choices)), gain_us) if choices else None


def _rows(problem: Problem, profile: DeviceProfile, product: Node) -> int:
    long = product.flops >= 2 * _LONG * product.numel
    half = _result(problem, product).dtype in HALVES
    return _MANY_ROWS if long and half and _fills(product, profile, _MANY_ROWS) else _ROWS


def _fills(product: Node, profile: DeviceProfile, rows: int) -> bool:
    """Whether there are blocks of so many rows and columns for all of the device."""
    return product.numel >= rows**2 * profile.cores


def _gain_us(
    problem: Problem, kernels: Mapping[str, _Names], profile: DeviceProfile, product: Node
) -> float:
    """What it saves to take in what follows, less what the product itself may take longer."""
    result = _result(problem, product)
    followers = [_takes_in(problem, product, kernels[name]) for name in result.users]
    # Of operations that nobody could count nothing is known.
    if result.dtype not in _TYPES or not product.flops or not any(followers):
        return 0.0
    if sum(access.bytes for access in product.reads) > _READ * result.bytes:
        return 0.0
    # Where somebody else needs it, too, it is stored all the same.
    gone = all(followers) and not result.is_output
    ways = 2 if gone else 1
    half = result.dtype in HALVES
    rate_gfs = profile.half if half else profile.flops_gfs
    # GB/s are 10^3 bytes a microsecond, GFLOP/s as many operations.
    saved_us = ways * result.bytes / (profile.copy_gbs * 1e3)
    if gone and _fills(product, profile, _ROWS):
        saved_us += profile.launch_us
    return saved_us - (TEMPLATE_SLOWER[half] - 1.0) * product.flops / (rate_gfs * 1e3)


def _result(problem: Problem, product: Node) -> Buffer:
    return problem.buffer_by_name[product.writes[0].buffer]


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
