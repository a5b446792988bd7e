"""Attention over image tokens: folded windows, channel heads, offset tables, fewer tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.mixers import ACTIVATIONS, NORMS, drawn_grid, normalised

_POSITIVE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: functional.elu(x) + 1,
    functional.relu,
    lambda x: functional.softmax(x, -1),
)


def folded_windows(draw: Draw) -> Program:
    """Maps unfolded into patches or padded windows around attention, and folded back: MobileViT."""
    size, act = draw.choice((2, 2, 4, 7, 8, 14)), draw.choice(ACTIVATIONS)
    batch, height, width, channels = drawn_grid(draw, 2, multiple=size)
    kind = draw.choice(("unfolded", "folded", "separate", "cut", "put", "put"))
    odd, sparse = draw.choice((0, 0, 1, 3)) % size, draw.chance(0.4)
    rows, columns, norm = height // size, width // size, draw.choice(NORMS)
    shape = (batch, rows, size, columns, size, channels)

    def maps(x: Tensor, tokens: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        if kind == "unfolded":
            h = x.view(batch * channels * rows, size, columns, size).transpose(1, 2)
            h = h.reshape(batch, channels, rows * columns, size**2).transpose(1, 3)
            return normalised(
                h.reshape(batch * size**2, rows * columns, channels), gain, bias, norm
            )
        if kind == "separate":
            h = act(x).view(batch, channels, rows, size, columns, size).transpose(3, 4)
            h = h.reshape(batch, channels, rows * columns, size**2)
            share = functional.softmax(tokens.view_as(h).mean(1, keepdim=True).float(), 2)
            return (h * share).sum(2, keepdim=True).to(h.dtype) * torch.relu(
                h + bias[:, None, None]
            )
        h = normalised(tokens, gain, bias, norm).view(batch, size**2, rows * columns, channels)
        h = h.transpose(1, 3).reshape(batch * channels * rows, columns, size, size)
        h = h.transpose(1, 2).reshape(batch, channels, height, width)
        return torch.cat((x, act(h)), 1)

    def windows(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        if kind == "cut":
            h = functional.pad(normalised(x, gain, bias, norm), (0, 0, 0, odd, 0, odd))
            if sparse:
                h = h.view(batch, size, rows, size, columns, channels).permute(0, 2, 4, 1, 3, 5)
                return act(h.reshape(-1, size**2, channels))
            return h.view(shape).transpose(2, 3).reshape(-1, size**2, channels) + bias
        h = y.view(batch, rows, columns, size, size, channels)
        h = h.permute(0, 3, 1, 4, 2, 5) if sparse else h.transpose(2, 3)
        h = h.reshape(batch, height, width, channels)[:, : height - odd, : width - odd]
        h = x + h * gain + bias
        return functional.layer_norm(h, (channels,), gain) if act is functional.gelu else h

    gains = [draw.tensor((channels,)) for _ in range(2)]
    if kind in {"cut", "put"}:
        x = draw.tensor((batch, height - odd, width - odd, channels))
        return Program(windows, (x, draw.tensor((*shape,)), *gains), draw.training)
    tokens = draw.tensor((batch * size**2, rows * columns, channels))
    return Program(
        maps, (draw.tensor((batch, channels, height, width)), tokens, *gains), draw.training
    )


def _heads(draw: Draw, shrunk: int = 1) -> tuple[int, int, int, int]:
    """Batch, tokens, heads and width of a head, of so many times fewer elements."""
    numel = max(256, draw.numel // shrunk)
    heads, width = draw.choice((1, 2, 3, 4, 6, 8, 12)), draw.choice((8, 16, 24, 32, 48, 64, 128))
    length = draw.choice((49, 50, 64, 196, 197, 256, 577, 784, 1024, 3136))
    length = min(length, max(4, numel // (heads * width)))
    return max(1, numel // (length * heads * width)), length, heads, width


def covariance_heads(draw: Draw) -> Program:
    """Queries and keys scaled along tokens, or mapped and summed over them: XCiT, linear."""
    batch, length, heads, width = _heads(draw, 3)
    kind = draw.choice(("unit", "unit", "maps", "scores", "mapped", "focused", "free", "product"))
    mapped, temperate = draw.choice(_POSITIVE), draw.chance(0.7)
    joined, act = draw.chance(0.5), draw.choice(ACTIVATIONS)

    def scores(x: Tensor, heat: Tensor) -> Tensor:
        h = functional.softmax(x.float() * heat[:, None, None], -1).to(x.dtype)
        return h.transpose(2, 3).contiguous() if joined else act(h) * x

    def run(x: Tensor, heat: Tensor, bias: Tensor) -> list[Tensor]:
        x = x + bias
        if kind == "maps":
            q, k, v = x.permute(2, 0, 3, 4, 1).contiguous()
        else:
            q, k, v = x.permute(2, 0, 3, 1, 4)
        if kind in {"unit", "maps"}:
            axis = -1 if kind == "maps" else 2
            q, k = (functional.normalize(h, dim=axis) for h in (q, k))
            return [q * heat[:, None, None] if temperate else q, k.contiguous(), act(v)]
        if kind == "free":
            weight = torch.exp(k.float() - k.float().amax(2, keepdim=True))
            mean = (weight * v).sum(2, keepdim=True) / weight.sum(2, keepdim=True)
            return [(torch.sigmoid(q) * mean).transpose(1, 2).flatten(2).to(x.dtype)]
        if kind == "product":
            total = (functional.normalize(k, dim=-1) * v).sum(2, keepdim=True)
            y = (functional.normalize(q, dim=-1) * total).transpose(1, 2)
            return [(y + x[:, :, 0]).flatten(2)]
        q, k = mapped(q * heat[:, None, None]), mapped(k)
        if kind == "focused":
            sizes = [h.float().square().sum(-1, keepdim=True) for h in (q, k)]
            pairs = zip((q, k), sizes, strict=True)
            q, k = (functional.normalize(h.float() ** 3, dim=-1) * size for h, size in pairs)
        share = 1 / ((q * k.sum(2, keepdim=True)).sum(-1, keepdim=True) + 1e-2)
        y = (v * share).transpose(1, 2).flatten(2)
        return [y, k] if joined else [y + act(x[:, :, 2].flatten(2)), (k * k).sum(2)]

    heat = draw.tensor((heads,), positive=True)
    if kind == "scores":
        many = max(1, draw.numel // (2 * heads * width**2))
        return Program(scores, (draw.tensor((many, heads, width, width)), heat), draw.training)
    x = draw.tensor((batch, length, 3, heads, width))
    return Program(run, (x, heat, draw.tensor((3, heads, width))), draw.training)


def offset_tables(draw: Draw) -> Program:
    """Scores with biases gathered from tables by offset, by axis or with class tokens: LeViT."""
    heads, side = draw.choice((1, 2, 3, 4, 8, 12)), draw.choice((4, 7, 8, 12, 14, 16, 20))
    side = min(side, max(2, int((draw.numel / heads) ** 0.25)))
    extra, thinned = draw.choice((0, 0, 1)), draw.choice((1, 1, 2))
    kind = draw.choice(("table", "table", "shared", "axes", "mixed"))
    extra = 0 if kind == "axes" else extra
    few, length, area = -(-side // thinned), side**2 + extra, side**2
    queries = few**2 + extra
    least = 2 * heads * queries * length * (heads if kind == "mixed" else 1)
    batch = max(1, draw.numel // least)
    logged, upcast, signed = draw.chance(0.3), draw.chance(0.5), draw.chance(0.5)
    at = torch.arange(area)
    apart = [n[:, None] - n for n in (at // side, at % side)]
    span = 2 * side - 1 if signed else side
    down, right = (n + side - 1 if signed else n.abs() for n in apart)
    chosen = at.view(side, side)[::thinned, ::thinned].flatten()
    where = functional.pad((down * span + right)[chosen], (extra, 0, extra, 0), value=span**2)

    def run(x: Tensor, table: Tensor, at: Tensor, high: Tensor, wide: Tensor) -> Tensor:
        h = x.float() if upcast else x
        if kind == "axes":
            h = h.view(batch, heads, few**2, side, side)
            h = (h + high[..., None] + wide[..., None, :]).flatten(3)
        elif kind == "shared":
            h = h * 0.125 + table[0].index_select(0, at.flatten()).view(at.shape)
        else:
            h = h + table[:, at]
        if kind == "mixed":
            h = (h[:, :, None] * wide[..., None, None]).sum(1)
            h = functional.softmax(h, -1) * high[:, None, None]
            return (h + x).to(x.dtype)
        return functional.log_softmax(h, -1) if logged else functional.softmax(h, -1).to(x.dtype)

    x = draw.tensor((batch, heads, queries, length))
    table = draw.tensor((heads, span**2 + 1), grad=draw.training and kind != "axes")
    sizes = ((heads,), (heads, heads)) if kind == "mixed" else [(batch, heads, few**2, side)] * 2
    used = draw.training and kind in {"axes", "mixed"}
    return Program(
        run, (x, table, where, *(draw.tensor(s, grad=used) for s in sizes)), draw.training
    )


def thinned_tokens(draw: Draw) -> Program:
    """Tokens pooled behind a class token, merged or kept by rank, or read by it: MViT, CaiT."""
    kind = draw.choice(("pooled", "pooled", "merged", "kept", "class", "class", "scales"))
    batch, height, breadth, width = drawn_grid(draw, 2, multiple=2)
    length, heads, norm = height * breadth, draw.choice((1, 2, 4, 8)), draw.choice(NORMS)
    largest, size, half = draw.chance(0.5), draw.choice((2, 3)), length // 2
    pool = functional.max_pool2d if largest else functional.avg_pool2d
    some = draw.between(1, max(1, half - 1))

    def run(x: Tensor, token: Tensor, gain: Tensor, bias: Tensor, at: Tensor) -> list[Tensor]:
        joined = torch.cat((token.expand(batch, 1, width), x), 1)
        if kind == "class":
            h = normalised(joined, gain, bias, norm).unflatten(-1, (heads, -1))
            score = (h[:, :1] * h).sum(-1, keepdim=True).float() / width**0.5
            y = (functional.softmax(score, 1) * h).sum(1).flatten(1).to(x.dtype) * gain
            return [torch.cat(((joined[:, 0] + y)[:, None], x), 1) if largest else y]
        if kind == "merged":
            even, odd, index = x[:, ::2], x[:, 1::2], at[..., None].expand(-1, -1, width)
            y = odd.scatter_reduce(1, index, even[:, :some], "amax" if largest else "mean")
            return [normalised(torch.cat((even[:, some:], y), 1), gain, bias, norm)]
        if kind == "kept":
            score = functional.softmax((x * token).sum(-1).float(), 1)
            top, best = score.topk(some, 1)
            left = score.scatter(1, best, 0.0)
            rest = (x * left[..., None]).sum(1, keepdim=True) / (1 - top.sum(1) + 1e-2)[
                :, None, None
            ]
            chosen = x.gather(1, best[..., None].expand(-1, -1, width))
            return [torch.cat((chosen * top[..., None], rest), 1).to(x.dtype) + gain]
        h = x.transpose(1, 2).reshape(batch, width, height, breadth)
        if kind == "scales":
            parts = [functional.adaptive_avg_pool2d(h, side).flatten(2) for side in (1, 2)]
            parts.append(pool(h, 2).flatten(2))
            return [
                normalised(torch.cat(parts, -1).transpose(1, 2), gain, bias, norm),
                h.amax((2, 3)),
            ]
        h = pool(h, size, 2, size // 2).flatten(2).transpose(1, 2)
        h = normalised(torch.cat((joined[:, :1], h), 1), gain, bias, norm)
        h = h.unflatten(-1, (heads, -1)).transpose(1, 2)
        return [h.contiguous() * width**-0.5, joined + bias]

    gains = (draw.tensor((width,)) for _ in range(3))
    args = (draw.tensor((batch, length, width)), *gains, draw.indices((batch, some), half))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (folded_windows, covariance_heads, offset_tables, thinned_tokens)
