"""Many small states: steps of equations, random paths, algebra of small matrices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _rate(y: Tensor, w: Tensor, kind: str, axis: int) -> Tensor:
    """Changes of states in time, whose parts lie along the axis."""
    if kind == "chain":
        gap = y.roll(-1, -1) - y
        force = gap + w[0] * gap.square()
        return force - force.roll(1, -1) - w[1] * torch.sin(y)
    a, b, c, d = y.unbind(axis)
    if kind == "lorenz":
        parts = (10 * (b - a), a * (w[0] - c) - b, a * b - w[1] * c, -d * w[2])
    elif kind == "prey":
        parts = (a * (1 - b), b * (a - w[0]) - b * c, c * (b - w[1]), -d / (1 + a.abs()))
    else:
        cube = (a * a + b * b + 0.1).rsqrt() ** 3
        parts = (c, d, -a * cube * w[0], -b * cube * w[0])
    return torch.stack(parts, axis)


def paths(draw: Draw) -> Program:
    """Steps of equations for many states, and payoffs along random paths with their estimates."""
    kind = draw.choice(("lorenz", "prey", "bodies", "chain", "mean", "barrier", "top", "basket"))
    first, rounds, fine = draw.chance(0.5), draw.choice((1, 1, 2, 3)), draw.chance(0.5)
    steps, summed = draw.choice((12, 50, 64, 252)), draw.chance(0.4)

    def march(y: Tensor, w: Tensor) -> Tensor:
        h, axis = y.float(), 0 if first else -1
        for _ in range(rounds):
            k = _rate(h, w, kind, axis)
            m = _rate(h + 0.005 * k, w, kind, axis)
            if fine:
                n = _rate(h + 0.005 * m, w, kind, axis)
                m = (k + 2 * m + 2 * n + _rate(h + 0.01 * n, w, kind, axis)) / 6
            h = h + 0.01 * m
        return (h - y).square().mean() if summed else h.to(y.dtype)

    def pay(noise: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        axis = 0 if first else 1
        step = 0.2 * w[0].abs() * steps**-0.5
        moves = noise.float() * step - step * step / 2
        price = (1 + moves).cumprod(axis) if fine else moves.cumsum(axis).exp()
        end = price.select(axis, steps - 1)
        if kind == "mean":
            gain = functional.relu(
                (price.mean(axis) if summed else price.log().mean(axis).exp()) - w[1]
            )
        elif kind == "barrier":
            gain = functional.relu(end - w[1]) * torch.sigmoid(50 * (price.amin(axis) - 0.8))
        elif kind == "top":
            gain = price.amax(axis) - end if summed else end - price.cummin(axis).values.mean(axis)
        else:
            gain = functional.relu(end.unflatten(0, (-1, 4)).mean(1) - w[1])
        mean = gain.mean()
        return mean, (gain - mean).square().mean().sqrt() / gain.numel() ** 0.5, (gain > 0).sum()

    w = draw.tensor((3,), dtype=torch.float32, positive=True)
    if kind in {"mean", "barrier", "top", "basket"}:
        many = max(8, draw.numel // steps) // 4 * 4
        noise = draw.tensor((steps, many) if first else (many, steps), grad=False)
        return Program(pay, (noise, w), draw.training)
    states = max(2, draw.numel // 4)
    shape = (4, states) if first else (states, 4)
    if kind == "chain":
        length = draw.choice((32, 100, 512))
        shape = (max(1, draw.numel // length), length)
    return Program(march, (draw.tensor(shape), w), draw.training)


def small_matrices(draw: Draw) -> Program:
    """Algebra of small matrices written out: inverses, roots, filters, eigenvalues."""
    kind, first = draw.choice(("inverse", "root", "filter", "eigen")), draw.chance(0.5)
    size = {"inverse": 3, "root": draw.choice((3, 4)), "filter": draw.choice((2, 3, 4))}.get(
        kind, 2
    )
    rows, scored = max(4, draw.numel // size**2), draw.chance(0.4)

    def inverse(m: list[list[Tensor]], v: list[Tensor]) -> list[Tensor]:
        (a, b, c), (d, e, f), (g, h, i) = m
        whole = [[e * i - f * h, c * h - b * i, b * f - c * e]]
        whole += [[f * g - d * i, a * i - c * g, c * d - a * f]]
        whole += [[d * h - e * g, b * g - a * h, a * e - b * d]]
        size = a * whole[0][0] + b * whole[1][0] + c * whole[2][0]
        size = torch.where(size.abs() < 0.1, torch.full_like(size, 0.1), size)  # noqa: PLR2004
        if scored:
            return [size.abs().log(), a + e + i, b - d]
        return [(r[0] * v[0] + r[1] * v[1] + r[2] * v[2]) / size for r in whole]

    def root(m: list[list[Tensor]], v: list[Tensor]) -> list[Tensor]:
        low: list[list[Tensor]] = []
        found: list[Tensor] = []
        for i in range(size):
            row: list[Tensor] = []
            for j in range(i):
                rest = m[i][j] * 0.2
                for k in range(j):
                    rest = rest - row[k] * low[j][k]
                row.append(rest / low[j][j])
            left, right = m[i][i].abs() + 2, v[i]
            for k, part in enumerate(row):
                left, right = left - part * part, right - part * found[k]
            row.append(left.clamp(min=0.1).sqrt())
            low.append(row)
            found.append(right / row[i])
        if not scored:
            return found
        return [a.square() + row[-1].log() for a, row in zip(found, low, strict=True)]

    def kalman(m: list[list[Tensor]], v: list[Tensor]) -> list[Tensor]:
        spread = m[0][0].abs() + 0.5
        gain = [row[0] / spread for row in m]
        fresh = [x + g * (v[-1] - v[0]) for x, g in zip(v[:-1], gain, strict=True)]
        pairs = [(i, j) for i in range(size) for j in range(size if scored else i + 1)]
        fresh += [m[i][j] - gain[i] * m[0][j] + (0.01 if i == j else 0.0) for i, j in pairs]
        return [*fresh, ((v[-1] - v[0]).square() / spread + spread.log()) * 0.5]

    def eigen(m: list[list[Tensor]], v: list[Tensor]) -> list[Tensor]:
        (a, b), (_, d) = m
        mean, half = (a + d) / 2, (a - d) / 2
        apart = (half * half + b * b + 1e-4).sqrt()
        share = (apart / (mean.abs() + 0.1)).clamp(max=1)
        angle = share if scored else torch.atan2(b, half + apart)
        return [mean + apart, mean - apart, angle.cos() * v[0] + angle.sin() * v[1], angle]

    made = {"inverse": inverse, "root": root, "filter": kalman, "eigen": eigen}[kind]

    def run(x: Tensor, y: Tensor) -> Tensor:
        parts = x.float().unbind(0) if first else x.float().unbind(-1)
        m = [list(parts[i * size : (i + 1) * size]) for i in range(size)]
        v = list(y.float().unbind(0 if first else -1))
        return torch.stack(made(m, v), 0 if first else -1).to(x.dtype)

    many = size + 1 if kind == "filter" else size
    shapes = ((size**2, rows), (many, rows)) if first else ((rows, size**2), (rows, many))
    y = draw.tensor(shapes[1], grad=draw.training and (kind != "inverse" or not scored))
    return Program(run, (draw.tensor(shapes[0]), y), draw.training)


#: Every family here.
FAMILIES = (paths, small_matrices)
