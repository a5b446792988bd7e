"""Writing by index: sums with few and many collisions, histograms, gradients of tables."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _rows(draw: Draw) -> tuple[int, int, int]:
    """Sources, targets and width: from every source its own target to all onto one."""
    width = draw.choice((1, 1, 4, 16, 64, 128, 256, 768))
    sources = max(4, draw.numel // width)
    return sources, draw.log_between(1, 4 * sources), width


def scatter_rows(draw: Draw) -> Program:
    """Rows added into others by index, by each of the functions that do so."""
    sources, targets, width = _rows(draw)
    kind = draw.choice(("index_add", "scatter_add", "index_put", "amax", "mean"))
    act = draw.choice((torch.relu, torch.tanh, functional.silu))
    into_zeros = draw.chance(0.5)

    def run(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        message = act(x) * 0.5
        start = torch.zeros_like(y) if into_zeros else y * 1.0
        if kind == "index_add":
            return start.index_add(0, at, message)
        if kind == "index_put":
            return start.index_put((at,), message, accumulate=True)
        wide = at[:, None].expand_as(message)
        if kind == "scatter_add":
            return start.scatter_add(0, wide, message)
        return start.scatter_reduce(0, wide, message, kind, include_self=True)

    # The gradient of a maximum by index has no kernel of its own to fuse.
    trained = draw.training and kind not in {"amax", "mean"}
    args = (
        draw.tensor((sources, width), grad=trained),
        draw.tensor((targets, width), grad=trained),
        draw.indices((sources,), targets),
    )
    return Program(run, args, trained)


def scatter_elements(draw: Draw) -> Program:
    """Each row's elements written to places of the row: one-hot, sparse gates, permutations."""
    rows, width = draw.shape(2, wide=False)
    few = draw.log_between(1, width)
    kind = draw.choice(("set", "add", "one_hot"))

    def run(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        if kind == "set":
            return y.scatter(1, at, torch.sigmoid(x)) * 2.0
        if kind == "add":
            return functional.relu(y.scatter_add(1, at, torch.sigmoid(x)))
        hot = functional.one_hot(at[:, 0], width).to(x.dtype)
        return hot * x.sum(-1, keepdim=True) + (1 - hot) * y

    args = (draw.tensor((rows, few)), draw.tensor((rows, width)), draw.indices((rows, few), width))
    return Program(run, args, draw.training)


def table_gradient(draw: Draw) -> Program:
    """An embedding that is trained: its gradient is added up from few or many equal tokens."""
    width = draw.choice((4, 16, 32, 64, 128, 256, 768))
    tokens = max(4, draw.numel // width)
    words = draw.choice((1, 2, 16, 256, 4096, 32768))
    words = min(words, max(2, draw.numel // width))
    normed, scaled = draw.chance(0.4), draw.chance(0.3)

    def run(at: Tensor, table: Tensor, gain: Tensor) -> Tensor:
        h = functional.embedding(at, table)
        h = functional.layer_norm(h, h.shape[-1:], gain) if normed else h * gain
        return h * width**0.5 if scaled else torch.tanh(h)

    # In training always: without the gradient it is one more embedding.
    args = (
        draw.indices((tokens,), words),
        draw.tensor((words, width), grad=True),
        draw.tensor((width,), grad=True),
    )
    return Program(run, args, training=True)


def histogram(draw: Draw) -> Program:
    """Counts and weighted counts of bins, by scattered ones or by comparing with every bin."""
    bins = draw.log_between(2, 4096)
    values = draw.numel
    compared = bins <= 16 and draw.chance(0.6)  # noqa: PLR2004
    weighted, smoothed = draw.chance(0.4), draw.chance(0.5)

    def run(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.sigmoid(x).float() if weighted else torch.ones_like(x, dtype=torch.float32)
        if compared:
            hit = at[:, None] == torch.arange(bins, device=at.device)
            count = (hit * weight[:, None]).sum(0)
        else:
            count = torch.zeros(bins, device=x.device).index_add(0, at, weight)
        share = count / count.sum().clamp(min=1e-6)
        return (share + 1.0 / bins) / 2 if smoothed else share, share[at] * x

    args = (draw.tensor((values,), grad=False), draw.indices((values,), bins))
    return Program(run, args)


def graph_messages(draw: Draw) -> Program:
    """A round of message passing: gather, transform, reduce at the target, update."""
    width = draw.choice((1, 4, 8, 16, 32, 64, 128))
    edges = max(8, draw.numel // width)
    nodes = max(4, edges // draw.choice((1, 2, 4, 16, 64)))
    kind = draw.choice(("sum", "mean", "max", "softmax"))
    featured = draw.chance(0.5)

    def run(x: Tensor, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
        message = x[source]
        if featured:
            message = torch.relu(message + edge)
        wide = target[:, None].expand_as(message)
        empty = torch.zeros_like(x)
        if kind == "sum":
            out = empty.scatter_add(0, wide, message)
        elif kind == "mean":
            ones = torch.ones_like(target, dtype=x.dtype)
            count = torch.zeros_like(x[:, 0]).index_add(0, target, ones)
            out = empty.index_add(0, target, message) / count.clamp(min=1)[:, None]
        elif kind == "max":
            out = empty.scatter_reduce(0, wide, message, "amax", include_self=True)
        else:
            score = (message * x[target]).sum(-1).float().clamp(-8, 8).exp()
            total = torch.zeros(nodes, device=x.device).index_add(0, target, score)
            weight = (score / (total[target] + 1e-6)).to(x.dtype)
            out = empty.index_add(0, target, message * weight[:, None])
        return functional.silu(out + x)

    trained = draw.training and kind != "max"
    args = (
        draw.tensor((nodes, width), grad=trained),
        draw.tensor((edges, width) if draw.chance(0.6) else (width,), grad=trained and featured),
        draw.indices((edges,), nodes),
        draw.indices((edges,), nodes),
    )
    return Program(run, args, trained)


#: Every family here.
FAMILIES = (scatter_rows, scatter_elements, table_gradient, histogram, graph_messages)
