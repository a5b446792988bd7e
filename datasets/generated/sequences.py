"""Audio and series of any length: frames, decibels, masks, differences, trends, gates, shifts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

#: Steps that recordings, spectrograms and series have.
_STEPS = (25, 63, 96, 101, 128, 197, 249, 336, 501, 720, 998, 1024, 1500, 3000, 8000, 16000)


def _series(draw: Draw) -> tuple[int, int, int]:
    """Batch, channels and steps."""
    channels = min(draw.choice((1, 7, 12, 21, 40, 64, 80, 128, 192, 321)), max(1, draw.numel // 64))
    steps = draw.choice([n for n in _STEPS if n <= max(25, draw.numel // channels)])
    return max(1, draw.numel // (channels * steps)), channels, steps


def framed(draw: Draw) -> Program:
    """Waveforms to overlapping windowed frames: pre-emphasis, energies, crossings."""
    size, hop = draw.choice(((400, 160), (512, 128), (256, 100), (25, 10), (63, 63), (200, 80)))
    length = size + hop * draw.choice((0, 3, 10, 97)) + draw.choice((0, 1, 7))
    early, centred, padded = draw.chance(0.4), draw.chance(0.5), draw.chance(0.4)
    kind = draw.choice(("frames", "energy", "crossings"))

    def run(x: Tensor, window: Tensor) -> tuple[Tensor, ...]:
        x = functional.pad(x, (size // 2, size // 2), "reflect") if padded else x
        x = torch.cat((x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]), 1) if early else x
        h = x.unfold(1, size, hop)
        h = h - h.mean(-1, keepdim=True) if centred else h
        if not early:
            h = h - 0.97 * functional.pad(h, (1, 0), "replicate")[..., :-1]
        energy = h.float().square().sum(-1).clamp(min=1e-6).log()
        if kind == "crossings":
            return energy, ((h[..., 1:] > 0) != (h[..., :-1] > 0)).float().mean(-1)
        return (h * window, energy) if kind == "frames" else (energy,)

    batch, window = max(1, draw.numel * hop // (length * size)), draw.tensor((size,), grad=False)
    return Program(run, (draw.tensor((batch, length), grad=False), window))


def decibels(draw: Draw) -> Program:
    """Powers to decibels or logarithms, cut below the loudest, scaled or normalised over time."""
    batch, channels, steps = _series(draw)
    factor, floor = draw.choice((1.0, 10.0)), draw.choice((4.0, 8.0))
    norm, whole, cut = draw.choice(("none", "time", "given")), draw.chance(0.4), draw.chance(0.7)
    split, turned = draw.chance(0.4), draw.chance(0.4)

    def run(x: Tensor, other: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        power = x.float().square() + other.float().square() if split else x.float().abs()
        h = factor * power.clamp(min=1e-10).log10() if cut else (power + 1e-5).log()
        if cut:
            top = h.amax() if whole else h.amax((1, 2), keepdim=True)
            h = (torch.maximum(h, top - floor * factor) + 4.0) / 4.0
        if norm == "time":
            h = (h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + 1e-5)
        elif norm == "given":
            h = (h - mean[:, None]) / (2 * std[:, None])
        return h.transpose(1, 2).contiguous() if turned else h.to(x.dtype)

    spectra = (draw.tensor((batch, channels, steps), grad=False) for _ in range(2))
    moments = (draw.tensor((channels,), grad=False, positive=True) for _ in range(2))
    return Program(run, (*spectra, *moments))


def utterances(draw: Draw) -> Program:
    """Features of recordings of various lengths: normalised over what is real, stripes masked."""
    batch, channels, steps = _series(draw)
    time, stripes, normed = draw.choice((1, 2)), draw.between(0, 3), draw.chance(0.7)

    def run(x: Tensor, length: Tensor, start: Tensor, size: Tensor) -> Tensor:
        places, bands = (torch.arange(n, device=x.device) for n in (steps, channels))
        real = (places < length[:, None]).unsqueeze(3 - time)
        if normed:
            count = length[:, None, None]
            mean = torch.where(real, x.float(), 0).sum(time, keepdim=True) / count
            var = torch.where(real, (x - mean).square(), 0).sum(time, keepdim=True) / count
            x = ((x - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype)
        for i in range(stripes):
            axis = (places if i % 2 else bands)[None]
            low = (start[:, i] % axis.shape[1])[:, None]
            cut = (axis >= low) & (axis < low + size[:, i, None])
            x = x.masked_fill(cut.unsqueeze(3 - time if i % 2 else time), 0.0)
        return torch.where(real, x, 0.0)

    shape = (batch, steps, channels) if time == 1 else (batch, channels, steps)
    length, size = steps - draw.indices((batch,), steps // 2), draw.indices((batch, 3), 30)
    starts = draw.indices((batch, 3), 10000)
    return Program(run, (draw.tensor(shape), length, starts, size), draw.training)


def differences(draw: Draw) -> Program:
    """Features joined with their first and second differences, or channels shifted in time."""
    batch, channels, steps = _series(draw)
    near, order, shifted = draw.choice((1, 2, 4)), draw.choice((1, 2)), draw.chance(0.4)
    part = max(1, channels // draw.choice((2, 4, 8)))

    def slope(x: Tensor) -> Tensor:
        h, total = functional.pad(x, (near, near), "replicate"), torch.zeros_like(x)
        for i in range(1, near + 1):
            total = total + i * (h[..., near + i :][..., :steps] - h[..., near - i :][..., :steps])
        return total / sum(2 * i * i for i in range(1, near + 1))

    def run(x: Tensor, share: Tensor) -> Tensor:
        if shifted:
            before = functional.pad(x[:, :part], (near, 0))[..., :steps]
            after = functional.pad(x[:, part : 2 * part], (0, near))[..., near:]
            return torch.cat((before, after, x[:, 2 * part :]), 1) * share + x * (1 - share)
        found = [x]
        for _ in range(order):
            found.append(slope(found[-1]))
        return torch.cat(found, 1) * share

    return Program(run, (draw.tensor((batch, channels, steps)), draw.tensor((1,))), draw.training)


def decomposed(draw: Draw) -> Program:
    """Series normalised by themselves, a moving average taken off, and scaled back: forecasts."""
    batch, channels, steps = _series(draw)
    size, kind = draw.choice((5, 13, 25)), draw.choice(("pool", "sums", "smoothed"))
    back, last, decay = draw.chance(0.5), draw.chance(0.6), draw.choice((0.1, 0.4, 1.2))

    def run(x: Tensor, gain: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        h = x.transpose(1, 2) if last else x
        mean = h.mean(-1, keepdim=True).detach()
        std = (h.var(-1, keepdim=True, correction=0) + 1e-5).sqrt().detach()
        h = (h - mean) / std * gain + bias
        ends = functional.pad(h, (size // 2, size // 2), "replicate")
        if kind == "pool":
            trend = functional.avg_pool1d(ends, size, 1)
        elif kind == "sums":
            total = functional.pad(ends.float().cumsum(-1), (1, 0))
            trend = ((total[..., size:] - total[..., :-size]) / size).to(h.dtype)
        else:
            weight = functional.softmax(torch.arange(size, device=x.device) * decay, 0)
            trend = (ends.unfold(-1, size, 1) * weight.to(h.dtype)).sum(-1)
        h, trend = h - trend, (trend - bias) / (gain + 1e-2) * std + mean if back else trend
        return (h.transpose(1, 2), trend.transpose(1, 2)) if last else (h, trend)

    shape = (batch, steps, channels) if last else (batch, channels, steps)
    gains = (draw.tensor((channels, 1), positive=True), draw.tensor((channels, 1)))
    return Program(run, (draw.tensor(shape), *gains), draw.training)


def channel_gates(draw: Draw) -> Program:
    """Gates along the channels of a wave: GLU, gated tanh with a condition, snakes, norms."""
    batch, channels, steps = _series(draw)
    kind, skipped = draw.choice(("glu", "tanh", "snake")), draw.chance(0.5)
    normed = channels > 1 and draw.chance(0.4)

    def run(x: Tensor, given: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        low, high = (x + given).chunk(2, 1)
        if kind == "snake":
            h = low + torch.sin(gain * low).square() / (gain + 1e-4) * high
        elif kind == "tanh":
            h = torch.tanh(low) * torch.sigmoid(high) * gain
        else:
            h = functional.silu(functional.glu(x + given, 1) * gain)
        if normed:
            h = functional.layer_norm(h.transpose(1, 2), (channels,)).transpose(1, 2)
        return ((h + low) * 0.5**0.5, torch.relu(h)) if skipped else (h,)

    shapes = ((batch, 2 * channels, steps), (batch, 2 * channels, draw.choice((1, steps))))
    gain = draw.tensor((channels, 1), positive=True)
    return Program(run, (*(draw.tensor(shape) for shape in shapes), gain), draw.training)


def relative_shift(draw: Draw) -> Program:
    """Scores of relative places shifted to those of pairs and added to scores: Transformer-XL."""
    heads, most = draw.choice((1, 4, 8)), max(4, int((draw.numel / 16) ** 0.5))
    steps = min(most, draw.choice((25, 63, 64, 101, 197, 250, 512)))
    batch, masked = max(1, draw.numel // (2 * heads * steps * steps)), draw.chance(0.5)

    def run(x: Tensor, other: Tensor, length: Tensor) -> Tensor:
        h = functional.pad(x, (1, 0)).view(batch, heads, 2 * steps, steps)[:, :, 1:]
        h = (h.reshape(x.shape)[..., :steps] + other).float() * 0.125
        if masked:
            h = h.masked_fill(torch.arange(steps, device=x.device) >= length, -1e4)
        return functional.softmax(h, -1).to(x.dtype)

    shapes = ((batch, heads, steps, 2 * steps - 1), (batch, heads, steps, steps))
    length = draw.indices((batch, 1, 1, 1), steps) + 1
    return Program(run, (*(draw.tensor(shape) for shape in shapes), length), draw.training)


#: Every family here.
FAMILIES = (framed, decibels, utterances, differences, decomposed, channel_gates, relative_shift)
