"""Sums, softmax and lookups by segment, neighbour, voxel and word; rows put by counted places."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _segments(draw: Draw, rows: int) -> tuple[Tensor, int]:
    """The segment of each row, often in order, and how many segments there are."""
    count = max(2, rows // draw.choice((1, 3, 8, 30, 100, 1000)))
    at = draw.indices((rows,), count)
    return (at.sort().values if draw.chance(0.6) else at), count


def segment_norm(draw: Draw) -> Program:
    """Means and variances of the graphs of a batch, and nodes normalised by those of their own."""
    width = draw.choice((1, 3, 16, 32, 50, 64, 128))
    at, count = _segments(draw, max(8, draw.numel // width))
    scaled, pooled, weighted = draw.chance(0.6), draw.chance(0.4), draw.chance(0.4)

    def run(x: Tensor, weight: Tensor, gain: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        share = torch.sigmoid(weight) if weighted else torch.ones_like(weight)
        many = share.new_zeros(count, 1).index_add(0, at, share).clamp(min=1e-2)
        mean = x.new_zeros(count, width).index_add(0, at, x * share) / many
        h = x - mean[at] * gain
        if scaled:
            var = torch.zeros_like(mean).index_add(0, at, h * h * share) / many
            h = h * torch.rsqrt(var + 1e-3)[at]
        return (functional.relu(h), torch.cat((mean, many), -1)) if pooled else (h,)

    weight = draw.tensor((at.numel(), 1), grad=draw.training and weighted)
    args = (draw.tensor((at.numel(), width)), weight, draw.tensor((width,)), at)
    return Program(run, args, draw.training)


def segment_softmax(draw: Draw) -> Program:
    """Scores of edges or rows by head, made shares within their segment, and weighted sums."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((1, 4, 8, 16, 32))
    at, count = _segments(draw, max(8, draw.numel // (heads * width)))
    shifted, summed, slope = draw.chance(0.7), draw.chance(0.7), draw.choice((0.01, 0.2))

    def run(x: Tensor, own: Tensor, vector: Tensor, at: Tensor) -> Tensor:
        score = functional.leaky_relu((x * vector).sum(-1) + own[at], slope).float()
        if shifted:
            wide = at[:, None].expand_as(score)
            most = score.new_full((count, heads), -1e4)
            most = most.scatter_reduce(0, wide, score.detach(), "amax", include_self=True)
            score = score - most[at]
        score = score.clamp(max=8).exp()
        total = score.new_zeros(count, heads).index_add(0, at, score)
        share = (score / (total[at] + 1e-6)).to(x.dtype)
        out = x.new_zeros(count, heads, width)
        return out.index_add(0, at, x * share[..., None]) if summed else share

    shapes = ((at.numel(), heads, width), (count, heads), (heads, width))
    return Program(run, (*(draw.tensor(shape) for shape in shapes), at), draw.training)


def sparse_product(draw: Draw) -> Program:
    """A matrix by coordinates times a vector or a narrow matrix, once or in some rounds."""
    width = draw.choice((1, 1, 2, 8, 16, 64))
    rows, count = _segments(draw, max(8, draw.numel // width))
    rounds, kept = draw.choice((1, 1, 2, 3)), draw.choice((0.1, 0.5))
    kind = draw.choice(("plain", "degrees", "means"))

    def run(x: Tensor, value: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        scale, h = value, x
        if kind != "plain":
            degree = value.new_zeros(count).index_add(0, rows, torch.ones_like(value)).clamp(min=1)
            root = degree.rsqrt()
            scale = value * root[rows] * (root[columns] if kind == "degrees" else root[rows])
        for _ in range(rounds):
            found = torch.zeros_like(x).index_add(0, rows, h[columns] * scale[:, None])
            h = kept * x + (1 - kept) * found
        return h

    shapes = ((count, width), (rows.numel(),))
    columns = draw.indices((rows.numel(),), count)
    return Program(run, (*(draw.tensor(s) for s in shapes), rows, columns), draw.training)


def calendar(draw: Draw) -> Program:
    """Trained tables of few rows that are read very often: times of a calendar, relative places."""
    width, words = draw.choice((8, 16, 32, 64, 128)), draw.random.sample((13, 32, 7, 24, 4), 4)
    words, rows = words[: draw.between(1, 4)], max(4, draw.numel // width)
    joined, shuffled = draw.chance(0.3), draw.chance(0.4)

    def run(x: Tensor, marks: Tensor, order: Tensor, *tables: Tensor) -> Tensor:
        found = [table[marks[:, i] % len(table)] for i, table in enumerate(tables)]
        h = x[order] if shuffled else x
        return torch.cat((h, *found), -1) if joined else functional.silu(h + sum(found))

    marks, order = draw.indices((rows, 4), 366), draw.tensor((rows,), grad=False).argsort()
    # In training always: gradients of tables with many and of those with no equal rows.
    tables = (draw.tensor((count, width), grad=True) for count in words)
    return Program(run, (draw.tensor((rows, width), grad=True), marks, order, *tables), True)


def neighbours(draw: Draw) -> Program:
    """Neighbours of points as a table: edge features and their largest, distances as weights."""
    near, width = draw.choice((3, 5, 16, 20, 32)), draw.choice((3, 8, 16, 32, 64))
    batch, kind = draw.choice((1, 2, 8)), draw.choice(("edges", "edges", "weights", "attention"))
    points, first = max(2, draw.numel // (near * width * batch)), draw.chance(0.3)

    def run(x: Tensor, place: Tensor, at: Tensor, gain: Tensor) -> Tensor:
        start = torch.arange(batch, device=at.device)[:, None, None] * points
        found = x.flatten(0, 1)[at + start]
        gap = found - x[:, :, None]
        if kind == "edges":
            h = torch.cat((gap * gain, x[:, :, None].expand_as(gap)), -1)
            h = h.permute(0, 3, 1, 2) if first else h
            return functional.leaky_relu(h, 0.2).amax(-1 if first else 2)
        far = (place.flatten(0, 1)[at + start] - place[:, :, None]).float().square().sum(-1)
        if kind == "weights":
            weight = 1 / (far + 1e-2)
            weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
            return (found * weight[..., None]).sum(2)
        share = functional.softmax(gap * gain - far.to(x.dtype)[..., None], 2)
        return (share * found).sum(2) + x

    args = (
        draw.tensor((batch, points, width)),
        draw.tensor((batch, points, 3), grad=False),
        draw.indices((batch, points, near), points),
        draw.tensor((width,), grad=draw.training and kind != "weights"),
    )
    return Program(run, args, draw.training)


def voxels(draw: Draw) -> Program:
    """Points put into pillars or hashed voxels, averaged there, and what they get back of it."""
    width, side = draw.choice((1, 4, 9, 16, 32, 64)), draw.choice((4, 10, 32, 64))
    points = max(8, draw.numel // (width + 3))
    hashed, back, cells = draw.chance(0.4), draw.chance(0.6), min(side * side, points)

    def run(place: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        scaled = torch.sigmoid(place) * side
        cell = scaled.floor().clamp(0, side - 1).long()
        at = (cell[:, 1] * side + cell[:, 0]) % cells
        if hashed:
            at = (cell[:, 0] ^ (cell[:, 1] * 2654435761) ^ (cell[:, 2] * 805459861)) % cells
        many = place.new_zeros(cells).index_add(0, at, torch.ones_like(scaled[:, 0]))
        mean = x.new_zeros(cells, width).index_add(0, at, x) / many.clamp(min=1)[:, None].to(
            x.dtype
        )
        if not back:
            return functional.relu(mean * gain).t().contiguous()
        offset = (scaled - (cell + 0.5)).to(x.dtype)
        return torch.cat((offset, x - mean[at], mean[at] * gain), -1)

    place = draw.tensor((points, 3), dtype=torch.float32, grad=False)
    return Program(run, (place, draw.tensor((points, width)), draw.tensor((width,))), draw.training)


def counted(draw: Draw) -> Program:
    """Rows put where a mask says, by counting: images among words, kept tokens, words of tokens."""
    width, batch = draw.width(wide=False), draw.choice((1, 2, 7, 16))
    length = max(4, draw.numel // (width * batch))
    room, kind = max(2, length // draw.choice((1, 2, 4))), draw.choice(("insert", "pack", "words"))

    def run(x: Tensor, other: Tensor, mask: Tensor, gain: Tensor) -> Tensor:
        count = mask.long().cumsum(1)
        if kind == "insert":
            at = (mask.flatten().long().cumsum(0) - 1).clamp(0, len(other) - 1)
            return torch.where(mask[..., None], other[at].view_as(x) * gain, x)
        h = x * gain
        # What finds no room goes to a last row, which is cut off.
        at = torch.where(mask, count - 1, room) if kind == "pack" else count
        wide = at.clamp(max=room)[..., None].expand_as(h)
        if kind == "pack":
            return x.new_zeros(batch, room + 1, width).scatter(1, wide, h)[:, :room]
        total = x.new_zeros(batch, room + 1, width).scatter_add(1, wide, h)
        many = x.new_zeros(batch, room + 1).scatter_add(1, wide[..., 0], torch.ones_like(h[..., 0]))
        return (total / many.clamp(min=1)[..., None])[:, :room]

    args = (
        draw.tensor((batch, length, width)),
        draw.tensor((max(1, batch * length // 2), width), grad=draw.training and kind == "insert"),
        draw.mask((batch, length), draw.choice((0.1, 0.5, 0.8))),
        draw.tensor((width,)),
    )
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (segment_norm, segment_softmax, sparse_product, calendar, neighbours, voxels, counted)
