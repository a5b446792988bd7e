"""How much arithmetic the extern operations of a program take.

Decides only what is too large to be worth compiling; the cost model never sees these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from fusewise.datasets.graphnet.cutting import name_of
from fusewise.datasets.graphnet.tracing import tensors

_FIRST_TIMES_SECOND = {"matmul", "bmm", "mm", "mv"}
_ADDED = {"addmm", "baddbmm", "addbmm"}


def flops(node: fx.Node, values: Mapping[fx.Node, Any]) -> int:
    """Multiplications and additions of one extern operation; 0 for all others."""
    name = name_of(node)
    results = tensors(values[node])
    operands = [t for n in node.all_input_nodes for t in tensors(values[n])]
    if not results or not operands:
        return 0
    first, made = operands[0], results[0].numel()
    if (name in _FIRST_TIMES_SECOND or name == "linear") and first.dim():
        return 2 * made * first.shape[-1]
    if name in _ADDED and len(operands) > 1:
        return 2 * made * operands[1].shape[-1]
    if name.startswith("conv") and len(operands) > 1:
        wide = first.numel() if "transpose" in name else made
        return 2 * wide * operands[1].numel() // max(operands[1].shape[0], 1)
    if name == "scaled_dot_product_attention" and len(operands) > 1:
        return 4 * first.numel() * operands[1].shape[-2]
    if name == "multi_head_attention_forward":
        return made * (8 * first.shape[-1] + 4 * first.shape[0])
    if name == "einsum" and isinstance(node.args[0], str):
        return _einsum(node.args[0], operands)
    return 0


def _einsum(equation: str, operands: list[torch.Tensor]) -> int:
    sizes: dict[str, int] = {}
    terms = equation.partition("->")[0].split(",")
    for letters, operand in zip(terms, operands, strict=False):
        if "." not in letters:
            sizes.update(zip(letters.strip(), operand.shape, strict=False))
    return 2 * math.prod(sizes.values())
