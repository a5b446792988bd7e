"""Gauges of models and what training keeps beside them: calibration, hits, filters, states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _full(draw: Draw, *shape: int) -> Tensor:
    return draw.tensor(shape, dtype=torch.float32, grad=False)


def calibrated(draw: Draw) -> Program:
    """Confidences by bins, scattered or compared, against how often they are right; Brier's."""
    classes, bins = draw.choice((2, 10, 37, 100, 1000)), draw.choice((10, 15, 20))
    rows, heat = max(4, draw.numel // max(classes, bins)), draw.choice((1.0, 1.5))
    scattered, brier = draw.chance(0.5), draw.chance(0.6)

    def run(scores: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        p = functional.softmax(scores.float() / heat, -1)
        sure, found = p.max(-1)
        right = (found == label).float()
        at = (sure * bins).long().clamp(0, bins - 1)
        if scattered:
            off = torch.zeros(bins, device=p.device).index_add(0, at, sure - right)
        else:
            member = (at[:, None] == torch.arange(bins, device=p.device)).float()
            off = (member * (sure - right)[:, None]).sum(0)
        error, entropy = off.abs().sum() / rows, -(p * (p + 1e-9).log()).sum(-1)
        if not brier:
            return error, entropy
        wanted = (torch.arange(classes, device=p.device) == label[:, None]).float()
        return error, (p - wanted).square().sum(-1).mean(), right.mean()

    return Program(run, (draw.tensor((rows, classes), grad=False), draw.indices((rows,), classes)))


def hits(draw: Draw) -> Program:
    """Running counts of hits: confusions of segmented images, ranks of targets, ordered pairs."""
    kind = draw.choice(("confusion", "classes", "ranks", "pairs"))
    classes, side = draw.choice((2, 5, 19, 21, 33)), draw.choice((8, 17, 32, 64))
    if kind in ("ranks", "pairs"):
        classes, side = draw.choice((32, 100, 500, 1000)), 1
    rows = max(2, draw.numel // (classes * side * side))
    shape = (rows, classes) if side == 1 else (rows, classes, side, side)

    def run(scores: Tensor, label: Tensor, kept: Tensor) -> Tensor | tuple[Tensor, ...]:
        if kind == "ranks":
            own = scores.gather(1, label[:, None])
            rank = (scores > own).sum(1) + ((scores == own).sum(1) - 1).clamp(min=0) // 2
            first = (rank[:, None] < torch.tensor((1, 5, 10), device=rank.device)).float()
            return first.mean(0), (1.0 / (rank + 1)).mean()
        if kind == "pairs":
            good, bad = torch.sigmoid(scores[:, 0]), torch.sigmoid(scores[0])
            ahead = (good[:, None] > bad).float() + 0.5 * (good[:, None] == bad).float()
            return (ahead * (label % 2)[:, None]).mean(1).sum() / (label % 2).sum().clamp(min=1)
        found, valid = scores.argmax(1), label > 0
        if kind == "confusion":
            at = torch.where(valid, label * classes + found, 0).flatten()
            kept.view(-1).scatter_add_(0, at, valid.flatten().to(kept.dtype))
            inner = kept.diagonal()
            return inner / (kept.sum(0) + kept.sum(1) - inner).clamp(min=1), kept
        every = torch.arange(classes, device=found.device)[:, None, None]
        is_found, is_there = (found[:, None] == every) & valid[:, None], label[:, None] == every
        both, union = (is_found & is_there).sum((0, 2, 3)), is_found.sum((0, 2, 3))
        return 2 * both / (union + is_there.sum((0, 2, 3)) + 1e-6)

    label = draw.indices((rows, *shape[2:]), classes)
    counts = torch.zeros((classes, classes) if kind == "confusion" else 1, dtype=torch.int64)
    return Program(run, (draw.tensor(shape, grad=False), label, counts))


def outliers(draw: Draw) -> Program:
    """Values far off by column, row or frame: clipped in rounds, weighed down, or filled in."""
    shape, axis = draw.shape(draw.between(2, 3), wide=False), draw.choice((0, -1, -1))
    kind, rounds = draw.choice(("clip", "weigh", "fill")), draw.between(1, 3)
    tukey, far = draw.chance(0.5), draw.choice((1.5, 2.0, 3.0))

    def run(x: Tensor, valid: Tensor) -> Tensor | tuple[Tensor, ...]:
        h, keep = x.float(), valid.float()
        for _ in range(rounds):
            count = keep.sum(axis, keepdim=True) + 1e-6
            mean = (h * keep).sum(axis, keepdim=True) / count
            var = ((h - mean).square() * keep).sum(axis, keepdim=True) / count
            off = (h - mean) * torch.rsqrt(var + 1e-6)
            if kind == "weigh":
                soft = (1 - (off / far / 2).square()).clamp(min=0).square()
                keep = valid * (soft if tukey else (far / (off.abs() + 1e-6)).clamp(max=1.0))
            else:
                keep = valid * (off.abs() < far).float()
        if kind == "clip":
            limit = far * torch.sqrt(var + 1e-6)
            return torch.minimum(torch.maximum(h, mean - limit), mean + limit).to(x.dtype)
        if kind == "fill":
            return torch.where(keep > 0, h, mean).to(x.dtype), 1 - keep.mean(axis)
        return ((h - mean) * keep).to(x.dtype)

    return Program(run, (draw.tensor(shape), draw.mask(shape, 0.9)), draw.training)


def kept_codes(draw: Draw) -> Program:
    """States in 8-bit codes by block: looked up or scaled, updated, coded again; rounding."""
    size = draw.choice((64, 128, 256, 2048))
    rows, coded, noisy = max(1, draw.numel // size), draw.chance(0.5), draw.chance(0.5)

    def run(p: Tensor, g: Tensor, codes: Tensor, top: Tensor, line: Tensor, bits: Tensor) -> Tensor:
        old = line[codes.int() + 128] if coded else codes.float() / 127
        m = 0.9 * old * top[:, None] + 0.1 * g.float()
        top.copy_(m.abs().amax(1).clamp(min=1e-8))
        share = m / top[:, None]
        new = torch.bucketize(share, line[1:]) - 128 if coded else (share * 127).round()
        codes.copy_(new.to(torch.int8))
        p.sub_(0.01 * torch.sign(m) if coded else 0.01 * m)
        if noisy:
            # Random low bits, cut off: rounded up as often as the value is near the upper one.
            return ((p.view(torch.int32) + bits) & -65536).view(torch.float32).to(torch.bfloat16)
        return p.to(torch.bfloat16)

    line = torch.linspace(-1, 1, 256)
    args = (_full(draw, rows, size), draw.tensor((rows, size), grad=False))
    codes = draw.tensor((rows, size), dtype=torch.int8)
    top, bits = _full(draw, rows).abs() + 0.1, draw.indices((rows, size), 65536)
    return Program(run, (*args, codes, top, line * line.abs(), bits.int()))


def compressed(draw: Draw) -> Program:
    """Gradients to be sent: signs, packed bits or the largest, and what is lost kept for later."""
    kind, size = draw.choice(("sign", "packed", "large", "ternary")), draw.choice((64, 256, 1000))
    rows, finite = max(1, draw.numel // size), draw.chance(0.5)

    def run(grad: Tensor, lost: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        g = grad.float() / 8 + lost
        if finite:
            g = torch.where(torch.isfinite(g).all(), g, 0.0)
        top, mean = g.abs().amax(1, keepdim=True), g.abs().mean(1, keepdim=True)
        if kind == "large":
            sent = torch.where(g.abs() > 0.7 * top, g, 0.0)
        elif kind == "ternary":
            sent = torch.sign(g) * top * (g.abs() / (top + 1e-8) > noise).float()
        else:
            sent = torch.where(g >= 0, mean, -mean)
        lost.copy_(g - sent)
        if kind == "packed":
            powers = 2 ** torch.arange(8, device=g.device)
            return ((g >= 0).view(rows, -1, 8) * powers).sum(-1).to(torch.uint8), mean
        return sent.to(grad.dtype), (sent != 0).sum(1)

    args = (draw.tensor((rows, size), grad=False), _full(draw, rows, size))
    return Program(run, (*args, torch.sigmoid(args[1])))


def filtered(draw: Draw) -> Program:
    """Kalman filters of many small states: a prediction, then measurements that may be missing."""
    size, rounds = draw.choice((2, 3, 4, 6)), draw.between(1, 3)
    rows, gate = max(1, draw.numel // size**2), draw.choice((None, 4.0, 9.0))

    def run(x: Tensor, p: Tensor, z: Tensor, seen: Tensor) -> tuple[Tensor, ...]:
        for i in range(rounds):
            x = torch.cat((x[:, :-1] + 0.1 * x[:, 1:], x[:, -1:]), 1)
            p = p + 0.05 * (p.roll(1, 1) + p.roll(1, 2)) + 0.01
            p = 0.5 * (p + p.transpose(1, 2))
            s, off = p[:, 0, 0].abs() + 0.5, z[:, i] - x[:, 0]
            use = seen[:, i] & (off.square() / s < gate) if gate else seen[:, i]
            gain = torch.where(use[:, None], p[:, :, 0] / s[:, None], 0.0)
            x = x + gain * off[:, None]
            p = p - gain[:, :, None] * p[:, None, 0]
        return x, p

    base = _full(draw, rows, size, size)
    args = (_full(draw, rows, size), 0.2 * base @ base.mT + torch.eye(size))
    return Program(run, (*args, _full(draw, rows, 3), draw.mask((rows, 3), 0.8)))


#: Every family here.
FAMILIES = (
    calibrated,
    hits,
    outliers,
    kept_codes,
    compressed,
    filtered,
)
