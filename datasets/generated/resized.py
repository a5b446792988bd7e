"""Maps at other sizes: resized, pooled and spread, warped, blurred, unpooled, scored."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

_SIDES = (5, 7, 8, 13, 14, 16, 25, 28, 32, 33, 56, 64, 65, 97, 128, 224)


def _maps(draw: Draw, shrunk: int = 1) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of maps that have so many times fewer elements."""
    numel = max(64, draw.numel // shrunk)
    channels = draw.choice([c for c in (1, 3, 8, 19, 32, 64, 96, 256) if c <= max(3, numel // 49)])
    most = max(4, int((numel / channels) ** 0.5))
    height, width = (min(most, draw.choice(_SIDES)) for _ in range(2))
    return max(1, numel // (channels * height * width)), channels, height, width


def resizing(draw: Draw) -> Program:
    """Images resized in any mode to any size, then normalised, stored as bytes or added."""
    batch, channels, *sides = _maps(draw)
    sizes = [max(1, int(s * draw.choice((0.3, 0.5, 0.75, 1.25, 1.5, 1.7, 2.0)))) for s in sides]
    mode = draw.choice(("bicubic", "bicubic", "area", "nearest-exact", "bilinear"))
    aligned = draw.chance(0.4) if mode in {"bicubic", "bilinear"} else None
    after, trained = draw.choice(("normalise", "store", "add")), draw.training

    def run(x: Tensor, other: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        h = functional.interpolate(x, sizes, mode=mode, align_corners=aligned)
        if after == "add":
            return functional.leaky_relu(h + 0.1 * other, 0.2)
        if after == "normalise":
            return (h - mean) / std
        h = ((h * std + mean) * 255).clamp(0, 255)
        return h if trained else h.round().to(torch.uint8)

    mean, std = (draw.tensor((channels, 1, 1), grad=False, positive=True) for _ in range(2))
    other = draw.image((batch, channels, *sizes), grad=draw.training and after == "add")
    args = (draw.image((batch, channels, *sides)), other, mean, std)
    return Program(run, args, draw.training)


def pyramid(draw: Draw) -> Program:
    """Levels of a feature pyramid: summed downwards, weighed as by BiFPN, or all made as fine."""
    batch, channels, *size = _maps(draw, 2)
    kind, mode = draw.choice(("sum", "weigh", "finest")), draw.choice(("nearest", "bilinear"))
    act, joined = draw.choice((functional.relu, functional.silu)), draw.chance(0.5)
    sizes = [[-(-side // 2**i) for side in size] for i in range(draw.between(2, 5))]

    def run(weight: Tensor, *levels: Tensor) -> list[Tensor]:
        share = functional.relu(weight) / (functional.relu(weight).sum(-1, keepdim=True) + 1e-4)
        found = [levels[-1]]
        if kind == "finest":
            found = [functional.interpolate(act(x), size, mode=mode) for x in levels]
            return [torch.cat(found, 1) if joined else torch.stack(found).sum(0)]
        for i, x in enumerate(levels[-2::-1]):
            above = functional.interpolate(found[-1], x.shape[-2:], mode=mode)
            found.append(x + above if kind == "sum" else act(share[i, 0] * x + share[i, 1] * above))
        return found

    weight = draw.tensor((len(sizes), 2), positive=True, grad=draw.training and kind == "weigh")
    levels = (draw.image((batch, channels, *each)) for each in sizes)
    return Program(run, (weight, *levels), draw.training)


def pyramid_pooling(draw: Draw) -> Program:
    """Pools of several sizes resized back and joined, also global ones and chained windows."""
    batch, channels, *size = _maps(draw, 3)
    bins = draw.choice(((1, 2, 3, 6), (1, 2, 3, 6), (1,), (1, 3), (2, 4)))
    windows, aligned, joined = draw.chance(0.2), draw.chance(0.3), draw.chance(0.6)

    def run(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        parts = [x]
        for pool in bins:
            if windows:
                parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
                continue
            h = functional.relu(functional.adaptive_avg_pool2d(x, pool) * gain + bias)
            h = functional.interpolate(h, size, mode="bilinear", align_corners=aligned)
            parts.append(h)
        return torch.cat(parts, 1) if joined else x * torch.sigmoid(torch.stack(parts).sum(0))

    gains = (draw.tensor((channels, 1, 1), grad=draw.training and not windows) for _ in range(2))
    return Program(run, (draw.image((batch, channels, *size)), *gains), draw.training)


def resized_positions(draw: Draw) -> Program:
    """Position embeddings resized to the grid of patches, added behind a class token."""
    width, side = draw.choice((16, 32, 64, 192, 384)), draw.choice((4, 7, 14))
    width = min(width, max(16, draw.numel // 256))
    size = [draw.choice((5, 7, 14, 16, 24)) for _ in range(2)]
    batch = max(1, draw.numel // (size[0] * size[1] * width))
    mode, extra = draw.choice(("bicubic", "bilinear")), draw.choice((1, 1, 5))
    normed = draw.chance(0.4)

    def run(x: Tensor, first: Tensor, place: Tensor) -> Tensor:
        grid = place[:, extra:].reshape(1, side, side, width).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid.float(), size, mode=mode).to(x.dtype)
        h = torch.cat((first.expand(x.shape[0], -1, -1), x), 1)
        h = h + torch.cat((place[:, :extra], grid.flatten(2).transpose(1, 2)), 1)
        return functional.layer_norm(h, (width,)) if normed else h

    shapes = ((batch, size[0] * size[1], width), (1, extra, width), (1, extra + side**2, width))
    return Program(run, tuple(draw.tensor(shape) for shape in shapes), draw.training)


def warped(draw: Draw) -> Program:
    """Images warped by a flow or a disparity, looked up by hand: frames, stereo, registration."""
    batch, channels, height, width = _maps(draw)
    flat, bounded, compared = draw.chance(0.3), draw.chance(0.5), draw.chance(0.4)
    corners = ((0, 0), (0, 1)) if flat else ((0, 0), (0, 1), (1, 0), (1, 1))

    def run(image: Tensor, flow: Tensor, other: Tensor) -> Tensor:
        rows, columns = (torch.arange(n, device=flow.device) for n in (height, width))
        x = columns + 2 * flow[:, 0].float()
        y = rows[:, None] + (torch.zeros_like(x) if flat else 2 * flow[:, 1].float())
        left, top, out = x.floor(), y.floor(), torch.zeros_like(other)
        for down, right in corners:
            u, v = left + right, top + down
            weight = (1 - (x - u).abs()) * (1 - (y - v).abs())
            if bounded:
                weight = weight * ((u >= 0) & (u < width) & (v >= 0) & (v < height))
            at = v.clamp(0, height - 1).long() * width + u.clamp(0, width - 1).long()
            found = image.flatten(2).gather(2, at.flatten(1)[:, None].expand(-1, channels, -1))
            out = out + found.view_as(other) * weight[:, None].to(other.dtype)
        return (out - other).abs().mean(1, keepdim=True) if compared else out

    shape = (batch, channels, height, width)
    flow = draw.tensor((batch, 1 if flat else 2, height, width))
    return Program(run, (draw.tensor(shape), flow, draw.tensor(shape, grad=False)), draw.training)


def unpooled(draw: Draw) -> Program:
    """The largest of windows put back to where they were, or blurred and thinned values."""
    batch, channels, height, width = _maps(draw)
    height, width = 2 * -(-height // 2), 2 * -(-width // 2)
    blurred, pad = draw.chance(0.5), draw.choice(("reflect", "replicate", "constant"))

    def run(x: Tensor, other: Tensor) -> Tensor:
        if blurred:
            h = functional.pad(functional.relu(x), (1, 1, 1, 1), pad)
            h = h[..., :-2:2, :] + 2 * h[..., 1:-1:2, :] + h[..., 2::2, :]
            return (h[..., :-2:2] + 2 * h[..., 1:-1:2] + h[..., 2::2]) / 16 * other
        h, at = functional.max_pool2d(x, 2, return_indices=True)
        h = functional.relu(h * other).flatten(2)
        return torch.zeros_like(x).flatten(2).scatter(2, at.flatten(2), h).view_as(x)

    other = draw.tensor((batch, channels, height // 2, width // 2))
    return Program(run, (draw.image((batch, channels, height, width)), other), draw.training)


def dense_scores(draw: Draw) -> Program:
    """Coarse scores of classes resized to the image: a loss, or labels and how many are right."""
    classes, factor = draw.choice((2, 11, 19, 21, 40)), draw.choice((2, 4, 8))
    most = max(4, int((draw.numel / classes) ** 0.5) // factor)
    sides = [min(most, draw.choice((4, 7, 8, 13, 16, 32))) for _ in range(2)]
    size = [side * factor + draw.choice((0, 0, 1)) for side in sides]
    batch = max(1, draw.numel // (classes * size[0] * size[1]))
    sure, trained = draw.choice((0.3, 0.5)), draw.training

    def run(scores: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        full = functional.interpolate(scores, size, mode="bilinear").float()
        if trained:
            return (functional.cross_entropy(full, target, ignore_index=0),)
        share, label = functional.softmax(full, 1).max(1)
        label = torch.where(share > sure, label, 255)
        return label.to(torch.uint8), ((label == target) & (target > 0)).sum((1, 2))

    target = draw.indices((batch, *size), classes)
    # Class 0 is ignored; some pixel of another class keeps the mean defined.
    target[0, 0, 0] = 1
    return Program(run, (draw.tensor((batch, classes, *sides)), target), draw.training)


#: Every family here.
FAMILIES = (resizing, pyramid, pyramid_pooling, resized_positions, warped, unpooled, dense_scores)
