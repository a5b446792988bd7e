"""Returns and their critics: value distributions, ensembles, replayed episodes, agents."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _symlog(x: Tensor) -> Tensor:
    """Logarithms of sizes with the sign kept."""
    return torch.sign(x) * torch.log1p(x.abs())


def value_atoms(draw: Draw) -> Program:
    """Returns spread over fixed atoms, in two neighbouring bins or at drawn levels: C51, IQN."""
    atoms, actions = draw.choice((11, 21, 51, 101, 255)), draw.choice((1, 3, 6, 18))
    kind, high = (
        draw.choice(("scattered", "dense", "two_hot", "implicit")),
        draw.choice((1.0, 10.0)),
    )
    rows = max(
        2, draw.numel // (atoms * (max(actions, atoms // 8) if kind == "dense" else actions))
    )
    double, step = draw.chance(0.5), 2 * high / (atoms - 1)

    def spread(p: Tensor, value: Tensor) -> Tensor:
        spot = (value.clamp(-high, high) + high) / step
        if kind == "dense":
            at = torch.arange(atoms, device=p.device)[:, None]
            return ((1 - (spot[:, None] - at).abs()).clamp(min=0) * p[:, None]).sum(-1)
        low = spot.long().clamp(max=atoms - 2)
        share = spot - low
        made = torch.zeros_like(p).scatter_add(1, low, p * (1 - share))
        return made.scatter_add(1, low + 1, p * share)

    def run(x: Tensor, after: Tensor, r: Tensor, at: Tensor, go: Tensor) -> tuple[Tensor, Tensor]:
        support = torch.linspace(-high, high, atoms, device=x.device)
        picked = x.gather(1, at[:, None, None].expand(-1, 1, atoms))[:, 0].float()
        if kind == "implicit":
            wave = torch.cos(r[:, None] * math.pi * torch.arange(1, atoms + 1, device=x.device))
            h = functional.relu(wave[:, None] + after.float()) * x
            return h.to(x.dtype), h.mean(1)
        if kind == "two_hot":
            target = spread(torch.ones_like(picked) / atoms, _symlog(r)[:, None].expand(-1, atoms))
            value = (functional.softmax(picked, -1) * torch.sinh(support)).sum(-1)
            return -(target * functional.log_softmax(picked, -1)).sum(-1).mean(), value
        p = functional.softmax(after.float(), -1)
        best = ((functional.softmax(x.float(), -1) if double else p) * support).sum(-1).argmax(1)
        p = p.gather(1, best[:, None, None].expand(-1, 1, atoms))[:, 0]
        target = spread(p, r[:, None] + 0.99 * go[:, None] * support).detach()
        loss = -(target * functional.log_softmax(picked, -1)).sum(-1)
        return loss.mean(), loss.detach().sqrt()

    x, after = (draw.tensor((rows, actions, atoms), grad=g) for g in (None, False))
    r = draw.tensor((rows,), dtype=torch.float32, grad=False)
    args = (x, after, r, draw.indices((rows,), actions), draw.mask((rows,), 0.95))
    return Program(run, args, draw.training)


def critic_ensembles(draw: Draw) -> Program:
    """Least or shortened values of several critics, duelling heads, priorities: TD3, TQC, CQL."""
    critics, many = draw.choice((2, 2, 5, 10)), draw.choice((4, 6, 10, 18, 25, 64))
    kind = draw.choice(("least", "duelling", "shortened", "conservative", "expectile"))
    rows, last = max(2, draw.numel // (critics * many)), draw.chance(0.4)
    short, kept = draw.chance(0.5), critics * many - draw.between(1, critics * many // 3)

    def target(new: Tensor, q: Tensor, r: Tensor, go: Tensor) -> Tensor:
        if kind == "shortened":
            left = new.transpose(0, 1).flatten(1).sort(-1).values[:, :kept]
            return r[:, None] + 0.99 * go[:, None] * left
        best = q.mean(0).argmax(-1, keepdim=True)
        low = (new[:2] if short else new).amin(0)
        value = low.gather(1, best)[:, 0] if kind == "duelling" else low.mean(-1)
        return r + 0.99 * go * value

    def run(
        x: Tensor, base: Tensor, new: Tensor, r: Tensor, go: Tensor, at: Tensor, odds: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, new = (h.movedim(-1, 0).float() if last else h.float() for h in (x, new))
        if kind == "duelling":
            q = base + q - q.mean(-1, keepdim=True)
        goal = target(new, q.detach(), r, go).detach()
        if kind == "shortened":
            gap = goal.mean(-1)[:, None] - q
            level = (torch.arange(many, device=x.device) + 0.5) / many
            size = functional.huber_loss(q, goal.mean(-1)[:, None].expand_as(q), reduction="none")
            loss = (level - (gap < 0).float()).abs() * size
            return loss.sum((0, -1)).mean(), gap.detach().abs().mean((0, -1))
        found = q.gather(-1, at.expand(critics, -1)[..., None])[..., 0]
        gap = goal - found
        loss = gap.square()
        if kind == "expectile":
            loss = torch.where(gap > 0, 0.7, 0.3) * loss
        if kind == "conservative":
            loss = loss + 5 * (torch.logsumexp(q - math.log(many), -1) - found)
        weight = (odds * rows).pow(-0.4)
        loss = (loss.sum(0) * weight / weight.max()).mean()
        return loss, (gap.detach().abs().amax(0) + 1e-6).pow(0.6)

    shape = (rows, many, critics) if last else (critics, rows, many)
    base = draw.tensor((rows, 1), grad=draw.training and kind == "duelling")
    args = (draw.tensor(shape), base, draw.tensor(shape, grad=False))
    r, odds = (
        draw.tensor((rows,), dtype=torch.float32, grad=False, positive=p) for p in (False, True)
    )
    more = (r, draw.mask((rows,), 0.95), draw.indices((rows,), many), odds)
    return Program(run, (*args, *more), draw.training)


def replayed_episodes(draw: Draw) -> Program:
    """Returns counted backwards, corrected by ratios, or goals replaced by what was reached."""
    kind, first = draw.choice(("unrolled", "products", "ratios", "goals")), draw.chance(0.5)
    steps = draw.choice((5, 8, 15)) if kind == "unrolled" else draw.choice((16, 50, 64, 333, 1000))
    width = draw.choice((4, 10, 27, 60, 376)) if kind == "goals" else 1
    steps = min(steps, max(4, draw.numel // (2 * width)))
    rows, goal = max(2, draw.numel // (steps * width)), min(3, width)
    axis, shape = (0, (steps, rows)) if first else (1, (rows, steps))

    def back(value: Tensor, r: Tensor, go: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
        v, rate = value.float(), 0.99 * go.float()
        later = torch.cat((v.narrow(axis, 1, steps - 1), v.narrow(axis, steps - 1, 1)), axis)
        gap = r + rate * later.detach() - v.detach()
        if kind == "unrolled":
            found, total = [], later.select(axis, steps - 1)
            for t in reversed(range(steps)):
                mixed = 0.05 * later.select(axis, t) + 0.95 * total
                total = r.select(axis, t) + rate.select(axis, t) * mixed
                found.append(total)
            return torch.stack(found[::-1], axis), (rate.cumprod(axis) * v.detach()).mean(axis)
        ratio = torch.exp((log - log.mean()).clamp(-2, 2)) if kind == "ratios" else rate
        decay = torch.cumprod((ratio.clamp(max=1) * 0.99).clamp(min=0.5 ** (8 / steps)), axis)
        total = (gap * decay * ratio).flip(axis).cumsum(axis).flip(axis) / decay
        edge = (total - total.mean()) / (total.std() + 1e-5)
        return (v - (v.detach() + total)).square().mean(), edge.to(value.dtype)

    def relabel(
        x: Tensor, at: Tensor, swap: Tensor, mean: Tensor, var: Tensor
    ) -> tuple[Tensor, ...]:
        reached = x[..., :goal].gather(1, at[..., None].expand(-1, -1, goal))
        wanted = torch.where(swap[..., None], reached, x[..., -goal:])
        near = (x[..., :goal] - wanted).float().square().sum(-1) < 1
        y = ((x - mean) * torch.rsqrt(var + 1e-2)).clamp(-5, 5)
        return torch.cat((y, wanted.clamp(-5, 5)), -1).to(x.dtype), near.float() - 1

    if kind == "goals":
        kept = [draw.tensor((width,), dtype=torch.float32, grad=False, positive=True) for _ in "mv"]
        at, swap = draw.indices((rows, steps), steps), draw.mask((rows, steps), 0.8)
        return Program(relabel, (draw.tensor((rows, steps, width)), at, swap, *kept), draw.training)
    r, log = (draw.tensor(shape, dtype=torch.float32, grad=False) for _ in "rl")
    return Program(back, (draw.tensor(shape), r, draw.mask(shape, 0.98), log), draw.training)


def agent_values(draw: Draw) -> Program:
    """Values of agents mixed by absolute weights, entities attended to, others' means: QMIX."""
    agents, kind = draw.choice((2, 3, 5, 8, 10, 27)), draw.choice(("mixed", "entities", "others"))
    actions, width = draw.choice((5, 9, 14, 33)), draw.choice((16, 32, 64, 128))
    seen = draw.choice((6, 11, 20, 50)) if kind == "entities" else 1
    soft, elu = draw.chance(0.4), draw.chance(0.6)
    rows = max(2, draw.numel // (agents * (actions + width if kind == "mixed" else seen * width)))

    def mix(
        q: Tensor, able: Tensor, at: Tensor, w: Tensor, b: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        best = q.detach().masked_fill(~able, -1e4).amax(-1)
        h = q.gather(-1, at[..., None])[..., 0]
        weight = w.view(rows, agents, width)
        weight = functional.softmax(weight, 1) if soft else weight.abs()
        hidden = (h[..., None] * weight).sum(1) + b
        hidden = functional.elu(hidden) if elu else functional.relu(hidden)
        return (hidden * v.abs()).sum(-1), best.sum(1)

    def attend(q: Tensor, k: Tensor, unseen: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        h = functional.layer_norm(k, (width,), gain)
        score = (q[:, :, None] * h).sum(-1).float() * width**-0.5
        share = functional.softmax(score.masked_fill(unseen, -1e9), -1).masked_fill(unseen, 0)
        return q + (share[..., None] * h).sum(2).to(q.dtype), share.amax(-1)

    def others(x: Tensor, alive: Tensor, gain: Tensor) -> Tensor:
        h = functional.relu(x * gain) * alive[..., None]
        left = alive.sum(1, keepdim=True)[..., None] - alive[..., None].float()
        mean = (h.sum(1, keepdim=True) - h) / left.clamp(min=1)
        name = torch.eye(agents, device=x.device, dtype=x.dtype).expand(rows, -1, -1)
        return torch.cat((x, mean.to(x.dtype), name), -1)

    if kind == "entities":
        args = (draw.tensor((rows, agents, width)), draw.tensor((rows, agents, seen, width)))
        return Program(
            attend,
            (*args, draw.mask((rows, agents, seen), 0.4), draw.tensor((width,))),
            draw.training,
        )
    if kind == "others":
        args = (draw.tensor((rows, agents, width)), draw.mask((rows, agents), 0.8))
        return Program(others, (*args, draw.tensor((width,))), draw.training)
    shape = (rows, agents, actions)
    picked = (draw.mask(shape, 0.7), draw.indices(shape[:2], actions))
    mixers = [draw.tensor((rows, n)) for n in (agents * width, width, width)]
    return Program(mix, (draw.tensor(shape), *picked, *mixers), draw.training)


#: Every family here.
FAMILIES = (value_atoms, critic_ensembles, replayed_episodes, agent_values)
