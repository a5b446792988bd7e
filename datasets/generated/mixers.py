"""Mixers of image tokens without attention: transposes, pools, permuted norms, neighbours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

_WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 1536, 3072)
_SIDES = (7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 56, 64, 96, 112)
NORMS = ("layer", "layer", "affine", "root", "columns")
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.gelu,
    functional.silu,
    functional.relu,
    functional.hardswish,
)


def drawn_grid(draw: Draw, shrunk: int = 1, *, multiple: int = 1) -> tuple[int, int, int, int]:
    """Batch, height, width (multiples) and channels of so many times fewer elements."""
    numel = max(256, draw.numel // shrunk)
    channels = draw.choice([c for c in _WIDTHS if c <= max(16, numel // 200)])
    most = max(1, int((numel / channels) ** 0.5) // multiple)
    high, wide = (min(most, max(1, draw.choice(_SIDES) // multiple)) for _ in range(2))
    wide = high if draw.chance(0.6) else wide
    batch = max(1, numel // (channels * high * wide * multiple**2))
    return batch, high * multiple, wide * multiple, channels


def normalised(x: Tensor, gain: Tensor, bias: Tensor, kind: str) -> Tensor:
    """Normalised over the last axis or all others, or only scaled."""
    if kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], gain, bias)
    if kind == "root":
        return functional.rms_norm(x, x.shape[-1:], gain)
    if kind == "columns":
        var, mean = torch.var_mean(x.float(), tuple(range(x.ndim - 1)), correction=0)
        return ((x - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype) * gain + bias
    return x * gain + bias


def token_products(draw: Draw) -> Program:
    """Products over tokens or channels in turn: transposes, norms, scaled branches: MLP-Mixer."""
    batch, height, breadth, width = drawn_grid(draw, 2)
    kind = draw.choice(("hidden", "residual", "residual", "axes", "start"))
    norm, act, length = draw.choice(NORMS), draw.choice(ACTIVATIONS), height * breadth
    dropped, scaled, turned = draw.chance(0.5), draw.chance(0.6), draw.chance(0.6)

    def run(x: Tensor, y: Tensor, place: Tensor, keep: Tensor, *rows: Tensor) -> list[Tensor]:
        gain, bias, scale = rows
        if kind == "hidden":
            h = act(y + place)
            h = functional.layer_norm(h, (length,), place) if scaled else h
            return [h * keep / 0.9 if dropped else h]
        if kind == "start":
            h = act(normalised(x, gain, bias, norm) + scale).transpose(1, 2)
            return [h.contiguous() + place, h.amax(1)]
        h = (y + place).transpose(1, 2)
        if kind == "axes":
            across = y.view(batch, height, width, breadth).transpose(2, 3)
            down = y.view(batch, breadth, width, height).permute(0, 3, 1, 2)
            h = act((across + bias) + (down + scale)).flatten(1, 2)
        h = h * scale if scaled else h
        h = x + (h * keep / 0.9 if dropped else h)
        z = normalised(h, gain, bias, norm)
        return [h, z.transpose(1, 2).contiguous() if turned else z]

    args = (draw.tensor((batch, length, width)), draw.tensor((batch, width, length)))
    keep, rows = draw.mask((batch, 1, 1), 0.9), (draw.tensor((width,)) for _ in range(3))
    return Program(run, (*args, draw.tensor((length,)), keep, *rows), draw.training)


def pooled_mixers(draw: Draw) -> Program:
    """Pixels mixed by pools less themselves, axes or filters of frequencies: PoolFormer, GFNet."""
    kind = draw.choice(("mean", "mean", "largest", "axes", "filter", "star"))
    batch, height, width, channels = drawn_grid(draw, 2)
    size, groups = draw.choice((3, 3, 5, 7)), draw.choice((1, 1, 0, 4))
    shrunk, dropped, turned = draw.chance(0.5), draw.chance(0.5), draw.chance(0.5)

    def frequencies(x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        real, imaginary = x.unbind(-1) if turned else (x[0], x[1])
        a, b = weight.unbind(-1)
        parts = [real * a - imaginary * b, real * b + imaginary * a]
        parts = [functional.relu(part * gain + bias) if dropped else part for part in parts]
        h = torch.stack(parts, -1 if turned else 0)
        return x + (functional.softshrink(h, 0.01) if shrunk else h)

    def run(x: Tensor, keep: Tensor, star: Tensor, *rows: Tensor) -> Tensor:
        gain, bias, scale = rows
        if kind == "star":
            h = star[0] * functional.relu(x + bias[:, None, None]).square() + star[1]
            return h * keep / 0.9 if dropped else h
        h = functional.group_norm(x, groups, gain, bias) if groups else x * gain[:, None, None]
        if kind == "mean":
            y = functional.avg_pool2d(h, size, 1, size // 2, count_include_pad=not shrunk) - h
        elif kind == "largest":
            y = functional.max_pool2d(h, size, 1, size // 2) - h
        else:
            y = h * functional.sigmoid(h.mean(2, keepdim=True) + h.mean(3, keepdim=True))
        y = y * scale[:, None, None]
        return x * star[0] + (y * keep / 0.9 if dropped else y)

    rows = [draw.tensor((channels,)) for _ in range(3)]
    if kind == "filter":
        width = width // 2 + 1
        sizes = (batch, height, width, channels)
        x = draw.tensor((*sizes, 2) if turned else (2, *sizes))
        args = (x, draw.tensor((height, width, channels, 2)), *rows[:2])
        return Program(frequencies, args, draw.training)
    x = draw.image((batch, channels, height, width), turned=turned)
    return Program(
        run, (x, draw.mask((batch, 1, 1, 1), 0.9), draw.tensor((2,)), *rows), draw.training
    )


def permuted_norms(draw: Draw) -> Program:
    """Convolved maps permuted for a norm, response norms, and permuted back: ConvNeXt."""
    kind = draw.choice(("before", "response", "response", "after", "cut"))
    batch, height, width, channels = drawn_grid(draw, 2, multiple=2)
    convolved, masked, first = draw.chance(0.25), draw.chance(0.3), draw.chance(0.5)
    norm, act, size = draw.choice(NORMS), draw.choice(ACTIVATIONS), draw.choice((3, 5, 7))
    space = draw.choice(((1, 2), (1, 2), (1,)))

    def run(x: Tensor, y: Tensor, keep: Tensor, kernel: Tensor, *rows: Tensor) -> Tensor:
        gain, bias, scale = rows
        if kind == "before":
            h = functional.conv2d(x, kernel, None, 1, size // 2, 1, channels) if convolved else x
            h = h * keep if masked else h
            return normalised((h + scale[:, None, None]).permute(0, 2, 3, 1), gain, bias, norm)
        if kind == "response":
            h = act(y + scale)
            h = h * keep.permute(0, 2, 3, 1) if masked else h
            energy = (h.float().square().sum(space, keepdim=True) + 1e-6).sqrt()
            share = (energy / (energy.mean(-1, keepdim=True) + 1e-6)).to(h.dtype)
            return gain * (h * share) + bias + h
        if kind == "after":
            h = (scale * (y + bias)).permute(0, 3, 1, 2)
            h = x + (h * keep / 0.9 if masked else h)
            return h.contiguous() if first else normalised(h.permute(0, 2, 3, 1), gain, bias, norm)
        h = normalised(x.permute(0, 2, 3, 1), gain, bias, norm)
        h = h.view(batch, height // 2, 2, width // 2, 2, channels)
        order = (0, 1, 3, 5, 2, 4) if first else (0, 1, 3, 2, 4, 5)
        return h.permute(order).reshape(batch, height * width // 4, 4 * channels)

    args = (
        draw.image((batch, channels, height, width)),
        draw.tensor((batch, height, width, channels)),
        draw.mask((batch, 1, height, width) if draw.chance(0.5) else (batch, 1, 1, 1), 0.7),
        draw.tensor((channels, 1, size, size)),
    )
    return Program(run, (*args, *(draw.tensor((channels,)) for _ in range(3))), draw.training)


def weighed_neighbours(draw: Draw) -> Program:
    """Neighbours unfolded, sliced or rolled and summed by weights of each pixel: VOLO."""
    size, groups = draw.choice((3, 3, 5)), draw.choice((1, 2, 4, 8))
    kind = draw.choice(("outlook", "outlook", "sliced", "scores", "shifts", "places"))
    batch, height, width, channels = drawn_grid(
        draw, 3 if kind in {"shifts", "places"} else size**2
    )
    normed, turned, act = draw.chance(0.6), draw.chance(0.5), draw.choice(ACTIVATIONS)
    head, reach, span = channels // groups, size // 2, range(size)
    moves = [(i - reach, j - reach) for i in span for j in span]

    def run(x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        share = functional.softmax(weight.float(), 2).to(x.dtype) if normed else weight
        if kind == "outlook":
            h = functional.unfold(x, size, padding=reach)
            h = h.reshape(batch, groups, head, size**2, height, width)
            h = (h * share[:, :, None]).sum(3)
            return act(h.reshape(batch, channels, height, width) + bias[:, None, None])
        h = functional.pad(x + bias[:, None, None], (reach,) * 4)
        near = [h[:, :, i : i + height, j : j + width] for i in span for j in span]
        parts = [y.unflatten(1, (groups, head)) for y in near]
        if kind == "scores":
            q = x.unflatten(1, (groups, head)) * gain.view(groups, head, 1, 1)
            h = torch.stack([(q * y).sum(2) for y in parts], 2) + weight
            return functional.softmax(h.float(), 2).to(x.dtype)
        pairs = zip(parts, share.unbind(2), strict=True)
        return sum((y * one[:, :, None] for y, one in pairs), bias.view(groups, head, 1, 1))

    def shifts(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, kernel: Tensor) -> Tensor:
        if kind == "places":
            h = x.transpose(1, 2).reshape(batch, channels, height, width)
            h = functional.conv2d(h, kernel, None, 1, 1, 1, channels)
            h = x + h.flatten(2).transpose(1, 2) + bias
            return functional.layer_norm(h, (channels,), gain) if normed else act(h) + y
        h = functional.layer_norm(x + y, (channels,), gain, bias) if normed else act(x + bias)
        h = h.view(batch, height, width, channels)
        sides = moves[::2][:groups]
        parts = zip(h.tensor_split(len(sides), -1), sides, strict=True)
        if turned:
            return torch.cat([torch.roll(part, move, (1, 2)) for part, move in parts], -1)
        padded = [(functional.pad(p, (0, 0, *[reach] * 4)), move) for p, move in parts]
        starts = [(p, reach + i, reach + j) for p, (i, j) in padded]
        return torch.cat([p[:, i : i + height, j : j + width] for p, i, j in starts], -1)

    gains = [draw.tensor((channels,)) for _ in range(2)]
    if kind in {"shifts", "places"}:
        args = [draw.tensor((batch, height * width, channels)) for _ in range(2)]
        kernel = draw.tensor((channels, 1, 3, 3), grad=draw.training and kind == "places")
        return Program(shifts, (*args, *gains, kernel), draw.training)
    weight = draw.tensor((batch, groups, size**2, height, width))
    x = draw.image((batch, channels, height, width), turned=turned and kind == "outlook")
    return Program(run, (x, weight, *gains), draw.training)


#: Every family here.
FAMILIES = (token_products, pooled_mixers, permuted_norms, weighed_neighbours)
