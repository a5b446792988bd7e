"""Learned control: squashed actions, latent worlds, sampled plans, linked bodies."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def squashed_actions(draw: Draw) -> Program:
    """Actions of squashed normals, of mixtures or in bins, their odds and what imitates them."""
    actions, kind = draw.choice((1, 2, 6, 7, 17, 21, 56)), draw.choice(("one", "mixture", "bins"))
    many = {"one": 1, "mixture": draw.choice((3, 5, 16)), "bins": draw.choice((11, 41, 256))}[kind]
    steps, clipped = draw.choice((1, 1, 8, 16, 50)), draw.chance(0.5)
    rows, apart = max(1, draw.numel // (2 * actions * many * steps)), draw.chance(0.4)
    last = 2 * actions if kind != "bins" else 2 * actions * many

    def odds(x: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
        mean, wide = (x[..., ::2], x[..., 1::2]) if apart else x.chunk(2, -1)
        log = wide.clamp(-5, 2) if clipped else 3.5 * torch.tanh(wide) - 1.5
        if kind == "one":
            h = mean + torch.exp(log) * done
            fit, y = -0.5 * done.float().square() - log - 0.919, torch.tanh(h)
            return y, (fit - 2 * (math.log(2) - h - functional.softplus(-2 * h))).sum(-1)
        gap = (torch.atanh(done.float().clamp(-0.99, 0.99))[:, :, None] - mean) * torch.exp(-log)
        return torch.tanh(mean), (-0.5 * gap.square() - log - 0.919).sum(-1)

    def run(x: Tensor, done: Tensor, share: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        if kind == "bins":
            logs = functional.log_softmax(x.float().unflatten(-1, (-1, many)), -1)
            at = ((torch.tanh(done.float()) + 1) * (many / 2)).long().clamp(0, many - 1)
            fit = logs.gather(-1, at.repeat(1, 1, 2)[..., None])[..., 0].sum(-1)
            centre = (torch.arange(many, device=x.device) + 0.5) * 2 / many - 1
            return -(fit * keep).sum() / keep.sum().clamp(min=1), (logs.exp() * centre).sum(-1)
        y, fit = odds(x, done)
        if kind == "mixture":
            logs = functional.log_softmax(share.float(), -1)
            chosen = share.argmax(-1)[..., None, None].expand(-1, -1, 1, actions)
            return -(torch.logsumexp(fit + logs, -1) * keep).mean(), y.gather(2, chosen)[:, :, 0]
        loss = (torch.exp(share[..., 0].float()) * fit - y.float().mean(-1)) * keep
        return loss.sum() / keep.sum().clamp(min=1), y

    x = draw.tensor((rows, steps, many, last) if kind == "mixture" else (rows, steps, last))
    done = draw.tensor((rows, steps, actions), grad=False)
    share = draw.tensor((rows, steps, many), grad=draw.training and kind != "bins")
    return Program(run, (x, done, share, draw.mask((rows, steps), 0.9)), draw.training)


def latent_worlds(draw: Draw) -> Program:
    """Categorical latents passed straight through, divergences both ways, states started anew."""
    groups, classes = draw.choice((4, 8, 16, 32)), draw.choice((4, 16, 24, 32, 64))
    width, kind = groups * classes, draw.choice(("drawn", "losses", "both", "cell"))
    batch, flat, free = draw.choice((2, 16, 50)), draw.chance(0.5), draw.choice((0.1, 1.0))
    steps = max(2, draw.numel // (batch * width * (2 if kind == "cell" else 1)))

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        return (p * (torch.log(p) - torch.log(q))).sum((-2, -1)).clamp(min=free).mean()

    def cell(x: Tensor, h: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        state = torch.where(first[..., None], torch.tanh(x[0, 0, :width]), state)
        mixed = functional.layer_norm(x[..., :width] + h.flatten(2), (width,))
        update = torch.sigmoid(x[..., width:] - 1)
        state = update * torch.tanh(mixed) + (1 - update) * state
        return state, functional.silu(functional.rms_norm(state, (width,)))

    def run(x: Tensor, h: Tensor, noise: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        p, q = (
            0.99 * functional.softmax(t.float().view(batch, steps, groups, classes), -1)
            + 0.01 / classes
            for t in (x, h)
        )
        made: tuple[Tensor, ...] = ()
        if kind != "losses":
            best = (torch.log(p.detach()) + noise).argmax(-1)
            hot = functional.one_hot(best, classes).to(p.dtype)
            z = (hot + p - p.detach()).flatten(2) * ~first[..., None]
            made = (torch.cat((z.to(x.dtype), functional.silu(h.flatten(2))), -1),)
        if kind != "drawn":
            loss = divergence(p.detach(), q) + 0.1 * divergence(p, q.detach())
            made = (*made, loss, -(p.detach() * torch.log(p.detach())).sum(-1).mean())
        return made

    parts = (width,) if flat else (groups, classes)
    h = draw.tensor((batch, steps, *parts))
    first = draw.mask((batch, steps), 0.1)
    if kind == "cell":
        x, state = (draw.tensor((batch, steps, n * width)) for n in (2, 1))
        return Program(cell, (x, h, state, first), draw.training)
    x, noise = (draw.tensor((batch, steps, groups, classes), grad=g) for g in (None, False))
    return Program(run, (x, h, noise, first), draw.training)


def sampled_plans(draw: Draw) -> Program:
    """Costs of sampled controls rolled out over a map, weighed or the best kept: MPPI, CEM."""
    steps, actions = draw.choice((8, 12, 20, 30, 64)), draw.choice((2, 2, 3, 4, 7))
    scenes, side = draw.choice((1, 1, 4, 32)), draw.choice((16, 50, 128))
    samples = max(8, draw.numel // (scenes * steps * actions))
    kind, mapped = draw.choice(("turning", "double", "free")), draw.chance(0.5)
    best, kept = draw.chance(0.4), draw.chance(0.4)

    def rolled(u: Tensor) -> Tensor:
        if kind == "turning":
            turn = (u[..., 1] * 0.1).cumsum(-1)
            speed = functional.relu(u[..., 0])
            return torch.stack((speed * torch.cos(turn), speed * torch.sin(turn)), -1).cumsum(-2)
        speed = (u[..., :2] * 0.1).cumsum(-2)
        return (speed + 0.05 * u[..., :2]).cumsum(-2) if kind == "double" else speed

    def run(plan: Tensor, noise: Tensor, grid: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        u = (plan[:, None] + noise).float().clamp(-2, 2)
        at = rolled(u)
        cost = (at[:, :, -1] - goal[:, None]).square().sum(-1) + 0.1 * u.square().sum((-2, -1))
        cost = cost + (u[:, :, 1:] - u[:, :, :-1]).abs().sum((-2, -1))
        if mapped:
            x, y = ((at[..., i] + side / 2).long().clamp(0, side - 1) for i in range(2))
            cost = cost + 10 * (grid[y, x] > 1).float().amax(-1)
        else:
            gap = (at[..., None, :] - grid[:4, :2]).square().sum(-1) - 0.3
            change = gap[:, :, 1:] - 0.8 * gap[:, :, :-1]
            cost = cost + functional.softplus(-10 * change).mean(-1).sum(-1)
        if best:
            top = cost.topk(8, largest=False).indices[..., None, None]
            elite = u.gather(1, top.expand(-1, -1, steps, actions))
            var, mean = torch.var_mean(elite, 1)
            return (0.9 * mean + 0.1 * plan).to(plan.dtype), var.clamp(min=1e-3).sqrt()
        share = functional.softmax((cost.amin(1, keepdim=True) - cost) / 4, 1)
        change = (share[..., None, None] * (noise if kept else u)).sum(1)
        return (plan + change if kept else change).to(plan.dtype), cost

    args = (draw.tensor((scenes, steps, actions)), draw.tensor((scenes, samples, steps, actions)))
    grid = draw.tensor((side, side), dtype=torch.float32, grad=False)
    return Program(run, (*args, grid, draw.tensor((scenes, 2), grad=False)), draw.training)


def linked_bodies(draw: Draw) -> Program:
    """Joints turned and multiplied along a chain, and contacts held within friction cones."""
    joints, kind = draw.choice((2, 3, 6, 7, 12)), draw.choice(("chain", "planar", "contacts"))
    rows, homogeneous = max(2, draw.numel // (joints * 6)), draw.chance(0.4)
    hard, wanted, first = draw.chance(0.5), draw.chance(0.6), draw.chance(0.4)

    def turned(angle: Tensor, axis: int) -> Tensor:
        c, s = torch.cos(angle), torch.sin(angle)
        zero, one = torch.zeros_like(c), torch.ones_like(c)
        flat = [[c, -s, zero], [s, c, zero], [zero, zero, one]]
        parts = [[flat[(i - axis) % 3][(j - axis) % 3] for j in range(3)] for i in range(3)]
        return torch.stack([torch.stack(row, -1) for row in parts], -2)

    def run(x: Tensor, length: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        angle = x if first else x.T
        if kind == "planar":
            total = angle.cumsum(0)
            reach = length[:joints, 0, None]
            at = torch.stack(((reach * total.cos()).cumsum(0), (reach * total.sin()).cumsum(0)), -1)
            gap = at[-1] - goal[:, :2]
            return at, gap.square().sum(-1) if wanted else gap
        turn, at = turned(angle[0], 0), torch.zeros_like(goal)
        places = []
        for j in range(1, joints):
            at = at + (turn * length[j]).sum(-1)
            places.append(at)
            turn = (turn[..., None] * turned(angle[j], j % 3)[..., None, :, :]).sum(-2)
        if homogeneous:
            return functional.pad(torch.cat((turn, at[..., None]), -1), (0, 0, 0, 1)), at
        lost = 1 - (turn.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
        return torch.stack(places, 1), (at - goal).square().sum(-1) + lost if wanted else lost

    def touch(at: Tensor, speed: Tensor, rub: Tensor) -> tuple[Tensor, Tensor]:
        depth = functional.relu(-at[..., 2:])
        push = functional.relu(100 * depth - 3 * speed[..., 2:] * (depth > 0))
        slip = speed[..., :2]
        size = torch.sqrt(slip.square().sum(-1, keepdim=True) + 1e-6)
        most = rub * push
        drag = -slip / size * (torch.minimum(most, 5 * size) if hard else most * torch.tanh(size))
        force = torch.cat((drag, push), -1)
        arm = at - at.mean(1, keepdim=True)
        return force.sum(1), torch.linalg.cross(arm, force).sum(1)

    if kind == "contacts":
        args = [draw.tensor((rows, joints, 3)) for _ in "as"]
        return Program(touch, (*args, draw.tensor((joints, 1), positive=True)), draw.training)
    x = draw.tensor((joints, rows) if first else (rows, joints))
    return Program(run, (x, draw.tensor((joints, 3)), draw.tensor((rows, 3))), draw.training)


#: Every family here.
FAMILIES = (squashed_actions, latent_worlds, sampled_plans, linked_bodies)
