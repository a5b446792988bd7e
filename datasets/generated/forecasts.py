"""Forecasts of series: norms undone, seasons and scales, dilated gates, folded periods."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

#: Steps of histories and horizons, and how many series there are.
_STEPS = (24, 36, 48, 96, 168, 192, 336, 512, 720, 1440, 2048)
_SERIES = (1, 2, 7, 8, 21, 32, 64, 137, 207, 256, 321, 512, 862)


def drawn_series(draw: Draw, share: int = 1, multiple: int = 1) -> tuple[int, int, int]:
    """Batch, steps (a multiple) and series of ``numel`` elements over ``share``."""
    numel = max(256, draw.numel // share)
    many = draw.choice([n for n in _SERIES if 32 * n <= numel])
    few = numel // (many * draw.choice((8, 32, 128, 10**6)))
    steps = min(max(draw.choice(_STEPS), few), numel // many) // multiple * multiple
    steps = max(steps, multiple, 4)
    return max(2, numel // (many * steps)), steps, many


def reversible_norms(draw: Draw) -> Program:
    """Series normed by their history, cut into patches or turned round, and forecasts put back."""
    batch, steps, many = drawn_series(draw, 2)
    kind = draw.choice(("patches", "turned", "back", "scores", "last"))
    size = min(steps, draw.choice((8, 12, 16, 24)))
    hop, affine = max(1, size // draw.choice((1, 2))), draw.chance(0.6)
    robust, flat = draw.chance(0.3), draw.chance(0.5)

    def run(x: Tensor, other: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        mean = x[:, -1:] if kind == "last" else x.mean(1, keepdim=True).detach()
        if robust:
            std = (x - mean).abs().mean(1, keepdim=True) + 1e-2
        else:
            std = (x.float().var(1, keepdim=True, correction=0) + 1e-5).sqrt().to(x.dtype)
        if kind == "back":
            y = (other - bias) / (gain + 1e-5) if affine else other
            return (y * std + mean).transpose(1, 2)
        if kind == "scores":
            h = other * std.float().log().clamp(-2, 2).exp().mean(2)[..., None] + mean.mean()
            return functional.softmax(h.float() * size**-0.5, -1).to(x.dtype)
        h = (x - mean) / std.detach()
        h = (h * gain + bias if affine else h).transpose(1, 2)
        if kind == "patches":
            h = functional.pad(h, (0, hop), "replicate").unfold(-1, size, hop)
            return h.flatten(0, 1) if flat else h.transpose(2, 3).contiguous()
        return torch.cat((h, other.transpose(1, 2)), 1) if flat else functional.gelu(h)

    side = max(2, min(steps, int((steps * many) ** 0.5)))
    ahead = {"back": (steps, many), "scores": (side, side)}.get(kind, (steps, 4))
    used = kind in {"back", "scores"} or (flat and kind != "patches")
    other = draw.tensor((batch, *ahead), grad=draw.training and used)
    gains = (draw.tensor((many,), positive=True), draw.tensor((many,)))
    return Program(run, (draw.tensor((batch, steps, many)), other, *gains), draw.training)


def season_scales(draw: Draw) -> Program:
    """Several moving averages weighed, coarser scales mixed, and sums by group with their loss."""
    kind = draw.choice(("averages", "downwards", "upwards", "groups", "sums"))
    batch, steps, many = drawn_series(draw, 2, 8)
    sizes, group = (
        draw.random.sample((5, 7, 13, 25, 49), draw.between(2, 3)),
        draw.choice((2, 4, 7)),
    )
    first, squared, leaves = draw.chance(0.4), draw.chance(0.5), group * max(1, many // group)

    def averages(x: Tensor, score: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        h = x if first else x.transpose(1, 2)
        found = [
            functional.avg_pool1d(functional.pad(h, (n // 2, n // 2), "replicate"), n, 1)
            for n in sizes
        ]
        trend = (torch.stack(found, -1) * functional.softmax(score[: len(sizes)], 0)).sum(-1)
        rest = (h - trend) * gain[:, None]
        rest = rest - rest.mean(-1, keepdim=True) if squared else rest
        return (rest, trend) if first else (rest.transpose(1, 2), trend.transpose(1, 2))

    def scales(x: Tensor, score: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = x if first else x.transpose(1, 2)
        found = [h]
        for _ in range(3):
            pool = functional.max_pool1d if squared else functional.avg_pool1d
            found.append(pool(found[-1], 2))
        found = found if kind == "downwards" else found[::-1]
        mixed = [found[0]]
        for finer in found[1:]:
            h = functional.gelu(mixed[-1] * gain[:, None] + score[0])
            down = kind == "downwards"
            near = h[..., ::2] + h[..., 1::2] if down else h.repeat_interleave(2, -1)
            mixed.append(finer + near)
        return tuple(mixed if first else [y.transpose(1, 2) for y in mixed])

    def summed(x: Tensor, target: Tensor, at: Tensor, weight: Tensor) -> Tensor:
        gap = x.float() - target.float()
        if kind == "groups":
            totals = gap.new_zeros(batch, steps, group).index_add(2, at, gap)
        else:
            totals = gap.unflatten(2, (group, -1)).sum(-1)
        weeks = gap.unflatten(1, (-1, 8)).sum(2)
        levels = (gap, totals, gap.sum(2), weeks)
        sizes = [(h.square() if squared else h.abs()).mean() for h in levels]
        return (torch.stack(sizes) * weight).sum()

    if kind in {"groups", "sums"}:
        h, y = (draw.tensor((batch, steps, leaves), grad=g) for g in (None, False))
        weight = draw.tensor((4,), grad=False, positive=True)
        return Program(summed, (h, y, draw.indices((leaves,), group), weight), draw.training)
    x = draw.tensor((batch, many, steps) if first else (batch, steps, many))
    args = (x, draw.tensor((4,)), draw.tensor((many,)))
    return Program(averages if kind == "averages" else scales, args, draw.training)


def dilated_gates(draw: Draw) -> Program:
    """Causal taps that lie apart, gates, skips and residuals, or chosen inputs: WaveNet, TFT."""
    kind = draw.choice(("taps", "taps", "stack", "chosen", "graph"))
    many, taps, last = draw.choice((2, 3, 5, 8)), draw.choice((2, 3)), draw.chance(0.4)
    batch, steps, width = drawn_series(draw, many if kind == "chosen" else 2)
    apart, gated, normed = draw.choice((1, 2, 4, 8, 16)), draw.chance(0.6), draw.chance(0.4)

    def causal(h: Tensor, w: Tensor, far: int) -> Tensor:
        """Steps weighed with those ``far`` before them."""
        length, late = h.shape[-1], functional.pad(h, (far * (taps - 1), 0))
        total = late[..., :length] * w[0, :, None]
        for i in range(1, taps):
            total = total + late[..., i * far :][..., :length] * w[i, :, None]
        return total

    def run(x: Tensor, w: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = x.transpose(1, 2) if last else x
        w = w * gain / w.square().sum(0).add(1e-5).sqrt() if normed else w
        skips = []
        for i in range(3 if kind == "stack" else 1):
            y = causal(h, w, apart * 2**i)
            y = torch.tanh(y) * torch.sigmoid(y.roll(1, 1)) if gated else torch.relu(y)
            skips.append(y[..., -max(1, steps // 2) :])
            h = functional.group_norm(h + y, 1) if kind == "graph" else h + y
        return (h.transpose(1, 2) if last else h), sum(skips[1:], skips[0])

    def chosen(h: Tensor, score: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        share = functional.softmax(score.float(), -1).to(h.dtype)
        y = (functional.layer_norm(h, (width,)) if normed else functional.elu(h)) * gain
        y = (y * share[..., None]).sum(2)
        low, high = x.chunk(2, -1)
        return functional.layer_norm(y + low * torch.sigmoid(high), (width,)), share.mean((0, 1))

    if kind == "chosen":
        shapes = ((many, width), (many,), (2 * width,))
        args = [draw.tensor((batch, steps, *shape)) for shape in shapes]
        return Program(chosen, (*args, draw.tensor((width,))), draw.training)
    x = draw.tensor((batch, steps, width) if last else (batch, width, steps))
    gain = draw.tensor((width,), grad=draw.training and normed)
    return Program(run, (x, draw.tensor((taps, width)), gain), draw.training)


def folded_periods(draw: Draw) -> Program:
    """Steps folded by a period, delayed by likely lags or read every so often: periodic series."""
    kind = draw.choice(("folded", "lags", "shifts", "sparse", "joined"))
    periods = draw.random.sample((2, 3, 7, 12, 24, 48), draw.between(1, 3))
    batch, steps, width = drawn_series(draw, len(periods))
    few, first = draw.choice((1, 2, 3, 5)), draw.chance(0.5)
    act = draw.choice((functional.gelu, torch.relu, torch.tanh))

    def folded(x: Tensor, score: Tensor, gain: Tensor) -> Tensor:
        found = []
        for n in periods:
            h = functional.pad(x, (0, 0, 0, -steps % n)).unflatten(1, (-1, n))
            h = act(h.permute(0, 3, 1, 2) * gain[:, None, None])
            if kind == "joined":
                h = h - h.mean(2, keepdim=True) + functional.softmax(h, 3)
            elif first:
                h = functional.avg_pool2d(functional.pad(h, (1, 1, 1, 1)), 3, 1)
            found.append(h.permute(0, 2, 3, 1).flatten(1, 2)[:, :steps])
        share = functional.softmax(score[:, : len(periods)].float(), -1).to(x.dtype)
        return (torch.stack(found, -1) * share[:, None, None]).sum(-1) + x

    def delayed(x: Tensor, score: Tensor, gain: Tensor) -> Tensor:
        top, lag = score.topk(few, -1)
        share = functional.softmax(top.float(), -1).to(x.dtype)
        at, total = torch.arange(steps, device=x.device), torch.zeros_like(x)
        for i in range(few):
            place = (at + lag[:, i, None]) % steps
            moved = x.gather(1, place[..., None].expand_as(x))
            total = total + moved * share[:, i, None, None]
        return total * gain

    def sparse(x: Tensor, score: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        n = min(periods[0], steps)
        h = x[:, : steps // n * n] - x.mean(1, keepdim=True)
        h = h.view(batch, -1, n, width).transpose(1, 2)
        if kind == "shifts":
            like = [(x * x.roll(n * i, 1)).float().mean(1) for i in range(1, few + 1)]
            return act(h * gain), torch.stack(like, -1)
        near = torch.cat((h[:, :, :1], h[:, :, :-1]), 2)
        return torch.lerp(h, near, torch.sigmoid(gain)).flatten(2), score.logsumexp(-1)

    args = (draw.tensor((batch, steps, width)), draw.tensor((batch, max(steps, 5))))
    made = {"folded": folded, "joined": folded, "lags": delayed}.get(kind, sparse)
    return Program(made, (*args, draw.tensor((width,))), draw.training)


#: Every family here.
FAMILIES = (reversible_norms, season_scales, dilated_gates, folded_periods)
