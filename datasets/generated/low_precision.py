"""Few bits: integer sums, unpacked nibbles, scaled blocks, caches of heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def drawn_matrix(draw: Draw, multiple: int) -> tuple[int, int]:
    """Rows and a width that is a multiple."""
    width = draw.choice((64, 128, 256, 384, 768, 1024, 2048, 2816, 4096, 8192, 11008))
    width = max(1, min(width, int(draw.numel**0.6)) // multiple) * multiple
    return max(2, draw.numel // width), width


def dequantised_sums(draw: Draw) -> Program:
    """Integer products with zero points taken off, scaled, gated or normed, and bytes again."""
    groups, kind = draw.choice((1, 1, 2, 4)), draw.choice(("gated", "normed", "residual", "turned"))
    (rows, width), biased = drawn_matrix(draw, 8 * groups), draw.chance(0.5)
    rows, most, dtype = max(2, rows // groups), draw.choice((7, 127)), draw.dtype

    def run(
        total: Tensor, zero: Tensor, row: Tensor, column: Tensor, x: Tensor
    ) -> tuple[Tensor, ...]:
        h = (total - zero * 37).float() * row
        h = (h * column[0, :, None]).sum(0)
        h = h + column[1, 0] if biased else h
        if kind == "turned":
            return (functional.gelu(h).to(dtype).t().contiguous(),)
        if kind == "gated":
            first, second = h.chunk(2, -1)
            h = functional.silu(first) * second
        h = h + x if kind == "residual" else h
        y = functional.rms_norm(h, (width,)) if kind == "normed" else torch.relu(h)
        scale = (y.abs().amax(-1, keepdim=True) / most).clamp(min=1e-6)
        return h.to(dtype), torch.round(y / scale).to(torch.int8), scale

    total = draw.tensor((groups, rows, width), dtype=torch.int32)
    args = (total, draw.indices((groups, rows, 1), 16).int(), draw.tensor((groups, rows, 1)))
    column, x = draw.tensor((2, groups, width)), draw.tensor((rows, width))
    return Program(run, (*args, column, x), draw.training)


def nibbles(draw: Draw) -> Program:
    """Four or two bits unpacked from words, with zero points or a table, times an input: GPTQ."""
    bits, group = draw.choice((2, 4, 4, 8)), draw.choice((32, 64, 128))
    rows, width = drawn_matrix(draw, group)
    kind, ending = draw.choice(("zero", "table", "packed")), draw.choice(("plain", "times", "low"))
    count, turned, dtype = 32 // bits, draw.chance(0.4), draw.dtype

    def run(
        words: Tensor, scale: Tensor, zero: Tensor, table: Tensor, x: Tensor, low: Tensor
    ) -> Tensor:
        shift = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
        last = words.t() if turned else words
        codes = ((last[..., None] >> shift) & (2**bits - 1)).flatten(1).unflatten(1, (-1, group))
        if kind == "table":
            w = table[codes] * scale[..., None]
        elif kind == "packed":
            nought = ((zero[..., None] >> shift) & (2**bits - 1)).flatten(1)[:, : width // group]
            w = (codes - nought[..., None] - 1).to(dtype) * scale[..., None]
        else:
            w = codes.to(dtype) * scale[..., None] + scale.mean() * (zero[:, :1, None] & 3)
        w = w.flatten(1).to(dtype)
        if ending == "times":
            return (w * x).sum(-1, dtype=torch.float32).to(dtype)
        return (w + low[0, :, None] * low[1, :1] * x).t() if ending == "low" else w

    shape = (width // count, rows) if turned else (rows, width // count)
    words = draw.indices(shape, 2**31).int()
    zero = draw.indices((rows, -(-width // group // count)), 2**31).int()
    args = (words, draw.tensor((rows, width // group), positive=True), zero)
    more = (draw.tensor((2**bits,)), draw.tensor((width,)), draw.tensor((2, rows)))
    return Program(run, (*args, *more), draw.training)


def block_scales(draw: Draw) -> Program:
    """Blocks or tiles scaled by powers of two or their peaks, smoothed, outliers apart: MX."""
    size, tiled = draw.choice((16, 32, 64, 128)), draw.chance(0.35)
    rows, width = drawn_matrix(draw, size)
    rows = -(-rows // size) * size if tiled else rows
    kind, smooth = draw.choice(("power", "byte", "float", "four")), draw.chance(0.5)
    apart, back = draw.chance(0.4), draw.training or draw.chance(0.3)
    edge, most = 2.5, {"power": 6.0, "byte": 127.0, "float": 448.0, "four": 7.0}[kind]

    def run(x: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = functional.rms_norm(x, (width,), gain).float() if smooth else x.float()
        if smooth:
            h = h / h.abs().amax(0).clamp(min=1e-3).sqrt()
        far = h.abs() > edge
        kept = torch.where(far, 0.0, h) if apart else h
        parts = kept.view(-1, size if tiled else 1, width // size, size)
        top = parts.abs().amax((1, 3), keepdim=True).clamp(min=1e-4)
        scale = torch.exp2(torch.ceil(torch.log2(top / most))) if kind == "power" else top / most
        codes = parts / scale
        if kind == "float":
            codes = codes.clamp(-most, most).to(torch.float8_e4m3fn).float()
        elif kind == "power":
            step = torch.exp2(torch.floor(torch.log2(codes.abs().clamp(min=1)))) * 0.5
            codes = torch.round(codes / step) * step
        else:
            codes = torch.round(codes)
        if not back:
            return codes.to(torch.int8).view(rows, width), scale.flatten(1), far.sum(0)
        y = h + ((codes * scale).view(rows, width) + (h - kept) - h).detach()
        return y.to(x.dtype), (h - y).square().mean(0)

    return Program(run, (draw.tensor((rows, width)), draw.tensor((width,))), draw.training)


def head_caches(draw: Draw) -> Program:
    """Keys by channel and values by token in two or four bits, the newest kept whole: KIVI."""
    bits, heads, width = draw.choice((2, 4)), draw.choice((1, 2, 4, 8)), draw.choice((64, 80, 128))
    group, written, channel = draw.choice((16, 32, 64)), draw.chance(0.3), draw.chance(0.5)
    heads = min(heads, max(1, draw.numel // (width * group)))
    batch = min(draw.choice((1, 2, 4, 16)), max(1, draw.numel // (heads * width * group)))
    count, parts = 8 // bits, group if channel else 1
    length = max(1, draw.numel // (batch * heads * width * group)) * group
    newest = min(length, draw.choice((1, 16, 33, 128)))

    def write(x: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = functional.rms_norm(x, (width,), gain).transpose(1, 2).float()
        h = h.unflatten(2, (-1, group)) if channel else h
        low, high = h.amin(-2 if channel else -1, True), h.amax(-2 if channel else -1, True)
        scale = ((high - low) / (2**bits - 1)).clamp(min=1e-5)
        codes = torch.round((h - low) / scale).to(torch.uint8).unflatten(-1, (-1, count))
        packed = codes[..., 0]
        for n in range(1, count):
            packed = packed | (codes[..., n] << (bits * n))
        return packed.flatten(2, -2), torch.cat((low, scale), -1).to(x.dtype)

    def read(cache: Tensor, pairs: Tensor, fresh: Tensor, q: Tensor, n: Tensor) -> Tensor:
        shift = torch.arange(0, 8, bits, device=cache.device, dtype=torch.uint8)
        h = ((cache[..., None] >> shift) & (2**bits - 1)).flatten(3).to(q.dtype)
        h = (h.unflatten(2, (-1, parts)) * pairs[:, :, 1] + pairs[:, :, 0]).flatten(2, 3)
        h = torch.cat((h, fresh), 2)
        scores = (h * q[:, :, None]).sum(-1).float() * width**-0.5
        past = torch.arange(length + newest, device=n.device) >= n[:, None]
        share = functional.softmax(scores.masked_fill(~past[:, None], -1e9), -1).to(q.dtype)
        return (share[..., None] * h).sum(2)

    if written:
        x = draw.tensor((batch, length, heads, width), grad=False)
        return Program(write, (x, draw.tensor((width,), grad=False)))
    shape = (batch, heads, length, width // count)
    cache = draw.indices(shape, 256).to(torch.uint8)
    pairs = draw.tensor((batch, heads, 2, length // parts, 1, width if channel else 1))
    more = (draw.tensor((batch, heads, newest, width)), draw.tensor((batch, heads, width)))
    return Program(read, (cache, pairs, *more, draw.indices((batch,), 9)), draw.training)


#: Every family here.
FAMILIES = (dequantised_sums, nibbles, block_scales, head_caches)
