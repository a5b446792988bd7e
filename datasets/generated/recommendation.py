"""Recommendation: many small tables, bags, crossed and hashed features, ranking losses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def embedding_bags(draw: Draw) -> Program:
    """Bags of rows from many tables, summed or averaged, joined with dense features."""
    count, width = draw.between(2, 20), draw.choice((4, 8, 16, 32, 64))
    bag = draw.choice((1, 4, 16, 50))
    batch = max(1, draw.numel // (count * width * bag))
    words = [draw.log_between(4, 20000) for _ in range(count)]
    weighted, stacked = draw.chance(0.4), draw.chance(0.5)

    def run(at: list[Tensor], tables: list[Tensor], weight: Tensor, dense: Tensor) -> Tensor:
        found = []
        for where, table in zip(at, tables, strict=True):
            rows = functional.embedding(where, table)
            found.append((rows * weight[..., None]).sum(1) if weighted else rows.mean(1))
        if stacked:
            return torch.stack([*found, dense], 1)
        return torch.relu(torch.cat([*found, dense], -1))

    args = (
        [draw.indices((batch, bag), count) for count in words],
        [draw.tensor((count, width)) for count in words],
        draw.tensor((batch, bag), grad=False),
        draw.tensor((batch, width)),
    )
    return Program(run, args, draw.training)


def interaction(draw: Draw) -> Program:
    """Crossed features: factorisation machines, pairs of fields, gated crosses."""
    fields, width = draw.choice((4, 8, 16, 27, 40)), draw.choice((4, 8, 16, 32))
    batch = max(1, draw.numel // (fields * width))
    kind = draw.choice(("machine", "pairs", "cross"))

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if kind == "machine":
            total = x.sum(1).square() - x.square().sum(1)
            return torch.sigmoid(0.5 * total.sum(-1) + (x * weight).sum((1, 2)))
        if kind == "pairs":
            first, second = torch.triu_indices(fields, fields, 1, device=x.device).unbind(0)
            return (x[:, first] * x[:, second]).sum(-1)
        gate = (x * weight).sum((1, 2), keepdim=True)
        return x * gate + bias + x

    args = (
        draw.tensor((batch, fields, width)),
        draw.tensor((fields, width)),
        draw.tensor((width,)),
    )
    return Program(run, args, draw.training)


def hashing(draw: Draw) -> Program:
    """Integers mixed and reduced to buckets, and what is looked up there: integer arithmetic."""
    width, buckets = draw.choice((1, 4, 16)), draw.choice((97, 1024, 10007))
    values = max(2, draw.numel // width)
    rounds, crossed = draw.between(1, 4), draw.chance(0.5)

    def run(a: Tensor, b: Tensor, table: Tensor) -> Tensor:
        h = a * 31 + b if crossed else a
        for _ in range(rounds):
            h = (h ^ (h >> 15)) * 73244475
            h = h & 0x7FFFFFFF
        rows = table[h % buckets]
        return rows * ((h & 1) * 2 - 1).to(rows.dtype)[:, None]

    args = (
        draw.indices((values,), 2**30),
        draw.indices((values,), 2**30),
        draw.tensor((buckets, width)),
    )
    return Program(run, args, draw.training)


def ranking(draw: Draw) -> Program:
    """Losses over scores of items: pairs, hinges, contrast within a batch, distances."""
    kind = draw.choice(("pairs", "hinge", "contrast", "triplet"))
    width = draw.choice((16, 64, 128))
    side = max(2, int(draw.numel**0.5)) if kind != "triplet" else max(2, draw.numel // width)
    margin = draw.choice((0.1, 1.0))

    def run(x: Tensor, y: Tensor, label: Tensor) -> Tensor:
        if kind == "triplet":
            near = (x - y).float().square().sum(-1)
            far = (x - y.roll(1, 0)).float().square().sum(-1)
            return functional.relu(near - far + margin).mean()
        gap = x[:, None] - y[None, :]
        apart = (label[:, None] != label[None, :]).to(x.dtype)
        if kind == "pairs":
            total = (functional.softplus(-gap) * apart).float().sum()
            return total / apart.float().sum().clamp(min=1)
        if kind == "hinge":
            return (functional.relu(margin - gap) * apart).float().mean()
        own = torch.arange(side, device=x.device)
        return functional.cross_entropy(gap.float() / margin, own)

    shape = (side, width) if kind == "triplet" else (side,)
    args = (draw.tensor(shape), draw.tensor(shape), draw.indices((side,), 5))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (embedding_bags, interaction, hashing, ranking)
