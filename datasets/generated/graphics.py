"""Graphics and vision: splats composited, maps matched against shifted ones, filters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.simulations import drawn_extents


def _covered(size: Tensor, turn: Tensor) -> Tensor:
    """Rotations of quaternions, their columns scaled."""
    w, x, y, z = functional.normalize(turn.float(), dim=-1, eps=1e-3).unbind(-1)
    sides = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    sides += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    sides += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return torch.stack(sides, -1).view(-1, 3, 3) * size.float().clamp(max=2).exp()[:, None]


def _projected(place: Tensor, m: Tensor, view: Tensor) -> tuple[Tensor, ...]:
    """Inverse covariances in the image, radii, places there, and what lies before the camera."""
    seen = (place[:, None] * view[:, :3]).sum(-1) + view[:, 3]
    far = seen[:, 2].abs() + 0.5
    flat = torch.stack([(m * view[i, :3, None]).sum(1) for i in range(3)], 1) / far[:, None, None]
    at = seen[:, :2] / far[:, None]
    flat = flat[:, :2] - at[..., None] * flat[:, 2:]
    a, d = (flat.square().sum(-1) + 0.3).unbind(-1)
    b = (flat[:, 0] * flat[:, 1]).sum(-1)
    area = (a * d - b * b).clamp(min=1e-2)
    wide = ((a + d) / 2 + ((a - d).square() / 4 + b * b + 1e-3).sqrt()).sqrt() * 3
    return torch.stack((d, -b, a), -1) / area[:, None], wide, at, seen[:, 2:] > 0


def splats(draw: Draw) -> Program:
    """Gaussians projected to an image, their colours by direction, composited by tile in order."""
    kind, order = draw.choice(("project", "tiles", "tiles", "colours")), draw.choice((1, 2))
    pixels, depth = draw.choice((16, 64, 256)), draw.choice((8, 32, 100, 256))
    parts, culled = {"project": 10, "colours": 3 * (order + 1) ** 2}.get(kind, 1), draw.chance(0.5)
    logs = draw.chance(0.5)

    def project(place: Tensor, size: Tensor, turn: Tensor, view: Tensor) -> tuple[Tensor, ...]:
        conic, wide, at, seen = _projected(place.float(), _covered(size, turn), view)
        return (conic * seen if culled else conic), wide, at

    def tiles(at: Tensor, conic: Tensor, shade: Tensor, colour: Tensor) -> tuple[Tensor, ...]:
        side = round(pixels**0.5)
        pixel = torch.arange(pixels, device=at.device)
        x = (pixel % side)[:, None] / side - at[:, None, :, 0].float()
        y = (pixel // side)[:, None] / side - at[:, None, :, 1].float()
        a, b, c = conic.float()[:, None].unbind(-1)
        power = -0.5 * (a.abs() * x * x + c.abs() * y * y) - 0.1 * b * x * y
        alpha = (torch.sigmoid(shade.float())[:, None] * power.clamp(max=0).exp()).clamp(max=0.99)
        alpha = torch.where(alpha < 1 / 255, 0.0, alpha) if culled else alpha
        if logs:
            rest = torch.log1p(-alpha)
            passed = torch.exp(rest.cumsum(-1) - rest)
        else:
            passed = functional.pad((1 - alpha).cumprod(-1), (1, -1), value=1.0)
        weight = alpha * passed
        mixed = [(weight * colour[:, None, :, i].float()).sum(-1) for i in range(3)]
        return torch.stack(mixed, 1).to(at.dtype), 1 - weight.sum(-1)

    def shades(place: Tensor, table: Tensor, centre: Tensor) -> Tensor:
        way = functional.normalize(place.float() - centre, dim=-1, eps=1e-3)
        x, y, z = way.unbind(-1)
        basis = [torch.full_like(x, 0.282), -0.489 * y, 0.489 * z, -0.489 * x]
        if order > 1:
            basis += [1.093 * x * y, -1.093 * y * z, 0.315 * (3 * z * z - 1)]
            basis += [-1.093 * x * z, 0.546 * (x * x - y * y)]
        each = torch.stack(basis, -1)
        colour = (table * each[:, None] if logs else table * each[..., None]).sum(-1 if logs else 1)
        return (colour + 0.5).clamp(min=0) if culled else torch.sigmoid(colour)

    rows, many = max(4, draw.numel // parts), (order + 1) ** 2
    if kind == "project":
        view = torch.eye(3, 4) + 0.1 * draw.tensor((3, 4), dtype=torch.float32, grad=False)
        args = tuple(draw.tensor((rows, n)) for n in (3, 3, 4))
        return Program(project, (*args, view), draw.training)
    if kind == "colours":
        table = draw.tensor((rows, 3, many) if logs else (rows, many, 3))
        centre = draw.tensor((3,), grad=False)
        return Program(shades, (draw.tensor((rows, 3)), table, centre), draw.training)
    tile = max(1, draw.numel // (pixels * depth))
    shapes = ((tile, depth, 2), (tile, depth, 3), (tile, depth), (tile, depth, 3))
    return Program(tiles, tuple(draw.tensor(s) for s in shapes), draw.training)


def _ordered(x: Tensor, y: Tensor, reach: int) -> Tensor:
    """How differently two pictures rise or fall to the pixels around each."""
    weights = torch.tensor((0.3, 0.59, 0.11), device=x.device)[:, None, None]
    greys = [(h.float() * weights).sum(1) for h in (x, y)]
    far = torch.zeros_like(greys[0])
    for i in range(-reach, reach + 1):
        for j in range(-reach, reach + 1):
            a, b = (g.roll((i, j), (1, 2)) - g for g in greys)
            a, b = (g * torch.rsqrt(g * g + 0.81) for g in (a, b))
            far = far + (a - b).square() / (0.1 + (a - b).square())
    return far


def shifted_matches(draw: Draw) -> Program:
    """Maps matched against shifted ones, expected disparities, smooth flows, local orders."""
    kind = draw.choice(("correlation", "joined", "expected", "smooth", "order"))
    channels, groups = draw.choice((8, 16, 32, 64)), draw.choice((1, 4, 8))
    groups = min(groups, channels // 8)
    reach, flat, second = 1 if draw.training else 2, draw.chance(0.5), draw.chance(0.5)
    shifts = draw.choice((6, 12, 24, 48))
    parts = {"joined": 2 * shifts * channels // 4, "expected": shifts, "smooth": 5, "order": 6}.get(
        kind, 2 * channels
    )
    batch, height, width = drawn_extents(draw, 2, parts)

    def correlation(x: Tensor, y: Tensor) -> Tensor:
        pad = (reach, reach, 0, 0) if flat else (reach,) * 4
        wide = functional.pad(y, pad)
        rows = (0,) if flat else range(2 * reach + 1)
        found = []
        for i in rows:
            for j in range(2 * reach + 1):
                h = x * wide[:, :, i : i + height, j : j + width]
                found.append(h.unflatten(1, (groups, -1)).mean(2))
        return functional.leaky_relu(torch.stack(found, 1).flatten(1, 2), 0.1)

    def joined(x: Tensor, y: Tensor) -> Tensor:
        wide = functional.pad(y, (shifts, 0))
        moved = [wide[..., shifts - i : shifts - i + width] for i in range(0, shifts, 4)]
        right = torch.stack(moved, 2)
        h = x[:, :, None].expand_as(right)
        return (h - right).abs().mean(1) if second else torch.cat((h, right), 1)

    def expected(x: Tensor, y: Tensor) -> Tensor:
        p = functional.softmax((-x if flat else x).float(), 1)
        places = torch.arange(shifts, device=x.device)[:, None, None]
        found = (p * places).sum(1)
        if second:
            spread = (p * (places - found[:, None]).abs()).sum(1)
            return torch.stack((found, spread), 1)
        true = y[:, 0].float().abs() * 4
        valid = true < shifts
        loss = functional.smooth_l1_loss(found, true, reduction="none") * valid
        return loss.sum() / valid.sum().clamp(min=1)

    def smooth(x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros((), dtype=torch.float32)
        for axis in (2, 3):
            edge = y.float().diff(dim=axis).abs().mean(1, keepdim=True)
            slope = x.float().diff(dim=axis)
            if second:
                slope, edge = slope.diff(dim=axis), edge.narrow(axis, 1, edge.shape[axis] - 1)
            size = (slope.square() + 1e-4) ** 0.45 if flat else slope.abs()
            total = total + (torch.exp(-10 * edge) * size).mean()
        return total / 2

    def order(x: Tensor, y: Tensor) -> Tensor:
        far = _ordered(x, y, reach)
        return far[:, reach:-reach, reach:-reach].mean((1, 2)) if second else far

    made = {"joined": joined, "expected": expected, "smooth": smooth, "order": order}
    wide = {
        "joined": (channels, channels),
        "expected": (shifts, 1),
        "smooth": (2, 3),
        "order": (3, 3),
    }
    sides = wide.get(kind, (channels, channels))
    x = draw.image((batch, sides[0], height, width))
    grad = draw.training and kind in {"correlation", "joined", "order"}
    y = draw.image((batch, sides[1], height, width), grad=grad)
    return Program(made.get(kind, correlation), (x, y), draw.training)


def _oriented(h: Tensor, bins: int) -> Tensor:
    """Sizes of slopes, each shared by the two nearest of so many directions."""
    down = (h[:, 2:, 1:-1] - h[:, :-2, 1:-1]) / 2
    right = (h[:, 1:-1, 2:] - h[:, 1:-1, :-2]) / 2
    size = (down * down + right * right + 1e-4).sqrt()
    part = (torch.atan2(down, right + 1e-3) / torch.pi % 1) * bins
    places = torch.arange(bins, device=h.device)[:, None, None]
    gap = (part[:, None] - places).abs()
    return functional.relu(1 - torch.minimum(gap, bins - gap)) * size[:, None]


def enhanced(draw: Draw) -> Program:
    """Pictures and sounds filtered: bilateral, guided, oriented slopes, film curves, echoes."""
    kind = draw.choice(("bilateral", "guided", "slopes", "film", "echo"))
    channels, radius = draw.choice((1, 3, 3, 8)), 1 if draw.training else draw.choice((1, 2))
    (bins, cell), flag = draw.choice(((4, 8), (9, 8), (9, 4))), draw.chance(0.5)
    last = draw.chance(0.5)
    channels = 3 if kind == "film" else channels
    batch, height, width = drawn_extents(draw, 2, channels)

    def bilateral(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
        h = functional.pad(y, (radius,) * 4, "reflect")
        total, weights = torch.zeros_like(x), torch.zeros_like(y[:, :1])
        for i in range(2 * radius + 1):
            for j in range(2 * radius + 1):
                near = h[:, :, i : i + height, j : j + width]
                gap = (near - y).square().mean(1, keepdim=True) * 2
                weight = torch.exp(-gap - 0.3 * ((i - radius) ** 2 + (j - radius) ** 2))
                total, weights = total + weight * near, weights + weight
        return (total / weights) * gain[0] + (x if flag else x * gain[1])

    def box(x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, 2 * radius + 1, 1, radius, count_include_pad=flag)

    def guided(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
        p, q = x.float(), y.float()
        mean, other = box(q), box(p)
        slope = (box(p * q) - mean * other) / ((box(q * q) - mean * mean).abs() + 0.1)
        smooth = box(slope) * q + box(other - slope * mean)
        return (smooth + (p - smooth) * gain[0]).to(x.dtype)

    def slopes(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
        h = functional.pad(x.float().mean(1) + y[:, 0] * gain[0], (1, 1, 1, 1))
        share = _oriented(h, bins)
        tall, wide = height // cell * cell, width // cell * cell
        each = functional.avg_pool2d(share[..., :tall, :wide], cell)
        return each / (each.square().sum(1, keepdim=True) + 1e-2).sqrt()

    def film(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
        h = x.permute(0, 2, 3, 1).float().abs()
        h = (h[..., None, :] * gain.view(3, 3).float().abs()).sum(-1)
        light = (h * torch.tensor((0.2126, 0.7152, 0.0722), device=x.device)).sum(-1, keepdim=True)
        if flag:
            h = h * 0.18 / torch.exp((light + 1e-3).log().mean((1, 2), keepdim=True))
        h = (h * (2.51 * h + 0.03) / (h * (2.43 * h + 0.59) + 0.14)).clamp(1e-4, 1)
        h = torch.where(h > 0.0031, 1.055 * h ** (1 / 2.4) - 0.055, 12.92 * h)  # noqa: PLR2004
        h = h + 0.1 * (h - light) * y.permute(0, 2, 3, 1).sigmoid()
        return h.to(x.dtype) if last else h.permute(0, 3, 1, 2).to(x.dtype).contiguous()

    def echo(x: Tensor, y: Tensor, gain: Tensor) -> Tensor:
        h, length = x.flatten(2), height * width
        out = h * gain[0]
        for i, delay in enumerate((1, 7, 13, 29, 57)[: bins + radius - 2]):
            if delay < length:
                late = functional.pad(h, (delay, 0))[..., :length]
                out = out + torch.tanh(gain[i + 1]) * (late * 0.7**i)
        mixed = out * y.flatten(2).sigmoid() + h if flag else out
        return mixed / mixed.float().abs().amax(-1, keepdim=True).clamp(min=1e-2).to(x.dtype)

    made = {"bilateral": bilateral, "guided": guided, "slopes": slopes, "film": film, "echo": echo}
    shape = (batch, channels, max(8, height), max(8, width))
    height, width = shape[2:]
    y = draw.image(shape, grad=draw.training and kind in {"bilateral", "guided"})
    return Program(made[kind], (draw.image(shape), y, draw.tensor((9,))), draw.training)


#: Every family here.
FAMILIES = (splats, shifted_matches, enhanced)
