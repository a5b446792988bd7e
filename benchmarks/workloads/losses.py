"""Losses alone, forward and backward: bound by memory, with reductions at their heart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, integers, normal


def _logits(device: torch.device, dtype: torch.dtype, rows: int, classes: int) -> Tensor:
    return normal(rows, classes, device=device, dtype=dtype, scale=2.0).requires_grad_()


def _smoothed(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), target, label_smoothing=0.1)


def _label_smoothing(device: torch.device, dtype: torch.dtype) -> Program:
    rows, classes = by_device(device, cpu=(256, 8192), gpu=(4096, 32000))
    logits = _logits(device, dtype, rows, classes)
    return Program(_smoothed, (logits, integers(classes, rows, device=device)), backward=True)


def _distilled(student: Tensor, teacher: Tensor, target: Tensor) -> Tensor:
    """Hinton et al. 2015: softened targets of a teacher beside the hard ones."""
    soft = functional.kl_div(
        functional.log_softmax(student.float() / 2, -1),
        functional.log_softmax(teacher.float() / 2, -1),
        reduction="batchmean",
        log_target=True,
    )
    return 0.7 * 4 * soft + 0.3 * functional.cross_entropy(student.float(), target)


def _distillation(device: torch.device, dtype: torch.dtype) -> Program:
    rows, classes = by_device(device, cpu=(256, 4096), gpu=(4096, 16000))
    student = _logits(device, dtype, rows, classes)
    teacher = normal(rows, classes, device=device, dtype=dtype, scale=2.0)
    target = integers(classes, rows, device=device)
    return Program(_distilled, (student, teacher, target), backward=True)


def _focused(logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Focal loss (Lin et al. 2017) over independent classes."""
    wide = logits.float()
    probability = torch.sigmoid(wide)
    entropy = functional.binary_cross_entropy_with_logits(wide, target, reduction="none")
    right = probability * target + (1 - probability) * (1 - target)
    balance = 0.25 * target + 0.75 * (1 - target)
    return (balance * (1 - right) ** 2 * entropy * weights).sum() / target.sum().clamp(min=1)


def _focal(device: torch.device, dtype: torch.dtype) -> Program:
    rows, classes = by_device(device, cpu=(8192, 80), gpu=(100_000, 80))
    logits = _logits(device, dtype, rows, classes)
    target = (torch.rand(rows, classes) < 0.05).to(device, FP32)
    weights = torch.rand(rows, 1).to(device)
    return Program(_focused, (logits, target, weights), backward=True)


def _triplet_loss(anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
    anchor, same, other = (functional.normalize(x.float(), dim=-1) for x in (anchor, same, other))
    near, far = 1 - (anchor * same).sum(-1), 1 - (anchor * other).sum(-1)
    return functional.relu(near - far + 0.2).mean() + 0.01 * (near**2).mean()


def _triplet(device: torch.device, dtype: torch.dtype) -> Program:
    rows, width = by_device(device, cpu=(8192, 128), gpu=(65536, 256))
    args = tuple(_logits(device, dtype, rows, width) for _ in range(3))
    return Program(_triplet_loss, args, backward=True)


WORKLOADS = (
    Workload("label_smoothing", "training", "loss", _label_smoothing),
    Workload("distillation", "training", "loss", _distillation),
    Workload("focal_loss", "training", "loss", _focal),
    Workload("triplet_loss", "training", "loss", _triplet),
)
