"""Physics on grids and of particles: stencils, fluxes, integrators, forces, spectra."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _grid(draw: Draw, axes: int) -> tuple[int, ...]:
    """Samples and the extents of so many axes, odd ones and powers of two."""
    most = max(6, int(draw.numel ** (1 / axes)))
    sides = [s for s in (6, 8, 16, 31, 33, 64, 65, 100, 128, 200, 256, 511, 1024) if s <= most]
    extents = [draw.choice((*sides[-3:], most)) for _ in range(axes)]
    return (max(1, draw.numel // torch.Size(extents).numel()), *extents)


def diffusion_step(draw: Draw) -> Program:
    """Heat and reaction-diffusion steps: a stencil by slices, rolls or padding on two states."""
    axes, kind = draw.choice((1, 2, 2, 3)), draw.choice(("written", "roll", "pad"))
    mode = draw.choice(("replicate", "circular", "constant"))
    core = (slice(None), *[slice(1, -1)] * axes)

    def spread(u: Tensor) -> Tensor:
        if kind == "roll":
            rolls = [u.roll(by, dim) for by in (1, -1) for dim in range(-axes, 0)]
            return torch.stack(rolls).sum(0) - 2 * axes * u
        wide = functional.pad(u, (1, 1) * axes, mode) if kind == "pad" else u
        total = -2 * axes * wide[core]
        for at in range(1, axes + 1):
            for side in (slice(None, -2), slice(2, None)):
                total = total + wide[(*core[:at], side, *core[at + 1 :])]
        return total

    def run(u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        du, dv = 0.16 * spread(u), 0.08 * spread(v)
        if kind == "written":
            u[core] += du
            return u, v[core] + dv - v[core] * u[core].square()
        if kind == "roll":
            return u + du - u * v * v + 0.06 * (1 - u), v + dv + u * v * v - 0.12 * v
        return u + du + v * (u - u**3), dv.float().square().flatten(1).mean(-1).sqrt()

    shape = _grid(draw, axes)
    return Program(run, (draw.tensor(shape, grad=False), draw.tensor(shape, grad=False)))


def advection(draw: Draw) -> Program:
    """Transport along an axis: upwind by sign, or fluxes limited by the ratio of neighbours."""
    shape = _grid(draw, draw.choice((1, 2, 2, 3)))
    axis, limiter = draw.between(1, len(shape) - 1), draw.choice(("upwind", "leer", "superbee"))
    rolled = draw.chance(0.5)

    def run(u: Tensor, wind: Tensor) -> Tensor:
        speed = torch.tanh(wind)
        joined = torch.cat((u.narrow(axis, 0, 1), u), axis).narrow(axis, 0, shape[axis])
        back, ahead = u - (u.roll(1, axis) if rolled else joined), u.roll(-1, axis) - u
        if limiter == "upwind":
            return u - 0.4 * (speed.clamp(min=0) * back + speed.clamp(max=0) * ahead)
        ratio = back / torch.where(ahead.abs() < 0.03, 0.03, ahead)  # noqa: PLR2004
        part = (ratio + ratio.abs()) / (1 + ratio.abs())
        if limiter == "superbee":
            part = torch.maximum((2 * ratio).clamp(0, 1), ratio.clamp(0, 2))
        flux = speed * u + 0.5 * speed.abs() * (1 - speed.abs()) * part * ahead
        return u - 0.4 * flux.diff(dim=axis, prepend=flux.narrow(axis, shape[axis] - 1, 1))

    return Program(run, (draw.tensor(shape), draw.tensor(shape[1:], grad=False)), draw.training)


def time_step(draw: Draw) -> Program:
    """Integrators over several equal states: Runge-Kutta with an error, multistep, leapfrog."""
    batch, width = draw.choice((1, 4, 32)), draw.width()
    shape = (batch, max(1, draw.numel // (batch * width * 4)), width)
    kind, last_axis = draw.choice(("rk4", "embedded", "adams", "leapfrog")), draw.chance(0.3)

    def run(y: Tensor, last: Tensor, states: Tensor) -> tuple[Tensor, ...]:
        k = states.unbind(-1 if last_axis else 0)
        if kind == "leapfrog":
            y.add_(last.add_(k[0], alpha=0.05), alpha=0.1)
            return y, last.mul_(0.999).add_(k[1], alpha=0.05).float().square().sum((1, 2)) / 2
        if kind == "adams":
            return y + 0.1 * (55 * k[0] - 59 * k[1] + 37 * k[2] - 9 * k[3]) / 24, y - last
        new = y + 0.1 * (k[0] + 2 * k[1] + 2 * k[2] + k[3]) / 6
        if kind == "rk4":
            return new, (new - last).float().flatten(1).norm(dim=1)
        error = (k[0] - k[2]) / (1e-2 + 1e-1 * torch.maximum(y.abs(), new.abs()))
        ratio = 0.1 * error.float().square().mean((1, 2), keepdim=True).sqrt()
        return torch.where(ratio <= 1, new, y), (0.9 * (ratio + 1e-6) ** -0.2).clamp(0.2, 10)

    shapes = (shape, shape, (*shape, 4) if last_axis else (4, *shape))
    return Program(run, tuple(draw.tensor(s, grad=False) for s in shapes))


def lattice_boltzmann(draw: Draw) -> Program:
    """Nine populations of each cell: moments, equilibrium, relaxation, walls and streaming."""
    width, axis = _grid(draw, 2)[-1], draw.choice((0, -1))
    cells = (max(3, draw.numel // (9 * width)), width)
    streamed, walled = draw.chance(0.5), draw.chance(0.4)
    moves = [(x, y) for x in (0, 1, -1) for y in (0, 1, -1)]
    opposite = [moves.index((-x, -y)) for x, y in moves]

    def run(f: Tensor, wall: Tensor, way: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        h = f.float().movedim(axis, 0)
        density = h.sum(0)
        flow = (h[:, None] * way).sum(0) / density
        along = (way * flow).sum(1)
        calm = 1 + 3 * along + 4.5 * along.square() - 1.5 * flow.square().sum(0)
        out = h - (h - share * density * calm) / 0.6
        out = torch.where(wall, torch.stack([h[i] for i in opposite]), out) if walled else out
        if streamed:
            out = torch.stack([p.roll(move, (0, 1)) for p, move in zip(out, moves, strict=True)])
        return out.movedim(0, axis).to(f.dtype), density, flow

    way = torch.tensor(moves, dtype=torch.float32)[:, :, None, None]
    share = 4 / 9 / 4 ** way.abs().sum(1)
    f = draw.tensor((9, *cells) if axis == 0 else (*cells, 9), grad=False, positive=True)
    return Program(run, (f, draw.mask(cells, 0.1), way, share))


def staggered(draw: Draw) -> Program:
    """Velocities on faces, pressures in cells: averages, divergence, walls written in place."""
    batch, height, width = _grid(draw, 2)
    projected, lid = draw.chance(0.5), draw.chance(0.6)

    def run(u: Tensor, v: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        if projected:
            u[:, :, 1:-1] -= 0.1 * p.diff(dim=2)
            v[:, 1:-1] -= 0.1 * p.diff(dim=1)
        u[:, :, 0], u[:, :, -1], v[:, 0] = 0.0, 0.0, 0.0
        v[:, -1] = 1.0 if lid else v[:, -2]
        curl = v[:, 1:-1].diff(dim=2) - u[:, :, 1:-1].diff(dim=1)
        across, down = (u[..., 1:] + u[..., :-1]) / 2, (v[:, 1:] + v[:, :-1]) / 2
        flow = (across.square() + down.square()).float().sum((1, 2)) if projected else curl
        return u, v, u.diff(dim=2) + v.diff(dim=1), flow

    shapes = ((batch, height, width + 1), (batch, height + 1, width), (batch, height, width))
    return Program(run, tuple(draw.tensor(s, grad=False) for s in shapes))


def forces(draw: Draw) -> Program:
    """Forces of all pairs or of listed neighbours, periodic or not, cut off, and the energy."""
    gravity, periodic, listed = draw.chance(0.5), draw.chance(0.5), draw.chance(0.5)
    near = draw.choice((12, 32, 50))
    count = max(4, draw.numel // (3 * near) if listed else int(draw.numel**0.5))

    def run(x: Tensor, mass: Tensor, nearby: Tensor) -> tuple[Tensor, ...]:
        place = x.float() * 4
        gap = place[:, None] - (place[nearby] if listed else place)
        gap = gap - 10 * torch.round(gap / 10) if periodic else gap
        r2 = gap.square().sum(-1) + 0.5
        other = nearby if listed else torch.arange(count, device=x.device)
        if gravity:
            pull = -mass.float()[other] * r2.rsqrt() / r2
            return (pull[..., None] * gap).sum(1), (pull * r2).sum() / 2
        pair = (torch.arange(count, device=x.device)[:, None] != other) & (r2 < 2.5**2)
        six = torch.where(pair, r2.reciprocal() ** 3, 0.0)
        pull = 24 * (2 * six * six - six) / r2
        return (pull[..., None] * gap).sum(1), (4 * six * (six - 1)).sum(1)

    x, mass = draw.tensor((count, 3), grad=False), draw.tensor((count,), grad=False, positive=True)
    return Program(run, (x, mass, draw.indices((count, near), count)))


def spectral(draw: Draw) -> Program:
    """Multipliers of frequencies on real and imaginary parts side by side: decay, slope, layers."""
    batch, width, height = _grid(draw, 2)
    kind, cut = draw.choice(("heat", "poisson", "slope", "layer")), draw.chance(0.5)

    def run(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        rows, kx = (torch.arange(n, device=x.device) for n in (height, width))
        ky = torch.where(rows <= height // 2, rows, rows - height)[:, None]
        k2, (re, im) = (kx**2 + ky**2).float(), x.unbind(-1)
        if kind in ("heat", "poisson"):
            factor = torch.exp(-0.01 * k2) if kind == "heat" else -1 / torch.where(k2 == 0, 1, k2)
            out = x * factor[..., None]
        else:
            a, b = weight.unbind(-1) if kind == "layer" else (torch.zeros_like(re), kx * 0.1)
            out = torch.stack((re * a - im * b, re * b + im * a), -1)
        kept = (ky.abs() * 3 < height) & (kx * 3 < 2 * width)
        return out * kept[..., None] if cut else out, x.float().square().sum(-1).mean((1, 2))

    weight = draw.tensor((height, width, 2), grad=(trained := draw.training and kind == "layer"))
    x = draw.tensor((batch, height, width, 2), grad=trained)
    return Program(run, (x, weight), trained)


#: Every family here.
FAMILIES = (diffusion_step, advection, time_step, lattice_boltzmann, staggered, forces, spectral)
