"""Cuts the program of a model into ranges of statements of a wanted size.

Sizes are in about the operations that a compiler makes of them: a layer norm is several, a view is
none. Extern operations (matrix products, convolutions, attention) are not fused into and are
counted apart. Knows nothing of values, only of operations and their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

#: Operations with a kernel of their own, which fusion ends at.
EXTERN = frozenset(
    """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul bmm mm
    addmm baddbmm einsum mv outer scaled_dot_product_attention multi_head_attention_forward
    _native_multi_head_attention fft_fftn fft_rfft fft_irfft grid_sample bilinear unfold fold
    """.split()  # noqa: SIM905 - a list of words
)
#: Views, and what is one in a captured graph: no work by itself.
_FREE = frozenset(
    """
    view reshape transpose permute expand expand_as view_as reshape_as t T mT unsqueeze squeeze
    flatten getitem getattr unbind chunk split tensor_split swapaxes detach contiguous dropout
    dropout2d meshgrid movedim narrow select unflatten broadcast_to to float type type_as size
    """.split()  # noqa: SIM905 - a list of words
)
_WEIGHTS = {
    "layer_norm": 5,
    "group_norm": 6,
    "instance_norm": 6,
    "rms_norm": 4,
    "batch_norm": 4,
    "softmax": 4,
    "log_softmax": 4,
    "normalize": 4,
    "gelu": 3,
    "silu": 2,
    "glu": 2,
    "hardswish": 3,
    "hardsigmoid": 3,
    "interpolate": 4,
    "embedding": 2,
    "sigmoid": 1,
    "softplus": 3,
    "cross_entropy": 6,
}


@dataclass(frozen=True)
class CutSize:
    """How long ranges are to be.

    A range ends once it weighs ``weight``, or before an extern operation beyond ``externs`` if it
    weighs ``least`` by then.
    """

    weight: int
    externs: int
    least: int = 8


def name_of(node: fx.Node) -> str:
    """Name of the node's operation: ``layer_norm``, ``transpose``, ``add``."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.split(".")[0]


def is_extern(node: fx.Node) -> bool:
    """Whether the node has a kernel of its own that nothing fuses with."""
    return name_of(node) in EXTERN


def weight(node: fx.Node) -> int:
    """About how many lowered operations the node is; 0 for views and extern operations."""
    name = name_of(node)
    if name in EXTERN or name in _FREE:
        return 0
    return _WEIGHTS.get(name.rstrip("_"), 1)


def cut(nodes: Sequence[fx.Node], size: CutSize) -> Iterator[tuple[int, int]]:
    """Ranges ``[start, stop)`` that cover ``nodes``, one after the other.

    The first statements of a range decide where it ends, so a model that repeats its blocks is
    cut alike in each of them, after a few at the latest.
    """
    start = total = externs = 0
    for i, node in enumerate(nodes):
        if is_extern(node):
            externs += 1
            full = externs > size.externs and total >= size.least
        else:
            full = total >= size.weight and weight(node) > 0
        if full and i > start:
            yield start, i
            start, total, externs = i, 0, int(is_extern(node))
        total += weight(node)
    if start < len(nodes):
        yield start, len(nodes)
