"""Heads of recommenders, forecasts, tables and molecules: histories, gaps, bases, messages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def target_history(draw: Draw) -> Program:
    """What was bought before, weighed by how it fits what is offered: DIN, by recency too."""
    length, width = draw.choice((10, 20, 50, 101)), draw.choice((8, 16, 18, 32, 64))
    batch, words = max(1, draw.numel // (length * width)), draw.log_between(100, 50000)
    joined, soft, recent = draw.chance(0.6), draw.chance(0.5), draw.chance(0.4)
    looked, words = draw.chance(0.5), max(2, min(words, draw.numel // width))

    def run(x: Tensor, at: Tensor, target: Tensor, w: Tensor, rate: Tensor, n: Tensor) -> Tensor:
        h, q = x[at] if looked else x, target[:, None]
        if joined:
            both = torch.cat((q.expand_as(h), h, q - h, q * h), -1)
            score = (functional.silu(both) * w).sum(-1)
        else:
            score = (h * q * w[:width]).sum(-1) * width**-0.5
        place = torch.arange(length, device=h.device)
        inside = place < n[:, None]
        if recent:
            score = score - functional.softplus(rate) * torch.log1p((n[:, None] - place).abs())
        if soft:
            share = functional.softmax(score.masked_fill(~inside, -1e4).float(), -1).to(h.dtype)
        else:
            share = torch.sigmoid(score) * inside
        return torch.cat(((share[..., None] * h).sum(1), target, q[:, 0] * w[:width]), -1)

    x = draw.tensor((words, width) if looked else (batch, length, width))
    args = (x, draw.indices((batch, length), words), draw.tensor((batch, width)))
    weights = (draw.tensor((4 * width,)), draw.tensor((1,), grad=draw.training and recent))
    return Program(run, (*args, *weights, draw.indices((batch,), length) + 1), draw.training)


def bucketed_features(draw: Draw) -> Program:
    """Numbers put between borders: a row looked up of it, or encoded piece by piece, by feature."""
    features, pieces = draw.choice((3, 8, 13, 26)), draw.choice((4, 7, 16, 31))
    width, kind = draw.choice((4, 8, 16)), draw.choice(("compared", "searched", "pieces", "soft"))
    rows = max(1, draw.numel // (features * max(pieces, width)))

    def run(x: Tensor, borders: Tensor, table: Tensor, gap: Tensor) -> Tensor:
        v = torch.where(gap, 0.0, torch.sign(x) * torch.log1p(x.abs()))
        shift = torch.arange(features, device=x.device) * (pieces + 1)
        if kind == "searched":
            return table[torch.bucketize(v, borders[0]) + shift].flatten(1)
        if kind == "compared":
            at = (v[..., None] > borders).sum(-1) + shift
            return torch.where(gap[..., None], table[0], table[at]).tanh().flatten(1)
        if kind == "pieces":
            low, high = borders[:, :-1], borders[:, 1:]
            part = (v[..., None] - low) / (high - low + 1e-3)
            ends = (part[..., :1].clamp(max=1), part[..., 1:-1].clamp(0, 1), part[..., -1:])
            return torch.cat((*ends, gap[..., None]), -1).flatten(1).to(x.dtype)
        near = -4 * (v[..., None] - borders).float().square()
        return functional.softmax(near, -1).to(x.dtype) @ table[:pieces]

    trained = draw.training and kind != "pieces"
    borders = draw.tensor((features, pieces), grad=False).sort(-1).values
    args = (draw.tensor((rows, features), grad=False), borders)
    table = draw.tensor((features * (pieces + 1), width), grad=trained)
    return Program(run, (*args, table, draw.mask((rows, features), 0.1)), trained)


def decayed_gaps(draw: Draw) -> Program:
    """Series with gaps: what was last seen fades to the mean, states too, cells unrolled: GRU-D."""
    steps, width = draw.between(2, 3), draw.choice((5, 12, 33, 64, 128))
    rows, long = max(1, draw.numel // (steps * 4 * width)), draw.chance(0.4)

    def run(x: Tensor, seen: Tensor, gap: Tensor, gates: Tensor, w: Tensor) -> Tensor:
        mean = (x * seen).sum(1) / seen.sum(1).clamp(min=1)
        last = h = c = torch.zeros_like(mean)
        for t in range(steps):
            fade = torch.exp(-functional.relu(gap[:, t, None] * w[0] + w[1]))
            last = torch.where(seen[:, t], x[:, t], last)
            inside = fade * last + (1 - fade) * mean
            a, b, d, o = (gates[t] + torch.cat((inside, h, inside, h), -1)).chunk(4, -1)
            if long:
                c = torch.sigmoid(a + 1) * c + torch.sigmoid(b) * torch.tanh(d)
                h = torch.sigmoid(o) * torch.tanh(c)
                continue
            h = torch.lerp(torch.tanh(d + torch.sigmoid(b) * o), fade * h, torch.sigmoid(a))
        return h + inside * w[2]

    shape = (rows, steps, width)
    args = (draw.tensor(shape, grad=False), draw.mask(shape, 0.7))
    gap = draw.tensor(shape[:2], grad=False, positive=True)
    gates = draw.tensor((steps, rows, 4 * width))
    return Program(run, (*args, gap, gates, draw.tensor((3, width))), draw.training)


def polynomial_basis(draw: Draw) -> Program:
    """Bases made by recurrence on the last axis, weighed and summed: splines, Chebyshev: KAN."""
    kind, count = draw.choice(("spline", "chebyshev", "legendre")), draw.choice((3, 4, 5, 8))
    width, degree = draw.choice((3, 7, 16, 64, 128)), draw.choice((1, 2, 3))
    rows, inner = max(1, draw.numel // (width * (count + degree))), draw.chance(0.5)

    def basis(x: Tensor) -> Tensor:
        if kind == "spline":
            knots = torch.arange(-degree, count + degree + 1, device=x.device) * (2 / count) - 1
            v = x[..., None]
            b = ((v >= knots[:-1]) & (v < knots[1:])).to(x.dtype)
            for k in range(1, degree + 1):
                rising = (v - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1]) * b[..., :-1]
                b = rising + (knots[k + 1 :] - v) / (knots[k + 1 :] - knots[1:-k]) * b[..., 1:]
            return b
        found = [torch.ones_like(x), x]
        for n in range(1, count + degree - 1):
            both = (2 if kind == "chebyshev" else (2 * n + 1) / (n + 1)) * x * found[-1]
            found.append(both - (1 if kind == "chebyshev" else n / (n + 1)) * found[-2])
        return torch.stack(found, -1)

    def run(x: Tensor, w: Tensor, base: Tensor) -> Tensor:
        y = (basis(torch.tanh(x.float())) * w).sum(-1) + base * functional.silu(x)
        return (y.sum(1) if inner else functional.layer_norm(y, (width,), base.float())).to(x.dtype)

    args = (draw.tensor((rows, width)), draw.tensor((width, count + degree)))
    return Program(run, (*args, draw.tensor((width,))), draw.training)


def smeared_distances(draw: Draw) -> Program:
    """Distances of atoms as Gaussians or sines with a cut-off, filters of neighbours: SchNet."""
    width, count = draw.choice((8, 16, 32, 64)), draw.choice((8, 20, 50))
    edges, sines = max(4, draw.numel // max(count, width)), draw.chance(0.4)
    atoms, cosine, energy = max(2, edges // 12), draw.chance(0.5), draw.chance(0.4)

    def run(place: Tensor, ends: Tensor, x: Tensor, w: Tensor, owner: Tensor) -> Tensor:
        off = place[ends[0]] - place[ends[1]]
        far = torch.sqrt(off.square().sum(-1) + 1e-3)[:, None]
        part, n = (far / 5).clamp(max=1), torch.arange(count, device=x.device)
        end = 1 - 6 * part**5 + 15 * part**4 - 10 * part**3
        end = 0.5 * (torch.cos(part * torch.pi) + 1) if cosine else end
        rows = torch.sin((n + 1) * torch.pi * part) / far if sines else (far - n * 0.1).square()
        rows = (rows if sines else torch.exp(-10 * rows)) * end
        sieve = functional.softplus(rows.to(x.dtype) @ w) - 0.693
        y = torch.zeros_like(x).index_add(0, ends[0], x[ends[1]] * sieve)
        if energy:
            each = (y * functional.silu(x)).sum(-1).float()
            return torch.zeros(atoms, device=x.device).index_add(0, owner, each)
        return x + functional.softplus(y)

    place = draw.tensor((atoms, 3), dtype=torch.float32, grad=draw.training)
    args = (place, draw.indices((2, edges), atoms), draw.tensor((atoms, width)))
    more = (draw.tensor((count, width)), torch.arange(atoms) // 9)
    return Program(run, (*args, *more), draw.training)


def vector_messages(draw: Draw) -> Program:
    """Scalars and vectors of atoms sent along edges or mixed at the atom: PaiNN."""
    width, update = draw.choice((8, 16, 32, 64, 128)), draw.chance(0.4)
    edges = max(4, draw.numel // (3 * width))
    atoms, last = edges if update else max(2, edges // 8), draw.chance(0.4)

    def run(s: Tensor, v: Tensor, sieve: Tensor, way: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        axis = 2 if last else 1
        a, b, c = sieve.chunk(3, -1)
        if update:
            length = torch.sqrt(v.float().square().sum(axis) + 1e-6).to(s.dtype)
            inner = (v * v.roll(1, axis)).sum(axis)
            return s + a * length + b * inner, v * (1 + torch.tanh(c)).unsqueeze(axis)
        way = way * torch.rsqrt(way.square().sum(-1, keepdim=True) + 1e-3)
        gate = functional.silu(s[ends[1]])
        sent = v[ends[1]] * (a * gate).unsqueeze(axis)
        sent = sent + (b * gate).unsqueeze(axis) * (way[:, None] if last else way[..., None])
        return s.index_add(0, ends[0], c * gate), v.index_add(0, ends[0], sent)

    v = draw.tensor((atoms, width, 3) if last else (atoms, 3, width))
    sieve, way = draw.tensor((edges, 3 * width)), draw.tensor((edges, 3), grad=False)
    args = (draw.tensor((atoms, width)), v, sieve, way, draw.indices((2, edges), atoms))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (
    target_history,
    bucketed_features,
    decayed_gaps,
    polynomial_basis,
    smeared_distances,
    vector_messages,
)
