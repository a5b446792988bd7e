"""The reference that candidates are judged against: the captured graph in double precision.

Interprets the graph operator by operator, each floating-point value held in fp64. An operator
that has no fp64 kernel runs in the precision of the program, and its result goes on as fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

_NARROW = (torch.float16, torch.bfloat16, torch.float32)


class HighPrecision(torch.fx.Interpreter):
    """Run a graph with every floating-point value in fp64."""

    def __init__(self, gm: torch.fx.GraphModule, dtypes: Sequence[torch.dtype | None]) -> None:
        """``dtypes``: precision that the program has the value of each node in, in their order.

        Raises:
            ValueError: there are more or fewer of them than nodes.
        """
        super().__init__(gm)
        self._dtypes = dict(zip(gm.graph.nodes, dtypes, strict=True))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one operator in fp64, or as the program does where it has no such kernel."""
        if n.op != "call_function":
            return pytree.tree_map_only(torch.Tensor, widen, super().run_node(n))
        # Fused attention takes fp64 without a word and may give NaN (cuDNN's on a GPU does).
        if "attention" not in str(n.target):
            args = self.fetch_args_kwargs_from_env(n)
            try:
                result = _call(n, pytree.tree_map_only(torch.dtype, _wide_dtype, args))
            except (RuntimeError, NotImplementedError, TypeError):
                # What operators raise when they have no kernel for a dtype.
                result = _call(n, self._as_written(n))
        else:
            result = _call(n, self._as_written(n))
        return pytree.tree_map_only(torch.Tensor, widen, result)

    def _as_written(self, node: torch.fx.Node) -> tuple[Any, Any]:
        def own(argument: torch.fx.Node) -> Any:
            value = self.env[argument]
            dtype = self._dtypes[argument] or torch.float32
            is_wide = isinstance(value, torch.Tensor) and value.dtype is torch.float64
            return value.to(dtype) if is_wide else value

        return torch.fx.map_arg((node.args, node.kwargs), own)


def _call(node: torch.fx.Node, args: tuple[Any, Any]) -> Any:
    positional, keywords = args
    return node.target(*positional, **keywords)  # type: ignore[operator]


def dtypes_of(gm: torch.fx.GraphModule) -> tuple[torch.dtype | None, ...]:
    """Precision of the value of each node of a captured graph; None where it is no tensor."""
    # By position, as serialising a graph gives its nodes other names.
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return tuple(v.dtype if isinstance(v, torch.Tensor) else None for v in values)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in _NARROW else dtype


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """fp64 for a narrower floating-point tensor; anything else unchanged."""
    return tensor.to(torch.float64) if tensor.dtype in _NARROW else tensor


def run_reference(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], dtypes: Sequence[torch.dtype | None]
) -> tuple[list[Any], dict[int, torch.Tensor]]:
    """Outputs in fp64, and by position the inputs that the graph overwrites, as they end up."""
    wide = [widen(v.clone()) if isinstance(v, torch.Tensor) else v for v in inputs]
    before = [v._version if isinstance(v, torch.Tensor) else 0 for v in wide]
    with torch.no_grad():
        outputs = HighPrecision(gm, dtypes).run(*wide)
    mutated = {
        i: v for i, v in enumerate(wide) if isinstance(v, torch.Tensor) and v._version != before[i]
    }
    return list(outputs), mutated


def relative_error(value: Any, reference: Any) -> float:
    """‖value - reference‖₂ / ‖reference‖₂; infinite where one is finite and the other is not.

    For integers and booleans the share of elements that differ.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(reference, torch.Tensor):
        return 0.0 if value == reference else float("inf")
    if value.shape != reference.shape:
        return float("inf")
    if value.numel() == 0:
        return 0.0
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return float((value != reference).double().mean())
    wide = value.to(reference.dtype if reference.dtype.is_complex else torch.float64)
    reference = reference.to(wide.dtype)
    # What overflows the narrow type is no mistake where the reference is beyond its range too.
    limit = torch.finfo(value.dtype).max
    finite = reference.abs() <= limit
    if not torch.equal(finite, torch.isfinite(wide)):
        return float("inf")
    difference = torch.where(finite, wide - reference, 0).norm()
    scale = torch.where(finite, reference, 0).norm()
    return float(difference / scale) if float(scale) > 0 else float(difference)
