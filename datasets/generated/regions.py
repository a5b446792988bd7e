"""Features of detectors: regions looked up, sines of boxes, prototypes of masks, stages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.detections import box_area
from fusewise.datasets.generated.draw import Draw, Program


def _bilinear(maps: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    """Maps [N, C, pixels] at points [N, P] between their pixels: [N, C, P]."""
    left, top = x.floor(), y.floor()
    total = torch.zeros_like(x)[:, None].to(maps.dtype)
    for right, down in ((0, 0), (0, 1), (1, 0), (1, 1)):
        u, v = left + right, top + down
        weight = (1 - (x - u).abs()) * (1 - (y - v).abs())
        weight = weight * ((u >= 0) & (u < width) & (v >= 0) & (v < height))
        at = v.clamp(0, height - 1).long() * width + u.clamp(0, width - 1).long()
        found = maps.gather(2, at[:, None].expand(-1, maps.shape[1], -1))
        total = total + found * weight[:, None].to(maps.dtype)
    return total


def gathered_regions(draw: Draw) -> Program:
    """Features of regions, or of weighed points around queries, looked up between pixels: RoI."""
    points, wide = draw.choice((0, 0, 4, 8)), draw.choice((8, 16, 32, 64, 128, 256))
    bins, largest, last = draw.choice((2, 3, 7, 14)), draw.chance(0.4), draw.chance(0.5)
    most = max(4, int((draw.numel / (2 * wide)) ** 0.5))
    height, width = (min(most, draw.choice((7, 14, 25, 32, 50, 64, 100))) for _ in range(2))
    many = max(1, min(512, draw.numel // (2 * wide * (points or bins * bins))))
    batch = max(1, draw.numel // (wide * (height * width + many * (points or bins * bins))))

    def run(maps: Tensor, place: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = (maps.transpose(1, 2) if last else maps) + bias[:, None]
        low, size = place.float().sigmoid().chunk(2, -1)
        if points:
            shift = place.float().tanh().view(batch, many, 2, 2).repeat(1, 1, points // 2, 1)
            x, y = (low[:, :, None] + 0.1 * shift).flatten(1, 2).unbind(-1)
        else:
            step = (torch.arange(bins, device=maps.device) + 0.5) / bins
            x, y = ((low[..., i, None] + step * size[..., i, None] / 2) for i in (0, 1))
            x = x[:, :, None].expand(-1, -1, bins, -1).flatten(1)
            y = y[..., None].expand(-1, -1, -1, bins).flatten(1)
        found = _bilinear(h, x * width - 0.5, y * height - 0.5, height, width)
        found = found.reshape(batch, wide, many, -1)
        if points:
            share = functional.softmax(weight.float(), -1)[:, None].to(found.dtype)
            return (found * share).sum(-1).transpose(1, 2).contiguous()
        found = found.amax(-1) if largest else torch.relu(found)
        return found.transpose(1, 2).flatten(2).contiguous()

    shape = (batch, height * width, wide) if last else (batch, wide, height * width)
    place = draw.tensor((batch, many, 4))
    weight = draw.tensor((batch, many, max(1, points)), grad=draw.training and points > 0)
    return Program(run, (draw.tensor(shape), place, weight, draw.tensor((wide,))), draw.training)


def box_sines(draw: Draw) -> Program:
    """Sines and cosines of boxes, or of pixels counted where a mask is, added to features: DETR."""
    boxed, normed, width = draw.chance(0.5), draw.chance(0.5), draw.choice((16, 32, 64, 128, 256))
    most = max(4, int((draw.numel / width) ** 0.5))
    high, wide = (min(most, draw.choice((7, 16, 25, 33, 50, 64))) for _ in range(2))
    few = min(draw.choice((100, 300, 900)), max(2, draw.numel // width))
    rows = few if boxed else high * wide
    axes, batch = (4 if boxed else 2), max(1, draw.numel // (width * rows))
    last = boxed or draw.chance(0.5)

    def run(x: Tensor, place: Tensor, gain: Tensor, mask: Tensor) -> Tensor:
        if boxed:
            at = torch.sigmoid(place.float())
        else:
            y, x_at = (mask.cumsum(axis, dtype=torch.float32) for axis in (1, 2))
            at = torch.stack((y / (y[:, -1:] + 1e-6), x_at / (x_at[..., -1:] + 1e-6)), -1)
            at = at.flatten(1, 2)
        half = width // axes // 2
        heat = torch.pow(10000.0, torch.arange(half, device=x.device) / half)
        angle = at[..., None] * 6.2832 / heat
        sines = torch.stack((angle.sin(), angle.cos()), -1).flatten(2).to(x.dtype)
        if last:
            h = x + sines * gain
            return functional.layer_norm(h, (width,), gain) if normed else h
        return x * gain[:, None] + sines.transpose(1, 2)

    shape = (batch, rows, width) if last else (batch, width, rows)
    place = draw.tensor((batch, rows, 4) if boxed else (1,), grad=draw.training and boxed)
    mask = draw.mask((1,) if boxed else (batch, high, wide), 0.9)
    return Program(run, (draw.tensor(shape), place, draw.tensor((width,)), mask), draw.training)


def mask_prototypes(draw: Draw) -> Program:
    """Prototypes times coefficients, cropped to boxes: losses by area, or masks with scores."""
    # Many products written out would be too large.
    parts, written = draw.choice(((4, True), (4, False), (8, False), (32, False)))
    many = min(draw.choice((1, 8, 20, 100)), max(1, draw.numel // 1000))
    most = max(8, int((draw.numel / (many + parts)) ** 0.5))
    high, wide = (min(most, draw.choice((28, 56, 64, 96, 138, 160))) for _ in range(2))
    batch = max(1, draw.numel // ((many + parts) * high * wide))
    trained, resized = draw.training, draw.chance(0.3)

    def run(maps: Tensor, share: Tensor, boxes: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
        h, weight, least = torch.relu(maps), torch.tanh(share), 0.5
        if written:
            s = (h[:, None] * weight[..., None, None]).sum(2)
        else:
            s = torch.bmm(weight, h.flatten(2)).view(batch, many, high, wide)
        low, end = boxes.chunk(2, -1)
        x, y = (torch.arange(n, device=maps.device) / n for n in (wide, high))
        across = (x >= low[..., :1]) & (x < end[..., :1])
        inside = across[:, :, None] & ((y >= low[..., 1:]) & (y < end[..., 1:]))[..., None]
        if trained:
            goal = wanted.to(s.dtype)
            loss = functional.binary_cross_entropy_with_logits(s, goal, reduction="none").float()
            area = box_area(end - low).clamp(min=1e-2)
            return ((loss * inside).mean((2, 3)) / area).mean(), (s * inside).amax((2, 3))
        p = torch.sigmoid(s.float()) * inside
        size = (p > least).sum((2, 3))
        sure = (p * (p > least)).sum((2, 3)) / size.clamp(min=1)
        p = functional.interpolate(p, scale_factor=2, mode="bilinear") if resized else p
        return p > least, sure, size

    ends = torch.sigmoid(draw.tensor((batch, many, 2), dtype=torch.float32, grad=False))
    boxes = torch.cat((0.5 * ends, 0.5 + 0.5 * ends), -1)
    maps, share = draw.image((batch, parts, high, wide)), draw.tensor((batch, many, parts))
    wanted = draw.mask((batch, many, high, wide) if trained else (1,))
    return Program(run, (maps, share, boxes, wanted), draw.training)


def cross_stages(draw: Draw) -> Program:
    """Features split, passed through blocks and joined again, with pools and gates of pixels."""
    channels, count = 2 * draw.choice((8, 16, 24, 32, 64, 128, 256)), draw.between(1, 3)
    most = max(4, int((draw.numel / channels) ** 0.5))
    high, wide = (2 * (min(most, draw.choice((8, 14, 20, 40, 64, 80, 160))) // 2) for _ in range(2))
    batch = max(1, draw.numel // (channels * high * wide))
    end, gated = draw.choice(("plain", "pools", "slices", "shuffled")), draw.chance(0.5)
    act, deep = draw.choice((functional.silu, functional.silu, functional.mish)), draw.chance(0.25)

    def run(x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
        h = act(x * gain[:, None, None] + bias[:, None, None])
        parts = list(h.chunk(2, 1))
        for _ in range(count):
            new = parts[-1]
            if deep:
                new = functional.conv2d(new, weight, padding=1, groups=channels // 2)
            pooled = end == "pools"
            new = functional.max_pool2d(new, 5, 1, 2) if pooled else parts[-1] + act(new + 0.1)
            parts.append(new)
        if gated:
            both = torch.stack((parts[-1].mean(1), parts[-1].amax(1)), 1)
            parts[-1] = parts[-1] * torch.sigmoid(both.sum(1, keepdim=True))
        h = torch.cat(parts, 1)
        if end == "shuffled":
            return torch.stack(h.chunk(2, 1), 2).flatten(1, 2)
        if end == "slices":
            return torch.cat([h[..., i::2, j::2] for j in range(2) for i in range(2)], 1)
        return h

    weight = draw.tensor((channels // 2, 1, 3, 3), grad=draw.training and deep)
    rows = (draw.tensor((channels,)) for _ in range(2))
    return Program(run, (draw.image((batch, channels, high, wide)), *rows, weight), draw.training)


#: Every family here.
FAMILIES = (gathered_regions, box_sines, mask_prototypes, cross_stages)
