"""Objectives that contrast: views, triplets, latent codes, margins, centres."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def paired_views(draw: Draw) -> Program:
    """Similarities within a batch contrasted: CLIP both ways, SigLIP, SimCLR, by label."""
    count, kind = max(4, int(draw.numel**0.5)), draw.choice(("clip", "sigmoid", "views", "labels"))
    smoothing, counted = draw.choice((0.0, 0.1)), draw.chance(0.4)

    def run(similar: Tensor, heat: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        s = similar.float() * heat.float().clamp(max=4.6).exp()
        own, itself = torch.arange(count, device=s.device), torch.eye(count, device=s.device)
        if kind == "clip":
            loss = functional.cross_entropy(s, own, label_smoothing=smoothing)
            loss = (loss + functional.cross_entropy(s.t(), own, label_smoothing=smoothing)) / 2
        elif kind == "sigmoid":
            loss = -functional.logsigmoid((2 * itself - 1) * (s - 10)).sum(-1).mean()
        elif kind == "views":
            s = s.masked_fill(itself.bool(), -1e9)
            loss = functional.cross_entropy(s, (own + count // 2) % count)
        else:
            same = (label[:, None] == label) & ~itself.bool()
            s = (s - s.amax(1, keepdim=True).detach()).masked_fill(itself.bool(), -1e9)
            logs = s - s.exp().sum(1, keepdim=True).clamp(min=1e-9).log()
            loss = -((logs * same).sum(1) / same.sum(1).clamp(min=1)).mean()
        return (loss, (s.argmax(1) == own).float().mean()) if counted else (loss,)

    args = (draw.tensor((count, count)), draw.tensor(()), draw.indices((count,), 10))
    return Program(run, args, draw.training)


def hard_triplets(draw: Draw) -> Program:
    """Triplets within a batch: hardest, weighted, or the nearest ones that are farther off."""
    count, width = max(4, int(draw.numel**0.5)), draw.choice((4, 16, 33, 64))
    kind, soft = draw.choice(("hardest", "weighted", "nearest")), draw.chance(0.4)
    people, normal = draw.choice((4, 16, 50)), draw.chance(0.5)

    def run(x: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        h = functional.normalize(x.float(), dim=-1) if normal else x.float()
        size = h.square().sum(-1)
        far = (size[:, None] + size - 2 * h @ h.t()).clamp(min=1e-6).sqrt()
        same = label[:, None] == label
        alike = same & ~torch.eye(count, dtype=torch.bool, device=x.device)
        if kind == "weighted":
            near = far.masked_fill(~alike, -1e4).softmax(1) * far * alike
            other = (-far).masked_fill(same, -1e4).softmax(1) * far * ~same
            pull, push = near.sum(1), other.sum(1)
        else:
            pull = far.masked_fill(~alike, 0).amax(1)
            barred = same | (far < pull[:, None]) if kind == "nearest" else same
            push = far.masked_fill(barred, 1e2).amin(1)
        gap = pull - push
        loss = functional.softplus(gap) if soft else functional.relu(gap + 0.3)
        return loss.sum() / (loss > 0).sum().clamp(min=1), (gap < 0).float().mean()

    return Program(
        run, (draw.tensor((count, width)), draw.indices((count,), people)), draw.training
    )


def variational(draw: Draw) -> Program:
    """Codes drawn from a normal, what they reconstruct, and their divergence: VAEs."""
    channels, wide = draw.choice((1, 3, 4)), draw.choice((2, 8, 32, 128))
    side = min(draw.choice((8, 28, 32, 65)), max(4, int((draw.numel / channels) ** 0.5)))
    kind, kept = (
        draw.choice(("bits", "normal", "spread")),
        draw.choice(("mean", "free", "capacity")),
    )

    def run(found: Tensor, image: Tensor, code: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        mean, spread = code.float().chunk(2, 1)
        spread = spread.clamp(-30, 20)
        z = mean + (0.5 * spread).exp() * noise
        x, y = found.float(), image.float()
        if kind == "bits":
            error = functional.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none")
        else:
            error = (x - y).abs() if kind == "spread" else 0.5 * (x - y).square()
        lost = error.sum((1, 2, 3))
        if kind == "spread":
            scale = spread.mean(1)
            lost = lost / scale.exp() + scale * channels * side * side
        apart = 0.5 * (mean.square() + spread.exp() - 1 - spread)
        free = kept == "free"
        apart = apart.mean(0).clamp(min=0.1).sum() if free else apart.sum(1).mean()
        apart = 4 * (apart - 5.0).abs() if kept == "capacity" else apart
        return lost.mean() + apart, z.to(found.dtype)

    rows = max(2, draw.numel // (channels * side * side))
    image = draw.tensor((rows, channels, side, side), grad=False)
    codes = (draw.tensor((rows, 2 * wide)), draw.tensor((rows, wide), grad=False))
    return Program(run, (draw.tensor(image.shape), image, *codes), draw.training)


def total_correlation(draw: Draw) -> Program:
    """Codes of a batch under each other's normals, together and by dimension: beta-TCVAE."""
    width = draw.choice((2, 5, 10, 32))
    rows, weighted = max(3, int((draw.numel / width) ** 0.5)), draw.chance(0.4)

    def run(z: Tensor, mean: Tensor, spread: Tensor) -> tuple[Tensor, ...]:
        code, middle, wide = z.float(), mean.float(), spread.float().clamp(-4, 4)
        gap = code[:, None] - middle
        logs = -0.5 * (gap.square() * torch.exp(-wide) + wide + 1.8379)
        if weighted:
            itself = torch.eye(rows, dtype=torch.bool, device=z.device)
            logs = logs + torch.where(itself, -7.0, -3.0)[..., None]
        joint, each = logs.sum(2).logsumexp(1), logs.logsumexp(1).sum(1)
        own = -0.5 * ((code - middle).square() * torch.exp(-wide) + wide + 1.8379).sum(1)
        prior = -0.5 * (code.square() + 1.8379).sum(1)
        return (own - joint).mean(), 6 * (joint - each).mean(), (each - prior).mean()

    return Program(run, tuple(draw.tensor((rows, width)) for _ in range(3)), draw.training)


def angular_margin(draw: Draw) -> Program:
    """Cosines to the weights of classes with a margin at the target: ArcFace, CosFace, AdaFace."""
    classes, width = draw.choice((10, 100, 1000, 5003, 10572)), draw.choice((8, 16, 64))
    classes = min(classes, max(10, 2 * draw.numel // width))
    rows = max(2, draw.numel // max(classes, width))
    kind, scale = draw.choice(("arc", "cos", "norm", "curricular")), draw.choice((16.0, 30.0, 64.0))

    def run(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        size = x.float().norm(dim=1, keepdim=True)
        near = functional.normalize(x) @ functional.normalize(weight).t()
        c = near.float().clamp(-1 + 1e-4, 1 - 1e-4)
        own = c.gather(1, target[:, None])
        turned = own * 0.8776 - (1 - own.square()).sqrt() * 0.4794
        if kind == "arc":
            moved = torch.where(own + 0.8776 > 0, turned, own - 0.2397)
        elif kind == "norm":
            level = ((size - size.mean()) / (size.std() + 1e-3) * 0.33).clamp(-1, 1).detach()
            moved = (own.arccos() - 0.4 * level).clamp(1e-3, 3.14).cos() - 0.4 * (1 + level)
        else:
            moved = own - 0.35 if kind == "cos" else turned
        if kind == "curricular":
            c = torch.where(c > turned, c * (own.mean().detach() + c), c)
        return functional.cross_entropy(scale * c.scatter(1, target[:, None], moved), target)

    args = (draw.tensor((rows, width)), draw.tensor((classes, width)))
    return Program(run, (*args, draw.indices((rows,), classes)), draw.training)


def class_centres(draw: Draw) -> Program:
    """Centres or codes looked up by label, distances to them, and moving averages in place."""
    width, classes = draw.choice((2, 16, 64, 128, 257)), draw.choice((10, 100, 512, 1024))
    classes = min(classes, max(10, draw.numel // width))
    rows, kind = max(4, draw.numel // width), draw.choice(("centres", "codebook", "prototypes"))
    by_hot = classes * rows <= 4 * draw.numel and draw.chance(0.5)

    def run(x: Tensor, label: Tensor, centre: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        h, found = x.float(), centre[label]
        hot = functional.one_hot(label, classes).float() if by_hot else None
        count = torch.bincount(label, minlength=classes).float() if hot is None else hot.sum(0)
        total = torch.zeros_like(centre).index_add(0, label, h - found)
        if kind == "centres":
            centre.add_(total / (count + 1)[:, None], alpha=0.5)
            return (h - found).square().sum(1).mean() / 2, centre
        size.mul_(0.99).add_(count, alpha=0.01)
        if kind == "codebook":
            even = (size + 1e-5) / (size.sum() + classes * 1e-5) * size.sum()
            centre.add_(total * 0.01 / even[:, None])
            share = count / rows
            return x + (found - x), torch.exp(-(share * (share + 1e-10).log()).sum())
        centre.copy_(functional.normalize(centre * 0.99 + total * 0.01, dim=1))
        return (functional.normalize(h, dim=1) * found).sum(1).to(x.dtype), size

    args = (draw.tensor((rows, width), grad=False), draw.indices((rows,), classes))
    centre = draw.tensor((classes, width), dtype=torch.float32, grad=False)
    return Program(run, (*args, centre, torch.ones(classes)))


#: Every family here.
FAMILIES = (
    paired_views,
    hard_triplets,
    variational,
    total_correlation,
    angular_margin,
    class_centres,
)
