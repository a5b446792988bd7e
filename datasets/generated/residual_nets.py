"""Blocks of convolutional classifiers: normed branches, gates, grown channels, bottlenecks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

_WIDTHS = (16, 24, 32, 40, 64, 72, 96, 112, 128, 240, 256, 320, 512, 672, 960, 1024, 2048)
_SIDES = (4, 7, 8, 10, 12, 14, 15, 16, 19, 28, 32, 38, 56, 64, 75, 112, 150)
NORMS = ("batch", "batch", "running", "frozen", "folded")
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.relu,
    functional.relu6,
    functional.hardswish,
    functional.mish,
    functional.silu,
    functional.leaky_relu,
    functional.elu,
)
_GATES: tuple[Callable[[Tensor], Tensor], ...] = (torch.sigmoid, functional.hardsigmoid)


def drawn_maps(draw: Draw, shrunk: int = 1, *, multiple: int = 1) -> tuple[int, int, int, int]:
    """Batch, channels, height and width (multiples) of maps of so many times fewer elements."""
    numel = max(256, draw.numel // shrunk)
    channels = draw.choice([c for c in _WIDTHS if c <= max(16, numel // 150)])
    most = max(3, int((numel / (2 * channels)) ** 0.5))
    high, wide = (min(most, draw.choice(_SIDES)) for _ in range(2))
    sides = (high, wide if draw.chance(0.3) else high)
    height, width = (-(-side // multiple) * multiple for side in sides)
    return max(2, numel // (channels * height * width)), channels, height, width


def drawn_norms(draw: Draw, channels: int, count: int = 1) -> list[Tensor]:
    """Gain, bias, running mean and variance of so many norms, often in fp32."""
    dtype = draw.choice((None, torch.float32))
    parts: list[Tensor] = []
    for _ in range(count):
        parts += [draw.tensor((channels,), dtype=dtype) for _ in range(2)]
        parts.append(draw.tensor((channels,), dtype=dtype, grad=False))
        parts.append(draw.tensor((channels,), dtype=dtype, grad=False, positive=True))
    return parts


def normed_maps(x: Tensor, norm: list[Tensor] | tuple[Tensor, ...], kind: str) -> Tensor:
    """Normalised by statistics of the batch or kept ones, or what is left once these are folded."""
    gain, bias, mean, spread = norm
    if kind in {"batch", "running"}:
        return functional.batch_norm(x, mean, spread, gain, bias, kind == "batch", 0.1, 1e-5)
    if kind == "folded":
        return x + bias[:, None, None].to(x.dtype)
    scale = gain * torch.rsqrt(spread + 1e-5)
    shift = bias - mean * scale
    return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


def normed_sums(draw: Draw) -> Program:
    """Outputs of convolutions normalised one by one, summed with the input, activated: ResNet."""
    count, kind = draw.between(1, 3), draw.choice(NORMS)
    order = draw.choice(("after", "after", "before", "weighed", "alone"))
    identity, dropped = draw.choice(("plain", "plain", "normed", "none")), draw.chance(0.3)
    act, batch_maps = draw.choice(ACTIVATIONS), drawn_maps(draw, count + 1)

    def run(keep: Tensor, share: Tensor, x: Tensor, *rest: Tensor) -> list[Tensor]:
        branches, norms = rest[:count], rest[count:]
        parts = [normed_maps(y, norms[4 * i : 4 * i + 4], kind) for i, y in enumerate(branches)]
        if order == "alone":
            return [act(part) for part in parts]
        if order == "weighed":
            parts = [part * share[i] for i, part in enumerate(parts)]
        total = torch.stack(parts).sum(0) if order == "weighed" else sum(parts[1:], parts[0])
        total = total * keep / 0.8 if dropped else total
        if identity == "normed":
            total = total + normed_maps(x, norms[-4:], kind)
        elif identity == "plain":
            total = total + x
        if order == "before":
            return [total, act(normed_maps(total, norms[-4:], kind))]
        return [act(total)]

    batch, channels = batch_maps[:2]
    keep = draw.mask((batch, 1, 1, 1), 0.8)
    share = draw.tensor((count, channels, 1, 1) if draw.chance(0.5) else (count,))
    x, *branches = draw.images([batch_maps] * (count + 1))
    args = (keep, share, x, *branches, *drawn_norms(draw, channels, count + 1))
    return Program(run, args, draw.training)


def squeezed_gates(draw: Draw) -> Program:
    """Channels gated by what is pooled over pixels: squeezed, selective, excited, in context."""
    kind = draw.choice(("squeeze", "squeeze", "selective", "excite", "context", "style", "pieces"))
    batch, channels, height, width = drawn_maps(draw, 2, multiple=2)
    gate = draw.choice(_GATES)
    act, norm, factor = draw.choice(ACTIVATIONS), draw.choice(NORMS), draw.choice((4, 8, 16))
    narrow, residual = max(4, channels // factor), draw.chance(0.5)

    def run(x: Tensor, y: Tensor, down: Tensor, up: Tensor, row: Tensor, *norms: Tensor) -> Tensor:
        h = act(normed_maps(x, norms, norm)) if kind != "style" else normed_maps(x, norms, norm)
        if kind == "squeeze":
            pooled = functional.relu(h.mean((2, 3)).to(down.dtype) @ down) @ up
            h = h * gate(pooled + row)[..., None, None]
            return act(h + y) if residual else h
        if kind == "selective":
            score = functional.relu((h + y).mean((2, 3)).to(down.dtype) @ down) @ up
            share = functional.softmax(torch.stack((score, score * row)), 0)[..., None, None]
            return h * share[0] + y * share[1]
        if kind == "excite":
            pooled = functional.avg_pool2d(h, 2) * row[:, None, None]
            return h * gate(functional.interpolate(pooled, scale_factor=2)) + y
        if kind == "context":
            weight = functional.softmax((h * row[:, None, None]).sum(1).flatten(1).float(), -1)
            pooled = (h.flatten(2) * weight[:, None]).sum(-1)
            pooled = functional.layer_norm(pooled.to(down.dtype) @ down, (narrow,)) @ up
            return h + pooled[..., None, None]
        pooled = h.mean((2, 3))
        if kind == "style":
            deviation = (h.float().var((2, 3)) + 1e-5).sqrt().to(h.dtype)
            z = pooled * down[:, 0] + deviation * down[:, 1]
            z = (z - z.mean(0)) * torch.rsqrt(z.var(0) + 1e-2)
            return act(h * gate(z * row)[..., None, None] + y)
        slope = gate(pooled * row)[..., None, None]
        return torch.maximum(h * (1 + slope), h * (slope - 0.5) + up[0, :, None, None] * slope) + y

    weights = (draw.tensor((channels, narrow)), draw.tensor((narrow, channels)))
    images = draw.images([(batch, channels, height, width)] * 2)
    args = (*images, *weights, draw.tensor((channels,)), *drawn_norms(draw, channels))
    return Program(run, args, draw.training)


def grown_channels(draw: Draw) -> Program:
    """Features joined, normalised together, split and shuffled: DenseNet, ShuffleNet, Res2Net."""
    kind = draw.choice(("dense", "dense", "passed", "paired", "shuffled", "ghost", "hierarchy"))
    count, groups, norm = draw.between(2, 5), draw.choice((2, 2, 4, 8)), draw.choice(NORMS)
    batch, channels, height, width = drawn_maps(draw, 2 * count, multiple=2)
    act, largest = draw.choice(ACTIVATIONS), draw.chance(0.3)
    total, half, later = channels * count, channels // 2, draw.chance(0.5)

    def pool(h: Tensor) -> Tensor:
        return functional.max_pool2d(h, 2) if largest else functional.avg_pool2d(h, 2)

    def run(norms: list[Tensor], *parts: Tensor) -> list[Tensor]:
        whole = torch.cat(parts, 1)
        if kind == "dense":
            return [act(normed_maps(whole, norms, norm)), parts[-1].amax((2, 3))]
        if kind == "passed":
            h = act(normed_maps(whole, norms, norm))
            return [pool(h)] if later else [pool(whole), h.mean((2, 3))]
        if kind == "paired":
            kept, grown = parts[0].split((half, channels - half), 1)
            added = parts[1][:, :half]
            h = torch.cat((kept + added, grown, *parts[1:]), 1)
            return [act(normed_maps(h, norms, norm))]
        if kind == "shuffled":
            left, right = normed_maps(whole, norms, norm).chunk(2, 1)
            h = torch.cat((left if later else act(left), act(right)), 1)
            h = h.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
            first, second = h.chunk(2, 1)
            return [first.contiguous(), act(second)]
        if kind == "ghost":
            h = act(normed_maps(whole, norms, norm))
            cheap = whole * h.mean((2, 3), keepdim=True)
            return [torch.cat((h, cheap[:, : max(1, total // groups)]), 1)]
        gains, kept = norms[0].view(count, channels, 1, 1), [act(parts[0])]
        for i, part in enumerate(parts[1:], 1):
            kept.append(act(part * gains[i].to(part.dtype) + kept[-1]))
        return [torch.cat(kept, 1) + whole if later else torch.cat(kept, 1)]

    parts = draw.images([(batch, channels, height, width)] * count)
    return Program(run, (drawn_norms(draw, total), *parts), draw.training)


def inverted_bottlenecks(draw: Draw) -> Program:
    """Wide maps normalised, activated, gated and narrowed onto a residual: MobileNet, MBConv."""
    batch, channels, height, width = drawn_maps(draw, 2)
    step = draw.choice(("expanded", "convolved", "gated", "fused", "projected", "projected"))
    kind, act, size = draw.choice(NORMS), draw.choice(ACTIVATIONS), draw.choice((3, 5))
    dropped, upcast, clipped = draw.chance(0.5), draw.chance(0.3), draw.chance(0.3)
    gate = draw.choice(_GATES)

    def run(x: Tensor, y: Tensor, keep: Tensor, kernel: Tensor, *norms: Tensor) -> list[Tensor]:
        if step == "convolved":
            h = functional.conv2d(x, kernel, None, 1, size // 2, 1, channels)
            h = act(normed_maps(h, norms[:4], kind))
            return [h, h.mean((2, 3))]
        h = normed_maps(x.float() if upcast and kind == "frozen" else x, norms[:4], kind)
        if step == "expanded":
            h = act(h)
            return [h.clamp(-6, 6).to(x.dtype) if clipped else h, h.flatten(2).float().sum(-1)]
        if step == "gated":
            h = act(h)
            return [
                (h * gate(y.mean((2, 3), keepdim=True) + kernel[:, :, :1, :1].view(-1, 1, 1))).to(
                    x.dtype
                )
            ]
        if step == "fused":
            z = act(normed_maps(y, norms[4:], kind))
            return [act(h) * z + x, z.amax((2, 3))]
        h = h * (keep.to(h.dtype) / 0.9) if dropped else h
        out = (y + h).to(x.dtype)
        return [out, act(normed_maps(out, norms[4:], kind))] if clipped else [out]

    images = draw.images([(batch, channels, height, width)] * 2)
    kernel = draw.tensor((channels, 1, size, size))
    keep = draw.mask((batch, 1, 1, 1), 0.9)
    return Program(run, (*images, keep, kernel, *drawn_norms(draw, channels, 2)), draw.training)


#: Every family here.
FAMILIES = (normed_sums, squeezed_gates, grown_channels, inverted_bottlenecks)
