"""Molecules and residues: places moved, angles of triplets, pairs, frames of backbones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def drawn_ends(draw: Draw, edges: int) -> tuple[Tensor, int]:
    """Source and target of each edge, [2, edges], targets often in order, and how many nodes."""
    nodes = max(2, edges // draw.choice((4, 6, 12, 30)))
    target = draw.indices((edges,), nodes)
    target = target.sort().values if draw.chance(0.5) else target
    return torch.stack((draw.indices((edges,), nodes), target)), nodes


def totals(x: Tensor, at: Tensor, count: int) -> Tensor:
    """Sums of the rows of each segment."""
    return x.new_zeros(count, *x.shape[1:]).index_add(0, at, x)


def equivariant(draw: Draw) -> Program:
    """Places moved along their differences by scalars of edges, listed or of all pairs: EGNN."""
    width, listed = draw.choice((8, 16, 32, 64, 128)), draw.chance(0.5)
    gated, bounded, count = draw.chance(0.4), draw.chance(0.5), draw.choice((5, 9, 19, 29, 48))
    ends, nodes = drawn_ends(draw, max(8, draw.numel // width))
    count = min(count, max(2, int((draw.numel // width) ** 0.5)))
    batch = max(1, draw.numel // (width * count * count))

    def change(h: Tensor, off: Tensor, bias: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        far = off.square().sum(-1, keepdim=True)
        sent = functional.silu(h + bias + far.to(h.dtype) * w[0])
        if gated:
            sent = sent * torch.sigmoid((sent * w[1]).sum(-1, keepdim=True))
        size = (sent * w[2]).sum(-1, keepdim=True).float()
        size = torch.tanh(size) if bounded else size * (far < 16).float()  # noqa: PLR2004
        return sent, off / (torch.sqrt(far + 1e-4) + 1) * size

    def edges(
        place: Tensor, h: Tensor, bias: Tensor, w: Tensor, ends: Tensor
    ) -> tuple[Tensor, ...]:
        sent, moved = change(h, place[ends[0]] - place[ends[1]], bias, w)
        many = totals(torch.ones_like(moved[:, :1]), ends[1], nodes).clamp(min=1)
        return place + totals(moved, ends[1], nodes) / many, totals(sent, ends[1], nodes)

    def pairs(
        place: Tensor, h: Tensor, bias: Tensor, w: Tensor, keep: Tensor
    ) -> tuple[Tensor, ...]:
        both = (keep[:, :, None] & keep[:, None])[..., None]
        sent, moved = change(h, place[:, :, None] - place[:, None], bias, w)
        fresh = place + (moved * both).sum(2) / 10
        mean = (fresh * keep[..., None]).sum(1, keepdim=True) / keep.sum(1)[:, None, None].clamp(1)
        return (fresh - mean) * keep[..., None], (sent * both).sum(2)

    shape = (nodes,) if listed else (batch, count)
    place = draw.tensor((*shape, 3), dtype=torch.float32)
    h = draw.tensor((ends.shape[1], width) if listed else (*shape, count, width))
    args = (place, h, draw.tensor((width,)), draw.tensor((3, width)))
    last = ends if listed else draw.mask((batch, count), 0.8)
    return Program(edges if listed else pairs, (*args, last), draw.training)


def angles(draw: Draw) -> Program:
    """Angles of triplets in spherical bases, filters by them, torsions' energies: DimeNet."""
    orders, count, width = draw.choice((3, 4, 6)), draw.choice((4, 6, 8)), draw.choice((8, 32, 64))
    kind, legendre = draw.choice(("basis", "filter", "torsion")), draw.chance(0.5)
    wide = {"basis": orders * count, "filter": width, "torsion": 12}[kind]
    many = max(4, draw.numel // wide)
    edges = max(4, many // draw.choice((2, 6, 15)))

    def basis(off: Tensor, at: Tensor) -> Tensor:
        a, b = off[at[0]], off[at[1]]
        dot, cross = (a * b).sum(-1), torch.linalg.cross(a, b)
        angle = torch.atan2(cross.square().sum(-1).add(1e-6).sqrt(), dot + 1e-3)
        shapes = [torch.ones_like(angle), torch.cos(angle)]
        for n in range(2, orders):
            higher = ((2 * n - 1) * shapes[1] * shapes[-1] - (n - 1) * shapes[-2]) / n
            shapes.append(higher if legendre else torch.cos(n * angle))
        far = (b.square().sum(-1) + 1e-2).sqrt()[:, None] / 5
        waves = torch.sin(far * torch.pi * torch.arange(1, count + 1, device=off.device)) / far
        waves = waves * (1 - 6 * far**5 + 15 * far**4 - 10 * far**3) * (far < 1)
        return torch.stack(shapes, -1)[:, :, None] * waves[:, None]

    def run(off: Tensor, x: Tensor, gain: Tensor, at: Tensor) -> Tensor:
        h = basis(off, at).flatten(1).to(x.dtype)
        if kind == "basis":
            return h * gain
        sent = x[at[0]] * functional.silu(h @ gain)
        return x + totals(sent, at[1], edges)

    def twist(place: Tensor, x: Tensor, gain: Tensor, at: Tensor) -> Tensor:
        a, b, c, d = (place[i] for i in at.unbind(0))
        first, middle, last = b - a, c - b, d - c
        m, n = torch.linalg.cross(first, middle), torch.linalg.cross(middle, last)
        length = (middle.square().sum(-1) + 1e-4).sqrt()
        phi = torch.atan2(length * (first * n).sum(-1), (m * n).sum(-1) + 1e-3)
        turns = torch.arange(1, orders + 1, device=at.device)
        each = (x.float() * (1 + torch.cos(turns * phi[:, None] - gain))).sum(-1)
        return totals(each, at[1], edges)

    off = draw.tensor((edges, 3), dtype=torch.float32)
    if kind == "torsion":
        more = (draw.tensor((many, orders)), draw.tensor((orders,)), draw.indices((4, many), edges))
        return Program(twist, (off, *more), draw.training)
    filtered = kind == "filter"
    x = draw.tensor((edges, width), grad=draw.training and filtered)
    gain = draw.tensor((orders * count, width) if filtered else (orders * count,))
    return Program(run, (off, x, gain, draw.indices((2, many), edges)), draw.training)


def residue_pairs(draw: Draw) -> Program:
    """Pairs of residues: outer sums, triangle gates, biased rows, binned distances' loss."""
    kind = draw.choice(("outer", "triangle", "rows", "bins"))
    width = {"rows": draw.choice((4, 8, 16)), "bins": draw.choice((37, 64))}.get(
        kind, draw.choice((16, 32, 64, 128))
    )
    most = max(2, int((draw.numel / width) ** 0.5))
    length = min(most, draw.choice((24, 50, 96, 128, 200, 256, 384)))
    batch, turned = max(1, draw.numel // (width * length * length)), draw.chance(0.5)

    def outer(pair: Tensor, x: Tensor, table: Tensor, at: Tensor, keep: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        far = (at[:, :, None] - at[:, None]).clamp(-32, 32) + 32
        h = pair + left[:, :, None] + right[:, None] + table[far]
        h = functional.layer_norm(h, (width,)) if turned else h + h.transpose(1, 2)
        return h * (keep[:, :, None] & keep[:, None])[..., None]

    def triangle(pair: Tensor, x: Tensor, table: Tensor, at: Tensor, keep: Tensor) -> Tensor:
        h = pair * (keep[:, :, None] & keep[:, None])[..., None]
        h = torch.sigmoid(h + x[:, :, None, :width]) * functional.layer_norm(h, (width,), table[0])
        h = h.transpose(1, 2) if turned else h
        return h.permute(0, 3, 1, 2).contiguous() * at.clamp(max=2)[:, None, None]

    def rows(pair: Tensor, x: Tensor, table: Tensor, at: Tensor, keep: Tensor) -> Tensor:
        bias = (pair.transpose(1, 2) if turned else pair).permute(0, 3, 1, 2)
        score = (x.transpose(1, 2)[:, :width, :, None] * table[0, 0] + bias).float()
        hidden = ~keep[:, None, None] | (at[:, None, :, None] < 0)
        return functional.softmax(score.masked_fill(hidden, -1e4), -1).to(pair.dtype)

    def bins(pair: Tensor, x: Tensor, table: Tensor, at: Tensor, keep: Tensor) -> Tensor:
        place = x[..., :3].detach().float() * 8
        far = (place[:, :, None] - place[:, None]).square().sum(-1)
        edges = torch.linspace(2, 22, width - 1, device=far.device).square()
        found = (far[..., None] > edges).sum(-1)
        h = pair + pair.transpose(1, 2) + table[0]
        loss = functional.cross_entropy(h.float().flatten(0, 2), found.flatten(), reduction="none")
        both = (keep[:, :, None] & keep[:, None]).flatten() & (at.unsqueeze(2) != -1).expand(
            -1, -1, length
        ).flatten()
        return (loss * both).sum() / both.sum().clamp(min=1)

    made = {"outer": outer, "triangle": triangle, "rows": rows, "bins": bins}[kind]
    single = draw.tensor((batch, length, 2 * width), grad=draw.training and kind != "bins")
    args = (draw.tensor((batch, length, length, width)), single, draw.tensor((65, width)))
    at = draw.indices((batch, length), 2 * length)
    return Program(made, (*args, at, draw.mask((batch, length), 0.9)), draw.training)


def backbones(draw: Draw) -> Program:
    """Frames of residues from three atoms, points seen from them, their distances and errors."""
    kind = draw.choice(("frames", "points", "errors", "composed"))
    heads, few = draw.choice((4, 8, 12)), draw.choice((2, 4, 8))
    wide = {"frames": 9, "points": heads * few, "errors": 6, "composed": 36}[kind]
    length = draw.choice((32, 64, 100, 256, 384))
    if kind in {"points", "errors"}:
        length = min(length, max(2, int((draw.numel / wide) ** 0.5)))
        wide *= length
    batch = max(1, draw.numel // (wide * length))

    def frame(atoms: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c = atoms.float().unbind(-2)
        x = functional.normalize(c - b, dim=-1, eps=1e-3)
        y = a - b
        y = functional.normalize(y - (x * y).sum(-1, keepdim=True) * x, dim=-1, eps=1e-3)
        return torch.stack((x, y, torch.linalg.cross(x, y)), -1), b

    def frames(atoms: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        turn, b = frame(atoms)
        seen = (turn * (x.float() * weight[0] - b)[..., None]).sum(-2)
        gap = (atoms[:, 1:, 0] - atoms[:, :-1, 2]).float().square().sum(-1).add(1e-4).sqrt()
        return turn, seen, functional.relu((gap - 1.33).abs() - 0.2).mean(-1)

    def points(q: Tensor, k: Tensor, weight: Tensor, score: Tensor) -> Tensor:
        far = (q[:, :, None] - k[:, None]).float().square().sum((-1, -2))
        h = score.float() - 0.1 * functional.softplus(weight).float() * far
        return functional.softmax(h.permute(0, 3, 1, 2), -1).to(q.dtype)

    def errors(atoms: Tensor, true: Tensor, weight: Tensor) -> Tensor:
        sides = []
        for each in (atoms, true):
            turn, b = frame(each)
            off = b[:, None] - b[:, :, None]
            sides.append((turn[:, :, None] * off[..., None]).sum(-2))
        error = ((sides[0] - sides[1]).square().sum(-1) + 1e-4).sqrt()
        return (error.clamp(max=10) * weight.float().abs().sum(-1)).mean((1, 2)) / 10

    def composed(turn: Tensor, angle: Tensor, weight: Tensor, of: Tensor) -> Tensor:
        sine, cosine = functional.normalize(angle.float(), dim=-1, eps=1e-3).unbind(-1)
        a, b, c = turn.float().unbind(-1)
        rolled = (
            a,
            b * cosine[..., None] + c * sine[..., None],
            c * cosine[..., None] - b * sine[..., None],
        )
        ideal = weight.float()[of]
        at = (torch.stack(rolled, -2)[..., None, :, :] * ideal[..., None]).sum(-2)
        return at.to(turn.dtype)

    atoms = draw.tensor((batch, length, 3, 3))
    if kind == "points":
        sides = (draw.tensor((batch, length, heads, few, 3)) for _ in "qk")
        score = draw.tensor((batch, length, length, heads))
        return Program(points, (*sides, draw.tensor((heads,)), score), draw.training)
    if kind == "composed":
        args = (atoms, draw.tensor((batch, length, 2)), draw.tensor((21, few, 3)))
        return Program(composed, (*args, draw.indices((batch, length), 21)), draw.training)
    if kind == "frames":
        args = (atoms, draw.tensor((batch, length, 3)), draw.tensor((1, 3)))
        return Program(frames, args, draw.training)
    true = draw.tensor(atoms.shape, grad=False)
    weight = draw.tensor((batch, length, 1, 1), grad=False)
    return Program(errors, (atoms, true, weight), draw.training)


#: Every family here.
FAMILIES = (equivariant, angles, residue_pairs, backbones)
