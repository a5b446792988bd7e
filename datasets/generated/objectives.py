"""Objectives of detectors, segmenters, forecasts, restored images and policies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def class_focal(draw: Draw) -> Program:
    """Focal losses of detectors: labels of anchors made one-hot, ignored anchors left out."""
    classes, kind = draw.choice((1, 3, 20, 80, 91)), draw.choice(("sigmoid", "softmax", "quality"))
    rows = (batch := draw.choice((1, 2, 8)), max(2, draw.numel // (batch * classes)))

    def run(scores: Tensor, label: Tensor, quality: Tensor) -> Tensor:
        s, valid, found = scores.float(), label >= 0, label > 0
        if kind == "softmax":
            at = (label - 1).clamp(min=0).unsqueeze(-1)
            logs = functional.log_softmax(s, -1).gather(-1, at).squeeze(-1)
            loss = -torch.where(found, 0.25, 0.75) * (1 - logs.exp()) ** 2 * logs * valid
            return loss.sum() / found.sum().clamp(min=1)
        hot = functional.one_hot(label.clamp(min=0), classes + 1)[..., 1:].to(s.dtype)
        hot = hot * torch.sigmoid(quality.float())[..., None] if kind == "quality" else hot
        p, loss = s.sigmoid(), functional.binary_cross_entropy_with_logits(s, hot, reduction="none")
        missed = (hot - p).abs() if kind == "quality" else p * (1 - hot) + (1 - p) * hot
        weight = torch.where(hot > 0, 0.25, 0.75) * missed**2
        return (weight * loss).sum(-1).masked_fill(~valid, 0).sum() / found.sum().clamp(min=1)

    label = draw.indices(rows, classes + 2) - 1
    args = (draw.tensor((*rows, classes)), label, draw.tensor(rows, grad=False))
    return Program(run, args, draw.training)


def dice(draw: Draw) -> Program:
    """Dice and Tversky losses of segmented images, by sample or for the whole batch."""
    classes = draw.choice((1, 2, 4, 19, 21))
    side = max(7, min(draw.choice((32, 64, 65, 128)), int((draw.numel / classes) ** 0.5)))
    axes = draw.choice(((0, 2, 3), (2, 3), (2, 3)))
    kind, present = draw.choice(("dice", "tversky", "soft")), draw.chance(0.4)

    def run(scores: Tensor, label: Tensor) -> Tensor:
        p = scores.float().sigmoid() if classes == 1 else scores.float().softmax(1)
        hot = functional.one_hot(label, max(2, classes))[..., -classes:].movedim(-1, 1).float()
        hit, size = (p * hot).sum(axes), hot.sum(axes)
        if kind == "tversky":
            lost, extra = ((1 - p) * hot).sum(axes), (p * (1 - hot)).sum(axes)
            loss = (1 - (hit + 1) / (hit + 0.7 * lost + 0.3 * extra + 1)).clamp(min=1e-4) ** 0.75
        else:
            loss = 1 - (2 * hit + 1) / ((p.square() if kind == "dice" else p).sum(axes) + size + 1)
        return (loss * (size > 0)).sum() / classes if present else loss.mean()

    batch = max(1, draw.numel // (classes * side * side))
    label = draw.indices((batch, side, side), max(2, classes))
    return Program(run, (draw.tensor((batch, classes, side, side)), label), draw.training)


def box_overlap(draw: Draw) -> Program:
    """Overlap of boxes, of each with each or with its own: generalised, by distance, by aspect."""
    pairwise, centred = draw.chance(0.5), draw.chance(0.5)
    kind, few = draw.choice(("iou", "giou", "diou", "ciou")), draw.choice((5, 20, 64, 100))
    rows = max(4, draw.numel // (few if pairwise else 4))

    def run(boxes: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        parts = [x.float().sigmoid().chunk(2, -1) for x in (boxes, target)]
        lows = [start - size / 2 if centred else start for start, size in parts]
        ends = [torch.cat((x, x + size), -1) for x, (_, size) in zip(lows, parts, strict=True)]
        a, b = (ends[0][:, None], ends[1][None]) if pairwise else ends
        inner = (torch.minimum(a, b)[..., 2:] - torch.maximum(a, b)[..., :2]).clamp(min=0)
        outer = torch.maximum(a, b)[..., 2:] - torch.minimum(a, b)[..., :2]
        (aw, ah), (bw, bh) = ((x[..., 2:] - x[..., :2]).unbind(-1) for x in (a, b))
        union = aw * ah + bw * bh - inner[..., 0] * inner[..., 1]
        iou = inner[..., 0] * inner[..., 1] / (union + 1e-6)
        if kind == "giou":
            hull = outer[..., 0] * outer[..., 1] + 1e-6
            iou = iou - (hull - union) / hull
        elif kind != "iou":
            gap = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]).square().sum(-1)
            iou = iou - gap / (4 * outer.square().sum(-1) + 1e-6)
            turn = (torch.atan(bw / (bh + 1e-3)) - torch.atan(aw / (ah + 1e-3))) * 2 / torch.pi
            iou = iou - 0.5 * turn.square() if kind == "ciou" else iou
        return (iou, iou.amax(0), iou.argmax(1)) if pairwise else ((1 - iou).mean(), iou)

    trained = draw.training and not pairwise
    other = draw.tensor((few if pairwise else rows, 4), grad=False)
    return Program(run, (draw.tensor((rows, 4), grad=trained), other), trained)


def quantiles(draw: Draw) -> Program:
    """Quantile losses: of forecasts with their order, or of all pairs in distributional control."""
    paired, smooth, many = draw.chance(0.5), draw.chance(0.4), draw.choice((3, 9, 32, 51))
    rows = max(1, draw.numel // (many * many if paired else many))

    def run(found: Tensor, target: Tensor, keep: Tensor) -> Tensor:
        level = (torch.arange(many, device=found.device) + 0.5) / many
        gap = target.float()[:, None, :] - found.float()[:, :, None]
        size = gap.cosh().log() if smooth else gap.abs()
        loss = (level[:, None] - (gap < 0).float()).abs() * size
        disorder = functional.relu(found[:, :-1] - found[:, 1:]).float().sum(1)
        return ((loss.mean(2).sum(1) + disorder) * keep).sum() / keep.sum().clamp(min=1)

    target = draw.tensor((rows, many if paired else 1), grad=False)
    return Program(run, (draw.tensor((rows, many)), target, draw.mask((rows,), 0.8)), draw.training)


def policy(draw: Draw) -> Program:
    """Clipped policy objectives: rewards discounted, advantages normalised by group or by all."""
    steps, kind = draw.choice((16, 31, 64, 128, 512)), draw.choice(("all", "group", "sequence"))
    rows, kept_near = max(1, draw.numel // (4 * steps)), draw.chance(0.4)

    def run(logs: Tensor, old: Tensor, reward: Tensor, keep: Tensor) -> Tensor:
        at = torch.arange(steps, device=logs.device)
        gain = torch.cumsum((reward * keep).float().flip(-1) * 0.99 ** at.flip(0), -1).flip(-1)
        edge, axes = (gain * 0.99**-at, (0, 1, 2)) if kind == "all" else (gain, (0,))
        edge = (edge - edge.mean(axes, keepdim=True)) / (edge.std(axes, keepdim=True) + 1e-4)
        change = (logs.float() - old).clamp(-5, 5)
        ratio = (change.mean(-1, keepdim=True) if kind == "sequence" else change).exp()
        loss = -torch.minimum(ratio * edge, ratio.clamp(0.8, 1.2) * edge)
        loss = loss + 0.04 * (torch.exp(-change) + change - 1) if kept_near else loss
        return ((loss * keep).sum(-1) / keep.sum(-1).clamp(min=1)).mean()

    shape = (4, rows, steps)
    tensors = [draw.tensor(shape, grad=g) for g in (None, False, False)]
    return Program(run, (*tensors, draw.mask(shape, 0.9)), draw.training)


def mixture_density(draw: Draw) -> Program:
    """Likelihoods under mixtures: components on a middle axis, normal or binned logistic ones."""
    parts, width = draw.choice((3, 5, 10, 20)), draw.choice((1, 2, 16, 64, 197))
    rows, kind = max(2, draw.numel // (2 * parts * width)), draw.choice(("normal", "logistic"))

    def run(found: Tensor, choice: Tensor, target: Tensor) -> Tensor:
        mean, spread = found.float().chunk(2, 1)
        gap, slope = target.float()[:, None] - mean, torch.exp(-spread.clamp(min=-5))
        logs = -0.5 * (gap * slope).square() - spread.clamp(min=-5) - 0.919
        if kind == "logistic":
            inner = torch.sigmoid(slope * (gap + 0.1)) - torch.sigmoid(slope * (gap - 0.1))
            logs = torch.where(inner > 1e-5, inner.clamp(min=1e-9).log(), -slope * gap.abs())  # noqa: PLR2004
        joint = logs.sum(-1) + functional.log_softmax(choice.float(), 1)
        return -torch.logsumexp(joint, 1).mean() / width

    found, choice = draw.tensor((rows, 2 * parts, width)), draw.tensor((rows, parts))
    return Program(run, (found, choice, draw.tensor((rows, width), grad=False)), draw.training)


def ssim(draw: Draw) -> Program:
    """Structural similarity by averaging windows, or edges with the total variation."""
    channels, window = draw.choice((1, 3, 3)), draw.choice((3, 7, 11))
    side = max(11, min(draw.choice((16, 32, 65, 128, 256)), int((draw.numel / channels) ** 0.5)))
    structure, smooth = draw.chance(0.6), draw.chance(0.4)

    def run(image: Tensor, target: Tensor) -> Tensor:
        x, y = image.float(), target.float()
        loss = ((x.diff(dim=2) - y.diff(dim=2)).square() + 1e-6).sqrt()
        if structure:
            maps = (x, y, x * x, y * y, x * y)
            a, b, aa, bb, ab = (functional.avg_pool2d(v, window, 1) for v in maps)
            top = (2 * a * b + 0.01) * (2 * (ab - a * b) + 0.03)
            loss = 1 - top / ((a * a + b * b + 0.01) * (aa - a * a + bb - b * b + 0.03))
        total = loss.mean((1, 2, 3))
        return (total + 0.1 * x.diff(dim=3).abs().mean((1, 2, 3)) if smooth else total).mean()

    shape = (max(1, draw.numel // (channels * side * side)), channels, side, side)
    return Program(run, (draw.tensor(shape), draw.tensor(shape, grad=False)), draw.training)


def redundancy(draw: Draw) -> Program:
    """Features of two views decorrelated: statistics of columns and products of features."""
    rows = max(4, draw.numel // (width := draw.choice((32, 64, 100, 128))))
    kind, gain = draw.choice(("cross", "variance", "both")), draw.choice((0.005, 1.0))

    def run(x: Tensor, y: Tensor) -> Tensor:
        a, b = (v.float() - v.float().mean(0) for v in (x, y))
        loss = (x.float() - y.float()).square().mean()
        off = ~torch.eye(width, dtype=torch.bool, device=x.device)
        if kind != "cross":
            loss = loss + sum(functional.relu(1 - (v.var(0) + 1e-4).sqrt()).mean() for v in (a, b))
        if kind == "variance":
            return loss + sum(((v.t() @ v / rows).square() * off).sum() / width for v in (a, b))
        both = (a / (a.std(0) + 1e-4)).t() @ (b / (b.std(0) + 1e-4)) / rows
        return loss + (both.diagonal() - 1).square().sum() + gain * (both * off).square().sum()

    return Program(run, (draw.tensor((rows, width)), draw.tensor((rows, width))), draw.training)


#: Every family here.
FAMILIES = (class_focal, dice, box_overlap, quantiles, policy, mixture_density, ssim, redundancy)
