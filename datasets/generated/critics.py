"""Critics, teachers, fronts that move, adapters of few columns, answers as spans."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def adversarial(draw: Draw) -> Program:
    """Scores of patches by critics of several scales, matched features, norms of gradients."""
    channels, levels = draw.choice((1, 8, 16, 32)), draw.between(1, 3)
    side = max(4, min(draw.choice((8, 16, 31, 64)), int((draw.numel / channels) ** 0.5)))
    kind = draw.choice(("hinge", "wasserstein", "squares", "relative"))
    matched, batch = draw.chance(0.5), max(1, draw.numel // (2 * channels * side * side))

    def run(change: Tensor, *maps: Tensor) -> Tensor:
        size = change.float().square().sum((1, 2, 3)).clamp(min=1e-8)
        loss = 10 * (size.sqrt() - 1).square().mean() if kind == "wasserstein" else size.mean() / 2
        for true, made in zip(maps[::2], maps[1::2], strict=True):
            real, fake = (m.float().mean(1) if m.shape[1] > 1 else m.float() for m in (true, made))
            if kind == "hinge":
                loss = loss + (functional.relu(1 - real) + functional.relu(1 + fake)).mean()
            elif kind == "squares":
                loss = loss + ((real - 1).square() + fake.square()).mean((1, 2)).mean()
            elif kind == "relative":
                up, down = fake.mean(0) - real, fake - real.mean(0)
                loss = loss + (functional.softplus(up) + functional.softplus(down)).mean()
            else:
                loss = loss + fake.mean() - real.mean() + 1e-3 * real.square().mean()
            loss = loss + (true.detach() - made).abs().float().mean() if matched else loss
        return loss

    shapes = [(batch, channels, max(2, side >> n), max(2, side >> n)) for n in range(levels)]
    maps = [draw.tensor(s) for s in shapes for _ in range(2)]
    return Program(run, (draw.tensor((batch, 3, side, side)), *maps), draw.training)


def hidden_distillation(draw: Draw) -> Program:
    """Hidden states compared with a teacher's: projected, by cosine, by attention, by relation."""
    batch, width = draw.choice((1, 2, 8)), draw.choice((16, 48, 64, 127, 192))
    length, kind = max(2, draw.numel // (batch * width)), draw.choice(("cosine", "norm", "map"))
    projected, clipped = width <= 64 and draw.chance(0.5), draw.chance(0.3)  # noqa: PLR2004

    def run(student: Tensor, teacher: Tensor, weight: Tensor, keep: Tensor) -> Tensor:
        h = functional.linear(student, weight) if projected else student
        a, b = h.float(), teacher.float()
        if kind == "map":
            flat = [functional.normalize(v.square().mean(-1), dim=1, eps=1e-6) for v in (a, b)]
            return (flat[0] - flat[1]).square().sum(1).mean()
        if kind == "cosine":
            loss = 1 - functional.cosine_similarity(a, b, dim=-1, eps=1e-6)
        else:
            a, b = (functional.layer_norm(v, (width,)) for v in (a, b))
            loss = functional.smooth_l1_loss(a, b, reduction="none").mean(-1)
        loss = loss.clamp(max=loss.detach().mean() * 2) if clipped else loss
        return ((loss * keep).sum(1) / keep.sum(1).clamp(min=1)).mean()

    args = [draw.tensor((batch, length, width), grad=g) for g in (None, False)]
    size = (width, width if projected else 1)
    weight = draw.tensor(size, grad=draw.training and projected)
    return Program(run, (*args, weight, draw.mask((batch, length), 0.8)), draw.training)


def level_set(draw: Draw) -> Program:
    """A front moved along its normal or by its curvature, or made a distance again."""
    axes, kind = draw.choice((2, 2, 3)), draw.choice(("curvature", "normal", "distance"))
    side = max(5, int(draw.numel ** (1 / axes)))
    side = draw.choice([s for s in (5, 16, 33, 64, 100, 128, 256, 511) if s <= side])
    rounds, rolled = draw.choice((1, 1, 2)), draw.chance(0.4)

    def ahead(x: Tensor, axis: int, by: int) -> Tensor:
        if rolled:
            return x.roll(-by, axis)
        edge = x.narrow(axis, side - 1 if by > 0 else 0, 1)
        rest = x.narrow(axis, int(by > 0), side - 1)
        return torch.cat((rest, edge) if by > 0 else (edge, rest), axis)

    def slope(x: Tensor, axis: int) -> Tensor:
        return (ahead(x, axis, 1) - ahead(x, axis, -1)) / 2

    def run(phi: Tensor, speed: Tensor) -> tuple[Tensor, ...]:
        p = phi.float()
        around = torch.zeros_like(p)
        for _ in range(rounds):
            slopes = [slope(p, a) for a in range(1, axes + 1)]
            size = (torch.stack(slopes).square().sum(0) + 1e-4).sqrt()
            if kind == "curvature":
                bends = [slope(s / size, a + 1) for a, s in enumerate(slopes)]
                around = torch.stack(bends).sum(0).clamp(-1, 1)
                p = p + 0.1 * around * size
                continue
            sign = p / (p.square() + size.square()).sqrt() if kind == "distance" else speed.tanh()
            total = torch.zeros_like(p)
            for a in range(1, axes + 1):
                left, right = p - ahead(p, a, -1), ahead(p, a, 1) - p
                up = torch.maximum(left.clamp(min=0) ** 2, right.clamp(max=0) ** 2)
                down = torch.maximum(left.clamp(max=0) ** 2, right.clamp(min=0) ** 2)
                total = total + torch.where(sign > 0, up, down)
            around = (total + 1e-8).sqrt()
            p = p - 0.3 * sign * (around - 1 if kind == "distance" else around)
        inside = (0.5 * (1 + torch.tanh(-p / 1.5))).flatten(1).sum(1)
        return p.to(phi.dtype), around, inside

    shape = (max(1, draw.numel // side**axes), *[side] * axes)
    return Program(run, tuple(draw.tensor(shape, grad=False) for _ in range(2)))


def low_rank(draw: Draw) -> Program:
    """What adapters add to a layer: one or several by token, gated, or weights of given size."""
    width, rank = draw.choice((48, 64, 128, 192)), draw.choice((2, 4, 8))
    rows, many = max(4, draw.numel // (3 * width)), draw.choice((2, 3, 4))
    kind, kept = draw.choice(("gate", "tokens", "size", "bottleneck")), draw.chance(0.4)

    def run(
        x: Tensor, out: Tensor, a: Tensor, b: Tensor, gain: Tensor, which: Tensor, keep: Tensor
    ) -> Tensor:
        h = x * keep / 0.9 if kept else x
        if kind == "tokens":
            low = (h @ a.flatten(0, 1).t()).unflatten(-1, (many, rank))
            hot = functional.one_hot(which + 1, many + 1)[:, 1:, None].to(x.dtype)
            up = b.transpose(1, 2).flatten(0, 1)
            return torch.addmm(out * gain[0], (low * hot).flatten(1), up, alpha=2)
        low = h @ a[0].t()
        if kind == "bottleneck":
            up = functional.gelu(functional.layer_norm(low, (rank,))) @ b[0].t()
            return functional.rms_norm(out + up * gain[0], (width,))
        if kind == "size":
            weight = (b[0] @ a[0]).float() + torch.eye(width, device=x.device)
            scale = gain[0] / torch.linalg.vector_norm(weight, dim=1).clamp(min=1e-3)
            return torch.mul(torch.addmm(out, low, b[0].t()), scale.to(x.dtype))
        share = torch.sigmoid((h * gain[1]).mean(-1, keepdim=True))
        return torch.addcmul(out, share, low @ b[0].t() * gain[0])

    tensors = (draw.tensor((many, rank, width)), draw.tensor((many, width, rank)))
    rest = (draw.tensor((2, width)), draw.indices((rows,), many + 1) - 1)
    xs = [draw.tensor((rows, width)) for _ in "xy"]
    return Program(run, (*xs, *tensors, *rest, draw.mask((rows, width), 0.9)), draw.training)


def spans(draw: Draw) -> Program:
    """Answers by start and end: losses of both, or the best of spans that are not too long."""
    batch, longest = draw.choice((1, 2, 8)), draw.choice((5, 15, 30))
    trained, marked = draw.training, draw.chance(0.5)
    length = max(6, draw.numel // (2 * batch) if trained else int((draw.numel / batch) ** 0.5))

    def run(scores: Tensor, start: Tensor, end: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        ours = [s.masked_fill(~context, -1e4) for s in scores.float().unbind(-1)]
        if trained:
            pairs = zip(ours, (start, end), strict=True)
            losses = [functional.cross_entropy(s, t, reduction="none") for s, t in pairs]
            none = (start == 0).float()
            odds = (ours[0][:, 0] + ours[1][:, 0]) if marked else torch.zeros_like(losses[0])
            return (
                (losses[0] + losses[1]) / 2 * (1 - 0.5 * none) + 0.1 * odds.square()
            ).mean(), odds
        at = torch.arange(length, device=start.device)
        far = at - at[:, None]
        logs = [functional.log_softmax(s, -1) for s in ours]
        both = logs[0][:, :, None] + logs[1][:, None]
        both = both.masked_fill((far < 0) | (far >= longest), -1e9)
        best = both.flatten(1).max(1)
        gap = best.values - (logs[0][:, 0] + logs[1][:, 0])
        odds = both.exp().amax(2) if marked else both.logsumexp((1, 2))
        return best.indices // length, best.indices % length, gap, odds

    context = draw.mask((batch, length), 0.9)
    context[:, 0] = True
    places = [draw.indices((batch,), length) for _ in range(2)]
    return Program(run, (draw.tensor((batch, length, 2)), *places, context), trained)


#: Every family here.
FAMILIES = (adversarial, hidden_distillation, level_set, low_rank, spans)
