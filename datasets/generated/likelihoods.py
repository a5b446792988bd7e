"""Generative models with likelihoods: flows, discrete codes, hidden tokens, mixtures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.generative import drawn_picture


def coupled_flows(draw: Draw) -> Program:
    """Invertible layers with log-determinants: halves, chequers, squeezed pixels, spline bins."""
    kind, act = draw.choice(("halves", "chequers", "splines")), draw.chance(0.5)
    batch, width, high, wide = drawn_picture(draw, (2, 4, 12, 48))
    bins, bound, squeezed = draw.choice((4, 8, 10, 16)), draw.choice((1.0, 3.0)), draw.chance(0.5)

    def couple(x: Tensor, change: Tensor, gain: Tensor, order: Tensor) -> tuple[Tensor, ...]:
        h = (x + gain[0, :, None, None]) * torch.exp(gain[1, :, None, None]) if act else x
        h = h[:, order]
        spread, shift = change.chunk(2, 1)
        if kind == "chequers":
            at = torch.arange(high, device=x.device)[:, None] + torch.arange(wide, device=x.device)
            spread = torch.tanh(spread) * (at % 2)
            h = h * torch.exp(spread) + shift * (at % 2)
        else:
            spread = torch.log(torch.sigmoid(spread[:, ::2].float() + 2))
            first, second = h.chunk(2, 1)
            h = torch.cat((first, (second + shift[:, ::2]) * torch.exp(spread)), 1).to(x.dtype)
        h = functional.pixel_unshuffle(h, 2) if squeezed else h
        prior = -0.5 * (h.float().square() + 1.8379).sum((1, 2, 3))
        return h, prior + spread.float().sum((1, 2, 3)) + gain[1].float().sum() * high * wide

    def bend(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
        edges = [0.001 + (1 - 0.001 * bins) * h.float().softmax(-1) for h in (widths, heights)]
        ends = [functional.pad(h.cumsum(-1), (1, 0)) * 2 * bound - bound for h in edges]
        value = x.float().clamp(-bound, bound)[..., None]
        at = ((value >= ends[0]).sum(-1, keepdim=True) - 1).clamp(0, bins - 1)
        left, low = (h.gather(-1, at) for h in ends)
        across, up = (h.gather(-1, at) * 2 * bound for h in edges)
        slope = functional.softplus(slopes.float()) + 0.001
        one, two, mean = slope.gather(-1, at), slope.gather(-1, at + 1), up / across
        part = (value - left) / across
        both, under = part * (1 - part), mean + (one + two - 2 * mean) * part * (1 - part)
        h = low + up * (mean * part * part + one * both) / under
        rate = two * part * part + 2 * mean * both + one * (1 - part).square()
        logs = torch.log(mean.square() * rate) - 2 * torch.log(under)
        inside = x.abs() < bound
        return torch.where(inside, h[..., 0], x), torch.where(inside, logs[..., 0], 0.0).sum(-1)

    if kind == "splines":
        rows = (max(2, draw.numel // (width * 3 * bins)), width)
        args = (draw.tensor((*rows, n)) for n in (bins, bins, bins + 1))
        return Program(bend, (draw.tensor(rows), *args), draw.training)
    x, change = draw.image((batch, width, high, wide)), draw.image((batch, 2 * width, high, wide))
    order = torch.randperm(width, generator=draw.generator)
    return Program(couple, (x, change, draw.tensor((2, width)), order), draw.training)


def discrete_codes(draw: Draw) -> Program:
    """Latents made discrete: few levels, signs with entropies, rounds of tables, moving counts."""
    kind = draw.choice(("levels", "signs", "rounds", "counts"))
    width = draw.choice((3, 4, 6, 10, 18) if kind in {"levels", "signs"} else (8, 32, 64, 256))
    first, depth = draw.chance(0.5), draw.between(1, 4)
    entries = min(draw.choice((64, 256, 1024, 8192)), max(8, draw.numel // (8 * width)))
    rows = max(2, draw.numel // (width * draw.choice((1, 16, 49, 256, 1024))))
    length = max(1, draw.numel // (rows * width))

    def few(x: Tensor, levels: Tensor) -> tuple[Tensor, ...]:
        h = (x.transpose(1, 2) if first else x).float()
        if kind == "levels":
            half = (levels - 1) * 0.5005
            bounded = torch.tanh(h + levels % 2 * 0.1) * half
            code = bounded + (bounded.round() - bounded).detach()
            base = torch.cumprod(torch.cat((levels.new_ones(1), levels[:-1])), 0)
            at = ((code + levels // 2) * base).sum(-1).long()
            return (code / (levels // 2)).to(x.dtype), at
        code = h + (torch.where(h > 0, 1.0, -1.0) - h).detach()
        p = torch.sigmoid(4 * h)
        sure = -(p * torch.log(p + 1e-6) + (1 - p) * torch.log(1 - p + 1e-6)).mean()
        mean = p.mean((0, 1))
        spread = -(mean * torch.log(mean + 1e-6)).sum()
        at = ((h > 0) << torch.arange(width, device=x.device)).sum(-1)
        return code.to(x.dtype), at, sure - spread + 0.25 * (h - code.detach()).square().mean()

    def looked(x: Tensor, tables: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        rest, total, lost = x.flatten(0, 1), torch.zeros_like(x.flatten(0, 1)), []
        for i in range(depth if kind == "rounds" else 1):
            code = tables[i][at[i]]
            lost.append(
                (rest.detach() - code).square().mean() + (rest - code.detach()).square().mean()
            )
            rest, total = rest - code.detach(), total + code
        out = (x.flatten(0, 1) + (total - x.flatten(0, 1)).detach()).view_as(x)
        if kind == "rounds":
            return (out.transpose(1, 2).contiguous() if first else out), torch.stack(lost).sum()
        count = torch.zeros(entries, device=x.device).index_add(
            0, at[0], torch.ones_like(at[0]).float()
        )
        sums = torch.zeros_like(tables[0]).index_add(0, at[0], x.detach().flatten(0, 1))
        share = count / count.sum()
        fresh = 0.99 * tables[0] + 0.01 * sums / (count[:, None] + 1e-5)
        return (
            out,
            fresh.detach().to(x.dtype),
            torch.exp(-(share * torch.log(share + 1e-9)).sum()),
            lost[0],
        )

    if kind in {"levels", "signs"}:
        x = draw.tensor((rows, width, length) if first else (rows, length, width))
        return Program(few, (x, draw.indices((width,), 6).float() + 3), draw.training)
    tables, at = draw.tensor((depth, entries, width)), draw.indices((depth, rows * length), entries)
    return Program(looked, (draw.tensor((rows, length, width)), tables, at), draw.training)


def corrupted_tokens(draw: Draw) -> Program:
    """Tokens hidden or replaced by rate, embedded, their loss by token, and odds of the next."""
    kind = draw.choice(("embedded", "loss", "loss", "odds"))
    words = draw.choice((27, 256, 1025, 8193, 32000)) if draw.numel > 2**17 else 27
    width = draw.choice((64, 256, 384, 768)) if kind == "embedded" else words
    batch = min(draw.choice((2, 8, 16, 64)), max(2, draw.numel // (4 * width)))
    length = max(2, draw.numel // (batch * width))
    uniform, smoothed = draw.chance(0.4), draw.chance(0.3)

    def embed(table: Tensor, places: Tensor, tokens: Tensor, other: Tensor, time: Tensor) -> Tensor:
        hidden = places[:, :, 0] < time[:, None]
        mixed = torch.where(hidden, other if uniform else words - 1, tokens)
        return table[mixed] + places + hidden[..., None] * table[0]

    def lose(logits: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        s = logits.float()
        if uniform:
            s = s.index_fill(-1, torch.full((1,), words - 1, device=s.device), -1e4)
        logs = functional.log_softmax(s, -1)
        error = -logs.gather(-1, tokens[..., None])[..., 0]
        error = 0.9 * error - 0.1 * logs.mean(-1) if smoothed else error
        error = error * hidden / time[:, None].clamp(min=0.05)
        right = (logs.argmax(-1) == tokens) & hidden
        return error.sum() / hidden.sum().clamp(min=1), right.sum(-1)

    def sample(logits: Tensor, tokens: Tensor, hidden: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        p = functional.softmax(logits.float(), -1)
        stay = functional.one_hot(tokens, words).to(p.dtype) if uniform else 1 / words
        p = time[:, None, None] * p + (1 - time[:, None, None]) * stay
        sure, best = p.max(-1)
        rank = torch.where(hidden, sure, 2.0).argsort(-1, descending=True)
        open_now = torch.zeros_like(hidden).scatter(1, rank[:, : length // 2 + 1], True)
        return torch.where(open_now & hidden, best, tokens), hidden & ~open_now

    tokens = draw.indices((batch, length), words)
    time = draw.tensor((batch,), dtype=torch.float32, grad=False).sigmoid()
    if kind == "embedded":
        args = (draw.tensor((words, width)), draw.tensor((batch, length, width)))
        other = draw.indices((batch, length), words)
        return Program(embed, (*args, tokens, other, time), draw.training)
    trained = draw.training and kind == "loss"
    logits, hidden = draw.tensor((batch, length, words), grad=trained), draw.mask((batch, length))
    return Program(lose if kind == "loss" else sample, (logits, tokens, hidden, time), trained)


def pixel_mixtures(draw: Draw) -> Program:
    """Pixels under mixtures of logistics, colours by those before, or codes under mixed priors."""
    parts, prior = draw.choice((2, 5, 10, 16)), draw.chance(0.35)
    last, scored = draw.chance(0.5), draw.chance(0.3)
    batch, _, high, wide = drawn_picture(draw, (10 * parts,))
    width = draw.choice((2, 16, 40, 64))

    def pixels(x: Tensor, found: Tensor) -> tuple[Tensor, ...]:
        h = (found.permute(0, 3, 1, 2) if last else found).float()
        odds, rest = h[:, :parts], h[:, parts:].unflatten(1, (9, parts))
        mean, spread, share = rest.chunk(3, 1)
        spread, share, y = (
            spread.clamp(min=-7),
            torch.tanh(share),
            x.float().clamp(-1, 1)[:, :, None],
        )
        second = mean[:, 1] + share[:, 0] * y[:, 0]
        third = mean[:, 2] + share[:, 1] * y[:, 0] + share[:, 2] * y[:, 1]
        gap, rate = y - torch.stack((mean[:, 0], second, third), 1), torch.exp(-spread)
        above, below = rate * (gap + 1 / 255), rate * (gap - 1 / 255)
        inner = torch.log((torch.sigmoid(above) - torch.sigmoid(below)).clamp(min=1e-12))
        ends = torch.where(y > 1 - 1e-3, -functional.softplus(below), inner)
        logs = torch.where(y < 1e-3 - 1, above - functional.softplus(above), ends).sum(1)
        joint = torch.logsumexp(logs + functional.log_softmax(odds, 1), 1)
        return -joint.mean(), odds.argmax(1) if scored else joint

    def codes(z: Tensor, mean: Tensor, spread: Tensor, odds: Tensor) -> tuple[Tensor, ...]:
        wide_apart = spread.float().clamp(-4, 4)
        logs = -0.5 * ((z[:, None] - mean).square() * torch.exp(-wide_apart) + wide_apart).sum(-1)
        logs = logs + functional.log_softmax(odds.float(), -1)
        own = -0.5 * z.float().square().mean(0).clamp(min=0.1).sum()
        return own - torch.logsumexp(logs, 1).mean(), functional.softmax(logs, 1)

    if prior:
        rows = max(2, draw.numel // (width * max(2, parts // 2)))
        args = (draw.tensor((rows, width)), *(draw.tensor((parts, width)) for _ in "ms"))
        return Program(codes, (*args, draw.tensor((parts,))), draw.training)
    shape = (batch, high, wide, 10 * parts) if last else (batch, 10 * parts, high, wide)
    x = draw.tensor((batch, 3, high, wide), grad=False)
    return Program(pixels, (x, draw.tensor(shape)), draw.training)


#: Every family here.
FAMILIES = (coupled_flows, discrete_codes, corrupted_tokens, pixel_mixtures)
