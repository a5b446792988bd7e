"""Blocks of vision models: windows, merged patches, gates, masked patches, shifts, key points."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _grid(draw: Draw, *, multiple: int = 1) -> tuple[int, int, int, int]:
    """Batch, height, width (both multiples) and channels."""
    channels = draw.choice((8, 24, 32, 48, 96, 128, 192, 384))
    most = max(1, int((draw.numel / channels) ** 0.5) // multiple)
    high = min(most, draw.choice((2, 3, 4, 7, 8, 9, 14, 28, 56)))
    wide = min(most, high if draw.chance(0.6) else high + draw.between(1, high))
    rest = draw.numel // (channels * high * wide * multiple**2)
    return max(2, rest), high * multiple, wide * multiple, channels


def shifted_windows(draw: Draw) -> Program:
    """Images rolled and cut into windows with a relative position bias, and put together: Swin."""
    size, heads = draw.choice((4, 7, 8)), draw.choice((1, 2, 4, 8))
    batch, height, width, channels = _grid(draw, multiple=size)
    shift, scored = draw.choice((0, size // 2)), draw.chance(0.5)
    rows, area = (height // size) * (width // size), size * size
    span, place = 2 * size - 1, torch.arange(area)
    down, right = (at[:, None] - at + size - 1 for at in (place // size, place % size))

    def score(x: Tensor, table: Tensor, at: Tensor, region: Tensor) -> Tensor:
        bias = 16 * torch.sigmoid(table)[at.view(-1)].view(area, area, heads).permute(2, 0, 1)
        apart = region[:, None, :] != region[:, :, None]
        h = x.view(-1, rows, heads, area, area) + bias
        return functional.softmax(h + apart.to(h.dtype)[:, None] * -100.0, -1)

    def cut(x: Tensor, gain: Tensor) -> Tensor:
        h = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        h = h.view(batch, height // size, size, width // size, size, channels).transpose(2, 3)
        h = functional.layer_norm(torch.tanh(h.reshape(-1, area, channels)), (channels,), gain)
        h = h.view(batch, height // size, width // size, size, size, channels)
        h = h.transpose(2, 3).reshape(batch, height, width, channels)
        return x + torch.roll(h, (shift, shift), (1, 2)) if shift else x + h

    if not scored:
        args = (draw.tensor((batch, height, width, channels)), draw.tensor((channels,)))
        return Program(cut, args, draw.training)
    rows = min(rows, max(1, draw.numel // (heads * area * area)))
    many = rows * max(1, draw.numel // (rows * heads * area * area))
    args = (draw.tensor((many, heads, area, area)), draw.tensor((span**2, heads)))
    where = (down * span + right, draw.indices((rows, area), 3))
    return Program(score, (*args, *where), draw.training)


def merged_patches(draw: Draw) -> Program:
    """Every second pixel four times, padded where odd, joined and normalised."""
    batch, height, width, channels = _grid(draw)
    first, odd = draw.chance(0.4), draw.chance(0.5)
    height, width = (2 * side - 1 if odd else 2 * side for side in (height, width))

    def run(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        h = x.permute(0, 2, 3, 1) if first else x
        h = functional.pad(h, (0, 0, 0, 1, 0, 1)) if odd else h
        h = torch.cat([h[:, i::2, j::2] for j in range(2) for i in range(2)], -1)
        return functional.layer_norm(h.flatten(1, 2), (4 * channels,), gain, bias)

    sizes = (channels, height, width) if first else (height, width, channels)
    args = (draw.tensor(((batch + 3) // 4, *sizes)), draw.tensor((4 * channels,)))
    return Program(run, (*args, draw.tensor((4 * channels,))), draw.training)


def attention_gates(draw: Draw) -> Program:
    """Gates from means and maxima over pixels, rows, columns or channels: ECA, CBAM, coordinate."""
    batch, height, width, channels = _grid(draw)
    kind = draw.choice(("neighbours", "both", "coordinate", "spatial"))
    gate = draw.choice((functional.sigmoid, functional.hardsigmoid))
    turned = draw.chance(0.5)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = torch.relu(x + bias[:, None, None])
        pooled, top = h.mean((2, 3)), h.flatten(2).max(-1).values
        if kind == "neighbours":
            near = functional.pad(pooled, (1, 1)).unfold(-1, 3, 1)
            return h * gate((near * weight[:3]).sum(-1))[..., None, None]
        if kind == "both":
            h = h * gate(weight[0] * pooled + weight[1] * top)[..., None, None]
        if kind == "coordinate":
            joined = torch.cat((h.mean(3, keepdim=True), h.mean(2)[..., None]), 2)
            high, wide = functional.hardswish(joined * weight[0]).split((height, width), 2)
            return h * gate(high) * gate(wide.transpose(2, 3)) + x
        top, mean = h.max(1, keepdim=True).values, h.mean(1, keepdim=True)
        return h * gate(weight[2] * top + weight[3] * mean)

    x = draw.image((batch, channels, height, width), turned=turned)
    return Program(run, (x, draw.tensor((4,)), draw.tensor((channels,))), draw.training)


def split_attention(draw: Draw) -> Program:
    """Branches or shifted groups of channels, weighed by a softmax over them: ResNeSt, S2-MLP."""
    batch, height, width, channels = _grid(draw)
    branches, shifted = draw.choice((2, 3, 4)), draw.chance(0.5)
    shifts = ((0, 0, 0, 0, 1, -1), (0, 0, 0, 0, -1, 1), (0, 0, 1, -1), (0, 0, -1, 1))

    def run(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        pairs = zip(x.chunk(branches, -1), shifts, strict=False)
        parts = [functional.pad(h, shift) if shifted else h for h, shift in pairs]
        stacked = torch.stack([functional.gelu(h) for h in parts], 1)
        score = functional.silu(stacked.sum(1).mean((1, 2)))[:, None] * gain + bias
        return (stacked * functional.softmax(score, 1)[:, :, None, None]).sum(1)

    x = draw.tensor((max(1, batch // branches), height, width, branches * channels))
    return Program(run, (x, *(draw.tensor((branches, channels)) for _ in "gb")), draw.training)


def masked_patches(draw: Draw) -> Program:
    """Patches kept by index behind a token, or put back with mask tokens between them: MAE."""
    batch, width = draw.choice((2, 8, 32)), draw.choice((48, 64, 192, 384, 768))
    length = max(4, draw.numel // (batch * width))
    kept, hidden = max(1, length // 4), draw.chance(0.5)

    def run(x: Tensor, place: Tensor, token: Tensor, at: Tensor) -> Tensor:
        if hidden:
            h = (x + place[1:]).gather(1, at[:, :kept, None].expand(-1, -1, width))
            return torch.cat(((token + place[0]).expand(batch, 1, -1), h), 1)
        h = torch.cat((x[:, :kept], token.expand(batch, length - kept, -1)), 1)
        return h.gather(1, at[..., None].expand(-1, -1, width)) + place[1:]

    args = (draw.tensor((batch, length, width)), draw.tensor((length + 1, width)))
    orders = draw.tensor((batch, length), dtype=torch.float32, grad=False).argsort(1)
    return Program(run, (*args, draw.tensor((width,)), orders), draw.training)


def class_tokens(draw: Draw) -> Program:
    """Tokens in front of patches, branches scaled by layer and dropped by sample, then pooled."""
    batch, width = draw.choice((2, 8, 32, 64)), draw.choice((48, 64, 192, 197, 384, 768))
    length, extra = max(2, draw.numel // (batch * width)), draw.choice((1, 1, 2, 5))
    pooled, scaled = draw.choice(("token", "mean", "max")), draw.chance(0.6)

    def run(x: Tensor, tokens: Tensor, place: Tensor, gain: Tensor, keep: Tensor) -> Tensor:
        h = torch.cat((tokens.expand(batch, -1, -1), x.transpose(1, 2)), 1) + place
        y = functional.gelu(functional.layer_norm(h, (width,)))
        h = h + (y * gain if scaled else y) * (keep.to(h.dtype) / 0.9)[:, None, None]
        if pooled == "token":
            return functional.layer_norm(h[:, :extra].mean(1), (width,))
        top = torch.cat((h[:, extra:].max(1).values, h[:, 0]), -1)
        return top if pooled == "max" else h[:, extra:].mean(1)

    rows = (extra, extra + length, 1)
    args = (draw.tensor((batch, width, length)), *(draw.tensor((n, width)) for n in rows))
    return Program(run, (*args, draw.mask((batch,), 0.9)), draw.training)


def key_points(draw: Draw) -> Program:
    """Heat maps to coordinates by soft or hard maxima, and coordinates to heat maps: poses."""
    points, heat = draw.choice((4, 14, 17, 21, 68)), draw.choice((1.0, 10.0))
    side = min(draw.choice((12, 16, 32, 48, 64)), max(3, int((draw.numel / points) ** 0.5)))
    kind, wide = draw.choice(("soft", "hard", "drawn")), side * draw.choice((3, 4)) // 4 + 1
    batch = max(1, draw.numel // (points * side * wide))

    def run(maps: Tensor, where: Tensor, seen: Tensor) -> Tensor:
        x, y = (torch.arange(n, device=maps.device).float() for n in (wide, side))
        if kind == "soft":
            p = functional.softmax(maps.float().flatten(2) * heat, -1).view_as(maps)
            found = torch.stack(((p.sum(2) * x).sum(-1), (p.sum(3) * y).sum(-1)), -1)
            return ((found - where).abs() * seen[..., None]).sum(-1).mean()
        if kind == "hard":
            top, at = maps.flatten(2).max(-1)
            place = torch.stack((at % wide, at // wide), -1).float()
            return torch.where((top > 0)[..., None], place + 0.5, -1.0)
        far = (x - where[..., :1])[:, :, None].square() + (y - where[..., 1:])[..., None].square()
        wanted = torch.exp(-far / (2 * heat**2)) * seen[..., None, None]
        return ((1 + 9 * wanted) * (maps - wanted).square()).mean((2, 3)).sum() / points

    where = draw.tensor((batch, points, 2), dtype=torch.float32, grad=False) * 4 + side / 2
    trained = draw.training and kind != "hard"
    maps = draw.tensor((batch, points, side, wide), grad=trained)
    return Program(run, (maps, where, draw.mask((batch, points), 0.7)), trained)


#: Every family here.
FAMILIES = (
    shifted_windows,
    merged_patches,
    attention_gates,
    split_attention,
    masked_patches,
    class_tokens,
    key_points,
)
