"""Signals of bodies and instruments: strands, alignments, counts, spectra, echoes and scans."""

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


def electrodes(draw: Draw) -> Program:
    """Electrodes referenced, mixed in space, powers and covariances logged: EEG, EMG filters."""
    places, steps = draw.choice((3, 8, 22, 64, 128)), draw.choice((64, 250, 256, 1000, 1125))
    steps = min(steps, max(16, draw.numel // (2 * places)))
    batch = max(2, draw.numel // (places * steps))
    kind = draw.choice(("spatial", "power", "variance", "covariance", "windows", "bands"))
    few, flat, size = draw.choice((2, 4, 8)), draw.chance(0.5), draw.choice((8, 15, 25))

    def run(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
        h = (x - x.mean(1, keepdim=True) if flat else x) * gain[:, None]
        if kind == "spatial":
            h = (h[:, None] * weight[:, :, None]).sum(2)
            return functional.avg_pool1d(functional.elu(h), 4)
        if kind == "power":
            h = functional.batch_norm(h, None, None, gain, gain, training=True)
            h = functional.avg_pool1d(h.float().square(), size, size // 2)
            return h.clamp(min=1e-6).log().flatten(1)
        if kind == "variance":
            h = (h[:, None] * weight[:, :, None]).sum(2).float().var(-1)
            return (h / h.sum(1, keepdim=True)).clamp(min=1e-6).log()
        if kind == "covariance":
            h = h.float() - h.float().mean(-1, keepdim=True)
            first = (h[:, :few, None] * h[:, None]).mean(-1)
            scale = torch.rsqrt(h.square().mean(-1) + 1e-6)
            return first * scale[:, :few, None] * scale[:, None]
        if kind == "windows":
            total = functional.pad(torch.stack((h, h.square())).float().cumsum(-1), (1, 0))
            mean, square = ((total[..., size:] - total[..., :-size]) / size).unbind(0)
            deviation = (square - mean.square()).clamp(min=1e-4).sqrt()
            return ((h[..., size - 1 :] - mean) / deviation).clamp(-5, 5).to(x.dtype)
        h = functional.pad(h, (size, 0))
        bands = [h[..., size:] - weight[i, 0] * h[..., i : i + steps] for i in range(few)]
        return torch.stack([band.float().abs().mean(-1).log1p() for band in bands], -1)

    x = draw.tensor((batch, places, steps))
    if draw.chance(0.3):
        turned = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
        x = turned.requires_grad_(x.requires_grad)
    mixed = draw.training and kind in ("spatial", "variance", "bands")
    args = (x, draw.tensor((few, places), grad=mixed), draw.tensor((places,)))
    return Program(run, args, draw.training)


def phases(draw: Draw) -> Program:
    """Envelopes and angles of real and imaginary parts, how channels keep step, slow rhythms."""
    channels, steps = draw.choice((2, 8, 19, 32, 64)), draw.choice((96, 250, 512, 1024, 5000))
    steps = min(steps, max(16, draw.numel // (4 * channels)))
    batch = max(1, draw.numel // (2 * channels * steps))
    kind = draw.choice(("envelope", "locked", "unwrapped", "lag", "beats"))
    joined, far = draw.chance(0.5), draw.between(1, max(1, channels // 2))

    def run(x: Tensor, turn: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        real, imag = x.float().unbind(-1) if joined else x.float().unbind(1)
        c, s = torch.cos(turn.float()), torch.sin(turn.float())
        real, imag = real * c - imag * s, real * s + imag * c
        size = (real.square() + imag.square() + 1e-8).sqrt()
        if kind == "envelope":
            slow = functional.avg_pool1d(size, 9, 1, 4)
            return ((size / (slow + 1e-3)) * gain[:, None]).to(x.dtype), slow.amax(-1)
        if kind == "beats":
            mean, over = size.mean(-1, keepdim=True), size.diff(dim=-1)
            beats = (over[..., :-1] > 0) & (over[..., 1:] <= 0) & (size[..., 1:-1] > mean)
            return beats.cumsum(-1).int(), (size[..., 1:-1] * beats).sum(-1) * gain
        one, two = real / size, imag / size
        other, beside = (torch.roll(h, far, 1) for h in (one, two))
        if kind in ("locked", "lag"):
            h, v = one * other + two * beside, two * other - one * beside
            if kind == "lag":
                return (v.sum(-1) / (v.abs().sum(-1) + 1e-6) * gain,)
            return (h.mean(-1).square() + v.mean(-1).square() + 1e-8).sqrt() * gain, h.mean((0, 2))
        angle = torch.atan2(imag, real)
        step = angle.diff(dim=-1)
        step = step - 2 * math.pi * torch.round(step.detach() / (2 * math.pi))
        return (step.cumsum(-1) + angle[..., :1]).to(x.dtype), step.mean(-1) * gain

    shape = (batch, channels, steps, 2) if joined else (batch, 2, channels, steps)
    trained = draw.training
    turn = draw.tensor((channels, 1) if draw.chance(0.5) else (steps,))
    return Program(run, (draw.tensor(shape), turn, draw.tensor((channels,))), trained)


def echoes(draw: Draw) -> Program:
    """Pulses matched by shifted products, cells above their surroundings, beams: radar, sonar."""
    receivers, cells = draw.choice((2, 4, 8, 16)), draw.choice((64, 128, 257, 512, 1024))
    kind = draw.choice(("matched", "guarded", "beams", "delays", "loaded"))
    cells = min(cells, max(16, draw.numel // (4 * receivers)))
    batch = max(1, draw.numel // (2 * receivers * cells))
    taps, looks, logged = draw.choice((3, 5, 8)), draw.choice((3, 8, 12)), draw.chance(0.5)

    def power(real: Tensor, imag: Tensor) -> Tensor:
        size = real.float().square() + imag.float().square()
        return 10 * (size + 1e-6).log10() if logged else size

    def run(real: Tensor, imag: Tensor, pulse: Tensor, late: Tensor) -> Tensor:
        c, s = pulse[0], pulse[1]
        if kind == "matched":
            cut = [h.unfold(-1, taps, 1) for h in (real, imag)]
            h = (cut[0] * c[:taps] + cut[1] * s[:taps]).sum(-1)
            return power(h, (cut[1] * c[:taps] - cut[0] * s[:taps]).sum(-1))
        if kind == "guarded":
            h = power(real, imag)
            wide, near = functional.avg_pool1d(h, 17, 1, 8), functional.avg_pool1d(h, 5, 1, 2)
            noise = (17 * wide - 5 * near) / 12
            return torch.where(h > 1.5 * noise, h - noise, 0.1 * h) * (1 + c.mean() * s.mean())
        if kind == "delays":
            at = (torch.arange(cells, device=real.device) + late[..., None]) % cells
            at = at[None].expand(batch, -1, -1)
            share = functional.softmax(c[:receivers], 0)[:, None]
            return power(*((h.gather(-1, at) * share).sum(1) for h in (real, imag))) + s.mean()
        if kind == "beams":
            place = torch.arange(receivers, device=real.device)[:, None]
            angle = torch.linspace(-1, 1, looks, device=real.device)[:, None, None] * place
            c, s = (part[:receivers, None] * angle.cos() + angle.sin() for part in (c, s))
            one, two = real[:, None], imag[:, None]
            return power((one * c + two * s).sum(2), (two * c - one * s).sum(2)).amax(1)
        pairs = (real.float().square() + imag.float().square()).mean(-1)
        weight = c[:receivers] / (pairs + 0.1 * pairs.mean(1, keepdim=True))
        weight = (weight / weight.abs().sum(1, keepdim=True))[..., None]
        return power((real * weight).sum(1), (imag * weight).sum(1) + s.mean())

    args = (draw.tensor((batch, receivers, cells)), draw.tensor((batch, receivers, cells)))
    late = draw.indices((receivers,), cells)
    return Program(run, (*args, draw.tensor((2, 16)), late), draw.training)


def orientations(draw: Draw) -> Program:
    """Turn rates summed to quaternions and pulled to gravity, step by step: inertial sensors."""
    steps, sensors = draw.choice((2, 3, 4, 6)), draw.choice((1, 6, 17))
    batch, last = max(4, draw.numel // (12 * steps * sensors)), draw.chance(0.5)
    kind, wrong = draw.choice(("gradient", "mixed", "turned", "error")), draw.chance(0.5)

    def product(one: Tensor, two: Tensor) -> Tensor:
        a, b, c, d = one.unbind(-1)
        w, x, y, z = two.unbind(-1)
        rows = (a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y)
        return torch.stack(
            (*rows, a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w), -1
        )

    def run(rates: Tensor, pull: Tensor, start: Tensor, bias: Tensor) -> Tensor:
        q = functional.normalize(start.float(), dim=-1)
        turns, pulls, outs = rates.float() - bias, functional.normalize(pull.float(), dim=-1), []
        for step in range(steps):
            turn, down = ((h[..., step, :] if last else h[step]) for h in (turns, pulls))
            if kind == "turned":
                turn = turn + 0.1 * down if wrong else turn * (1 + down)
                angle = (turn.square().sum(-1, keepdim=True) + 1e-8).sqrt()
                half = torch.cat(((angle / 2).cos(), turn * ((angle / 2).sin() / angle)), -1)
                q = product(q, half)
            else:
                w, x, y, z = q.unbind(-1)
                lies = torch.stack((x * z - w * y, w * x + y * z, w * w + z * z - 0.5), -1) * 2
                fault = torch.linalg.cross(down, lies, dim=-1)
                turn = turn + 0.5 * fault if kind != "gradient" else turn - 0.1 * (lies - down)
                q = q + 0.05 * product(q, functional.pad(turn, (1, 0)))
            q = functional.normalize(q, dim=-1)
            outs.append(q)
        h = torch.stack(outs, -2 if last else 0)
        if kind != "error":
            return h * torch.where(h[..., :1] < 0, -1.0, 1.0) if wrong else h.to(rates.dtype)
        near = (h[..., :3] * pulls).sum(-1) if wrong else h[..., 0]
        return (1 - near.square()).mean()

    shape = (batch, sensors, steps, 3) if last else (steps, batch, sensors, 3)
    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor((batch, sensors, 4)))
    return Program(run, (*args, draw.tensor((3,))), draw.training)


def reconstructed(draw: Draw) -> Program:
    """Pictures made sharp by ratios, true to measured frequencies, from coils or like patches."""
    side = min(draw.choice((16, 28, 64, 96, 128, 320)), max(6, int((draw.numel / 4) ** 0.5)))
    coils, rounds = draw.choice((1, 4, 8, 12)), draw.between(1, 2)
    kind = draw.choice(("ratios", "measured", "coils", "patches", "patches", "smooth"))
    coils = coils if kind in ("measured", "coils") else draw.choice((1, 3))
    batch, joined = max(1, draw.numel // (2 * coils * side * side)), draw.chance(0.5)
    reach, soft = draw.choice(((0, 1), (1, 1), (2, 0))), draw.chance(0.5)

    def blur(h: Tensor, point: Tensor) -> Tensor:
        near = functional.pad(h, (1, 1, 1, 1), "replicate")
        cuts = ((i, j) for i in range(3) for j in range(3))
        parts = [near[..., i : i + side, j : j + side] * point[i, j] for i, j in cuts]
        return torch.stack(parts).sum(0) if soft else sum(parts[1:], parts[0])

    def sharpen(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        point = functional.softmax(kernel.float().view(-1), 0).view(3, 3)
        h, x = other.float().abs() + 0.1, x.float().abs()
        for _ in range(rounds):
            if kind == "ratios":
                h = h * blur(torch.where(seen, x / (blur(h, point) + 1e-3), 1.0), point.flip(0, 1))
                continue
            down, right = h.diff(dim=-2), h.diff(dim=-1)
            size = (down[..., :-1].square() + right[..., :-1, :].square() + 1e-4).rsqrt()
            flow = functional.pad(down[..., :-1] * size, (0, 1, 1, 1))
            over = functional.pad(right[..., :-1, :] * size, (1, 1, 0, 1))
            h = h - 0.1 * (blur(h, point) - x - flow.diff(dim=-2) - over.diff(dim=-1))
        return h.to(kernel.dtype)

    def alike(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        weights = torch.full_like(total[:, :1], 1e-6)
        high, wide = reach
        for i in range(-high, high + 1):
            for j in range(-wide, wide + 1):
                moved = torch.roll(x, (i, j), (2, 3)).float()
                far = (moved - other).square().mean(1, keepdim=True)
                far = functional.avg_pool2d(far, 3, 1, 1) + kernel[0, 0] ** 2
                near = torch.exp(-far) * (seen if soft else 1.0)
                total, weights = total + near * moved, weights + near
        return (total / weights).to(x.dtype)

    def combine(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        real, imag = x.float().unbind(-1) if joined else x.float().unbind(1)
        one, two = other.float().unbind(-1) if joined else other.float().unbind(1)
        if kind == "measured":
            share = torch.sigmoid((kernel if soft else kernel[1, 1]).float().mean() + 2)
            parts = [
                torch.where(seen, (1 - share) * h + share * k, h)
                for h, k in ((real, one), (imag, two))
            ]
            return torch.stack(parts, -1 if joined else 1).to(x.dtype)
        norm = torch.rsqrt((one.square() + two.square()).sum(1, keepdim=True) + 1e-6)
        one, two = one * norm, two * norm
        h, v = (real * one + imag * two).sum(1), (imag * one - real * two).sum(1)
        if soft:
            return (h.square() + v.square() + 1e-8).sqrt() + kernel.float().mean()
        back = torch.where(seen, real - h[:, None] * one + v[:, None] * two, 0.0)
        return back.to(x.dtype) + kernel[0, 0]

    pair = (batch, coils, side, side, 2) if joined else (batch, 2, coils, side, side)
    whole = kind in ("measured", "coils")
    shape = pair if whole else (batch, coils, side, side)
    x, other = (draw.tensor(shape) if whole else draw.image(shape) for _ in "xo")
    seen = draw.mask((side, side) if draw.chance(0.5) else (side,), 0.4)
    run = combine if whole else alike if kind == "patches" else sharpen
    return Program(run, (x, other, draw.tensor((3, 3)), seen), draw.training)


#: Every family here.
FAMILIES = (
    strands,
    alignments,
    cell_counts,
    substitutions,
    peaks,
    electrodes,
    phases,
    echoes,
    orientations,
    reconstructed,
)
