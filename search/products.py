"""Which matrix products might better be computed by a template than by a library.

A library stores a product, and another kernel reads it again. A template takes in what follows
element by element. It computes at a lower rate than a library where that has work for the whole
device all the time, and at a higher one where it has not. Offers only; a prediction and a
measurement come after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.products import (
    fills,
    library_us,
    product_of,
    template_rows,
    template_us,
)
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Buffer, Node, Problem
from fusewise.schedule.products import template_choice
from fusewise.schedule.schedule import Choice

_Names = tuple[str, ...]
#: Operators that there are templates for, as far as choices about them go.
_PRODUCTS: Final = frozenset({"aten.mm.default", "aten.addmm.default"})
#: Bytes of the matrices for each of the result, at the most: with more a product is about how fast
#: they are read, and of that a library knows more.
_READ: Final = 4
#: Rows of blocks of which there are some for all of the device where a launch less is time saved.
_ROWS: Final = 64


def templated(
    problem: Problem, plan: Plan, profile: DeviceProfile, suited: frozenset[str]
) -> tuple[tuple[Choice, ...], float] | None:
    """Products to compute by templates, with microseconds to gain; None where there are none.

    Args:
        problem: the graph as it was lowered.
        plan: of it, which says what is computed from a product in the same kernel.
        profile: of the device; on a CPU there are none.
        suited: nodes whose matrices lie as templates want them.
    """
    if profile.kind != "cuda":
        return None
    kernels = {name: group for group in plan.groups for name in group}
    choices: list[Choice] = []
    gain_us = 0.0
    for node in problem.nodes:
        if node.kind != "extern" or node.name not in suited:
            continue
        if not node.fx_names or node.origins[-1] not in _PRODUCTS:
            continue
        if sum(read.bytes for read in node.reads) > _READ * _result(problem, node).bytes:
            continue
        product = product_of(problem, node)
        if product is None:
            continue
        us = library_us(product, profile) - template_us(product, profile)
        us += _saved_us(problem, kernels, profile, node)
        if us > 0.0:
            choices.append(template_choice(node.fx_names[-1], template_rows(product, profile)))
            gain_us += us
    return (tuple(sorted(choices)), gain_us) if choices else None


def _saved_us(
    problem: Problem, kernels: Mapping[str, _Names], profile: DeviceProfile, product: Node
) -> float:
    """What it saves to take in what follows."""
    result = _result(problem, product)
    followers = [_takes_in(problem, product, kernels[name]) for name in result.users]
    if not any(followers):
        return 0.0
    # Where somebody else needs it, too, it is stored all the same.
    gone = all(followers) and not result.is_output
    ways = 2 if gone else 1
    # GB/s are 10^3 bytes a microsecond.
    saved_us = ways * result.bytes / (profile.copy_gbs * 1e3)
    launch = gone and fills(product.numel, _ROWS, profile)
    return saved_us + (profile.launch_us if launch else 0.0)


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
