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

#: Operators of which the result holds the same integers, or some of them.
_SAME: Final = frozenset(
    f"{space}::{name}"
    for space, names in {
        "aten": (
            "_to_copy alias clone contiguous detach expand permute reshape select slice squeeze t "
            "transpose unsqueeze view _unsafe_view where"
        ),
        "prims": "convert_element_type",
    }.items()
    for name in names.split()
)
#: Operators that index one dimension: tensor, dimension and indices come first.
_ALONG: Final = frozenset(
    f"aten::{name}"
    for name in (
        "gather",
        "index_add",
        "index_copy",
        "index_fill",
        "index_select",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    )
)
#: Operators that index several, and where their list of indices, one for each dimension, is.
_SEVERAL: Final = {
    "aten::index": 1,
    "aten::index_put": 1,
    "aten::_unsafe_index": 1,
    "aten::_unsafe_index_put": 1,
    "aten::_unsafe_masked_index": 2,
    "aten::_unsafe_masked_index_put_accumulate": 2,
}


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
    args = user.args
    if name == "aten::embedding" and args[1] is indices:
        yield _size(args[0], 0)
    elif name == "aten::embedding_dense_backward" and args[1] is indices:
        yield _hint(args[2])
    elif name in _ALONG and args[2] is indices:
        yield _size(args[0], args[1])
    elif name in _SEVERAL:
        several: Any = args[_SEVERAL[name]]
        yield from (_size(args[0], at) for at, one in enumerate(several) if one is indices)


def _name(node: torch.fx.Node) -> str:
    """Of the operator that a node calls, without its overload; "" for what is none."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).removesuffix("_")


def _size(tensor: Any, dimension: Any) -> int:
    """Length of a dimension of what a node gives; 0 where it is not known."""
    value = tensor.meta.get("val") if isinstance(tensor, torch.fx.Node) else None
    return _hint(value.shape[dimension]) if isinstance(value, torch.Tensor) and value.dim() else 0


def _hint(size: Any) -> int:
    if isinstance(size, torch.fx.Node):
        size = size.meta.get("val")
    if isinstance(size, torch.SymInt):
        size = size.node.hint if size.node.has_hint() else 0
    return size if isinstance(size, int) else 0
