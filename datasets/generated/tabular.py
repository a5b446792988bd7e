"""Tables, rankings and recommendations: tokens of columns, trees, crosses, tasks, towers, lists."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def feature_tokens(draw: Draw) -> Program:
    """Numbers by affine maps or periods and looked-up categories as tokens: FT-Transformer."""
    columns, width = draw.choice((5, 14, 27, 54, 100)), draw.choice((4, 8, 16, 24, 64, 96, 192))
    width = min(width, 2 * max(2, draw.numel // (8 * columns)))
    rows, kind = max(4, draw.numel // (columns * width)), draw.choice(("line", "period", "gated"))
    few, ending, filled = (
        draw.between(1, 5),
        draw.choice(("norm", "flat", "mean")),
        draw.chance(0.5),
    )
    words = max(2, min(draw.log_between(20, 20000), draw.numel // (4 * few * width)))

    def run(x: Tensor, w: Tensor, b: Tensor, at: Tensor, table: Tensor, gap: Tensor) -> Tensor:
        if filled:
            mean = torch.where(gap, 0.0, x.float()).sum(0) / (~gap).sum(0).clamp(min=1)
            x = torch.where(gap, mean, x.float()).to(x.dtype)
        h = x[..., None] * w[0] + b
        if kind == "period":
            angle = 2 * math.pi * x[..., None] * w[0, :, : width // 2]
            h = torch.relu(torch.cat((angle.cos(), angle.sin()), -1) * w[1] + b)
        h = h * torch.sigmoid(x[..., None] * w[1]) if kind == "gated" else h
        h = h if filled else torch.where(gap[..., None], w[1], h)
        looked = functional.embedding(at + torch.arange(few, device=x.device) * words, table)
        h = torch.cat((b.mean(0).expand(rows, 1, -1), looked + b[:few], h), 1)
        if ending == "norm":
            return functional.layer_norm(h, (width,), w[0, 0], w[1, 0]).transpose(1, 2).contiguous()
        return h.flatten(1) if ending == "flat" else functional.gelu(h).mean(1)

    x, w = draw.tensor((rows, columns), grad=False), draw.tensor((2, columns, width))
    args = (x, w, draw.tensor((columns, width)), draw.indices((rows, few), words))
    more = (draw.tensor((few * words, width)), draw.mask((rows, columns), 0.1))
    return Program(run, (*args, *more), draw.training)


def sparse_masks(draw: Draw) -> Program:
    """Columns chosen by sparse shares that remember what was used: sparsemax, entmax, TabNet."""
    width, rounds = draw.choice((8, 14, 33, 54, 128, 200, 512, 784)), draw.choice((6, 10, 16))
    rows, ordered = max(2, draw.numel // width), draw.chance(0.4)
    power, normed = draw.choice((1, 1, 2)), draw.chance(0.5)

    def run(x: Tensor, score: Tensor, prior: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        z = score.float()
        if normed:
            var, mean = torch.var_mean(z, 0, correction=0)
            z = (z - mean) * torch.rsqrt(var + 1e-3) * gain
        z = z * prior
        if ordered:
            s = z.sort(-1, descending=True).values
            over, rank = s.cumsum(-1) - 1, torch.arange(1, width + 1, device=z.device)
            count = (s * rank > over).sum(-1, keepdim=True)
            p = functional.relu(z - over.gather(-1, count - 1) / count)
        else:
            fixed = z.detach()
            low = fixed.amax(-1, keepdim=True) - 1
            for step in range(1, rounds + 1):
                total = functional.relu(fixed - low - 0.5**step).pow(power).sum(-1, keepdim=True)
                low = torch.where(total >= 1, low + 0.5**step, low)
            p = functional.normalize(functional.relu(z - low).pow(power), 1.0, -1)
        return (x * p).to(x.dtype), prior * (1.3 - p), -(p * torch.log(p + 1e-10)).sum(-1).mean()

    args = (draw.tensor((rows, width), grad=False), draw.tensor((rows, width)))
    prior = draw.tensor((rows, width), dtype=torch.float32, grad=False, positive=True)
    return Program(run, (*args, prior, draw.tensor((width,))), draw.training)


def oblivious_trees(draw: Draw) -> Program:
    """Trees of one question a level, soft or looked up, or gains of splits by bin: NODE."""
    depth, trees = draw.between(2, 6), draw.choice((4, 16, 32, 100, 256))
    leaves, kind = 2**depth, draw.choice(("soft", "soft", "looked", "grown"))
    bins, hard, summed = draw.choice((16, 64, 255)), draw.chance(0.4), draw.chance(0.5)
    size = {"soft": leaves, "looked": depth, "grown": 1}[kind]
    trees = min(trees, max(2, draw.numel // (leaves * (bins if kind == "grown" else 4))))
    rows = max(2, draw.numel // (trees * size))

    def grow(code: Tensor, node: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
        at = (node[:, None] * trees + torch.arange(trees, device=code.device)) * bins + code.long()
        many = slopes[:, :, None].expand(-1, -1, trees).flatten(1)
        sums = torch.zeros(2, leaves * trees * bins, device=code.device)
        sums = sums.index_add(1, at.flatten(), many).view(2, leaves, trees, bins)
        a, b = sums.cumsum(-1).unbind(0)
        g, c = sums.sum(-1, keepdim=True).unbind(0)
        gain = a.square() / (b + 1) + (g - a).square() / (c - b + 1)
        return gain.masked_fill(b < 1, -1.0).flatten(1).max(-1)

    def run(x: Tensor, border: Tensor, heat: Tensor, response: Tensor) -> Tensor:
        if kind == "looked":
            at = ((x > border).long() << torch.arange(depth, device=x.device)).sum(-1)
            found = response[torch.arange(trees, device=x.device), at]
            return found.mean(1) if summed else found
        s = (x - border).float() * torch.exp(-heat)
        right = (0.5 * s + 0.5).clamp(0, 1) if hard else torch.sigmoid(s)
        share = (sides := torch.stack((right, 1 - right), -1))[:, :, 0]
        for n in range(1, depth):
            share = (share[..., None] * sides[:, :, n, None]).flatten(2)
        found = (share * response).sum(-1).to(x.dtype)
        return found.mean(1) if summed else found

    if kind == "grown":
        slopes = draw.tensor((2, rows), dtype=torch.float32, grad=False, positive=True)
        code = draw.indices((rows, trees), bins).to(torch.uint8)
        return Program(grow, (code, draw.indices((rows,), leaves), slopes))
    x = draw.tensor((rows, trees, depth), grad=draw.training and kind == "soft")
    parts = [draw.tensor(shape) for shape in ((trees, depth), (trees, 1), (trees, leaves))]
    return Program(run, (x, *parts), draw.training)


def field_crosses(draw: Draw) -> Program:
    """Fields crossed with fields: aware of them, weighed by pair, in layers: FFM, AFM, CIN, DCN."""
    kind = draw.choice(("aware", "weighed", "layers", "layers", "sums"))
    fields, width = draw.choice((4, 7, 10, 16, 26)), draw.choice((4, 8, 10, 16, 32))
    layers, experts = (draw.between(1, 4), draw.choice((1, 2, 4))) if kind == "layers" else (1, 1)
    size = {"aware": fields, "weighed": fields // 2, "layers": layers * experts}
    rows = max(1, draw.numel // (fields * width * size.get(kind, fields // 4 + 1)))

    def run(x: Tensor, w: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        if kind == "aware":
            both = (x * x.transpose(1, 2)).sum(-1) * bias[:, :1]
            return torch.sigmoid(both.float().triu(1).sum((1, 2)))
        if kind == "weighed":
            first, second = torch.triu_indices(fields, fields, 1, device=x.device).unbind(0)
            both = x[:, first] * x[:, second]
            share = functional.softmax((torch.relu(both + bias[0]) * w[0, 0]).sum(-1), -1)
            return (both * share[..., None]).sum(1)
        if kind == "sums":
            crossed = (x[:, :, None] * torch.tanh(x)[:, None] * bias[:, None]).sum(1)
            return torch.cat((x.sum(1), functional.relu(crossed).sum(1)), -1)
        h = first = x.flatten(1)
        for n in range(layers):
            share = functional.softmax((h[:, None] * w.flatten(1)).mean(-1, keepdim=True), 1)
            h = first * ((torch.tanh(out[n]) * share).sum(1) + bias.view(-1)) + h
        return h

    x = draw.tensor((rows, fields, fields, width) if kind == "aware" else (rows, fields, width))
    out = (layers, rows, experts, fields * width) if kind == "layers" else (1,)
    weights = [draw.tensor(shape) for shape in ((experts, fields, width), (fields, width), out)]
    return Program(run, (x, *weights), draw.training)


def ghost_batches(draw: Draw) -> Program:
    """Columns normalised by parts of the batch or over what is there, then gated: TabNet, MLPs."""
    width, gated = draw.choice((8, 16, 28, 64, 128, 256, 512)), draw.choice(("no", "glu", "relu"))
    size = max(4, min(draw.choice((16, 64, 128, 256, 1000)), draw.numel // width))
    parts, kind = max(1, draw.numel // (width * size)), draw.choice(("ghost", "ghost", "gaps"))

    def run(x: Tensor, old: Tensor, gain: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        h = x.float().view(parts, size, width)
        if kind == "ghost":
            var, mean = torch.var_mean(h, 1, correction=0, keepdim=True)
        else:
            count = keep.sum((0, 1)).clamp(min=1)
            mean = torch.where(keep, h, 0.0).sum((0, 1), keepdim=True) / count
            var = torch.where(keep, h - mean, 0.0).square().sum((0, 1), keepdim=True) / count
            h = torch.where(keep, h, mean)
        kept = torch.lerp(old, torch.stack((mean.mean((0, 1)), var.mean((0, 1)))), 0.02)
        y = ((h - mean) * torch.rsqrt(var + 1e-5) * gain + bias).view(-1, width)
        if gated == "glu":
            first, second = y.chunk(2, -1)
            return (first * torch.sigmoid(second)).to(x.dtype), kept
        y = functional.relu(y) if gated == "relu" else y.clamp(-4, 4)
        return ((y + x) * math.sqrt(0.5)).to(x.dtype), kept

    old = draw.tensor((2, width), dtype=torch.float32, grad=False)
    args = (draw.tensor((parts * size, width)), old, draw.tensor((width,)), draw.tensor((width,)))
    return Program(run, (*args, draw.mask((parts, size, width), 0.85)), draw.training)


def task_gates(draw: Draw) -> Program:
    """Experts mixed for each task by its gate, and losses of several tasks: MMoE, ESMM, uplift."""
    tasks, experts, outer = draw.between(2, 6), draw.choice((2, 3, 4, 8)), draw.chance(0.5)
    width, kind = draw.choice((8, 16, 32, 64, 100, 256)), draw.choice(("product", "hazard", "lift"))
    rows, returned = max(2, draw.numel // (experts * width)), draw.chance(0.4)

    def run(x: Tensor, gate: Tensor, w: Tensor, at: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        h = torch.relu((x.transpose(0, 1) if outer else x) + w[tasks:])
        share = functional.softmax(gate.float(), -1).to(x.dtype)
        found = [(h * share[:, n, :, None]).sum(1) for n in range(tasks)]
        s = torch.stack([(y * each).sum(-1) for y, each in zip(found, w[:tasks], strict=True)], -1)
        if returned:
            return (torch.sigmoid(s.float()), *found)
        s, place = s.float(), torch.arange(tasks, device=x.device)
        if kind == "hazard":
            loss = functional.softplus(s) * (place <= at[:, None]) - s * (place == at[:, None])
            return loss.sum(-1).mean(), torch.exp(-functional.softplus(s).cumsum(-1))
        y = (place < at[:, None]).float()
        if kind == "lift":
            s = torch.where(given[:, None], s + s.roll(1, 1), s)
            return (functional.softplus(s) - s * y).mean(0), (y * given[:, None]).mean(0)
        p = torch.sigmoid(s).cumprod(-1).clamp(1e-6, 1 - 1e-6)
        return -(y * torch.log(p) + (1 - y) * torch.log1p(-p)).mean(0), p.mean(0)

    x = draw.tensor((experts, rows, width) if outer else (rows, experts, width))
    args = (x, draw.tensor((rows, tasks, experts)), draw.tensor((tasks + experts, width)))
    where = (draw.indices((rows,), tasks + 1), draw.mask((rows,), 0.4))
    return Program(run, (*args, *where), draw.training)


def two_towers(draw: Draw) -> Program:
    """Rows of several hashed tables summed to towers, scored within the batch or by negatives."""
    width, hashes = draw.choice((8, 16, 32, 64, 128)), draw.choice((1, 2, 2, 4))
    kind, words = draw.choice(("rows", "batch", "more")), draw.choice((101, 1009, 10007, 99991))
    few, unit, heat = draw.choice((4, 10, 64)), draw.chance(0.6), draw.choice((0.05, 0.2, 1.0))
    size = {"rows": width * hashes, "more": few * width, "batch": int(draw.numel**0.5)}[kind]
    rows, words = max(2, draw.numel // size), max(7, min(words, draw.numel // width))

    def tower(at: Tensor, table: Tensor) -> Tensor:
        codes = [((at * 31 + n) ^ (at >> (n + 3))) % words for n in range(hashes)]
        h = torch.stack([functional.embedding(code, table) for code in codes]).sum(0).float()
        return functional.normalize(h, dim=-1) if unit else torch.tanh(h)

    def run(at: Tensor, item: Tensor, user: Tensor, table: Tensor, often: Tensor) -> Tensor:
        q, k = tower(at, user), tower(item, table)
        if kind == "rows":
            return (q * k).sum(-1) / heat - torch.log(often[item % words])
        if kind == "more":
            s = (q[:, None] * k).sum(-1) / heat - torch.log(often[item % words])
            return functional.softplus(s[:, 1:] - s[:, :1]).mean()
        s = (q @ k.t()) / heat - torch.log(often[item % words])
        own = torch.eye(rows, dtype=torch.bool, device=s.device)
        s = s.masked_fill((item[:, None] == item) & ~own, -1e9)
        return (torch.logsumexp(s, -1) - s.diagonal()).mean()

    item = draw.indices((rows, few) if kind == "more" else (rows,), 2**20)
    often = draw.tensor((words,), dtype=torch.float32, grad=False, positive=True)
    args = (draw.indices((rows,), 2**20), item, *(draw.tensor((words, width)) for _ in "ui"))
    return Program(run, (*args, often), draw.training)


def ranked_lists(draw: Draw) -> Program:
    """Lists of labelled documents: shares, pairs weighed by what a swap does, orders, ranks."""
    kind, heat = draw.choice(("shares", "swaps", "swaps", "order", "smooth")), draw.choice((0.5, 2))
    length = min(draw.choice((5, 10, 24, 50, 128, 200)), max(5, int(draw.numel**0.5)))
    rows = max(1, draw.numel // (length * (length if kind in ("swaps", "smooth") else 1)))

    def run(score: Tensor, label: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        place = torch.arange(length, device=score.device)
        there, fade = place < count[:, None], torch.log2(place + 2.0)
        s, y = score.float().masked_fill(~there, -1e4), label.masked_fill(~there, 0).float()
        if kind == "shares":
            wanted = functional.softmax(y / heat, -1) * there
            loss = -(wanted * functional.log_softmax(s / heat, -1)).sum(-1)
            return loss.mean(), (s.argmax(-1) == y.argmax(-1)).float().mean()
        if kind == "order":
            order = (y + there).sort(-1, descending=True).indices
            s = s.gather(1, order)
            rest = torch.logcumsumexp(s.flip(1), 1).flip(1)
            return ((rest - s) * there.gather(1, order) / fade).sum(-1).mean(), order
        gain, both = torch.exp2(y) - 1, there[:, :, None] & there[:, None]
        best = (gain.sort(-1, descending=True).values / fade).sum(-1).clamp(min=1)
        gap = s[:, :, None] - s[:, None]
        if kind == "smooth":
            rank = (torch.sigmoid(-gap / heat) * both).sum(-1) + 0.5
            return (1 - (gain / torch.log2(1 + rank)).sum(-1) / best).mean(), rank
        near = 1 / torch.log2(((gap < 0) & both).sum(-1) + 2.0)
        swap = (gain[:, :, None] - gain[:, None]).abs() * (near[:, :, None] - near[:, None]).abs()
        loss = functional.softplus(-gap * heat) * swap * ((y[:, :, None] > y[:, None]) & both)
        return (loss.sum((1, 2)) / best).mean(), near

    args = (draw.tensor((rows, length)), draw.indices((rows, length), 5))
    return Program(run, (*args, draw.indices((rows,), length) + 1), draw.training)


#: Every family here.
FAMILIES = (
    feature_tokens,
    sparse_masks,
    oblivious_trees,
    field_crosses,
    ghost_batches,
    task_gates,
    two_towers,
    ranked_lists,
)
