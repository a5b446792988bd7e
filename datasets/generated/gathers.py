"""Reading by index: rows narrow and wide, places in rows, pages of a cache, sampled images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def gather_table(draw: Draw) -> Program:
    """Rows picked from a small or a large table and combined with what is at hand."""
    width = draw.choice((1, 2, 4, 16, 64, 256, 1024, 4096))
    width = min(width, draw.numel)
    picks = max(1, draw.numel // width)
    rows = max(1, min(draw.log_between(4, 2**20), draw.numel * 2 // width))
    second = draw.chance(0.4)
    form = draw.choice(("brackets", "index_select", "embedding"))

    def pick(table: Tensor, at: Tensor) -> Tensor:
        if form == "brackets":
            return table[at]
        if form == "index_select":
            return table.index_select(0, at)
        return functional.embedding(at, table)

    def run(table: Tensor, at: Tensor, other: Tensor, gain: Tensor) -> Tensor:
        h = pick(table, at) * gain
        if second:
            h = h + pick(table, other)
        return h * torch.sigmoid(h)

    args = (
        draw.tensor((rows, width)),
        draw.indices((picks,), rows),
        draw.indices((picks,), rows),
        draw.tensor((width,)),
    )
    return Program(run, args, draw.training)


def along_rows(draw: Draw) -> Program:
    """Elements taken along an axis: chosen classes, reordered sequences, relative positions."""
    rank = draw.between(2, 3)
    shape = draw.shape(rank, wide=False)
    axis = draw.between(0, rank - 1)
    count = draw.log_between(1, 2 * shape[axis])
    picked = tuple(count if i == axis else extent for i, extent in enumerate(shape))
    form = draw.choice(("gather", "take_along_dim"))
    # One place for all that is beside it, which is read as a whole, or one for each element.
    single = draw.chance(0.4)
    places = tuple(count if i == axis else 1 for i in range(rank)) if single else picked

    def run(x: Tensor, at: Tensor, bias: Tensor) -> Tensor:
        h = functional.silu(x)
        if form == "gather":
            h = h.gather(axis, at.expand(picked))
        else:
            h = h.take_along_dim(at.expand(picked), axis)
        return (h + bias).float().square().mean(-1)

    args = (draw.tensor(shape), draw.indices(places, shape[axis]), draw.tensor(picked[-1:]))
    return Program(run, args, draw.training)


def pages(draw: Draw) -> Program:
    """Keys of a paged cache brought together by block table, and scored."""
    block, heads = draw.choice((8, 16, 32)), draw.choice((1, 2, 8))
    width = draw.choice((32, 64, 128))
    blocks = max(1, draw.numel // (block * heads * width))
    batch = min(blocks, draw.choice((1, 2, 4, 8, 16)))
    each = max(1, blocks // batch)

    def run(cache: Tensor, table: Tensor, query: Tensor, lengths: Tensor) -> Tensor:
        keys = cache[table].reshape(batch, each * block, heads, width)
        scores = (keys * query[:, None]).sum(-1).float() / width**0.5
        at = torch.arange(each * block, device=cache.device)
        scores = scores.masked_fill((at >= lengths[:, None])[..., None], -1e4)
        return functional.softmax(scores, 1).to(cache.dtype)

    args = (
        draw.tensor((blocks, block, heads, width), grad=False),
        draw.indices((batch, each), blocks),
        draw.tensor((batch, heads, width), grad=False),
        draw.indices((batch,), each * block) + 1,
    )
    return Program(run, args)


def sampled_image(draw: Draw) -> Program:
    """Bilinear sampling at given places, written out: four gathers and their weights."""
    channels, side = draw.choice((1, 3, 16, 32)), draw.choice((8, 16, 32, 64))
    points = max(4, draw.numel // (4 * channels))

    def run(image: Tensor, place: Tensor) -> Tensor:
        scaled = torch.sigmoid(place.float()) * (side - 1)
        low = scaled.floor().clamp(max=side - 2)
        part = (scaled - low).to(image.dtype)
        x, y = low.long().unbind(-1)
        flat = image.flatten(1)

        def at(dx: int, dy: int) -> Tensor:
            return flat[:, (y + dy) * side + x + dx]

        u, v = part.unbind(-1)
        top = at(0, 0) * (1 - u) + at(1, 0) * u
        return top * (1 - v) + (at(0, 1) * (1 - u) + at(1, 1) * u) * v

    args = (draw.tensor((channels, side, side)), draw.tensor((points, 2)))
    return Program(run, args, draw.training)


def routing(draw: Draw) -> Program:
    """Experts chosen for tokens: gate, largest few, tokens sorted by expert and weighed."""
    experts, few = draw.choice((4, 8, 16, 64)), draw.choice((1, 2, 4))
    width = draw.choice((64, 128, 512, 1024))
    tokens = max(1, draw.numel // (width * few))

    def run(x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        gate = functional.softmax(scores, -1, dtype=torch.float32)
        weight, chosen = gate.topk(few, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        order = chosen.flatten().argsort(stable=True)
        sorted_rows = x[order // few] * weight.flatten()[order][:, None]
        hot = functional.one_hot(chosen, experts).float()
        balance = (hot.sum((0, 1)) * gate.mean(0)).sum() * experts / tokens
        return sorted_rows, balance

    args = (draw.tensor((tokens, width)), draw.tensor((tokens, experts)))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (gather_table, along_rows, pages, sampled_image, routing)
