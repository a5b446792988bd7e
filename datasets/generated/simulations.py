"""Simulations of fields: residuals of equations, modes of spectra, columns of air and soil."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def drawn_extents(draw: Draw, axes: int, parts: int) -> tuple[int, ...]:
    """Samples and the extents of so many axes, of so many times fewer elements."""
    most = max(4, int((draw.numel / parts) ** (1 / axes)))
    sides = [s for s in (4, 9, 16, 30, 32, 48, 64, 85, 128, 192, 256, 421, 721) if s <= most]
    extents = [draw.choice((*sides[-3:], most)) for _ in range(axes)]
    return (max(1, draw.numel // (parts * torch.Size(extents).numel())), *extents)


def residuals(draw: Draw) -> Program:
    """Residuals of equations on grids: vorticity, layers of soil, fields in 3-D, axes, strain."""
    kind = draw.choice(("vorticity", "porous", "curl", "axis", "strain"))
    rolled, last, reduced = draw.chance(0.5), draw.chance(0.4), draw.choice(("all", "each", "none"))
    axes, fields = {"curl": (3, 3), "strain": (2, 2)}.get(kind, (2, 1))
    batch, *extents = drawn_extents(draw, axes, 2 * fields)

    def around(u: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        if rolled:
            return u.roll(1, axis), u.roll(-1, axis)
        size = u.shape[axis]
        ends = (u.narrow(axis, 0, 1), u, u.narrow(axis, size - 1, 1))
        wide = torch.cat(ends, axis)
        return wide.narrow(axis, 0, size), wide.narrow(axis, 2, size)

    def slope(u: Tensor, axis: int) -> Tensor:
        before, after = around(u, axis)
        return (after - before) / 2

    def bend(u: Tensor, axis: int) -> Tensor:
        before, after = around(u, axis)
        return before + after - 2 * u

    def left(u: Tensor, v: Tensor, row: Tensor) -> Tensor:
        if kind == "vorticity":
            carried = slope(v, -2) * slope(u, -1) - slope(v, -1) * slope(u, -2)
            return carried - 0.01 * (bend(u, -1) + bend(u, -2)) - torch.sin(row)[:, None]
        if kind == "axis":
            radius = torch.arange(u.shape[-2], device=u.device)[:, None] + 0.5
            return bend(u, -2) + slope(u, -2) / radius + bend(u, -1) - v * row[:, None]
        total = torch.zeros_like(u)
        for axis in (-2, -1):
            (a, b), (c, d) = around(u, axis), around(v.exp(), axis)
            total = total + (v.exp() + d) * (b - u) / 2 - (v.exp() + c) * (u - a) / 2
        return total + row[:, None]

    def run(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
        u, v = (t.movedim(-1, 1) if last else t for t in (x, y))
        if kind == "curl":
            turned = [
                slope(u[:, k], j - 3) - slope(u[:, j], k - 3) for j, k in ((1, 2), (2, 0), (0, 1))
            ]
            rest = torch.stack(turned, 1) - v * row[:, None]
        elif kind == "strain":
            a, b = u.unbind(1)
            shear = (slope(a, -2) + slope(b, -1)) * v[:, 0].exp() * 0.5
            grown = (slope(a, -1) + slope(b, -2)) * row[:, None]
            p, q = (grown + v[:, 1].exp() * slope(t, s) for t, s in ((a, -1), (b, -2)))
            rest = torch.stack(
                (slope(p, -1) + slope(shear, -2), slope(shear, -1) + slope(q, -2)), 1
            )
        else:
            rest = left(u[:, 0], v[:, 0], row)
        if reduced == "none":
            return rest
        square = rest.float().square()
        return square.mean() if reduced == "all" else square.flatten(1).mean(1).sqrt()

    shape = (batch, *extents, fields) if last else (batch, fields, *extents)
    row = draw.tensor((extents[-2],), grad=False)
    return Program(run, (draw.tensor(shape), draw.tensor(shape, grad=False), row), draw.training)


def modes(draw: Draw) -> Program:
    """Low modes mixed or weighed and put back among zeros, slopes and flows by wave numbers."""
    kind = draw.choice(("mixed", "corners", "slopes", "flows"))
    width, out, paired = draw.choice((4, 8, 20)), draw.choice((4, 8, 20)), draw.chance(0.5)
    parts = {"mixed": 2 * width * out, "corners": 2 * width, "slopes": 2, "flows": 6}[kind]
    batch, *extents = drawn_extents(draw, 3 if kind == "flows" else 2, parts)
    low = [max(1, side // draw.choice((3, 4, 8))) for side in extents]

    def parted(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.unbind(-1 if paired else 0)
        return a, b

    def put(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack((a, b), -1 if paired else 0)

    def mixed(x: Tensor, w: Tensor) -> Tensor:
        (a, b), (c, d) = (h[:, :, None] for h in parted(x)), w.unbind(-1)
        return put((a * c - b * d).sum(1), (a * d + b * c).sum(1))

    def corners(x: Tensor, w: Tensor) -> Tensor:
        a, b = parted(x)
        (rows, columns), c, d = low, w[..., 0], w[..., 1]
        ends = []
        for i, side in enumerate((slice(None, rows), slice(-rows, None))):
            p, q = a[:, :, side, :columns], b[:, :, side, :columns]
            pair = put(p * c[i] - q * d[i], p * d[i] + q * c[i])
            missing = extents[1] - columns
            ends.append(functional.pad(pair, (0, 0, 0, missing) if paired else (0, missing)))
        blank = x[:, :, : extents[0] - 2 * rows] if paired else x[:, :, :, : extents[0] - 2 * rows]
        return torch.cat((ends[0], torch.zeros_like(blank), ends[1]), 2 if paired else 3)

    def waves(x: Tensor) -> list[Tensor]:
        found = []
        for axis, side in enumerate(extents):
            k = torch.arange(side, device=x.device)
            k = torch.where(k > side // 2, k - side, k).float()
            found.append(k.view(-1, *[1] * (len(extents) - axis - 1)))
        return found

    def slopes(x: Tensor, w: Tensor) -> Tensor:
        (a, b), (ky, kx) = parted(x), waves(x)
        kept = (ky.abs() < extents[0] / 3) & (kx.abs() < extents[1] / 3)
        square = (ky * ky + kx * kx).clamp(min=1)
        p, q = (torch.where(kept, h.float(), 0.0) / square for h in (a, b))
        decay = torch.exp(-0.01 * square * w[0, 0].float().abs())
        return torch.stack((put(-q * ky, p * ky), put(q * kx, -p * kx), put(p * decay, q * decay)))

    def flows(x: Tensor, w: Tensor) -> Tensor:
        ks = waves(x)
        square = torch.stack(torch.broadcast_tensors(*ks)).square().sum(0).clamp(min=1)
        free = []
        for h in parted(x):
            along = sum((h[:, i] * k for i, k in enumerate(ks)), torch.zeros_like(h[:, 0])) / square
            free.append(torch.stack([h[:, i] - k * along for i, k in enumerate(ks)], 1) * w[0, 0])
        energy = (free[0].float().square() + free[1].float().square()).sum(1)
        return energy if width == out else put(*free)

    # Weights of all pairs of channels are as large as a sample each.
    batch = batch * draw.choice((1, 4)) if kind == "mixed" else batch
    inner = {"slopes": (), "flows": (3,)}.get(kind, (width,))
    size = (batch, *inner, *extents)
    weights = {"mixed": (width, out, *extents, 2), "corners": (2, width, *low, 2)}.get(kind, (1, 1))
    x = draw.tensor((*size, 2) if paired else (2, *size))
    run = {"mixed": mixed, "corners": corners, "slopes": slopes, "flows": flows}[kind]
    return Program(run, (x, draw.tensor(weights)), draw.training)


def _solved(
    heat: tuple[Tensor, ...], flow: tuple[Tensor, ...], thick: tuple[Tensor, ...]
) -> list[Tensor]:
    """Heat of layers after an implicit step: down and up a system of three diagonals."""
    ratios, values = [torch.zeros_like(heat[0])], [heat[0]]
    for i in range(1, len(heat)):
        above = 0.2 * flow[i].sigmoid() / thick[i]
        below = 1 + above * (2 - ratios[-1])
        values.append((heat[i] + above * values[-1]) / below)
        ratios.append(above / below)
    found = [values[-1]]
    for value, ratio in zip(values[-2::-1], ratios[-2::-1], strict=True):
        found.append(value + ratio * found[-1])
    return found[::-1]


def atmosphere(draw: Draw) -> Program:
    """Columns of air or soil: saturation, rain, light, heights, layers solved, weighed errors."""
    kind = draw.choice(("moist", "light", "height", "layers", "errors"))
    levels = draw.choice((4, 5, 6)) if kind == "layers" else draw.choice((13, 26, 37, 60, 137))
    cells, axis = max(4, draw.numel // levels), draw.choice((0, 1))
    high, flag, upward = draw.choice((8, 19, 32, 90)), draw.chance(0.5), draw.chance(0.4)

    def moist(t: Tensor, q: Tensor, mass: Tensor) -> tuple[Tensor, ...]:
        heat, wet = 280 + 15 * t.float(), 0.01 * q.float().abs()
        pressure = 20 + mass.float().cumsum(axis) * (1000 / levels)
        most = 6.112 * torch.exp(17.67 * (heat - 273.15) / (heat - 29.65))
        full = 0.622 * most / (pressure - 0.378 * most).clamp(min=1)
        slope = 1 + 2.5e6**2 * full / (1004 * 461.5 * heat.square())
        excess = functional.relu(wet - full) / slope
        rain = (excess * mass).cumsum(axis) if flag else (excess * mass).sum(axis)
        return (heat + 2490 * excess).to(t.dtype), (wet - excess).to(q.dtype), rain

    def light(t: Tensor, q: Tensor, mass: Tensor) -> tuple[Tensor, ...]:
        depth = 0.2 * functional.softplus(q.float()) * mass
        depth = depth.flip(axis) if upward else depth
        total = depth.cumsum(axis)
        passed = torch.exp(-total)
        source = (1 + 0.1 * t.float()) ** 4 if flag else t.float().exp()
        sent = (source * (1 - torch.exp(-depth)) * passed).cumsum(axis)
        warmed = sent.diff(dim=axis) - (1 - passed).diff(dim=axis)
        return warmed, passed.select(axis, levels - 1)

    def height(t: Tensor, q: Tensor, mass: Tensor) -> Tensor:
        warm = (280 + 15 * t.float()) * (1 + 0.00608 * q.float())
        p = 1 + mass.float().cumsum(axis)
        thick = 29.3 * warm * torch.log(p / (p - 0.9 * mass.float()))
        above = thick.flip(axis).cumsum(axis).flip(axis) - thick / 2
        if flag:
            return (above - above.mean(1 - axis, keepdim=True)).to(t.dtype)
        return torch.sqrt(
            (9.81 * warm.log().diff(dim=axis) / thick.narrow(axis, 1, levels - 1)).abs() + 1e-6
        )

    def layers(t: Tensor, q: Tensor, mass: Tensor) -> Tensor:
        heat, flow, thick = (x.float().unbind(axis) for x in (t, q, mass))
        return torch.stack(_solved(heat, flow, thick), axis).to(t.dtype)

    def errors(t: Tensor, q: Tensor, mass: Tensor) -> Tensor:
        at = (torch.arange(high, device=t.device) + 0.5) / high - 0.5
        area = torch.cos(torch.pi * at)
        area = (area / area.mean())[:, None]
        level = mass.float().view(levels, 1, 1)
        gap = (t - q).float() if axis == 0 else (t - q).float().movedim(-1, 1)
        square = (gap.abs() if upward else gap.square()) * area * level
        return square.mean() if flag else square.mean((2, 3)).sqrt()

    made = {"moist": moist, "light": light, "height": height, "layers": layers, "errors": errors}[
        kind
    ]
    shape: tuple[int, ...] = (levels, cells) if axis == 0 else (cells, levels)
    if kind == "errors":
        wide = min(2 * high, max(2, cells // high))
        batch = max(1, cells // (high * wide))
        maps = (levels, high, wide) if axis == 0 else (high, wide, levels)
        shape = (batch, *maps)
    t, q = draw.tensor(shape), draw.tensor(shape)
    mass = draw.tensor((levels,) if kind == "errors" else shape, grad=False, positive=True)
    return Program(made, (t, q, mass), draw.training)


#: Every family here.
FAMILIES = (residuals, modes, atmosphere)
