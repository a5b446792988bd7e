"""Fast transforms and filters: butterflies, bands, kernels as features, windows of ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def bits_of(value: Tensor, count: int) -> list[Tensor]:
    """The lowest bits of integers, the lowest first."""
    return [(value >> i) & 1 for i in range(count)]


def butterflies(draw: Draw) -> Program:
    """Stages of sums and differences, turned or weighed: Walsh-Hadamard, Fourier, butterflies."""
    power, kind = draw.choice((3, 4, 5, 6, 7, 8, 10)), draw.choice(("signs", "turned", "weighed"))
    size = 2**power
    rows = max(2, draw.numel // (size * (2 if kind == "turned" else 1)))
    stages = min(power, draw.choice((2, 3, 5, 10)))
    first, reordered, signed = draw.chance(0.35), draw.chance(0.5), draw.chance(0.5)

    def turn(x: Tensor, stage: int) -> Tensor:
        half = 2**stage
        h = x.view(2, -1, size // (2 * half), 2, half)
        angle = -math.pi * torch.arange(half, device=x.device) / half
        c, s = angle.cos(), angle.sin()
        (a, low), (b, high) = h[0].unbind(2), h[1].unbind(2)
        real, imaginary = low * c - high * s, low * s + high * c
        left = torch.stack((a + real, b + imaginary))
        right = torch.stack((a - real, b - imaginary))
        return torch.stack((left, right), 3).view(2, -1, size)

    def cross(x: Tensor, stage: int, weight: Tensor) -> Tensor:
        half = 2**stage
        if first:
            a, b = x.view(size // (2 * half), 2, half, rows).unbind(1)
            return torch.stack((a + b, a - b), 1).view(size, rows)
        a, b = x.view(rows, size // (2 * half), 2, half).unbind(2)
        if kind == "signs":
            return torch.stack((a + b, a - b), 2).view(rows, size)
        w = weight[stage].view(2, 2, -1, half)
        return torch.stack((a * w[0, 0] + b * w[0, 1], a * w[1, 0] + b * w[1, 1]), 2).view(rows, -1)

    def run(x: Tensor, weight: Tensor, sign: Tensor) -> Tensor:
        flips = (sign.float() * 2 - 1).to(x.dtype)
        if kind == "turned":
            at = torch.arange(size, device=x.device)
            place = torch.stack([b << (power - 1 - i) for i, b in enumerate(bits_of(at, power))])
            h = x.float()[..., place.sum(0)] if reordered else x.float()
            for stage in range(stages):
                h = turn(h, stage)
            return h.square().sum(0) if signed else h.to(x.dtype)
        h = x * (flips[:, None] if first else flips) if signed else x
        for stage in range(stages):
            h = cross(h, stage, weight)
        return h / math.sqrt(size) if reordered else functional.relu(h) + x

    shape = (2, rows, size) if kind == "turned" else (size, rows) if first else (rows, size)
    weighed = draw.training and kind == "weighed" and not first
    weight = draw.tensor((stages, 2 * size), grad=weighed)
    return Program(run, (draw.tensor(shape), weight, draw.mask((size,))), draw.training)


def _beside(x: Tensor, smooth: bool, side: int) -> Tensor:
    """Each element and the one after or before it, added; or the element twice."""
    if not smooth:
        return 2 * x
    near = (x[..., 1:], x[..., -1:]) if side > 0 else (x[..., :1], x[..., :-1])
    return x + torch.cat(near, -1)


def _bands(x: Tensor) -> tuple[Tensor, ...]:
    """Halved sums and differences of squares of four pixels."""
    a, b, c, d = (x[..., i::2, j::2] for i in (0, 1) for j in (0, 1))
    return (a + b + c + d) / 2, (a - b + c - d) / 2, (a + b - c - d) / 2, (a - b - c + d) / 2


def subbands(draw: Draw) -> Program:
    """Signals and images lifted to bands and back, or in small cosine blocks: wavelets, JPEG."""
    kind, inner = draw.choice(("line", "image", "cosine")), draw.choice((1, 3, 8, 16, 64, 96))
    levels, thinned, back = draw.between(1, 3), draw.chance(0.5), draw.chance(0.5)
    size, smooth = draw.choice((4, 8, 8)), draw.chance(0.6)
    side = 8 * max(
        1, min(draw.choice((2, 4, 7, 16, 28, 64)), int((draw.numel / inner) ** 0.5) // 8)
    )
    length = 8 * min(draw.choice((4, 16, 125, 512)), draw.numel // (8 * inner) + 1)
    batch = max(1, draw.numel // (inner * (length if kind == "line" else side * side)))

    def shrink(x: Tensor, limit: Tensor) -> Tensor:
        return torch.sign(x) * functional.relu(x.abs() - limit.abs()) if thinned else x * limit

    def lift(x: Tensor, limit: Tensor) -> tuple[Tensor, ...]:
        h, bands = x, []
        for level in range(levels):
            even, odd = h[..., ::2], h[..., 1::2]
            odd = odd - _beside(even, smooth, 1) / 2
            h = even + _beside(odd, smooth, -1) / 4
            bands.append(shrink(odd, limit[level, :, None]))
        if not back:
            return (h, *(band.square().mean(-1) for band in bands))
        for odd in reversed(bands):
            even = h - _beside(odd, smooth, -1) / 4
            h = torch.stack((even, odd + _beside(even, smooth, 1) / 2), -1).flatten(-2)
        return (h,)

    def split(x: Tensor, limit: Tensor) -> Tensor:
        mean, *rest = _bands(x)
        wide, high, cross = (shrink(h, limit[0, :, None, None]) for h in rest)
        if not back:
            return torch.cat((mean, wide, high, cross), 1)
        top = torch.stack((mean + wide + high + cross, mean - wide + high - cross), -1)
        low = torch.stack((mean + wide - high - cross, mean - wide - high + cross), -1)
        return torch.stack((top.flatten(-2), low.flatten(-2)), -2).flatten(-3, -2) / 2

    def cosine(x: Tensor, steps: Tensor) -> Tensor:
        at = torch.arange(size, device=x.device)
        wave = torch.cos(math.pi / size * (at + 0.5) * at[:, None]) * math.sqrt(2 / size)
        h: Tensor = x.float().unflatten(-2, (-1, size)).unflatten(-1, (-1, size)).transpose(-2, -3)
        h = (h[..., None, :, :] * wave[:, :, None]).sum(-2)
        h = (h[..., None, :] * wave).sum(-1) / (steps[:size, :size].abs() + 0.1)
        h = h + (h.round() - h).detach() if thinned else h
        return h.transpose(-2, -3).flatten(-2).flatten(-3, -2).to(x.dtype) if back else h

    if kind == "line":
        args = (draw.tensor((batch, inner, length)), draw.tensor((levels, inner)))
        return Program(lift, args, draw.training)
    x = draw.image((batch, inner, side, side))
    if kind == "image":
        return Program(split, (x, draw.tensor((1, inner))), draw.training)
    return Program(cosine, (x, draw.tensor((8, 8))), draw.training)


def kernel_features(draw: Draw) -> Program:
    """Waves or positive powers of projections, running sums of them, or distances as kernels."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((8, 16, 32, 64, 128, 256))
    kind, joined = draw.choice(("waves", "positive", "squared", "shared")), draw.chance(0.5)
    batch, gathered = draw.choice((1, 2, 8, 16)), draw.chance(0.5)
    length, first = max(2, draw.numel // (batch * heads * width)), draw.chance(0.4)

    def features(x: Tensor, size: Tensor) -> Tensor:
        if kind == "waves":
            waves = torch.cos(x), torch.sin(x)
            h = torch.cat(waves, -1) if joined else torch.stack(waves, -1).flatten(-2)
            return h / math.sqrt(width) * torch.exp(size / 2)
        if kind == "positive":
            top = x.amax((-2, -1) if gathered else -1, keepdim=True).detach()
            return (torch.exp(x - size - top) + 1e-4) / math.sqrt(width)
        if kind == "squared":
            return functional.normalize(functional.relu(x).pow(3), dim=-1) * size.clamp(max=4)
        return functional.softmax(x, -1) * torch.sigmoid(size)

    def run(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
        q, k = ((h.transpose(1, 2) if first else h).float() * scale for h in (q, k))
        p, r = (features(h, h.square().sum(-1, keepdim=True) / (2 * width)) for h in (q, k))
        if kind == "shared":
            return (p * functional.softmax(r, 2)).to(scale.dtype)
        total = r.cumsum(2) if joined else r.sum(2, keepdim=True)
        y = p / ((p * total).sum(-1, keepdim=True) + 1e-4)
        return y.transpose(1, 2).flatten(2).to(scale.dtype) if gathered else y.to(scale.dtype)

    shape = (batch, length, heads, width) if first else (batch, heads, length, width)
    args = (*(draw.tensor(shape) for _ in "qk"), draw.tensor((width,)))
    return Program(run, args, draw.training)


def _middle(x: Tensor) -> Tensor:
    """Medians of a pixel and the four beside it."""
    high, wide = x.shape[-2:]
    parts = [x[..., i : i + high - 2, 1:-1] for i in range(3)]
    parts += [x[..., 1:-1, : wide - 2], x[..., 1:-1, 2:]]
    for last in (4, 3, 2):
        for i in range(last):
            a, b = parts[i], parts[i + 1]
            parts[i], parts[i + 1] = torch.minimum(a, b), torch.maximum(a, b)
    return parts[2]


def rank_filters(draw: Draw) -> Program:
    """Medians, extrema and sums over windows of images and series: morphology, integral images."""
    channels, size = draw.choice((1, 1, 3, 16, 32, 64)), draw.choice((3, 3, 5, 7))
    high = min(draw.choice((14, 28, 65, 128, 240)), max(9, int((draw.numel / channels) ** 0.5)))
    kind = draw.choice(("median", "series", "opened", "steepness", "box", "local"))
    wide, turned = high + draw.choice((0, 0, 3, 16)), draw.chance(0.4)
    # The gradient of overlapping windows would hold every one of them.
    pad, stacked = size // 2, draw.chance(0.6) and not draw.training
    copies = size if kind == "series" else 1
    batch = max(1, draw.numel // (channels * high * wide * copies))

    def slide(x: Tensor, top: bool) -> Tensor:
        if stacked:
            h = functional.pad(x, (pad, pad, pad, pad), value=-9.0 if top else 9.0)
            h = h.unfold(2, size, 1).unfold(3, size, 1)
            return h.amax((-2, -1)) if top else h.amin((-2, -1))
        h = functional.max_pool2d(x if top else -x, size, 1, pad)
        return h if top else -h

    def boxes(x: Tensor) -> Tensor:
        total = functional.pad(x.float().cumsum(2).cumsum(3), (1, 0, 1, 0))
        low, far = total[:, :, size:], total[:, :, :-size]
        return (low[..., size:] - low[..., :-size] - far[..., size:] + far[..., :-size]) / size**2

    def run(x: Tensor, bias: Tensor) -> Tensor:
        h = x + bias[:, None, None]
        if kind == "median":
            return _middle(h) + (h - h.mean((2, 3), keepdim=True))[..., 1:-1, 1:-1].abs()
        if kind == "series":
            flat = functional.pad(h.flatten(1, 2), (pad, pad), "replicate")
            near = flat.view(batch, channels, high, -1).unfold(3, size, 1).float()
            centre = near.sort(-1).values[..., pad]
            spread = (near - centre[..., None]).abs().mean(-1)
            return torch.where((h - centre).abs() > 2 * spread, centre, h).to(x.dtype)
        if kind == "opened":
            return h - slide(slide(h, False), True)
        if kind == "steepness":
            return torch.sigmoid(4 * (slide(h, True) - slide(h, False))).mean(1, keepdim=True)
        mean = boxes(h)
        if kind == "box":
            return mean.to(x.dtype)
        rough = (boxes(h.float().square()) - mean.square()).clamp(min=0)
        return (mean * rough / (rough + 0.1)).to(x.dtype)

    x = draw.image((batch, channels, high, wide), turned=turned)
    return Program(run, (x, draw.tensor((channels,))), draw.training)


#: Every family here.
FAMILIES = (butterflies, subbands, kernel_features, rank_filters)
