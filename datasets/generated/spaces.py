"""Geometry: rotations, cameras, rays, encodings of places, point clouds, boxes and tables."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def rotations(draw: Draw) -> Program:
    """Quaternions or two axes made rotations, applied to points or turned into covariances."""
    axes, moved, rows = draw.chance(0.5), draw.chance(0.5), max(4, draw.numel // 12)

    def run(turn: Tensor, scale: Tensor, point: Tensor) -> tuple[Tensor, ...]:
        q = turn.float()
        if axes:
            x, b = functional.normalize(q[:, :3], dim=-1), q[:, 3:]
            y = functional.normalize(b - (x * b).sum(-1, keepdim=True) * x, dim=-1)
            matrix = torch.stack((x, y, torch.linalg.cross(x, y)), -1)
        else:
            w, x, y, z = (q / (q.norm(dim=-1, keepdim=True) + 1e-6)).unbind(-1)
            parts = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
            parts += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
            parts += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
            matrix = torch.stack(parts, -1).unflatten(-1, (3, 3))
        if moved:
            return ((matrix * point[:, None]).sum(-1) + scale).to(turn.dtype), matrix
        long = matrix * scale.float().clamp(max=3).exp()[:, None]
        both = (long[:, :, None] * long[:, None]).sum(-1)
        return torch.stack([both[:, i, j] for i in range(3) for j in range(i, 3)], -1), point * 0.5

    shapes = ((rows, 6 if axes else 4), (rows, 3), (rows, 3))
    return Program(run, tuple(draw.tensor(s) for s in shapes), draw.training)


def depth_maps(draw: Draw) -> Program:
    """Depths put into space by the camera's intrinsics, seen by another camera, or normals."""
    side = max(8, min(draw.choice((32, 60, 64, 128, 240)), int(draw.numel**0.5)))
    width, normals = side + draw.choice((0, side // 3)), draw.chance(0.5)

    def run(depth: Tensor, camera: Tensor, pose: Tensor) -> tuple[Tensor, ...]:
        z = 1 / (0.1 + 9 * depth.float().sigmoid())
        u, v = (torch.arange(n, device=z.device) for n in (width, side))
        fx, fy, cx, cy = (c[:, None, None] for c in camera.unbind(-1))
        space = torch.stack(((u - cx) / fx * z, (v[:, None] - cy) / fy * z, z), 1)
        if normals:
            across = space[..., 1:-1, 2:] - space[..., 1:-1, :-2]
            down = space[..., 2:, 1:-1] - space[..., :-2, 1:-1]
            return functional.normalize(torch.linalg.cross(across, down, dim=1), dim=1), space
        seen = (pose[:, :, :3, None, None] * space[:, None]).sum(2) + pose[:, :, 3, None, None]
        far = seen[:, 2].clamp(min=1e-2)
        x, y = (seen[:, 0] / far * fx + cx) / width, (seen[:, 1] / far * fy + cy) / side
        at = 2 * torch.stack((x, y), -1) - 1
        return at, (at.abs() < 1).all(-1) & (seen[:, 2] > 0), far

    batch = max(1, draw.numel // (side * width))
    camera = torch.tensor([side, side, width / 2, side / 2]).repeat(batch, 1)
    pose = torch.eye(4)[:3].repeat(batch, 1, 1)
    return Program(run, (draw.tensor((batch, side, width)), camera, pose), draw.training)


def rays(draw: Draw) -> Program:
    """Samples along rays composited: densities to weights, colour, depth and opacity."""
    samples, packed = draw.choice((16, 48, 64, 65, 128, 192)), draw.chance(0.5)
    rows, product = max(1, draw.numel // (4 * samples)), draw.chance(0.5)
    act = draw.choice((torch.relu, torch.exp))

    def run(field: Tensor, jitter: Tensor) -> tuple[Tensor, ...]:
        z = (torch.arange(samples, device=field.device) + jitter.float().sigmoid()) * 4 / samples
        raw = field.float() if packed else field.float().movedim(0, -1)
        thick = act(raw[..., 3]) * functional.pad(z.diff(dim=-1), (0, 1), value=1e3).clamp(min=0)
        alpha = 1 - torch.exp(-thick)
        left = functional.pad(1 - alpha + 1e-10, (1, -1), value=1.0)
        weight = alpha * (left.cumprod(-1) if product else torch.exp(thick - thick.cumsum(-1)))
        colour, opacity = (weight[..., None] * raw[..., :3].sigmoid()).sum(-2), weight.sum(-1)
        return colour + 1 - opacity[..., None], (weight * z).sum(-1) / (opacity + 1e-3), opacity

    field = draw.tensor((rows, samples, 4) if packed else (4, rows, samples))
    return Program(run, (field, draw.tensor((rows, samples), grad=False)), draw.training)


def frequencies(draw: Draw) -> Program:
    """Coordinates to sines and cosines of powers of two: joined, windowed or over intervals."""
    dims, bands = draw.choice((1, 2, 3, 3)), draw.choice((4, 6, 10, 15))
    kind, inner = draw.choice(("plain", "window", "interval")), draw.chance(0.5)
    shape, kept = (max(4, draw.numel // (2 * dims * bands)), dims), draw.chance(0.6)

    def run(x: Tensor, spread: Tensor, progress: Tensor) -> Tensor:
        band = torch.arange(bands, device=x.device)
        angle = x.float()[:, :, None] * 2.0**band
        parts = torch.stack((angle.sin(), angle.cos()), -1 if inner else 1)
        fade = torch.exp(-0.5 * (spread.float()[:, :, None] * 2.0**band).square())
        if kind == "window":
            fade = (1 - torch.cos(torch.pi * (progress * bands - band).clamp(0, 1)))[None, None] / 2
        if kind != "plain":
            parts = parts * (fade[..., None] if inner else fade.unsqueeze(1))
        flat = parts.flatten(1).to(x.dtype)
        return torch.cat((x, flat), -1) if kept else flat

    args = (draw.tensor(shape), draw.tensor(shape, grad=False), torch.tensor(0.6))
    return Program(run, args, draw.training)


def harmonics(draw: Draw) -> Program:
    """Spherical harmonics up to degree two or three of directions, weighed to view colours."""
    terms, last = draw.choice((4, 9, 16)), draw.chance(0.5)
    rows = max(4, draw.numel // (3 * terms))

    def run(place: Tensor, eye: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        x, y, z = functional.normalize(place.float() - eye, dim=-1).unbind(-1)
        xx, yy, zz = x * x, y * y, z * z
        basis = [torch.full_like(x, 0.2821), -0.4886 * y, 0.4886 * z, -0.4886 * x]
        basis += [1.0925 * x * y, -1.0925 * y * z, 0.3154 * (2 * zz - xx - yy), -1.0925 * x * z]
        basis += [0.5463 * (xx - yy), -0.59 * y * (3 * xx - yy), 2.8906 * x * y * z]
        basis += [-0.457 * y * (4 * zz - xx - yy), 0.3732 * z * (2 * zz - 3 * xx - 3 * yy)]
        basis += [-0.457 * x * (4 * zz - xx - yy), 1.445 * z * (xx - yy), -0.59 * x * (xx - 3 * yy)]
        shape = torch.stack(basis[:terms], -1)
        colour = (weight * shape[:, None]).sum(-1) if last else (weight * shape[..., None]).sum(1)
        return (colour + 0.5).clamp(min=0), shape

    weight = draw.tensor((rows, 3, terms) if last else (rows, terms, 3))
    return Program(run, (draw.tensor((rows, 3)), torch.ones(3), weight), draw.training)


def clouds(draw: Draw) -> Program:
    """Point clouds centred and scaled, the nearest points of two, both ways, within a radius."""
    batch, squared = draw.choice((1, 2, 8)), draw.chance(0.7)
    count, fewer = max(4, int((draw.numel / batch) ** 0.5)), draw.choice((1, 2, 5))

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = (p.float() - p.float().mean(1, keepdim=True) for p in (x, y))
        a, b = (p / (p.square().sum(-1).amax(1)[:, None, None] + 1e-6).sqrt() for p in (a, b))
        gap = (a[:, :, None] - b[:, None]).square()
        gap = gap.sum(-1) if squared else (gap.sum(-1) + 1e-8).sqrt()
        near, back = gap.amin(2), gap.amin(1)
        return near.mean(1) + back.mean(1), (near < 0.1**2).float().mean(1), gap.argmin(2)

    sizes = (count, max(2, count // fewer))
    return Program(run, tuple(draw.tensor((batch, n, 3)) for n in sizes), draw.training)


def table_corners(draw: Draw) -> Program:
    """Features of a hashed or dense grid at the eight corners of places, mixed by distance."""
    width, hashed = draw.choice((1, 2, 4, 8)), draw.chance(0.5)
    rows, many = max(4, draw.numel // (8 * width)), max(64, draw.numel // width)
    side = draw.choice((16, 100, 512)) if hashed else max(4, int(many ** (1 / 3)))
    entries = 2 ** draw.between(6, min(19, many.bit_length())) if hashed else side**3

    def run(x: Tensor, table: Tensor) -> Tensor:
        place = torch.sigmoid(x.float()) * (side - 2)
        low, part = place.floor().long(), place.frac()[:, None]
        corner = torch.arange(8, device=x.device)[:, None] >> torch.arange(3, device=x.device) & 1
        i, j, k = (low[:, None] + corner).unbind(-1)
        key = (i * side + j) * side + k
        if hashed:
            key = (i ^ (j * 2654435761) ^ (k * 805459861)) % entries
        weight = torch.where(corner == 1, part, 1 - part).prod(-1)
        return (table[key] * weight[..., None]).sum(1).to(table.dtype)

    args = (draw.tensor((rows, 3), grad=False), draw.tensor((entries, width)))
    return Program(run, args, draw.training)


def anchors(draw: Draw) -> Program:
    """Boxes from offsets to anchors made on a grid, clipped, or offsets from boxes."""
    batch, kinds, stride = draw.choice((1, 2, 8)), draw.choice((1, 3, 9)), draw.choice((8, 16, 32))
    side = max(2, int((draw.numel / (batch * kinds * 4)) ** 0.5))
    encoded, last = draw.chance(0.4), draw.chance(0.5)

    def run(found: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        at = (torch.arange(side, device=found.device) + 0.5) * stride
        middle = torch.stack((at.expand(side, side), at[:, None].expand(side, side)), -1)
        h = (found if last else found.permute(0, 2, 3, 1)).unflatten(-1, (kinds, 4)).float()
        if encoded:
            gap = (h[..., :2] - middle[:, :, None]) / sizes
            return torch.cat((gap, (h[..., 2:].abs() + 0.1).log()), -1).flatten(1, 3) * 5, middle
        half = sizes * h[..., 2:].clamp(max=4).exp() / 2
        centre = middle[:, :, None] + h[..., :2].tanh() * sizes
        boxes = torch.cat((centre - half, centre + half), -1).clamp(0, side * stride)
        return boxes.flatten(1, 3).to(found.dtype), (2 * half).prod(-1).sqrt()

    shape = (batch, side, side, kinds * 4) if last else (batch, kinds * 4, side, side)
    sizes = torch.linspace(1, 4, 2 * kinds).reshape(kinds, 2) * stride
    return Program(run, (draw.tensor(shape), sizes), draw.training)


#: Every family here.
FAMILIES = (rotations, depth_maps, rays, frequencies, harmonics, clouds, table_corners, anchors)
