"""Losses, each with what usually comes right before it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def cross_entropy(draw: Draw) -> Program:
    """Cross entropy of class scores, smoothed or weighted, or written by log-softmax and gather."""
    classes = draw.choice((2, 10, 21, 100, 1000, 4099))
    rows = max(2, draw.numel // classes)
    smoothing = draw.choice((0.0, 0.0, 0.1))
    by_hand, z_loss = draw.chance(0.4), draw.chance(0.2)

    def run(scores: Tensor, target: Tensor) -> Tensor:
        s = scores.float()
        if by_hand:
            loss = -functional.log_softmax(s, -1).gather(-1, target[:, None]).squeeze(-1).mean()
        else:
            loss = functional.cross_entropy(s, target, label_smoothing=smoothing, ignore_index=0)
        return loss + 1e-4 * torch.logsumexp(s, -1).square().mean() if z_loss else loss

    # Class 0 is ignored; some row of another class keeps the mean defined.
    target = draw.indices((rows,), classes)
    target[0] = 1
    return Program(run, (draw.tensor((rows, classes)), target), draw.training)


#: Words that language models know.
_VOCABULARIES = (8192, 16000, 32000, 32768, 50257, 65024, 128256)


def vocabulary(draw: Draw) -> Program:
    """What is made of a language model's scores: losses, probabilities of words, entropies."""
    words = draw.choice(_VOCABULARIES)
    rows = max(2, draw.numel // words)
    kind = draw.choice(("loss", "smoothed", "policy", "entropy"))
    cap, heat = draw.choice((0.0, 0.0, 30.0)), draw.choice((1.0, 1.0, 0.7))
    z_loss = draw.chance(0.3)

    def run(scores: Tensor, target: Tensor, before: Tensor) -> Tensor:
        s = scores.float() / heat
        if cap:
            s = cap * torch.tanh(s / cap)
        if kind in ("loss", "smoothed"):
            smoothing = 0.1 if kind == "smoothed" else 0.0
            loss = functional.cross_entropy(s, target, label_smoothing=smoothing, ignore_index=0)
        else:
            logs = functional.log_softmax(s, -1)
            chosen = logs.gather(-1, target[:, None]).squeeze(-1)
            loss = -(torch.exp(chosen - before).clamp(0.8, 1.2) * before).mean()
            if kind == "entropy":
                loss = loss + 0.01 * (logs.exp() * logs).sum(-1).mean()
        return loss + 1e-4 * torch.logsumexp(s, -1).square().mean() if z_loss else loss

    target = draw.indices((rows,), words)
    # Word 0 is ignored; some row of another one keeps the mean defined.
    target[0] = 1
    args = (draw.tensor((rows, words)), target, draw.tensor((rows,), grad=False))
    return Program(run, args, draw.training)


def bce(draw: Draw) -> Program:
    """Binary cross entropy with logits, focal or weighted."""
    shape = draw.shape(draw.between(1, 3))
    focal, weighted = draw.chance(0.4), draw.chance(0.4)

    def run(scores: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        loss = functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
        if focal:
            p = torch.sigmoid(scores)
            hit = p * target + (1 - p) * (1 - target)
            loss = loss * (1 - hit) ** 2
        return (loss * weight if weighted else loss).mean()

    target = draw.mask(shape).to(draw.dtype)
    args = (draw.tensor(shape), target, draw.tensor(shape[-1:], grad=False))
    return Program(run, args, draw.training)


def kl_divergence(draw: Draw) -> Program:
    """Distillation: divergence of a student's from a teacher's tempered distribution."""
    shape = draw.shape(2)
    temperature = draw.choice((1.0, 2.0, 4.0))
    symmetric = draw.chance(0.3)

    def run(student: Tensor, teacher: Tensor) -> Tensor:
        s = functional.log_softmax(student.float() / temperature, -1)
        t = functional.log_softmax(teacher.float() / temperature, -1)
        loss = functional.kl_div(s, t, reduction="batchmean", log_target=True)
        if symmetric:
            loss = (loss + functional.kl_div(t, s, reduction="batchmean", log_target=True)) / 2
        return loss * temperature**2

    return Program(run, (draw.tensor(shape), draw.tensor(shape, grad=False)), draw.training)


def smooth_l1(draw: Draw) -> Program:
    """Box and regression losses: smooth L1, Huber, squared, overlap of boxes."""
    rows = max(4, draw.numel // 4)
    kind = draw.choice(("smooth", "huber", "squared", "overlap"))
    beta = draw.choice((1.0, 0.11))

    def run(boxes: Tensor, target: Tensor, keep: Tensor) -> Tensor:
        if kind == "overlap":
            low = torch.maximum(boxes[:, :2], target[:, :2])
            high = torch.minimum(boxes[:, 2:], target[:, 2:])
            inner = (high - low).clamp(min=0).prod(-1)
            area = (boxes[:, 2:] - boxes[:, :2]).abs().prod(-1)
            other = (target[:, 2:] - target[:, :2]).abs().prod(-1)
            loss = 1 - inner / (area + other - inner).clamp(min=1e-3)
            return (loss * keep).sum() / keep.sum().clamp(min=1)
        if kind == "smooth":
            loss = functional.smooth_l1_loss(boxes, target, beta=beta, reduction="none")
        elif kind == "huber":
            loss = functional.huber_loss(boxes, target, delta=beta, reduction="none")
        else:
            loss = functional.mse_loss(boxes, target, reduction="none")
        return (loss.sum(-1) * keep).sum() / keep.sum().clamp(min=1)

    keep = draw.mask((rows,), 0.7).to(draw.dtype)
    args = (draw.tensor((rows, 4)), draw.tensor((rows, 4), grad=False), keep)
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (cross_entropy, vocabulary, bce, kl_divergence, smooth_l1)
