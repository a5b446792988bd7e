"""Statistics over channels, batches, groups and time, and what is normalised or clipped by them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _image(draw: Draw) -> list[int]:
    """Batch, channels, height, width; odd extents as often as even ones."""
    width = draw.choice((4, 8, 24, 48, 96, 192, 320))
    most = max(2, int((draw.numel / width / 2) ** 0.5))
    side = min(most, draw.choice((5, 7, 8, 14, 16, 28, 31, 32, 56, 63, 112)))
    other = side if draw.chance(0.7) else side + draw.between(1, side)
    return [max(2, draw.numel // (width * side * other)), width, side, other]


def channels_first_norm(draw: Draw) -> Program:
    """Norms over the channels of images, followed by a global response norm: ConvNeXt."""
    batch, channels, height, width = _image(draw)
    last, response, centred = draw.chance(0.4), draw.chance(0.5), draw.chance(0.7)
    act = draw.choice((functional.gelu, torch.relu, torch.tanh))
    axis, space = (-1, (1, 2)) if last else (1, (2, 3))

    def run(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        h = x.float() - x.float().mean(axis, keepdim=True) if centred else x.float()
        h = h / torch.sqrt(h.pow(2).mean(axis, keepdim=True) + 1e-6)
        y = act(gain * h.to(x.dtype) + bias)
        if not response:
            return y + x
        energy = (y.float().square().sum(space, keepdim=True) + 1e-6).sqrt()
        return y * (energy / (energy.mean(axis, keepdim=True) + 1e-6)).to(y.dtype) + y

    shape = (batch, height, width, channels) if last else (batch, channels, height, width)
    row = (channels,) if last else (channels, 1, 1)
    return Program(run, (draw.tensor(shape), draw.tensor(row), draw.tensor(row)), draw.training)


def standardised_weights(draw: Draw) -> Program:
    """Weights of convolutions: standardised, divided by a singular value, modulated by sample."""
    kind = draw.choice(("standard", "spectral", "modulated"))
    out, into, size = draw.choice((8, 32, 96)), draw.choice((3, 16, 40)), draw.choice((1, 3, 5))
    count = max(1, draw.numel // (out * into * size * size))

    def run(weight: Tensor, gain: Tensor, style: Tensor) -> Tensor:
        w = weight.float()
        if kind == "modulated":
            w = w * (1 + style[:, None, :, None, None])
            w = w * torch.rsqrt(w.square().sum((2, 3, 4), keepdim=True) + 1e-6)
        elif kind == "spectral":
            right = functional.normalize(w.sum(1, keepdim=True), dim=2)
            sigma = (w * right).sum((2, 3, 4)).square().sum(-1).sqrt()
            w = w / (sigma[:, None, None, None, None] + 1e-2)
        else:
            var, mean = torch.var_mean(w, (2, 3, 4), keepdim=True)
            w = (w - mean) * torch.rsqrt((var * into * size**2).clamp(min=1e-4))
        return (w * gain[:, None, None, None]).to(weight.dtype)

    layers = 1 if kind == "modulated" else count
    args = (draw.tensor((layers, out, into, size, size)), draw.tensor((out,)))
    style = draw.tensor((count, into), grad=draw.training and kind == "modulated")
    return Program(run, (*args, style), draw.training)


def minibatch_deviation(draw: Draw) -> Program:
    """How much samples of a batch differ, appended to images as channels: discriminators."""
    batch, channels, height, width = _image(draw)
    group, features, strided = draw.choice((2, 4)), draw.choice((1, 2, 4)), draw.chance(0.7)

    def run(x: Tensor, bias: Tensor) -> Tensor:
        shape, axis = ((group, -1), 0) if strided else ((-1, group), 1)
        h = x.float().reshape(*shape, features, channels // features, height, width)
        h = (h - h.mean(axis, keepdim=True)).square().mean(axis)
        level = (h + 1e-8).sqrt().mean((2, 3, 4)).to(x.dtype)
        level = level.repeat(group, 1) if strided else level.repeat_interleave(group, 0)
        h = torch.cat((x, level[..., None, None].expand(-1, -1, height, width)), 1)
        return functional.leaky_relu(h + bias[:, None, None], 0.2)

    x = draw.tensor((max(1, batch // group) * group, channels, height, width))
    return Program(run, (x, draw.tensor((channels + features,))), draw.training)


def running_moments(draw: Draw) -> Program:
    """Running mean and variance merged with those of a batch, in place; clipped observations."""
    rows, steps, width = draw.shape(3, wide=False)
    axes, merged, limit = draw.choice(((0,), (0, 1))), draw.chance(0.5), draw.choice((2.0, 10.0))

    def run(x: Tensor, mean: Tensor, var: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float()
        batch_var, batch_mean = torch.var_mean(h, axes, correction=0)
        apart, size = batch_mean - mean, rows if axes == (0,) else rows * steps
        share = size / (count + size) if merged else torch.full_like(count, 0.1)
        var.copy_(var * (1 - share) + batch_var * share + apart.square() * share * (1 - share))
        mean.add_(apart * share)
        count.add_(size)
        y = ((h - mean) * torch.rsqrt(var + 1e-8)).clamp(-limit, limit)
        return y.to(x.dtype), (y.abs() >= limit).any(-1).sum(0)

    kept = (width,) if axes == (0, 1) else (steps, width)
    state = [draw.tensor(kept, dtype=torch.float32, grad=False, positive=True) for _ in range(2)]
    count = torch.tensor(float(draw.between(1, 10000)))
    return Program(run, (draw.tensor((rows, steps, width), grad=False), *state, count))


def statistic_pooling(draw: Draw) -> Program:
    """Weighted means and deviations over time, by soft weights or a mask: speakers, sequences."""
    batch, channels = draw.choice((1, 4, 16, 33)), draw.choice((24, 64, 80, 192))
    length = max(3, draw.numel // (batch * channels))
    kind, first = draw.choice(("attentive", "masked", "scores")), draw.chance(0.5)

    def run(x: Tensor, weight: Tensor, keep: Tensor) -> Tensor:
        axis = 2 if first else 1
        kept = keep.unsqueeze(3 - axis)
        share = kept / kept.sum(axis, keepdim=True).clamp(min=1)
        if kind == "attentive":
            share = weight.float().masked_fill(~kept, -1e4).softmax(axis)
        mean = (share * x).sum(axis, keepdim=True)
        var = (share * (x - mean).square()).sum(axis, keepdim=True)
        if kind == "scores":
            return ((x - mean) * torch.rsqrt(var + 1e-5) * kept).to(x.dtype)
        return torch.cat((mean, (var + 1e-5).sqrt()), 3 - axis).flatten(1).to(x.dtype)

    shape = (batch, channels, length) if first else (batch, length, channels)
    weight = draw.tensor(shape, grad=draw.training and kind == "attentive")
    args = (draw.tensor(shape), weight, draw.mask((batch, length), 0.8))
    return Program(run, args, draw.training)


def batch_statistics(draw: Draw) -> Program:
    """Batch norm of channels-last images by hand: moments, running averages, or its gradient."""
    batch, channels, height, width = _image(draw)
    kind, axes = draw.choice(("forward", "update", "gradient")), draw.choice(((0, 1, 2), (1, 2)))

    def run(x: Tensor, other: Tensor, gain: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        h = x.float()
        mean = h.mean(axes, keepdim=True)
        var = (h.square().mean(axes, keepdim=True) - mean.square()).clamp(min=0)
        y = (h - mean) * torch.rsqrt(var + 1e-3)
        if kind == "gradient":
            slope = other.float() * gain
            along = slope - y * (slope * y).mean(axes, keepdim=True)
            back = (along - slope.mean(axes, keepdim=True)) * torch.rsqrt(var + 1e-3)
            return back.to(x.dtype), (other * y).sum((0, 1, 2))
        if kind == "update":
            kept.mul_(0.9).add_(torch.stack((mean.mean((0, 1, 2)), var.mean((0, 1, 2)))) * 0.1)
        return (torch.relu(y.to(x.dtype) * gain + other),)

    grad = draw.training and kind == "forward"
    args = [draw.tensor((batch, height, width, channels), grad=grad) for _ in range(2)]
    kept = draw.tensor((2, channels), dtype=torch.float32, grad=False, positive=True)
    return Program(run, (*args, draw.tensor((channels,), grad=grad), kept), grad)


def clipped_gradients(draw: Draw) -> Program:
    """Gradients clipped by their common norm or by unit, steps scaled by ratios of norms."""
    width, layers = draw.choice((16, 40, 96, 128, 384)), draw.between(2, 6)
    each, kind = draw.numel // (layers * width) + 2, draw.choice(("common", "unit", "layer"))

    def run(weights: list[Tensor], grads: list[Tensor]) -> Tensor:
        axis = -1 if kind == "unit" else None
        norms = [torch.linalg.vector_norm(g.float(), dim=axis, keepdim=True) for g in grads]
        total = torch.stack([n.square().sum() for n in norms]).sum().sqrt()
        for w, g, norm in zip(weights, grads, norms, strict=True):
            most = torch.linalg.vector_norm(w.float(), dim=axis, keepdim=True).clamp(min=1e-3)
            if kind == "common":
                g.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))
            elif kind == "unit":
                g.copy_(torch.where(norm > 0.01 * most, g * (0.01 * most / norm), g))
            else:
                w.add_((g + 1e-4 * w) * -(0.001 * most / (norm + 1e-4 * most)))
        return total

    shapes = [(width, each // draw.choice((1, 1, 3)) + 1) for _ in range(layers)]
    args = ([draw.tensor(shape, grad=False) for shape in shapes] for _ in range(2))
    return Program(run, tuple(args))


#: Every family here.
FAMILIES = (
    channels_first_norm,
    standardised_weights,
    minibatch_deviation,
    running_moments,
    statistic_pooling,
    batch_statistics,
    clipped_gradients,
)
