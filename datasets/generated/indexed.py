"""Indirect access: embeddings, gathers, scatters and additions by index."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def embedding(draw: Draw) -> Program:
    """Embeddings of tokens, places and kinds, added and normalised as encoders do."""
    width = draw.width(wide=False)
    words = draw.choice((100, 1009, 8192))
    length = draw.choice((8, 32, 100, 128))
    batch = max(1, draw.numel // (length * width))
    placed, typed, normed = draw.chance(0.7), draw.chance(0.4), draw.chance(0.6)
    scale = width**0.5 if draw.chance(0.3) else 1.0

    def run(tokens: Tensor, kinds: Tensor, word: Tensor, place: Tensor, kind: Tensor) -> Tensor:
        h = functional.embedding(tokens, word) * scale
        if placed:
            h = h + place[torch.arange(tokens.shape[1], device=tokens.device)]
        if typed:
            h = h + functional.embedding(kinds, kind)
        return functional.layer_norm(h, h.shape[-1:]) if normed else h

    args = (
        draw.indices((batch, length), words),
        draw.indices((batch, length), 2),
        draw.tensor((words, width)),
        draw.tensor((length, width)),
        draw.tensor((2, width)),
    )
    return Program(run, args, draw.training)


def index_add(draw: Draw) -> Program:
    """Messages along the edges of a graph: gather, transform, add or put by index, normalise."""
    width = draw.choice((1, 8, 16, 32, 64))
    edges = max(8, draw.numel // width)
    nodes = max(4, edges // draw.choice((1, 4, 16)))
    kind = draw.choice(("index_add", "scatter_add", "index_put"))
    averaged = draw.chance(0.4)

    def run(x: Tensor, weight: Tensor, source: Tensor, target: Tensor) -> Tensor:
        message = torch.relu(x[source] * weight)
        start = torch.zeros_like(x)
        if kind == "index_add":
            out = start.index_add(0, target, message)
        elif kind == "scatter_add":
            out = start.scatter_add(0, target[:, None].expand_as(message), message)
        else:
            out = start.index_put((target,), message, accumulate=True)
        if averaged:
            ones = torch.ones(target.shape[0], dtype=x.dtype, device=x.device)
            count = torch.zeros(nodes, dtype=x.dtype, device=x.device).index_add(0, target, ones)
            out = out / count.clamp(min=1)[:, None]
        return out + x

    args = (
        draw.tensor((nodes, width)),
        draw.tensor((edges, 1)),
        draw.indices((edges,), nodes),
        draw.indices((edges,), nodes),
    )
    return Program(run, args, draw.training)


def gather_rows(draw: Draw) -> Program:
    """Rows and columns picked by index, compared and combined: routing and sampling steps."""
    rows, width = draw.shape(2, wide=False)
    picks = draw.between(1, min(8, width))
    chosen_by = draw.choice(("gather", "take_along_dim", "top"))

    def run(x: Tensor, index: Tensor, gain: Tensor) -> Tensor:
        if chosen_by == "top":
            value, where = torch.topk(x, picks, -1)
            weight = functional.softmax(value, -1)
            return torch.zeros_like(x).scatter(-1, where, weight) * gain
        picked = x.gather(1, index) if chosen_by == "gather" else x.take_along_dim(index, 1)
        return (picked * torch.sigmoid(picked)).sum(-1, keepdim=True) * gain + x

    args = (draw.tensor((rows, width)), draw.indices((rows, picks), width), draw.tensor((width,)))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (embedding, index_add, gather_rows)
