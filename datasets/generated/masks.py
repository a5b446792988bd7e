"""Masks: made from positions and lengths, applied to scores, losses and sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _square(draw: Draw, heads: int) -> tuple[int, int]:
    """Batch and length of scores of that many heads."""
    most = max(4, int((draw.numel / heads) ** 0.5))
    length = min(most, draw.choice((16, 49, 64, 128, 197, 256, 512, 1024, 2048)))
    return max(1, min(128, draw.numel // (heads * length * length))), length


def attention_mask(draw: Draw) -> Program:
    """A mask of scores from positions: causal, windowed, padded, by segments, with slopes."""
    heads = draw.choice((1, 2, 8, 16))
    batch, length = _square(draw, heads)
    kind = draw.choice(("causal", "window", "padding", "segments", "slopes"))
    window = draw.choice((4, 32, 256))
    used = draw.choice(("softmax", "add", "mask"))

    def run(scores: Tensor, lengths: Tensor, slopes: Tensor) -> Tensor:
        at = torch.arange(length, device=scores.device)
        far = at[:, None] - at[None, :]
        if kind == "padding":
            seen = (at < lengths[:, None])[:, None, None, :]
        elif kind == "segments":
            segment = (at[None, :] >= lengths[:, None]).long()
            seen = (segment[:, :, None] == segment[:, None, :])[:, None]
        elif kind == "window":
            seen = (far >= 0) & (far < window)
        else:
            seen = far >= 0
        if used == "mask":
            return torch.where(seen, 0.0, torch.finfo(scores.dtype).min).to(scores.dtype)
        h = scores
        if kind == "slopes":
            h = h - slopes[:, None, None] * far.abs().to(h.dtype)
        h = torch.where(seen, h, torch.finfo(h.dtype).min)
        return functional.softmax(h, -1, dtype=torch.float32).to(h.dtype) if used != "add" else h

    trained = draw.training and used != "mask"
    args = (
        draw.tensor((batch, heads, length, length), grad=trained),
        draw.indices((batch,), length) + 1,
        draw.tensor((heads,), grad=False, positive=True),
    )
    return Program(run, args, trained)


def triangle(draw: Draw) -> Program:
    """Upper and lower triangles, banded and symmetrised matrices, distances of all pairs."""
    batch, length = _square(draw, 1)
    kind = draw.choice(("tril", "triu", "symmetric", "band", "pairs"))
    diagonal = draw.between(-2, 2)

    def run(x: Tensor, row: Tensor) -> Tensor:
        h = torch.tanh(x)
        if kind == "tril":
            return h.tril(diagonal) * row[:, None]
        if kind == "triu":
            return (h * row[:, None]).triu(diagonal).sum(-1)
        if kind == "symmetric":
            return (h + h.transpose(1, 2)) * 0.5
        if kind == "band":
            return h.tril(1).triu(-1) + torch.diag_embed(row)
        return h * torch.exp(-(row[:, :, None] - row[:, None, :]).square())

    args = (draw.tensor((batch, length, length)), draw.tensor((batch, length)))
    return Program(run, args, draw.training)


def masked_means(draw: Draw) -> Program:
    """Means, maxima and losses over what a mask keeps: pooled sentences, ignored pixels."""
    batch = draw.choice((1, 2, 8, 32))
    width = draw.width(wide=False)
    length = max(2, draw.numel // (batch * width))
    kind = draw.choice(("mean", "max", "last", "softmax"))
    by_length = draw.chance(0.5)

    def run(x: Tensor, lengths: Tensor, keep: Tensor) -> Tensor:
        at = torch.arange(length, device=x.device)
        kept = (at < lengths[:, None]) if by_length else keep
        if kind == "mean":
            total = (x * kept[..., None]).sum(1)
            return functional.normalize(total / kept.sum(1, keepdim=True).clamp(min=1), dim=-1)
        if kind == "max":
            return x.masked_fill(~kept[..., None], -1e4).amax(1)
        if kind == "last":
            return x[torch.arange(batch, device=x.device), lengths - 1] * 0.5
        score = x.float().mean(-1).masked_fill(~kept, -1e4)
        return (functional.softmax(score, -1)[..., None] * x).sum(1)

    args = (
        draw.tensor((batch, length, width)),
        draw.indices((batch,), length) + 1,
        draw.mask((batch, length), 0.8),
    )
    return Program(run, args, draw.training)


def thresholds(draw: Draw) -> Program:
    """Conditions on values: clipped gradients, hinge losses, piecewise functions, filters."""
    shape = draw.shape(draw.between(1, 3))
    pieces = [(draw.random.uniform(-1.5, 1.5), draw.random.uniform(-1, 1)) for _ in range(4)]
    pieces = pieces[: draw.between(1, 4)]
    counted, cleaned = draw.chance(0.4), draw.chance(0.3)

    def run(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.where((x > low) & (x < high), x, 0.1 * x)
        for at, slope in pieces:
            h = torch.where(h > at, at + slope * (h - at), h)
        if cleaned:
            h = torch.nan_to_num(h.masked_fill(x.isinf() | x.isnan(), 0.0))
        out = ~(x > low) | (x >= high)
        return h, out.sum(-1) if counted else out

    args = (draw.tensor(shape), draw.tensor(shape[-1:], grad=False), draw.tensor((1,), grad=False))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (attention_mask, triangle, masked_means, thresholds)
