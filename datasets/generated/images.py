"""Images in both memory formats: pooling, padding, resizing, shuffled pixels, convolved ends."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _image(draw: Draw, *, multiple: int = 1) -> tuple[int, int, int, int]:
    """Batch, channels (a multiple), height, width."""
    channels = multiple * draw.choice((1, 3, 4, 8, 16, 32, 64, 256))
    most = max(4, int((draw.numel / channels) ** 0.5))
    side = min(most, draw.choice((4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 224, 512)))
    other = side if draw.chance(0.8) else max(4, side // 2)
    return max(1, draw.numel // (channels * side * other)), channels, side, other


def pooling(draw: Draw) -> Program:
    """Largest, mean and global pooling, behind an activation or in front of a gate."""
    shape = _image(draw)
    kind = draw.choice(("max", "avg", "adaptive", "global", "squeeze"))
    size, stride = draw.choice(((2, 2), (3, 2), (3, 1)))
    act = draw.choice((functional.relu, functional.hardswish, functional.silu))

    def run(x: Tensor, bias: Tensor) -> Tensor:
        h = act(x + bias[:, None, None])
        if kind == "max":
            return functional.max_pool2d(h, size, stride, size // 2) * 0.5
        if kind == "avg":
            return functional.avg_pool2d(h, size, stride, size // 2)
        if kind == "adaptive":
            return functional.adaptive_avg_pool2d(h, (2, 2)).flatten(1)
        pooled = h.mean((2, 3), keepdim=True)
        return h * torch.sigmoid(pooled) if kind == "squeeze" else pooled.flatten(1)

    args = (draw.image(shape), draw.tensor(shape[1:2]))
    return Program(run, args, draw.training)


def upsample(draw: Draw) -> Program:
    """Resizing by nearest or bilinear values and adding what is of that size: feature pyramids."""
    batch, channels, height, width = _image(draw)
    factor = draw.choice((2, 2, 4))
    height, width = max(2, height // factor), max(2, width // factor)
    mode = draw.choice(("nearest", "bilinear"))
    aligned = draw.chance(0.4) if mode == "bilinear" else None
    joined = draw.choice(("add", "gate", "cat"))

    def run(x: Tensor, skip: Tensor) -> Tensor:
        h = functional.interpolate(x, scale_factor=factor, mode=mode, align_corners=aligned)
        if joined == "add":
            return functional.relu(h + skip)
        if joined == "gate":
            return h * torch.sigmoid(skip)
        return functional.relu(torch.cat((h, skip), 1))

    args = (
        draw.image((batch, channels, height, width)),
        draw.image((batch, channels, height * factor, width * factor)),
    )
    return Program(run, args, draw.training)


def pixel_shuffle(draw: Draw) -> Program:
    """Channels to pixels and back, as super-resolution and downsampling stems do."""
    factor = draw.choice((2, 2, 4))
    batch, channels, height, width = _image(draw, multiple=factor * factor)
    up, shuffled = draw.chance(0.6), draw.chance(0.3)
    height, width = (max(1, side // factor) * factor for side in (height, width))

    def run(x: Tensor, gain: Tensor) -> Tensor:
        h = x * gain[:, None, None]
        if shuffled:
            h = h.unflatten(1, (factor, -1)).transpose(1, 2).flatten(1, 2)
        if up:
            return functional.leaky_relu(functional.pixel_shuffle(h, factor), 0.2)
        return functional.silu(functional.pixel_unshuffle(h, factor))

    args = (draw.tensor((batch, channels, height, width)), draw.tensor((channels,)))
    return Program(run, args, draw.training)


def padding(draw: Draw) -> Program:
    """Padded, rolled, flipped and cut images: windows, circular filters, augmentation."""
    shape = _image(draw)
    kind = draw.choice(("constant", "reflect", "replicate", "circular"))
    pad = draw.choice((1, 2, 3))
    rolled, flipped, cut = draw.chance(0.4), draw.chance(0.3), draw.chance(0.5)
    differed = draw.chance(0.4)

    def run(x: Tensor, bias: Tensor) -> Tensor:
        h = torch.roll(x, (pad, -1), (2, 3)) if rolled else x
        if flipped:
            h = h.flip(-1)
        h = functional.pad(torch.tanh(h + bias[:, None, None]), (pad, pad, pad, pad), kind)
        if differed:
            h = h[..., 2:] + h[..., :-2] - 2 * h[..., 1:-1]
        return h[:, :, pad:-pad] * 0.5 if cut else h

    args = (draw.image(shape), draw.tensor(shape[1:2]))
    return Program(run, args, draw.training)


def colours(draw: Draw) -> Program:
    """Bytes to normalised images and back, channel mixing, brightness and erased boxes."""
    batch, _, height, width = _image(draw)
    batch = max(1, draw.numel // (3 * height * width))
    kind = draw.choice(("normalise", "mix", "back"))
    dtype = draw.dtype

    def run(image: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
        h = image.permute(0, 3, 1, 2).to(dtype) / 255
        if kind == "mix":
            grey = (h * mean[:, None, None]).sum(1, keepdim=True)
            return (h * factor + grey * (1 - factor)).clamp(0, 1)
        h = (h - mean[:, None, None]) * factor
        if kind == "back":
            return (h * 255).clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        return h.contiguous()

    image = draw.indices((batch, height, width, 3), 256).to(torch.uint8)
    args = (
        image,
        draw.tensor((3,), grad=False),
        draw.tensor((batch, 1, 1, 1), grad=False, positive=True),
    )
    return Program(run, args)


class _Convolved(nn.Module):
    def __init__(self, channels: int, kind: str, act: str) -> None:
        super().__init__()
        groups = channels if kind == "depthwise" else 1
        size = 1 if kind == "pointwise" else 3
        self.convolution = nn.Conv2d(channels, channels, size, padding=size // 2, groups=groups)
        self.norm = nn.BatchNorm2d(channels)
        self.gain = nn.Parameter(torch.rand(channels, 1, 1))
        self.act = getattr(functional, act)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.gain * self.act(self.norm(self.convolution(x)))
        return out


def convolved(draw: Draw) -> Program:
    """A convolution with its norm, activation, gain and residual: what stands around it fuses."""
    batch, channels, height, width = _image(draw)
    channels = min(256, channels)
    batch = min(batch, 256)
    kind = draw.choice(("depthwise", "pointwise", "full"))
    act = draw.choice(("relu", "silu", "gelu", "hardswish", "mish"))
    module = draw.module(lambda: _Convolved(channels, kind, act))
    x = draw.image((max(2, batch), channels, height, width))
    return Program(module, (x,), draw.training)


#: Every family here.
FAMILIES = (pooling, upsample, pixel_shuffle, padding, colours, convolved)
