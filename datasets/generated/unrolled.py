"""Iterations written out: capsules, slots, thresholds, beliefs, settled states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def capsules(draw: Draw) -> Program:
    """Votes of parts for wholes, weighed by agreement in rounds, then squashed: capsules, EM."""
    wholes, size, rounds = draw.choice((5, 10, 16, 32)), draw.choice((4, 8, 16)), draw.between(1, 3)
    parts = min(draw.choice((32, 72, 128, 288, 1152)), max(4, draw.numel // (wholes * size)))
    batch, kind = max(1, draw.numel // (parts * wholes * size)), draw.choice(("agree", "spread"))
    first, losing = draw.chance(0.4), draw.chance(0.4)

    def squash(h: Tensor) -> Tensor:
        square = h.square().sum(-1, keepdim=True)
        return h * (square / (1 + square)) * torch.rsqrt(square + 1e-7)

    def run(x: Tensor, bias: Tensor, active: Tensor, hot: Tensor) -> Tensor:
        votes = (x.transpose(1, 2) if first else x).float()
        score = votes.new_zeros(batch, parts, wholes) + bias[:, 0]
        for _ in range(rounds):
            share = functional.softmax(score, -1) * torch.sigmoid(active)[..., None]
            if kind == "agree":
                h = squash((share[..., None] * votes).sum(1) + bias)
                score = score + (votes * h[:, None]).sum(-1)
                continue
            share = share / (share.sum(1, keepdim=True) + 1e-6)
            h = (share[..., None] * votes).sum(1)
            spread = (share[..., None] * (votes - h[:, None]).square()).sum(1) + 1e-3
            far = (votes - h[:, None]).square() / spread[:, None] + spread.log()[:, None]
            score = -0.5 * far.sum(-1) + bias[:, 0]
        length = (h.square().sum(-1) + 1e-7).sqrt()
        if not losing:
            return (h * functional.softmax(length, -1)[..., None]).to(x.dtype)
        over, under = (0.9 - length).relu().square(), (length - 0.1).relu().square()
        return torch.where(hot, over, 0.5 * under).sum(-1).mean()

    shape = (batch, wholes, parts, size) if first else (batch, parts, wholes, size)
    args = (draw.tensor(shape), draw.tensor((wholes, size)), draw.tensor((batch, parts)))
    return Program(run, (*args, draw.mask((batch, wholes), 0.1)), draw.training)


def slots(draw: Draw) -> Program:
    """Places shared out among slots, which take weighted means and move: slots, mean shifts."""
    some, size = draw.choice((4, 5, 7, 11)), draw.choice((3, 16, 32, 64))
    places = min(draw.choice((49, 196, 1024, 4096)), max(4, draw.numel // (2 * size)))
    batch, rounds = max(1, draw.numel // (places * size * 2)), draw.choice((1, 1, 2, 3))
    kind, normed = draw.choice(("slots", "slots", "shift", "clusters")), draw.chance(0.5)

    def run(x: Tensor, start: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        x = functional.layer_norm(x, (size,), gain) if normed else x * gain
        h = start.float() if kind == "shift" else start
        for _ in range(rounds):
            if kind == "slots":
                q = functional.layer_norm(h, (size,)) * size**-0.5
                share = functional.softmax((x[:, :, None] * q[:, None]).sum(-1).float(), -1) + 1e-6
            else:
                far = (x[:, :, None].float() - h[:, None]).square().mean(-1)
                share = (-2 * far).exp() + 1e-6 if kind == "shift" else (-far).softmax(-1)
            mean = (share[..., None] * x[:, :, None]).sum(1) / share.sum(1)[..., None]
            gate = torch.sigmoid(mean + h * gain) if kind == "slots" else 1.0
            h = h + gate * (torch.tanh(mean) - h) if kind == "slots" else mean.to(h.dtype)
        seen = share.argmax(1) if kind == "clusters" else share.amax(1)
        return h, share.transpose(1, 2), seen

    args = (draw.tensor((batch, places, size)), draw.tensor((batch, some, size)))
    return Program(run, (*args, draw.tensor((size,))), draw.training)


def shrinkage(draw: Draw) -> Program:
    """Rounds of soft thresholds, split variables or marginals in logs: ISTA, ADMM, Sinkhorn."""
    kind = draw.choice(("threshold", "split", "marginals", "marginals", "momentum"))
    width, rounds = draw.choice((17, 32, 64, 128, 257, 512)), draw.between(1, 4)
    height = min(draw.choice((16, 49, 100, 256, 512)), max(3, draw.numel // (2 * width)))
    batch, bounded = max(1, draw.numel // (2 * width * height)), draw.chance(0.5)

    def shrink(h: Tensor, least: Tensor) -> Tensor:
        return torch.sign(h) * (h.abs() - least).relu()

    def matched(x: Tensor, other: Tensor, least: Tensor) -> Tensor:
        h = (x.float() + other) * (1 + least.sum() ** 2)
        h = functional.pad(h, (0, 1, 0, 1), value=0.5) if bounded else h
        u, v = h.new_zeros(batch, h.size(1)), h.new_zeros(batch, h.size(2))
        for _ in range(rounds):
            u = -torch.logsumexp(h + v[:, None], 2)
            v = -torch.logsumexp(h + u[..., None], 1)
        plan = (h + u[..., None] + v[:, None]).exp()
        return plan.to(x.dtype) if bounded else -(plan * h).sum((1, 2)).mean()

    def run(x: Tensor, other: Tensor, least: Tensor) -> Tensor:
        h, dual, old, bound = x, torch.zeros_like(x), other, least.abs() * 0.1
        for step in range(rounds):
            if kind == "split":
                down = functional.pad(h[:, 1:] - h[:, :-1], (0, 0, 0, 1))
                rest = shrink(down + dual, bound)
                dual = dual + down - rest
                back = functional.pad(rest - dual, (0, 0, 1, 0))
                h = h - 0.2 * (h - other + back[:, :-1] - back[:, 1:])
                continue
            ahead = h + step / (step + 3) * (h - old) if kind == "momentum" else h
            near = functional.pad(ahead, (1, 1), "replicate" if bounded else "constant")
            smooth = 0.25 * (near[..., 2:] + near[..., :-2]) + 0.5 * ahead
            old, h = h, shrink(ahead - 0.5 * (smooth - other), bound)
        return h

    args = (draw.tensor((batch, height, width)), draw.tensor((batch, height, width)))
    turned = matched if kind == "marginals" else run
    return Program(turned, (*args, draw.tensor((width,))), draw.training)


def beliefs(draw: Draw) -> Program:
    """Odds summed along chains of labels, or messages between pixels: CRF, HMM, mean fields."""
    kind = draw.choice(("chain", "hidden", "best", "grid", "field"))
    labels, steps, rounds = draw.choice((5, 9, 16, 21, 32)), draw.between(3, 6), draw.between(1, 3)
    side = min(draw.choice((8, 16, 30, 64, 128)), max(3, int((draw.numel / labels) ** 0.5)))
    batch = max(1, draw.numel // (labels * max(steps, labels // 2)))
    maps = max(1, draw.numel // (labels * side * side))

    def chained(x: Tensor, move: Tensor, seen: Tensor, gold: Tensor) -> Tensor:
        change = move.float().log_softmax(-1) if kind == "hidden" else move.float()
        score = x[:, 0].float()
        for step in range(1, steps):
            paths = score[..., None] + change
            h = paths.amax(1) if kind == "best" else torch.logsumexp(paths, 1)
            score = torch.where(seen[:, step, None], h + x[:, step], score)
        if kind != "chain":
            return score.amax(-1) if kind == "best" else torch.logsumexp(score, -1).mean()
        own = (x.gather(2, gold[..., None])[..., 0] * seen).sum(1, dtype=torch.float32)
        own = own + (change[gold[:, :-1], gold[:, 1:]] * seen[:, 1:]).sum(1)
        return (torch.logsumexp(score, -1) - own).mean()

    def spread(x: Tensor, least: Tensor) -> Tensor:
        cost, near, weight = x.float(), ((2, 1), (2, -1), (3, 1), (3, -1)), least.float().abs()
        sent = [torch.zeros_like(cost) for _ in near]
        q = cost
        for _ in range(rounds):
            if kind == "field":
                mean = functional.avg_pool2d(functional.softmax(-q, 1), 3, 1, 1)
                q = cost + weight[:, None, None] * (1 - mean)
                continue
            belief = cost + sent[0] + sent[1] + sent[2] + sent[3]
            h = [torch.roll(belief - sent[i], near[i][1], near[i][0]) for i in range(4)]
            h = [torch.minimum(m, m.amin(1, keepdim=True) + weight.mean()) for m in h]
            sent = [m - m.mean(1, keepdim=True) for m in h]
            q = cost + sent[0] + sent[1] + sent[2] + sent[3]
        return functional.softmax(-q, 1).to(x.dtype)

    if kind in ("grid", "field"):
        x = draw.image((max(1, maps // (2 if kind == "grid" else 1)), labels, side, side))
        return Program(spread, (x, draw.tensor((labels,))), draw.training)
    args = (draw.tensor((batch, steps, labels)), draw.tensor((labels, labels)))
    seen, gold = draw.mask((batch, steps), 0.8), draw.indices((batch, steps), labels)
    return Program(chained, (*args, seen, gold), draw.training)


def settled_states(draw: Draw) -> Program:
    """States moved until they rest, or driven through time: equilibria, echo states, liquid."""
    kind = draw.choice(("damped", "damped", "echo", "liquid", "norms"))
    width, steps = draw.choice((16, 48, 100, 128, 384, 500, 1024)), draw.between(2, 6)
    timed = kind in ("echo", "liquid")
    rows = max(4, draw.numel // (width * (steps if timed else 2)))
    act = draw.choice((functional.tanh, functional.silu, functional.sigmoid))
    normed, first = draw.chance(0.5), draw.chance(0.4)

    def settle(x: Tensor, start: Tensor, gain: Tensor, leak: Tensor) -> tuple[Tensor, ...]:
        share, z, apart = torch.sigmoid(leak), start, []
        for _ in range(steps):
            h = act(torch.roll(z, 1, -1) * gain + x)
            h = functional.layer_norm(h + z, (width,)) if normed else h
            apart.append((h - z).float().norm() / (h.float().norm() + 1e-5))
            z = share * z + (1 - share) * h
        return z, torch.stack(apart)

    def drive(x: Tensor, start: Tensor, gain: Tensor, leak: Tensor) -> tuple[Tensor, ...]:
        h, outs = start, []
        for now in x.unbind(0 if first else 1):
            if kind == "liquid":
                force = torch.sigmoid(now + h * gain)
                rate = functional.softplus(leak)
                h = (h + 0.2 * force * gain) / (1 + 0.2 * (rate + force))
            else:
                h = h + torch.sigmoid(leak) * (torch.tanh(now + gain * torch.roll(h, 1, -1)) - h)
            outs.append(act(h.mean(-1)) if normed else h)
        return torch.stack(outs, 0 if first else 1), h

    def divided(x: Tensor, start: Tensor, gain: Tensor, leak: Tensor) -> Tensor:
        fixed, u = x.detach().float() if normed else x.float(), leak.float()
        for _ in range(steps // 2):
            v = functional.normalize((fixed * u).sum(1), dim=0)
            u = functional.normalize((fixed * v[:, None]).sum(0), dim=0)
        largest = ((x.float() * u).sum(1) * v).sum()
        return start * gain + x / largest.to(x.dtype)

    shape = ((steps, rows, width) if first else (rows, steps, width)) if timed else (rows, width)
    args = (draw.tensor(shape), draw.tensor((rows, width)), draw.tensor((width,)))
    run = divided if kind == "norms" else drive if timed else settle
    return Program(run, (*args, draw.tensor((width,))), draw.training)


#: Every family here.
FAMILIES = (
    capsules,
    slots,
    shrinkage,
    beliefs,
    settled_states,
)
