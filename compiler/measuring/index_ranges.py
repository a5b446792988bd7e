"""How far integers may reach that a graph indexes by, told by what they index.

For integers that nobody saw, as those that a forward graph saved and that a backward one is
measured without. What looks up or adds up by them takes as long as where they point has it: all at
one place, they would wait for each other as those of no real program do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.fx

from fusewise.compiler.measuring.inputs import known_size

#: Operators of which the result holds the same integers, or some of them.
_SAME: Final = frozenset(
    {
        "aten::_to_copy",
        "aten::_unsafe_view",
        "aten::alias",
        "aten::clone",
        "aten::contiguous",
        "aten::detach",
        "aten::expand",
        "aten::permute",
        "aten::reshape",
        "aten::select",
        "aten::slice",
        "aten::squeeze",
        "aten::t",
        "aten::transpose",
        "aten::unsqueeze",
        "aten::view",
        "aten::where",
        "prims::convert_element_type",
    }
)
#: Operators that index one dimension, ``dim`` of ``self``, by ``index``.
_ALONG: Final = frozenset(
    {
        "aten::gather",
        "aten::index_add",
        "aten::index_copy",
        "aten::index_fill",
        "aten::index_select",
        "aten::scatter",
        "aten::scatter_add",
        "aten::scatter_reduce",
    }
)
#: Operators that index several dimensions of ``self``, each by one of a list of ``indices``.
_SEVERAL: Final = frozenset(
    {
        "aten::_unsafe_index",
        "aten::_unsafe_index_put",
        "aten::_unsafe_masked_index",
        "aten::_unsafe_masked_index_put_accumulate",
        "aten::index",
        "aten::index_put",
    }
)


def index_ranges(gm: torch.fx.GraphModule) -> dict[str, tuple[int, int]]:
    """The lowest and the highest value of the integers in each input that a graph indexes by.

    Sizes that are known at run time only are those of the example that the graph is compiled for.
    An input that indexes several things reaches as far as the smallest of them; one of which
    nothing is known is left out, and so are indices that are computed.
    """
    found: dict[str, tuple[int, int]] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.int32):
            continue
        places = [count for count in _indexed(node) if count > 0]
        if places:
            found[node.name] = (0, min(places) - 1)
    return found


def _indexed(indices: torch.fx.Node) -> Iterator[int]:
    """How many places there are wherever a node's integers are used as indices."""
    left, seen = [indices], {indices}
    while left:
        node = left.pop()
        for user in node.users:
            name = _name(user)
            if name in _SAME:
                left += [user] if user not in seen else []
                seen.add(user)
            else:
                yield from _places(user, name, node)


def _places(user: torch.fx.Node, name: str, indices: torch.fx.Node) -> Iterator[int]:
    """Of each dimension that ``user``, a call of the operator ``name``, indexes by ``indices``."""
    given = _arguments(user)
    if name == "aten::embedding" and given["indices"] is indices:
        yield _length(given["weight"], 0)
    elif name == "aten::embedding_dense_backward" and given["indices"] is indices:
        yield _known(given["num_weights"])
    elif name in _ALONG and given["index"] is indices:
        yield _length(given["self"], given["dim"])
    elif name in _SEVERAL:
        for dimension, one in enumerate(given["indices"]):
            if one is indices:
                yield _length(given["self"], dimension)


def _arguments(call: torch.fx.Node) -> dict[str, Any]:
    """What an operator is called with, by name, however it was passed; what is left out is not."""
    schema = getattr(call.target, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def _name(node: torch.fx.Node) -> str:
    """Of the operator that a node calls, without its overload; "" for what is none."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).removesuffix("_")


def _length(tensor: Any, dimension: int) -> int:
    """Of a dimension of what a node gives; 0 where it is not known."""
    value = tensor.meta.get("val") if isinstance(tensor, torch.fx.Node) else None
    return _known(value.shape[dimension]) if isinstance(value, torch.Tensor) and value.dim() else 0


def _known(size: Any) -> int:
    """A size, or that of what a node gives; 0 where it is not known."""
    value = size.meta.get("val") if isinstance(size, torch.fx.Node) else size
    return known_size(value) or 0 if isinstance(value, int | torch.SymInt) else 0
