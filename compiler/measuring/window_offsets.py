"""Offsets that a forward graph saves of max pooling: which element of each window is the largest.

Where they have to be made up, an element in the padding would be outside of the tensor.
"""

from __future__ import annotations

import torch
import torch.fx

_TO_INDICES = "prims::_low_memory_max_pool_offsets_to_indices"


def inner_offsets(gm: torch.fx.GraphModule) -> dict[str, tuple[int, int]]:
    """Of each input of a graph that holds such offsets, one that is in no window's padding.

    That is the element that lies as far inside of a window as its padding reaches, told as the
    lowest value and the highest. None is told of windows of unknown size. In the last window of an
    even number of elements it may be in the padding at the other end: then the program fails as it
    would for any other.
    """
    found: dict[str, tuple[int, int]] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or getattr(node.target, "_name", "") != _TO_INDICES:
            continue
        offsets, kernel, _, _, padding, dilation = node.args
        sizes = (*kernel, *padding, *dilation)
        if offsets.op != "placeholder" or not all(isinstance(size, int) for size in sizes):
            continue
        offset = 0
        for size, padded, step in zip(kernel, padding, dilation, strict=True):
            offset = offset * size + min(-(-padded // step), size - 1)
        found[offsets.name] = (offset, offset)
    return found
