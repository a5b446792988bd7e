"""Sequences, cells and spectra of biology: strands, alignments, counts, trees, peaks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def strands(draw: Draw) -> Program:
    """Bases as ones of four, both strands scanned for motifs, bins pooled by weight: Enformer."""
    kind = draw.choice(("scan", "both", "pooled", "pooled", "smoothed"))
    width = min(draw.choice((16, 64, 96, 320, 768)), max(16, draw.numel // 128))
    size = draw.choice((4, 7, 12))
    few, scanned = draw.choice((2, 4, 8)), kind in ("scan", "smoothed")
    most = draw.numel // (16 if scanned else width)
    length = max(24, min(draw.choice((128, 600, 1000, 4096, 32768)), most) // 8 * 8)
    rows = max(1, draw.numel // (length * (4 * few if scanned else width)))
    batch, last = (rows + 1) // 2 * 2 if kind == "both" else rows, draw.chance(0.5)

    def scan(codes: Tensor, weight: Tensor, known: Tensor) -> Tensor:
        bases = (codes[..., None] == torch.arange(4, device=codes.device)).to(weight.dtype)
        bases = torch.where(known[..., None], bases, 0.25)
        if kind == "smoothed":
            share = functional.log_softmax(weight[0, :, 0].float(), 0) + math.log(4.0)
            score = (bases * share).sum(-1)
            near = functional.avg_pool1d(score, 9, 1, 4)
            return (score - near) * torch.sigmoid(near) * weight[1:].abs().mean()
        cut = bases.unfold(1, size, 1)
        found = [(cut * weight[i]).sum((-1, -2)) for i in range(few)]
        back = [(cut * weight[i].flip(0, 1)).sum((-1, -2)) for i in range(few)]
        best = torch.maximum(torch.stack(found, -1), torch.stack(back, -1))
        return best.amax(1) if last else functional.relu(best)

    def pool(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        h = functional.batch_norm(x, None, None, gain, bias, training=True)
        if kind == "both":
            one, other = functional.gelu(h).chunk(2, 0)
            h = 0.5 * (one + other.flip(2) if last else one + other.flip((1, 2)))
            return functional.softplus(h.transpose(1, 2) if last else h)
        parts = (h * torch.sigmoid(1.702 * h)).unflatten(2, (-1, few))
        score = parts * gain[:, None, None] if last else parts.float() + bias[:, None, None]
        pooled: Tensor = (parts * functional.softmax(score, -1)).sum(-1)
        return pooled

    if scanned:
        codes, known = draw.indices((batch, length), 4), draw.mask((batch, length), 0.95)
        return Program(scan, (codes, draw.tensor((few, 4, size)), known), draw.training)
    args = (draw.tensor((batch, width, length)), *(draw.tensor((width,)) for _ in "gb"))
    return Program(pool, args, draw.training)


def alignments(draw: Draw) -> Program:
    """Scores along rows or columns of alignments with pairs, gates, outer means: MSA blocks."""
    heads, length = draw.choice((1, 4, 8, 12)), draw.choice((12, 24, 50, 64, 128))
    length = min(length, max(4, int((draw.numel / heads / 2) ** 0.5)))
    rows = max(1, draw.numel // (heads * length * length))
    kind, last = draw.choice(("row", "tied", "gate", "outer", "product")), draw.chance(0.5)
    size, narrow = draw.choice((8, 16, 32)), draw.choice((3, 4, 8))
    many = max(2, draw.numel // (length * heads * size))
    some = max(2, draw.numel // (length * length * narrow * narrow // 2 + length * narrow))

    def score(x: Tensor, pair: Tensor, kept: Tensor) -> Tensor:
        bias = functional.layer_norm(pair, (heads,))
        bias = (bias.transpose(0, 1) if last else bias).permute(2, 0, 1)
        if kind == "tied":
            h = (x.float() * kept[:, None, :, None]).sum(0) * rows**-0.5 + bias
            return functional.softmax(h, -1).to(x.dtype)
        h = x + bias + (kept.to(x.dtype) - 1)[:, None, None] * 1e4
        return functional.softmax(h.float(), -1).to(x.dtype)

    def gate(x: Tensor, other: Tensor, gain: Tensor) -> Tensor:
        h = x.permute(0, 2, 1, 3).flatten(2) if last else x.permute(2, 0, 1, 3).flatten(2)
        h = h * torch.sigmoid(other + gain)
        return functional.layer_norm(h, h.shape[-1:], gain)

    def outer(x: Tensor, pair: Tensor, kept: Tensor) -> Tensor:
        one, two = (functional.layer_norm(x, (2 * narrow,)) * kept[..., None]).chunk(2, -1)
        seen = (kept[:, :, None] & kept[:, None]).sum(0)[..., None]
        if kind == "product":
            h = torch.einsum("sic,sjd->ijcd", one, two).flatten(2)
        else:
            h = (one[:, :, None, :, None] * two[:, None, :, None]).float().sum(0).flatten(2)
        return (h / (seen + 1e-3)).to(x.dtype) + pair

    if kind == "gate":
        shape = (many, length, heads * size) if last else (length, many, heads * size)
        sides = ((many, heads, length, size), shape, (heads * size,))
        return Program(gate, tuple(draw.tensor(side) for side in sides), draw.training)
    if kind in ("row", "tied"):
        scores = draw.tensor((rows, heads, length, length)), draw.tensor((length, length, heads))
        return Program(score, (*scores, draw.mask((rows, length), 0.9)), draw.training)
    means = draw.tensor((some, length, 2 * narrow)), draw.tensor((length, length, narrow**2))
    return Program(outer, (*means, draw.mask((some, length), 0.9)), draw.training)


def cell_counts(draw: Draw) -> Program:
    """Counts of genes by cell: scaled to equal sums, logged, chosen columns, count losses: scVI."""
    genes = min(draw.choice((50, 200, 1000, 2000, 5001, 20000)), max(16, draw.numel // 8))
    cells, whole = max(2, draw.numel // genes), draw.chance(0.5)
    kind = draw.choice(("scaled", "residuals", "negative", "inflated", "inflated", "poisson"))
    kept, by_cell = max(4, genes // 5), draw.chance(0.3)

    def prepare(counts: Tensor, x: Tensor, spread: Tensor, bias: Tensor) -> Tensor:
        c = counts.float()
        total = c.sum(1, keepdim=True).clamp(min=1)
        if kind == "residuals":
            mean = total * (c.sum(0) / c.sum().clamp(min=1))
            h = (c - mean) * torch.rsqrt(mean + mean.square() / 100 + 1e-6)
            h = h.clamp(-math.sqrt(cells), math.sqrt(cells))
        else:
            h = torch.log1p(c / total * (1e4 if whole else total.mean()))
        variance, mean = torch.var_mean(h, 0)
        best = (variance / (mean.abs() + 1e-3)).topk(kept).indices
        h = ((h - mean) * torch.rsqrt(variance + 1e-6))[:, best].clamp(max=10).to(x.dtype)
        return (h - x[:, best]).square().mean() + (spread * bias).mean() if whole else h

    def lose(counts: Tensor, x: Tensor, spread: Tensor, bias: Tensor) -> Tensor:
        c, share = counts.float(), functional.softmax(x.float() + bias, -1)
        mean = share * c.sum(1, keepdim=True) + 1e-6
        if kind == "poisson":
            mean = mean + 0.01 * functional.softplus(spread.float())
            return (mean - torch.xlogy(c, mean) + torch.lgamma(c + 1)).sum(-1).mean()
        theta = functional.softplus(spread.float()) + 1e-3
        log = (theta + mean + 1e-8).log()
        odds = theta * (theta.log() - log) + c * (mean.log() - log)
        odds = odds + torch.lgamma(c + theta) - torch.lgamma(theta) - torch.lgamma(c + 1)
        if kind == "inflated":
            none = x.float() * 0.5 - bias
            empty = torch.logaddexp(none, theta * (theta.log() - log))
            odds = torch.where(counts == 0, empty, odds) - functional.softplus(none)
        return -(odds.sum(-1).mean() if whole else odds.mean())

    counts = draw.indices((cells, genes), 256)
    counts = (counts - 200).clamp(min=0).to(draw.choice((torch.float32, torch.int32, torch.uint8)))
    run = prepare if kind in ("scaled", "residuals") else lose
    trained = draw.training and (whole or run is lose)
    shapes = ((cells, genes), (cells, genes) if by_cell else (genes,), (genes,))
    return Program(run, (counts, *(draw.tensor(s, grad=trained) for s in shapes)), trained)


def substitutions(draw: Draw) -> Program:
    """Likelihoods of sites up a tree, or pairs of strands by tables of changes: phylogenies."""
    states, kind = draw.choice((4, 4, 20)), draw.choice(("tree", "tree", "table", "changes"))
    levels, rates, scaled = draw.between(1, 3), draw.choice((1, 4)), draw.chance(0.6)
    leaves = 2**levels
    sites = max(8, draw.numel // (2 * states * leaves * rates))
    length = min(draw.choice((64, 250, 1000, 1273, 16384)), max(8, draw.numel // 8))
    paired = (max(1, draw.numel // (2 * length)), length)

    def climb(x: Tensor, rate: Tensor, time: Tensor) -> Tensor:
        steady = functional.softmax(rate.float().mean(0), -1)
        base = functional.softmax(0.5 * (rate + rate.t()).float(), -1)
        kept = torch.exp(-functional.softplus(time.float()))[..., None, None, None]
        moves = (1 - kept) * (0.5 * base + 0.5 * steady)
        moves = moves + kept * torch.eye(states, device=x.device)
        h, at, logs = functional.softmax(x.float(), -1)[:, None], 0, time.new_zeros(())
        for level in range(levels):
            many = leaves >> level
            up = (moves[at : at + many] * h[..., None, :]).sum(-1)
            h, at = up[0::2] * up[1::2], at + many
            if scaled:
                top = h.amax((1, 3), keepdim=True) + 1e-30
                h, logs = h / top, logs + top.log().sum((0, 1, 3))
        return ((h * steady).sum(-1).mean((0, 1)).clamp(min=1e-30).log() + logs).mean()

    def align(one: Tensor, two: Tensor, table: Tensor, known: Tensor) -> tuple[Tensor, ...]:
        score = torch.where(known, table[one, two].float(), -0.5)
        total = score.cumsum(1)
        near = functional.avg_pool1d(functional.pad(score, (4, 4)), 9, 1)
        return total[:, -1] * torch.sigmoid(near.amax(1)), score - near

    def compare(one: Tensor, two: Tensor, table: Tensor, known: Tensor) -> Tensor:
        both, apart = known & (one < states), (one - two).abs()
        count = both.sum(1).clamp(min=1)
        near = ((apart == states // 2) & both).sum(1) / count
        far = ((apart % 2 == 1) & both).sum(1) / count
        rest = (1 - 2 * near - far).clamp(min=1e-3).log(), (1 - 2 * far).clamp(min=1e-3).log()
        return -0.5 * rest[0] - 0.25 * rest[1] + table.float().mean()

    table = draw.tensor((states, states))
    if kind == "tree":
        x, time = draw.tensor((leaves, sites, states)), draw.tensor((2 * leaves - 2, rates))
        return Program(climb, (x, table, time), draw.training)
    codes = (draw.indices(paired, states), draw.indices(paired, states))
    run = align if kind == "table" else compare
    return Program(run, (*codes, table, draw.mask(paired, 0.9)), draw.training)


def peaks(draw: Draw) -> Program:
    """Spectra of peaks put in bins, scaled by root and largest, compared or smoothed: masses."""
    bins = min(draw.choice((128, 500, 1000, 2000, 10000)), max(32, draw.numel // 4))
    kind = draw.choice(("binned", "likeness", "baseline", "noise", "waves"))
    rows, many = max(2, draw.numel // (2 * bins)), draw.choice((50, 100, 256))
    rooted, whole, width = draw.chance(0.5), draw.chance(0.5), draw.choice((16, 64, 128))
    few = max(1, draw.numel // (many * width))

    def put(mass: Tensor, height: Tensor, x: Tensor) -> Tensor:
        h = height.float().abs()
        h = (h / h.amax(1, keepdim=True)).sqrt() if rooted else torch.log1p(h)
        h = functional.threshold(h, 0.05, 0.0)
        full = h.new_zeros(rows, bins).scatter_add(1, mass, h)
        full = functional.normalize(full, dim=-1)
        return (full * x).sum(-1) if whole else full.to(x.dtype)

    def compare(x: Tensor, other: Tensor, gain: Tensor) -> Tensor:
        one, two = (
            (h.float().relu() + 1e-6).sqrt() if rooted else h.float().abs() for h in (x, other)
        )
        place = torch.arange(bins, device=x.device) / bins
        one, two = (functional.normalize(h * (place + gain[0].abs()), dim=-1) for h in (one, two))
        if whole:
            mix = 0.5 * (one + two) + 1e-8
            sizes = (torch.special.entr(h / h.sum(-1, keepdim=True)).sum(-1) for h in (mix, one))
            return torch.stack([*sizes, (one * two).sum(-1)], -1)
        return (1 - (one * two).sum(-1)).square().mean()

    def level(x: Tensor, other: Tensor, gain: Tensor) -> Tensor:
        h = x.float() + other.float().square()
        if kind == "noise":
            mean, spread = h.mean(-1, keepdim=True), h.std(-1, keepdim=True) + 1e-6
            h = (h - mean) / spread
            edge = functional.pad(h, (2, 2), "replicate").unfold(-1, 5, 1)
            top = (h == edge.amax(-1)) & (h > 1)
            return torch.where(top, h * gain, 0.0 if whole else 0.1 * h).to(x.dtype)
        low = -functional.max_pool1d(-h, 17, 1, 8)
        base = functional.avg_pool1d(low, 17, 1, 8) if rooted else torch.minimum(low, h)
        for _ in range(2):
            near = functional.pad(base, (1, 1), "replicate")
            base = torch.minimum(base, 0.5 * (near[:, 2:] + near[:, :-2]))
        h = (h - base) * gain
        return (h / h.abs().amax(1, keepdim=True).clamp(min=1e-6)).to(x.dtype)

    def wave(mass: Tensor, height: Tensor, gain: Tensor) -> Tensor:
        turns = mass[..., None].float() / bins * torch.exp(gain[: width // 2].float())
        h = torch.cat((torch.sin(turns), torch.cos(turns)), -1).to(gain.dtype)
        h = functional.layer_norm(h * height.abs()[..., None], (width,)) * gain
        return h.sum(1) if whole else h

    if kind in ("binned", "waves"):
        count = few if kind == "waves" else rows
        pairs = (draw.indices((count, many), bins), draw.tensor((count, many)))
        last = draw.tensor((width,) if kind == "waves" else (rows, bins))
        return Program(wave if kind == "waves" else put, (*pairs, last), draw.training)
    args = (draw.tensor((rows, bins)), draw.tensor((rows, bins)), draw.tensor((bins,)))
    return Program(compare if kind == "likeness" else level, args, draw.training)


#: Every family here.
FAMILIES = (
    strands,
    alignments,
    cell_counts,
    substitutions,
    peaks,
)
