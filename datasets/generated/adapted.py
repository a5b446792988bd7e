"""Language models adapted and served: beams, heads, drafts, byte caches, rewards."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def reordered_beams(draw: Draw) -> Program:
    """Beams extended by their likeliest words, and the caches of all layers reordered to them."""
    layers, beams, heads = draw.between(1, 4), draw.choice((2, 3, 4, 8)), draw.choice((1, 4, 6))
    batch, width, ends = draw.choice((1, 2, 5)), draw.choice((32, 64, 80)), draw.chance(0.5)
    rows, words = batch * beams, draw.choice((512, 1000, 5003))
    length = max(2, draw.numel // (2 * layers * rows * heads * width))
    words = max(16, min(words, draw.numel // rows))

    def run(scores: Tensor, total: Tensor, text: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        logs = functional.log_softmax(scores.float(), -1)
        if ends:
            done = text[:, -1] == 1
            word = torch.arange(words, device=text.device)
            logs = torch.where(done[:, None], torch.where(word == 1, 0.0, -1e9), logs)
        sums = (logs + total[:, None]).view(batch, beams * words)
        best, at = sums.topk(beams, -1)
        start = torch.arange(batch, device=text.device)[:, None] * beams
        beam, token = (start + at // words).flatten(), (at % words).flatten()
        new = torch.cat((text[beam], token[:, None]), 1)
        return (best.flatten(), new, *(c.index_select(0, beam) for c in caches))

    total = draw.tensor((rows,), dtype=torch.float32, grad=False)
    args = (draw.tensor((rows, words), grad=False), total, draw.indices((rows, 9), words))
    shape = (rows, heads, length, width)
    caches = [draw.tensor(shape, grad=False) for _ in range(2 * layers)]
    return Program(run, (*args, *caches))


def normed_heads(draw: Draw) -> Program:
    """Queries, keys and values of one product: heads normed, a part rotated, values mixed."""
    width, heads = draw.choice((32, 64, 80, 128)), draw.choice((2, 4, 8))
    batch, fewer, part = draw.choice((1, 2, 3)), draw.choice((1, 2)), draw.choice((2, 2, 4, 1))
    length = max(2, draw.numel // (batch * (heads + 2 * fewer) * width))
    turned, paired = width // part // 2 * 2, draw.chance(0.4)
    norm, residual = draw.choice(("rms", "layer", "l2")), draw.chance(0.5)

    def run(
        x: Tensor, gain: Tensor, angle: Tensor, at: Tensor, first: Tensor, mix: Tensor
    ) -> tuple[Tensor, ...]:
        q, k, v = x.unflatten(-1, (-1, width)).split((heads, fewer, fewer), 2)
        turn = (at[..., None] * angle)[:, :, None].float()
        cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
        done: list[Tensor] = []
        for each, scale in zip((q, k), gain.unbind(0), strict=True):
            if norm == "l2":
                h = functional.normalize(each.float(), dim=-1).to(x.dtype) * scale
            else:
                named = functional.rms_norm if norm == "rms" else functional.layer_norm
                h = named(each, (width,), scale)
            r = h[..., :turned]
            a, b = (r[..., ::2], r[..., 1::2]) if paired else r.chunk(2, -1)
            sides = (a * cos - b * sin, b * cos + a * sin)
            r = torch.stack(sides, -1).flatten(-2) if paired else torch.cat(sides, -1)
            done.append(torch.cat((r, h[..., turned:]), -1).transpose(1, 2))
        v = torch.lerp(v, first, torch.sigmoid(mix)) if residual else v
        return (*done, v.transpose(1, 2).contiguous())

    shape = (batch, length, fewer, width)
    args = (draw.tensor((batch, length, (heads + 2 * fewer) * width)), draw.tensor((2, width)))
    places = torch.arange(length).expand(batch, -1) + draw.indices((batch, 1), 50)
    extra = [draw.tensor(s, grad=draw.training and residual) for s in (shape, (fewer, 1))]
    angle = 10000.0 ** -torch.linspace(0, 1, turned // 2)
    return Program(run, (*args, angle, places, *extra), draw.training)


def draft_acceptance(draw: Draw) -> Program:
    """Drafted tokens accepted while the target's odds allow, and what is left to draw from."""
    words, ahead = draw.choice((128, 1000, 8192, 32000)), draw.choice((2, 4, 5, 8))
    words, greedy = min(words, max(32, draw.numel // ahead)), draw.chance(0.3)
    batch = max(1, draw.numel // (words * ahead))

    def run(target: Tensor, draft: Tensor, token: Tensor, chance: Tensor) -> tuple[Tensor, ...]:
        p, q = (functional.softmax(s.float(), -1) for s in (target, draft))
        ours, theirs = (x.gather(-1, token[..., None]).squeeze(-1) for x in (p, q))
        good = target.argmax(-1) == token if greedy else chance < ours / theirs.clamp(min=1e-9)
        count = good.long().cumprod(-1).sum(-1)
        rest = (p - q).clamp(min=0)
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)
        stop = count.clamp(max=ahead - 1)[:, None, None].expand(-1, 1, words)
        kept = torch.where(torch.arange(ahead, device=token.device) < count[:, None], token, -1)
        return kept, rest.gather(1, stop).squeeze(1), good.float().mean(0)

    args = [draw.tensor((batch, ahead, words), grad=False) for _ in range(2)]
    chance = draw.tensor((batch, ahead), dtype=torch.float32, grad=False).sigmoid()
    return Program(run, (*args, draw.indices((batch, ahead), words), chance))


def byte_cache(draw: Draw) -> Program:
    """Keys stored as bytes with a scale for each token and head, read again and scored."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((32, 64, 80, 128))
    batch, fresh = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 3, 16))
    length = max(fresh, draw.numel // (batch * heads * width))
    moved, zero = draw.chance(0.5), draw.chance(0.4)

    def run(
        cache: Tensor, scales: Tensor, new: Tensor, query: Tensor, at: Tensor, beam: Tensor
    ) -> Tensor:
        h = new.float()
        low, high = h.amin(-1, keepdim=True), h.amax(-1, keepdim=True)
        middle = (high + low) / 2 if zero else torch.zeros_like(low)
        scale = ((h - middle).abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6)
        cache[:, :, at] = ((h - middle) / scale).round().clamp(-128, 127).to(torch.int8)
        scales[:, :, at] = torch.cat((scale, middle), -1)
        kept, pair = (cache[beam], scales[beam]) if moved else (cache, scales)
        q = functional.rms_norm(query.float(), (width,))[:, :, None]
        scores = ((kept.float() * pair[..., :1] + pair[..., 1:]) * q).sum(-1) / width**0.5
        past = torch.arange(length, device=at.device) <= at[-1]
        return functional.softmax(scores.masked_fill(~past, -1e9), -1).to(query.dtype)

    shape = (batch, heads, length)
    cache, start = draw.tensor((*shape, width), dtype=torch.int8), draw.between(0, length - fresh)
    scales = draw.tensor((*shape, 2), dtype=torch.float32, grad=False, positive=True)
    new = draw.tensor((batch, heads, fresh, width), grad=False)
    places = (torch.arange(start, start + fresh), draw.indices((batch,), batch))
    query = draw.tensor((batch, heads, width), grad=False)
    return Program(run, (cache, scales, new, query, *places))


def hashed_ngrams(draw: Draw) -> Program:
    """Bytes and the few before them hashed to tables, summed, pooled to patches, with prompts."""
    batch, width, most = draw.choice((1, 2, 3, 8)), draw.choice((16, 64, 128)), draw.between(1, 4)
    patch, prompts = draw.choice((1, 2, 4, 6)), draw.choice((0, 0, 4, 10))
    length = -(-max(3, draw.numel // (batch * width)) // patch) * patch
    words = min(draw.choice((997, 4096)), max(7, draw.numel // (most * width)))
    mean = draw.chance(0.5)

    def run(text: Tensor, table: Tensor, single: Tensor, prefix: Tensor) -> Tensor:
        h, code = functional.embedding(text, single), text
        for n in range(1, most + 1):
            code = code * 257 + functional.pad(text, (n, 0))[:, :length]
            h = h + table[n - 1][(code ^ (code >> 7)) % words]
        parts = (h / (most + 1)).unflatten(1, (-1, patch))
        h = parts.mean(2) if mean else parts.amax(2)
        return torch.cat((prefix[:prompts].expand(batch, -1, -1), h), 1) if prompts else h

    text = draw.indices((batch, length), 256)
    prefix = draw.tensor((10, width), grad=draw.training and prompts > 0)
    tables = (draw.tensor((most, words, width)), draw.tensor((256, width)))
    return Program(run, (text, *tables, prefix), draw.training)


def last_rewards(draw: Draw) -> Program:
    """Rewards of pairs at their last tokens, or pooled embeddings of unit length compared."""
    width, kind = draw.choice((64, 128, 320, 768)), draw.choice(("reward", "pooled", "weighted"))
    length = min(draw.choice((5, 16, 63, 128)), max(3, draw.numel // (2 * width)))
    rows, margin = 2 * max(1, draw.numel // (2 * length * width)), draw.chance(0.4)

    def run(x: Tensor, head: Tensor, keep: Tensor, better: Tensor) -> tuple[Tensor, ...]:
        h, count = functional.rms_norm(x, (width,)).float(), keep.sum(1)
        if kind == "reward":
            last = (count - 1).clamp(min=0)[:, None, None].expand(-1, 1, width)
            score = (h.gather(1, last).squeeze(1) * head).sum(-1)
            gap = score[::2] - score[1::2] - (better.abs() if margin else 0.0)
            return -functional.logsigmoid(gap).mean(), (gap > 0).float().mean(), score
        weight = keep.float()
        if kind == "weighted":
            weight = weight * torch.arange(1, length + 1, device=x.device)
        mean = (h * weight[..., None]).sum(1) / weight.sum(1).clamp(min=1)[:, None]
        unit = functional.normalize(mean * head, dim=-1)
        near = (unit[::2] * unit[1::2]).sum(-1)
        return (near - better.tanh()).square().mean(), unit.to(x.dtype)

    keep = torch.arange(length) < draw.indices((rows, 1), length) + 1
    better = draw.tensor((rows // 2,), dtype=torch.float32, grad=False)
    args = (draw.tensor((rows, length, width)), draw.tensor((width,)), keep, better)
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (
    reordered_beams,
    normed_heads,
    draft_acceptance,
    byte_cache,
    hashed_ngrams,
    last_rewards,
)
