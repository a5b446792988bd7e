"""What the loop body of a scheduler node computes: its code, and how often each operation is in it.

Reads only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.fx


def code(body: Any) -> str:
    """The operations of a loop body in order, with their constants, without buffer names."""
    return ";".join(
        f"{n.target}({', '.join(str(a) for a in n.args if not isinstance(a, str) or '.' in a)})"
        for n in _nodes(body)
        if n.op in {"call_method", "call_module"}
    )


def operations(body: Any) -> tuple[tuple[str, int], ...]:
    """Operations of a loop body by name, with how often each is written.

    A quotient by a power of two is told as the product that compilers make of it: both have the
    same bits, and the product takes far less time.
    """
    counts = Counter({str(name): int(count) for name, count in body.op_counts.items()})
    products = sum(map(_is_product, _nodes(body)))
    counts.update(truediv=-products, mul=products)
    return tuple(sorted((+counts).items()))


def operation(node: torch.fx.Node) -> str:
    """The name of a loop body's operation, as in :func:`operations`."""
    return "mul" if _is_product(node) else str(node.target)


def _nodes(body: Any) -> Iterator[torch.fx.Node]:
    """What a loop body is made of, masked parts after the rest."""
    for block in (body.root_block, *body.subblocks.values()):
        yield from block.graph.nodes


def _is_product(node: torch.fx.Node) -> bool:
    """Whether an operation divides by a power of two."""
    if node.target != "truediv":
        return False
    divisor = node.args[-1]
    if not isinstance(divisor, torch.fx.Node) or divisor.target != "constant":
        return False
    value = divisor.args[1]
    return isinstance(value, int | float) and math.frexp(value)[0] in (0.5, -0.5)
