"""Around the blocks of classifiers: smaller maps, active norms, pooled classes, gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.residual_nets import (
    ACTIVATIONS,
    NORMS,
    drawn_maps,
    drawn_norms,
    normed_maps,
)


def thinned_maps(draw: Draw) -> Program:
    """Maps made smaller: blurred, pooled largest or mean, cut shortcuts, padded channels."""
    kind = draw.choice(("blur", "largest", "largest", "shortcut", "padded", "joined", "power"))
    batch, channels, height, width = drawn_maps(draw, 2, multiple=2)
    act, norm, size = draw.choice(ACTIVATIONS), draw.choice(NORMS), draw.choice((2, 3, 3))
    mode, odd = draw.choice(("reflect", "replicate", "constant")), draw.choice((0, 0, 1))
    convolved, upper = draw.chance(0.3), draw.chance(0.5)
    taps = draw.choice(
        ((1.0, 2.0, 1.0), (1.0, 1.0), (1.0, 4.0, 6.0, 4.0, 1.0), (1.0, 3.0, 3.0, 1.0))
    )
    reach = len(taps) - 1

    def blurred(h: Tensor) -> Tensor:
        pads = (reach // 2, reach - reach // 2)
        h = functional.pad(h, (*pads, *pads), mode)
        if convolved:
            row = torch.tensor(taps, device=h.device, dtype=h.dtype) / sum(taps)
            kernel = (row[:, None] * row).expand(channels, 1, -1, -1)
            return functional.conv2d(h, kernel, stride=2, groups=channels)
        stops = [h.shape[2] - reach + i for i in range(reach + 1)]
        h = sum(
            (h[:, :, i:stop:2] * taps[i] for i, stop in enumerate(stops[1:], 1)),
            h[:, :, : stops[0] : 2],
        )
        stops = [h.shape[3] - reach + i for i in range(reach + 1)]
        parts = (h[..., i:stop:2] * taps[i] for i, stop in enumerate(stops[1:], 1))
        return sum(parts, h[..., : stops[0] : 2]) / sum(taps) ** 2

    def run(x: Tensor, power: Tensor, *norms: Tensor) -> list[Tensor]:
        h = act(normed_maps(x, norms, norm))
        if kind == "blur":
            h = functional.max_pool2d(h, 2, 1, 1)[:, :, 1:, 1:] if upper else h
            return [blurred(h)]
        if kind == "largest":
            return [functional.max_pool2d(h, size, 2, size // 2, ceil_mode=upper) * power]
        if kind == "shortcut":
            y = functional.avg_pool2d(h, 2, 2, ceil_mode=True, count_include_pad=upper)
            return [y, h[:, :, ::2, ::2] - y * power]
        if kind == "padded":
            y = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, channels // 2, channels // 2))
            return [act(y) + power, h.mean((2, 3))]
        if kind == "joined":
            corners = [
                h[:, :, i::2, j::2][:, :, : height // 2, : width // 2]
                for i in (0, 1)
                for j in (0, 1)
            ]
            pooled = functional.max_pool2d(h, 2)
            return [torch.cat((*corners, pooled) if upper else (corners[0], pooled), 1)]
        h = h.float().clamp(min=1e-4) ** (1 + power.float().abs())
        return [functional.avg_pool2d(h, size, 2) ** (1 / (1 + power.float().abs()))]

    x = draw.image((batch, channels, height + odd, width + odd))
    return Program(run, (x, draw.tensor((1,)), *drawn_norms(draw, channels)), draw.training)


def evolved_norms(draw: Draw) -> Program:
    """Norms with activations in them: filter responses, evolved, mixed, across channels."""
    kind = draw.choice(("response", "batch", "groups", "scaled", "halves", "switched", "across"))
    batch, channels, height, width = drawn_maps(draw, 2)
    groups, act = draw.choice((2, 4, 8)), draw.choice(ACTIVATIONS)
    learned, size, residual = draw.chance(0.5), draw.choice((3, 5)), draw.chance(0.4)
    kept = draw.choice((torch.float32, draw.dtype))

    def run(x: Tensor, y: Tensor, share: Tensor, *rows: Tensor) -> Tensor:
        h, (gain, bias, floor) = x.to(kept), (row[:, None, None] for row in rows)
        if kind == "response":
            power = h.square().mean((2, 3), keepdim=True) + 1e-4
            h = h * torch.rsqrt(power + floor.abs() if learned else power)
            h = torch.maximum(gain * h + bias, floor)
        elif kind == "batch":
            spread = (h.var((0, 2, 3), keepdim=True, correction=0) + 1e-3).sqrt()
            own = (h.var((2, 3), keepdim=True, correction=0) + 1e-3).sqrt()
            h = h / torch.maximum(spread, floor * h + own) * gain + bias
        elif kind == "groups":
            parts = h.unflatten(1, (groups, -1))
            spread = (parts.var((2, 3, 4), keepdim=True) + 1e-3).sqrt()
            top = (h * torch.sigmoid(floor * h)).unflatten(1, (groups, -1))
            h = (top / spread).flatten(1, 2) * gain + bias
        elif kind == "scaled":
            h = act(h * 0.8) * 1.7 * gain if learned else act(functional.group_norm(h, groups))
            h = h * torch.sigmoid(h.mean((2, 3), keepdim=True)) * 2 + bias
        elif kind == "halves":
            left, right = h.chunk(2, 1)
            left = functional.instance_norm(left)
            right = functional.batch_norm(right, None, None, training=True)
            h = act(torch.cat((left, right), 1) * gain + bias)
        elif kind == "switched":
            axes, weight = ((2, 3), (1, 2, 3), (0, 2, 3)), functional.softmax(share.float(), -1)
            means = sum(weight[0, i] * h.mean(at, keepdim=True) for i, at in enumerate(axes))
            spreads = sum(weight[1, i] * h.var(at, keepdim=True) for i, at in enumerate(axes))
            h = (h - means) / (spreads + 1e-5) ** 0.5 * gain + bias
        else:
            pads = (0, 0, 0, 0, size // 2, size // 2)
            near = functional.pad(h.square(), pads).unflatten(1, (-1, 1))[:, :, 0]
            total = sum(near[:, i : i + channels] for i in range(size))
            h = act(h) / (1 + 1e-2 * total) ** 0.75 + bias
        h = h.to(x.dtype)
        return h + y if residual else h

    images = draw.images([(batch, channels, height, width)] * 2)
    rows = (draw.tensor((channels,), dtype=kept) for _ in range(3))
    share = draw.tensor((2, 3), grad=draw.training and kind == "switched")
    return Program(run, (*images, share, *rows), draw.training)


def pooled_classes(draw: Draw) -> Program:
    """Maps pooled and classified, and losses with smoothed, mixed or soft labels, and hits."""
    kind = draw.choice(("pooled", "pooled", "maps", "smooth", "mixed", "soft", "binary", "hits"))
    classes = min(draw.choice((10, 100, 200, 1000, 1000, 21841)), max(10, draw.numel // 16))
    batch, channels, height, width = drawn_maps(draw)
    rows, smooth = max(2, draw.numel // classes), draw.choice((0.0, 0.1, 0.2))
    act, dropped, upcast = draw.choice(ACTIVATIONS), draw.chance(0.5), draw.chance(0.5)
    several = draw.choice(("mean", "mean", "both", "weighed"))

    def pooled(x: Tensor, weight: Tensor, keep: Tensor, bias: Tensor, at: Tensor) -> list[Tensor]:
        h = act(x + bias[:, None, None])
        if kind == "maps":
            score = (h[:, None] * weight[:, :, None, None]).sum(2)
            return [functional.softmax(score.flatten(2), -1), score.mean((2, 3))]
        y = h.mean((2, 3))
        if several == "both":
            y = 0.5 * (y + h.amax((2, 3)))
        elif several == "weighed":
            share = functional.softmax(h.mean(1).flatten(1), -1)
            y = (h.flatten(2) * share[:, None]).sum(-1)
        y = y * keep.to(y.dtype) / 0.8 if dropped else y
        logits = functional.layer_norm(y, (channels,), bias) @ weight.t()
        return [functional.cross_entropy(logits.float(), at, label_smoothing=smooth), y]

    def run(logits: Tensor, soft: Tensor, share: Tensor, bias: Tensor, at: Tensor) -> list[Tensor]:
        h = (logits.float() if upcast else logits) + bias
        if kind == "smooth":
            odds = functional.log_softmax(h, -1)
            true = odds.gather(1, at[:, None])[:, 0]
            return [-((1 - smooth) * true + smooth * odds.mean(-1)).mean(), odds.exp().amax(-1)]
        if kind == "mixed":
            first = functional.cross_entropy(h, at, reduction="none")
            second = functional.cross_entropy(h, at.flip(0), reduction="none")
            return [(share * first + (1 - share) * second).mean()]
        if kind == "soft":
            target = functional.softmax(soft.float(), -1) * share[:, None]
            target = target + target.flip(0) * (1 - share)[:, None]
            return [-(target * functional.log_softmax(h, -1)).sum(-1).mean()]
        if kind == "binary":
            hot = functional.one_hot(at, classes).to(h.dtype)
            target = (hot * share[:, None] + hot.flip(0) * (1 - share)[:, None]).clamp(smooth / 2)
            return [functional.binary_cross_entropy_with_logits(h, target.to(h.dtype))]
        rank = (h > h.gather(1, at[:, None])).sum(-1)
        return [(rank == 0).float().mean(), (rank <= 1).sum(), torch.logsumexp(h, -1).mean()]

    if kind in {"pooled", "maps"}:
        few = draw.choice((2, 4, 6)) if kind == "maps" else min(classes, 1000)
        weight, keep = draw.tensor((few, channels)), draw.mask((batch, channels), 0.8)
        args = (draw.image((batch, channels, height, width)), weight, keep)
        rest = (draw.tensor((channels,)), draw.indices((batch,), few))
        return Program(pooled, (*args, *rest), draw.training)
    trained = draw.training and kind != "hits"
    soft = draw.tensor((rows, classes) if kind == "soft" else (1, 1), grad=False)
    share = draw.tensor((rows,), grad=False).sigmoid()
    args = (draw.tensor((rows, classes), grad=trained), soft, share)
    rest = (draw.tensor((classes,), grad=trained), draw.indices((rows,), classes))
    return Program(run, (*args, *rest), trained)


def _slope(x: Tensor, along: Tensor, act: str, cap: float = 3.0) -> Tensor:
    """The gradient before an activation, of that behind it."""
    if act == "silu":
        s = torch.sigmoid(x)
        return along * s * (1 + x * (1 - s))
    if act == "hardswish":
        inside = torch.where(x < cap, along * (x / cap + 0.5), along)
        return torch.where(x <= -cap, 0.0, inside)
    if act == "leaky":
        return torch.where(x > 0, along, along * 0.1)
    passed = (x > 0) & (x < 2 * cap) if act == "relu6" else x > 0
    return torch.where(passed, along, 0.0)


def parameter_sums(draw: Draw) -> Program:
    """Gradients of biases, gains and small kernels: slopes summed over the batch and pixels."""
    kind = draw.choice(("bias", "gain", "norm", "depthwise", "gate", "pieces", "pool"))
    batch, channels, height, width = drawn_maps(draw, 2, multiple=2)
    act = draw.choice(("relu", "relu6", "hardswish", "silu", "leaky"))
    decayed, kept = draw.chance(0.5), draw.choice((torch.float32, None))
    last = draw.chance(0.4)
    axes = (0, 1, 2) if last else (0, 2, 3)

    def across(row: Tensor) -> Tensor:
        return row if last else row[:, None, None]

    def run(x: Tensor, along: Tensor, row: Tensor, other: Tensor) -> list[Tensor]:
        count = x.numel() // channels
        if kind == "bias":
            back = _slope(x + across(row), along, act)
            total = back.sum(axes, dtype=torch.float32)
            return [back, total + 1e-4 * row if decayed else total]
        if kind in {"gain", "norm"}:
            h = (x.float() - across(row)) * across(other.abs() + 0.1)
            back = _slope(h, along.float(), act)
            sums = back.sum(axes), (back * h).sum(axes)
            if kind == "gain":
                return [*sums, (sums[0].square() + sums[1].square()).sum().sqrt()]
            back = back - across(sums[0]) / count - h * across(sums[1]) / count
            return [(back * across(row)).to(x.dtype), *sums]
        if kind == "depthwise":
            top = functional.pad(
                _slope(x, x, act) if decayed else x, (0, 0, 1, 1, 1, 1) if last else (1,) * 4
            )
            places = [(i, j) for i in range(3) for j in range(3)]
            high, wide = (height, width)
            if last:
                near = [top[:, i : i + high, j : j + wide] for i, j in places]
            else:
                near = [top[:, :, i : i + high, j : j + wide] for i, j in places]
            return [torch.stack([(part * along).sum(axes) for part in near], -1)]
        if kind == "gate":
            share = across(torch.sigmoid(row))
            pixels = axes[1:]
            inner = (along * x).sum(pixels, keepdim=True) * share * (1 - share)
            return [along * share + inner / (height * width), inner.sum(axes)]
        if kind == "pieces":
            back = torch.where(x > 0, along, along * across(row))
            return [back, torch.where(x > 0, 0.0, x * along).sum(axes), back.abs().amax(axes)]
        h = _slope(x, along, act) + across(other).to(x.dtype)
        mean = h.mean(axes[1:], keepdim=True)
        return [h - mean, mean.sum(0).flatten(), h.square().sum(axes)]

    shape = (batch, height, width, channels) if last else (batch, channels, height, width)
    turned = draw.chance(0.5)
    if last:
        x, along = (draw.tensor(shape, grad=False) for _ in range(2))
    else:
        x, along = (draw.image(shape, grad=False, turned=turned) for _ in range(2))
    rows = (draw.tensor((channels,), dtype=kept, grad=False) for _ in range(2))
    return Program(run, (x, along, *rows))


#: Every family here.
FAMILIES = (thinned_maps, evolved_norms, pooled_classes, parameter_sums)
