"""Optimiser steps over the parameters of a network, in place: many small independent updates."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.program import BF16, FP32, Program, Workload, by_device, normal

Tensors = list[Tensor]


def _shapes(device: torch.device) -> list[tuple[int, ...]]:
    """Shapes of four transformer layers: matrices, biases, norms."""
    width = by_device(device, cpu=160, gpu=512)
    layer = [(3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
    return [*layer, (4 * width, width), (4 * width,), (width, 4 * width), (width,)] * 3


def _zeros_like(tensors: Tensors) -> Tensors:
    return [torch.zeros_like(tensor, dtype=FP32) for tensor in tensors]


def _drawn(device: torch.device, dtype: torch.dtype, scale: float) -> Tensors:
    return [normal(*shape, device=device, dtype=dtype, scale=scale) for shape in _shapes(device)]


def _adam_step(
    parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, step: Tensor
) -> None:
    """Kingma and Ba 2015, decoupled weight decay (Loshchilov and Hutter 2019)."""
    step += 1
    first, second = 1 - 0.9**step, 1 - 0.999**step
    for p, g, m, s in zip(parameters, gradients, means, squares, strict=True):
        wide = g.float()
        m.lerp_(wide, 0.1)
        s.mul_(0.999).addcmul_(wide, wide, value=0.001)
        update = (m / first) / ((s / second).sqrt() + 1e-8)
        p.mul_(1 - 1e-5).sub_((1e-3 * update).to(p.dtype))


def _adam(device: torch.device, dtype: torch.dtype) -> Program:
    parameters, gradients = _drawn(device, dtype, 0.1), _drawn(device, dtype, 0.01)
    step = torch.zeros((), device=device)
    state = (_zeros_like(parameters), _zeros_like(parameters), step)
    return Program(_adam_step, (parameters, gradients, *state))


def _sgd_step(parameters: Tensors, gradients: Tensors, velocities: Tensors) -> None:
    """Nesterov momentum and weight decay, as whole-list operations."""
    decayed = torch._foreach_add(gradients, parameters, alpha=1e-4)
    torch._foreach_mul_(velocities, 0.9)
    torch._foreach_add_(velocities, decayed)
    torch._foreach_add_(decayed, velocities, alpha=0.9)
    torch._foreach_add_(parameters, decayed, alpha=-1e-3)


def _sgd(device: torch.device, dtype: torch.dtype) -> Program:
    parameters, gradients = _drawn(device, dtype, 0.1), _drawn(device, dtype, 0.01)
    return Program(_sgd_step, (parameters, gradients, [torch.zeros_like(p) for p in parameters]))


def _clipped_step(parameters: Tensors, gradients: Tensors) -> Tensor:
    """Clip by the norm of all gradients, then descend; the norm."""
    norm = torch.stack([g.float().square().sum() for g in gradients]).sum().sqrt()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for p, g in zip(parameters, gradients, strict=True):
        p.sub_((1e-3 * scale * g.float()).to(p.dtype))
    return norm


def _clipped(device: torch.device, dtype: torch.dtype) -> Program:
    return Program(_clipped_step, (_drawn(device, dtype, 0.1), _drawn(device, dtype, 0.01)))


WORKLOADS = (
    Workload("adam_step", "training", "optimiser", _adam),
    Workload("sgd_step", "training", "optimiser", _sgd, (FP32,)),
    Workload("clipped_step", "training", "optimiser", _clipped, (FP32, BF16)),
)
