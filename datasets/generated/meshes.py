"""Meshes, cells, particles, reactions and volumes: gathers by index lists, deposits, stencils."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def face_normals(draw: Draw) -> Program:
    """Normals and areas of triangles added up at their vertices, or how edges and planes bend."""
    batch, kind = draw.choice((1, 1, 4)), draw.choice(("vertex", "area", "edges", "laplacian"))
    points, unit = max(4, draw.numel // (9 * batch)), draw.chance(0.5)
    faces, strips = max(4, points * draw.choice((1, 2))), draw.chance(0.6)

    def run(place: Tensor, face: Tensor) -> tuple[Tensor, ...]:
        corner = place.float()[:, face]
        a, b, c = corner.unbind(2)
        normal = torch.linalg.cross(b - a, c - a)
        area = (normal.square().sum(-1, keepdim=True) + 1e-8).sqrt()
        flat = (normal / area if unit else normal).repeat_interleave(3, 1)
        if kind == "vertex":
            total = torch.zeros_like(place, dtype=torch.float32).index_add(1, face.flatten(), flat)
            return functional.normalize(total, dim=-1, eps=1e-3).to(place.dtype), area / 2
        if kind == "area":
            middle = (corner.mean(2) * area).sum(1) / area.sum(1)
            return middle, (a * normal).sum((1, 2)) / 6, corner.amax(2) - corner.amin(2)
        if kind == "edges":
            size = (corner - corner.roll(1, 2)).square().sum(-1)
            return (size + 1e-6).sqrt().mean((1, 2)), size.amax(-1) / (size.amin(-1) + 0.01)
        apart = (corner.mean(2, keepdim=True) - corner).flatten(1, 2)
        bent = torch.zeros_like(place, dtype=torch.float32).index_add(1, face.flatten(), apart)
        return bent.square().sum(-1).mean(1), bent.to(place.dtype)

    start = torch.arange(faces) // 2 if strips else draw.indices((faces,), points)
    face = (start[:, None] + torch.tensor((0, 1, max(2, int(points**0.5))))) % points
    return Program(run, (draw.tensor((batch, points, 3)), face), draw.training)


def triplanes(draw: Draw) -> Program:
    """Features of places read from three planes between four pixels, summed, multiplied, joined."""
    width, kind = draw.choice((4, 8, 16, 32)), draw.choice(("sum", "product", "join"))
    rows, side = max(4, draw.numel // (3 * width)), draw.choice((16, 31, 64, 128))
    side, last = max(4, min(side, int((draw.numel / width) ** 0.5))), draw.chance(0.5)

    def run(place: Tensor, planes: Tensor, low: Tensor, high: Tensor) -> Tensor:
        at = ((place.float() - low) / (high - low)).clamp(0, 1)
        spot = torch.stack((at[:, :2], at[:, 1:], at[:, ::2])) * (side - 1)
        start = spot.floor().clamp(0, side - 2)
        (u, v), (i, j) = (spot - start).unbind(-1), start.long().unbind(-1)
        table = planes.flatten(1, 2) if last else planes.flatten(2)
        found: list[Tensor] = []
        for n in range(3):
            h = torch.zeros((), device=place.device)
            for x, y in ((0, 0), (0, 1), (1, 0), (1, 1)):
                key = (j[n] + y) * side + i[n] + x
                share = (u[n] if x else 1 - u[n]) * (v[n] if y else 1 - v[n])
                h = h + (table[n][key] if last else table[n][:, key].t()) * share[:, None]
            found.append(h)
        if kind == "join":
            return torch.cat(found, -1).to(planes.dtype)
        return sum(found[1:], found[0]) if kind == "sum" else found[0] * found[1] * found[2]

    planes = draw.tensor((3, side, side, width) if last else (3, width, side, side))
    limits = (torch.full((3,), -2.0), torch.full((3,), 2.0))
    return Program(run, (draw.tensor((rows, 3), grad=False), planes, *limits), draw.training)


def particles_on_grid(draw: Draw) -> Program:
    """Particles' mass and momentum put on a grid by B-splines and read back: PIC, MPM."""
    axes, smooth = draw.choice((1, 2, 2, 3)), draw.chance(0.6)
    rows = max(8, draw.numel // ((2 + smooth) ** axes * (axes + 1)))
    side, carried = max(4, min(128, int(rows ** (1 / axes)))), draw.chance(0.6)
    steps = torch.cartesian_prod(*[torch.arange(2 + smooth)] * axes).reshape(-1, axes)

    def run(place: Tensor, speed: Tensor, mass: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        spot = place.float().sigmoid() * (side - 4) + 1
        start = (spot - 0.5).floor() if smooth else spot.floor()
        f = spot - start
        parts = (0.5 * (1.5 - f).square(), 0.75 - (f - 1).square(), 0.5 * (f - 0.5).square())
        each = torch.stack(parts if smooth else (1 - f, f), 1)
        share = each[:, step, torch.arange(axes, device=step.device)].prod(-1)
        cell = (start.long()[:, None] + step) % side
        key = cell[..., 0]
        for axis in range(1, axes):
            key = key * side + cell[..., axis]
        both = torch.cat((speed.float(), torch.ones_like(spot[:, :1])), 1) * mass.float()[:, None]
        put = (share[..., None] * both[:, None]).flatten(0, 1)
        grid = put.new_zeros(side**axes, axes + 1).index_add(0, key.flatten(), put)
        if not carried:
            return grid, grid.sum(0)
        flow = grid[:, :-1] / grid[:, -1:].clamp(min=1e-3)
        fresh = (flow[key] * share[..., None]).sum(1)
        place.add_(0.01 * fresh)
        return place, (0.95 * (speed + fresh) / 2).to(speed.dtype), grid[:, -1]

    tensors = [draw.tensor((rows, axes), grad=False) for _ in range(2)]
    mass = draw.tensor((rows,), grad=False, positive=True)
    return Program(run, (*tensors, mass, steps))


def cell_fluxes(draw: Draw) -> Program:
    """Fluxes through faces between listed cells, added to both of them: finite volumes."""
    width, kind = draw.choice((1, 3, 4, 5)), draw.choice(("upwind", "rusanov", "conduct"))
    cells = max(8, draw.numel // (4 * width))
    faces, local, paired = cells * draw.choice((2, 3)), draw.chance(0.6), draw.chance(0.5)

    def run(u: Tensor, face: Tensor, normal: Tensor, volume: Tensor) -> tuple[Tensor, ...]:
        owner, other = face.unbind(1 if paired else 0)
        (a, b), area = (u.float()[at] for at in (owner, other)), normal.norm(dim=1, keepdim=True)
        wind = (normal[:, :1] if width == 1 else (a + b)[:, :3] * normal / 2).sum(1)[:, None]
        flux = torch.where(wind > 0, a, b) * wind
        if kind == "conduct":
            flux = 2 * area / (volume[owner] + volume[other])[:, None] * (a - b)
        elif kind == "rusanov":
            top = torch.maximum(a.abs().amax(1), b.abs().amax(1))[:, None] + 0.3
            flux = (a + b) / 2 * wind - top * area / 2 * (b - a)
        total = torch.zeros_like(u, dtype=torch.float32).index_add(0, owner, -flux)
        change = total.index_add(0, other, flux) / volume[:, None]
        return (u + 0.01 * change).to(u.dtype), change.abs().amax(0)

    owner = torch.arange(faces) % cells
    step = 1 + torch.arange(faces) // cells * int(cells**0.5)
    face = (
        torch.stack((owner, (owner + step) % cells)) if local else draw.indices((2, faces), cells)
    )
    u, normal = draw.tensor((cells, width), grad=False), draw.tensor((faces, 3), grad=False).float()
    volume = draw.tensor((cells,), dtype=torch.float32, grad=False, positive=True)
    return Program(run, (u, face.t().contiguous() if paired else face, normal, volume))


def reactions(draw: Draw) -> Program:
    """Rates of reactions by temperature and amounts, what they make of each kind, and heat."""
    species, many = draw.choice((3, 5, 9)), draw.choice((4, 6, 10))
    cells, last, back = max(4, draw.numel // (2 * many)), draw.chance(0.5), draw.chance(0.4)

    def run(amount: Tensor, heat: Tensor, gain: Tensor, power: Tensor) -> tuple[Tensor, ...]:
        axis = -1 if last else 0
        y = amount.float().movedim(axis, 0).clamp(min=1e-4)
        t = 1 + heat.float().abs()
        rate = (gain[:, 0, None] + gain[:, 1, None] * t.log() - gain[:, 2, None].abs() / t).exp()
        logs = y.log()
        rate = rate * (power[:, :, None].clamp(min=0) * logs).sum(1).exp()
        if back:
            rate = rate - 0.1 * ((-power).clamp(min=0)[:, :, None] * logs).sum(1).exp()
        made = (-power[:, :, None] * rate[:, None]).sum(0)
        fresh = (y + 0.01 * made).clamp(min=0)
        fresh = fresh / fresh.sum(0, keepdim=True).clamp(min=1e-6)
        return fresh.movedim(0, axis).to(amount.dtype), (rate * gain[:, 3, None]).sum(0) + heat

    shape = (cells, species) if last else (species, cells)
    amount, heat = (draw.tensor(s, positive=p) for s, p in ((shape, True), ((cells,), False)))
    power = (draw.indices((many, species), 5) - 2).float() * draw.mask((many, species), 0.5)
    gain = 0.5 * draw.tensor((many, 4), dtype=torch.float32, grad=False)
    return Program(run, (amount.detach(), heat.detach(), gain, power))


def depth_fusion(draw: Draw) -> Program:
    """A volume of distances and weights updated by a depth image seen from a camera: TSDF."""
    side, height = max(4, int(draw.numel ** (1 / 3))), draw.choice((24, 48, 60, 120))
    depths, height = draw.choice((8, side, 2 * side)), min(height, max(12, int(draw.numel**0.5)))
    width, shown = height * 4 // 3, draw.chance(0.4)

    def run(volume: Tensor, weight: Tensor, depth: Tensor, turn: Tensor) -> tuple[Tensor, ...]:
        at = [torch.arange(n, device=depth.device) / n - 0.5 for n in (depths, side, side)]
        z, y, x = at[0][:, None, None] + 1.2, at[1][:, None], at[2]
        cx, cy, cz = (t[0] * x + t[1] * y + t[2] * z + t[3] for t in turn.unbind(0))
        far = cz.clamp(min=0.1)
        u, v = (cx / far * width + width / 2).round(), (cy / far * width + height / 2).round()
        seen = (u >= 0) & (u < width) & (v >= 0) & (v < height) & (cz - 0.1 > 0)
        pixel = v.clamp(0, height - 1).long() * width + u.clamp(0, width - 1).long()
        found = depth.flatten()[pixel].float()
        gap = (found - cz) / 0.2
        valid = seen & (found > 0) & (gap > -1)
        mean = (volume * weight + gap.clamp(max=1) * valid) / (weight + valid).clamp(min=1)
        volume.copy_(torch.where(valid, mean, volume))
        weight.copy_((weight + valid).clamp(max=64))
        return volume, weight, valid.float().mean((1, 2)) if shown else volume.abs().amin(0)

    shape = (depths, side, side)
    volume, weight = (draw.tensor(shape, grad=False, positive=p) for p in (False, True))
    turn = torch.eye(3, 4) + 0.05 * draw.tensor((3, 4), dtype=torch.float32, grad=False)
    depth = draw.tensor((height, width), grad=False, positive=True)
    return Program(run, (volume, weight, depth, turn))


#: Every family here.
FAMILIES = (face_normals, triplanes, particles_on_grid, cell_fluxes, reactions, depth_fusion)
