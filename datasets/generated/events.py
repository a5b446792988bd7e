"""Events and states in time: dates as features, densities, hazards, states step by step."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.forecasts import drawn_series


def dated_features(draw: Draw) -> Program:
    """Hours, days and weeks made from seconds: looked up, as waves or flags, beside the values."""
    kind, width = (
        draw.choice(("tables", "waves", "both", "flags")),
        draw.choice((8, 16, 64, 128, 512)),
    )
    batch, normed, turned = draw.choice((1, 8, 32, 128)), draw.chance(0.4), draw.chance(0.3)
    width = min(width, max(8, draw.numel // 256))
    steps = max(4, draw.numel // (batch * width))
    units = draw.random.sample(((60, 60), (3600, 24), (86400, 7), (604800, 53)), draw.between(1, 4))

    def run(x: Tensor, seconds: Tensor, place: Tensor, rate: Tensor, *tables: Tensor) -> Tensor:
        h = x.transpose(1, 2) if turned else x
        h = (h + h.roll(1, 1) * rate[0] + h.roll(-1, 1) * rate[1]) + place
        parts = [seconds // long % count for long, count in units]
        if kind in {"tables", "both"}:
            h = h + sum(
                functional.embedding(part, w) for part, w in zip(parts, tables, strict=True)
            )
        if kind in {"waves", "both"}:
            angle = (seconds % 86400).float()[..., None] / 86400 * 2 * math.pi
            wave = angle * rate[2].float() + rate[3].float()
            h = h + torch.where(torch.arange(width, device=x.device) == 0, wave, wave.sin()).to(
                h.dtype
            )
        if kind == "flags":
            day = (seconds // 86400 + 4) % 7
            flags = torch.stack((day > 4, day == 0, seconds // 3600 % 24 < 6), -1).to(h.dtype)  # noqa: PLR2004
            shares = [
                part.to(h.dtype) / count - 0.5
                for part, (_, count) in zip(parts, units, strict=True)
            ]
            return torch.cat((h, flags, torch.stack(shares, -1)), -1)
        return functional.layer_norm(h, (width,)) if normed else h

    x = draw.tensor((batch, width, steps) if turned else (batch, steps, width))
    seconds = draw.indices((batch, 1), 2**30) + torch.arange(steps) * draw.choice((60, 900, 3600))
    used = draw.training and kind in {"tables", "both"}
    tables = (draw.tensor((count, width), grad=used) for _, count in units)
    args = (x, seconds, draw.tensor((steps, width)), draw.tensor((4, width)), *tables)
    return Program(run, args, draw.training)


def predicted_densities(draw: Draw) -> Program:
    """Likelihoods of counts and amounts under predicted parameters, scaled by series: DeepAR."""
    kind = draw.choice(("student", "counts", "zeros", "skewed", "gamma", "draws", "bins"))
    batch, steps, many = drawn_series(draw, 4)
    last, masked, few = draw.chance(0.6), draw.chance(0.6), draw.choice((8, 20, 50))

    def likelihood(h: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        a, b, c = (part.float() for part in (h.unbind(-1) if last else h.unbind(1)))
        b, c = functional.softplus(b) + 1e-3, functional.softplus(c) + 0.1
        if kind == "student":
            z, c = (y - a * scale) / (b * scale), c + 2
            norm = torch.lgamma((c + 1) / 2) - torch.lgamma(c / 2) - 0.5 * (c * math.pi).log()
            return (b * scale).log() - norm + (c + 1) / 2 * torch.log1p(z.square() / c)
        if kind == "skewed":
            low, high = (y - a).clamp(max=0) / b, (y - a).clamp(min=0) / c
            return (b + c).log() + low.square() + high.square()
        if kind == "gamma":
            y = y.abs() + 1e-2
            return torch.lgamma(c) - c * b.log() - (c - 1) * y.log() + b * y
        y, mean = y.abs().round(), functional.softplus(a) * scale + 1e-3
        p = torch.log1p(mean * b)
        some = torch.lgamma(y + 1) + torch.lgamma(1 / b) - torch.lgamma(y + 1 / b)
        some = some + p / b - y * ((mean * b).log() - p)
        none = -torch.logaddexp(functional.logsigmoid(c), functional.logsigmoid(-c) - p / b)
        return torch.where(y == 0, none, some) if kind == "zeros" else some

    def run(h: Tensor, y: Tensor, keep: Tensor) -> Tensor:
        y = y.float()
        scale = 1 + y.abs().mean(1, keepdim=True)
        loss = likelihood(h, y, scale)
        if not masked:
            return loss.mean(1)
        return (loss * keep).sum() / keep.sum().clamp(min=1)

    def spread(h: Tensor, y: Tensor) -> Tensor:
        if kind == "bins":
            p = functional.log_softmax(h.float(), -1)
            at = (y.float() * few / 6 + few / 2).long().clamp(0, few - 1)
            over = (
                p.exp().cumsum(-1) - (torch.arange(few, device=h.device) >= at[..., None]).float()
            )
            return over.square().sum(-1).mean() - p.gather(-1, at[..., None]).mean()
        h = h.float().sort(-1).values
        weight = 2 * torch.arange(few, device=h.device) - few + 1
        return ((h - y[..., None]).abs().mean(-1) - (h * weight).sum(-1) / few**2).mean()

    if kind in {"draws", "bins"}:
        shape = (max(2, draw.numel // (few * steps)), steps)
        y = draw.tensor(shape, grad=False)
        return Program(spread, (draw.tensor((*shape, few)), y), draw.training)
    y = draw.tensor((batch, steps, many), grad=False)
    h = draw.tensor((batch, steps, many, 3) if last else (batch, 3, steps, many))
    return Program(run, (h, y, draw.mask(y.shape, 0.8)), draw.training)


def survival_losses(draw: Draw) -> Program:
    """Hazards of censored rows, risk sets summed backwards, events that excite others: survival."""
    kind = draw.choice(("hazards", "masses", "risk", "strata", "excited", "decays"))
    bins, ranked = draw.choice((10, 20, 50, 64, 128, 365)), draw.chance(0.4)
    rows, causes = max(4, draw.numel // bins), draw.choice((1, 2, 4))

    def discrete(x: Tensor, at: Tensor, seen: Tensor) -> Tensor:
        place = torch.arange(bins, device=x.device)
        h, at, seen = x.float(), at[:, :1], seen[:, 0]
        if kind == "hazards":
            risk, event = place <= at, (place == at) & seen[:, None]
            loss = functional.binary_cross_entropy_with_logits(h, event.float(), reduction="none")
            alive = functional.logsigmoid(-h).cumsum(-1).exp()
            return (loss * risk).sum(-1) + (alive.sum(-1).mean() * 1e-2 if ranked else 0.0)
        p = functional.softmax(h, -1)
        after = p.flip(-1).cumsum(-1).flip(-1).gather(-1, at)[:, 0]
        loss = -torch.where(seen, p.gather(-1, at)[:, 0], after).clamp(min=1e-7).log().mean()
        order = functional.relu(p.cumsum(-1) - p.cumsum(-1).roll(1, 0) + 0.1)
        return loss + (order * (at < at.roll(1, 0))).mean() if ranked else loss

    def risk(x: Tensor, order: Tensor, seen: Tensor) -> Tensor:
        x, seen = x[order[:, 0]], seen[order[:, 0]]
        h = x.float() if kind == "strata" else x.float().t()
        h = h - h.amax(-1, keepdim=True).detach()
        total = (h.exp().flip(-1).cumsum(-1).flip(-1) + 1e-6).log()
        real = seen if kind == "strata" else seen.t()
        loss = ((total - h) * real).sum(-1) / real.sum(-1).clamp(min=1)
        return loss.mean() + (1e-3 * h.square().mean() if ranked else 0.0)

    def excited(x: Tensor, gap: Tensor, rate: Tensor) -> Tensor:
        a, base, b = (functional.softplus(w.float()) for w in rate.unbind(0))
        time, h = gap.float().cumsum(1), x.float()
        if kind == "excited":
            far = time[:, :, None] - time[:, None, :]
            pull = torch.where(far > 0, torch.exp(-b[0] * far.clamp(min=0)), 0.0)
            total = functional.softplus(h) + a[0] * pull.sum(-1)
            rest = ((time[:, -1:] - time) * -b[0]).exp()
            return -(total + 1e-6).log().sum(1).mean() + (a[0] / b[0] * (1 - rest)).sum(1).mean()
        start = h * (base + torch.exp(-b * gap[..., None]) * (1 + a))
        force = causes * functional.softplus(start / causes)
        return force.sum(-1).clamp(min=1e-6).log().mean() - (force[:, 1:] * gap[:, 1:, None]).mean()

    if kind in {"excited", "decays"}:
        kinds = 1 if kind == "excited" else draw.choice((4, 16, 22, 75))
        length = min(bins, max(4, draw.numel // 64))
        last = (length,) if kind == "excited" else (length, kinds)
        many = max(2, draw.numel // (length * (length if kind == "excited" else kinds)))
        gap = draw.tensor((many, length), grad=False, positive=True)
        return Program(
            excited, (draw.tensor((many, *last)), gap, draw.tensor((3, kinds))), draw.training
        )
    made = discrete if kind in {"hazards", "masses"} else risk
    bins = causes if kind == "risk" else bins
    rows = max(4, draw.numel // bins)
    at, seen = draw.indices((rows, 1), rows if made is risk else bins), draw.mask((rows, bins), 0.6)
    return Program(made, (draw.tensor((rows, bins)), at, seen), draw.training)


def smoothed_states(draw: Draw) -> Program:
    """Levels, slopes, seasons step by step, gated states kept by length, gaps filled two ways."""
    kind, steps = draw.choice(("levels", "gated", "exponents", "filled")), draw.between(3, 8)
    width, period = draw.choice((1, 7, 16, 32, 64, 128, 370)), draw.choice((1, 2, 3))
    first, damped = draw.chance(0.4), draw.chance(0.5)
    parts = {"gated": 3, "exponents": 4}.get(kind, 1)
    rows = max(2, draw.numel // (steps * width * parts))

    def levels(x: Tensor, rate: Tensor, keep: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        a, b, c = torch.sigmoid(rate[:3])
        level, slope, seasons, found = start[0], start[1], [start[2]] * period, []
        for t in range(steps):
            guess = level + slope + seasons[t % period]
            gap = torch.where(keep[t], x[t] - guess, 0.0)
            level, slope = level + slope + a * gap, (0.9 if damped else 1.0) * slope + a * b * gap
            seasons[t % period] = seasons[t % period] + c * gap
            found.append(gap)
        return torch.stack(found).square().mean(0), level, slope

    def gated(x: Tensor, rate: Tensor, keep: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        h, n, top, found = start[0], start[1].exp(), start[2], []
        for t in range(steps):
            gates = x[t].chunk(parts, -1)
            new = torch.tanh(gates[0] + rate[0] * h)
            if kind == "gated":
                y = torch.lerp(new, h, torch.sigmoid(gates[1] + rate[1]))
                out = torch.sigmoid(gates[2]) * torch.tanh(y) if damped else y
            else:
                peak = torch.maximum(functional.logsigmoid(gates[1]) + top, gates[2])
                old, fresh = (
                    (functional.logsigmoid(gates[1]) + top - peak).exp(),
                    (gates[2] - peak).exp(),
                )
                y, n, top = old * h + fresh * new, old * n + fresh, peak
                out = torch.sigmoid(gates[3]) * y / n.abs().clamp(min=0.1)
            h = torch.where(keep[t, :, :1], y, h)
            found.append(out * keep[t, :, :1])
        return torch.stack(found), h

    def filled(x: Tensor, rate: Tensor, keep: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        both = []
        for order in (range(steps), range(steps - 1, -1, -1)):
            last, some, loss = start[0], {}, start[1].float().mean()
            for t in order:
                guess = last * torch.sigmoid(rate[0]) + rate[1]
                loss = loss + ((guess - x[t]).abs() * keep[t]).float().mean()
                some[t] = last = torch.where(keep[t], x[t], guess)
            both.append((torch.stack([some[t] for t in range(steps)]), loss))
        (ahead, one), (back, two) = both
        return (ahead + back) / 2, one + two + 0.1 * (ahead - back).abs().float().mean()

    def run(x: Tensor, rate: Tensor, keep: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        made = {"levels": levels, "filled": filled}.get(kind, gated)
        h, seen = (x.transpose(0, 1), keep.transpose(0, 1)) if first else (x, keep)
        return made(h, rate, seen, start)

    sizes = (rows, steps) if first else (steps, rows)
    args = (draw.tensor((*sizes, parts * width)), draw.tensor((3, width)))
    return Program(
        run, (*args, draw.mask((*sizes, width), 0.8), draw.tensor((3, rows, width))), draw.training
    )


#: Every family here.
FAMILIES = (dated_features, predicted_densities, survival_losses, smoothed_states)
