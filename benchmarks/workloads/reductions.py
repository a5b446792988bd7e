"""Chains of normalisations, softmax variants, and reductions over several axes with transposes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, normal


def _chain(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Normalisation upon normalisation: each reduces what the one before has just written."""
    for i, weight in enumerate(weights):
        if i % 3 == 0:
            y = functional.layer_norm(x, x.shape[-1:], weight)
        elif i % 3 == 1:
            wide = x.float()
            scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
            y = scaled.to(x.dtype) * weight
        else:
            y = x / (x.float().abs().mean(-1, keepdim=True) + 1e-3).to(x.dtype) * weight
        x = functional.silu(y) + 0.5 * x
    return x


def _normalisations(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(2048, 512), gpu=(8192, 2048))
    x = normal(n, width, device=device, dtype=dtype)
    weights = [1 + normal(width, device=device, dtype=dtype, scale=0.1) for _ in range(6)]
    return Program(_chain, (x, weights))


def _chain_loss(x: Tensor, weights: list[Tensor], target: Tensor) -> Tensor:
    return functional.mse_loss(_chain(x, weights).float(), target)


def _normalisations_step(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(1024, 256), gpu=(8192, 1024))
    x = normal(n, width, device=device, dtype=dtype).requires_grad_()
    weights = [
        (1 + normal(width, device=device, dtype=dtype, scale=0.1)).requires_grad_()
        for _ in range(6)
    ]
    target = normal(n, width, device=device, dtype=FP32)
    return Program(_chain_loss, (x, weights, target), backward=True)


def _many_softmaxes(x: Tensor, bias: Tensor, gumbel: Tensor) -> tuple[Tensor, ...]:
    """A capped, a tempered and a log softmax of one input, and the entropy between two."""
    wide = x.float()
    capped = torch.softmax(30 * torch.tanh(wide / 30) + bias, -1)
    tempered = torch.softmax((wide + gumbel) / 0.7, -1)
    logarithm = torch.log_softmax(wide, -1)
    entropy = -(tempered * logarithm).sum(-1)
    return capped.to(x.dtype), tempered.to(x.dtype), entropy, (wide - bias).logsumexp(-1)


def _softmaxes(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(512, 2048), gpu=(4096, 8192))
    x = normal(n, width, device=device, dtype=dtype)
    gumbel = -torch.log(-torch.log(torch.rand(n, width).clamp(1e-6, 1 - 1e-6)))
    bias = normal(width, device=device, dtype=FP32)
    return Program(_many_softmaxes, (x, bias, gumbel.to(device)))


def _over_axes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Sums over rows, columns and both, of a tensor and of its transpose."""
    product = x * y.transpose(1, 2)
    centred = product - product.mean((1, 2), keepdim=True)
    rows, columns = centred.sum(2), centred.transpose(1, 2).contiguous().square().sum(2)
    spread = centred.var((0, 1))
    return rows, columns, spread, (centred * rows.unsqueeze(2)).amax((0, 2)), centred


def _axes(device: torch.device, dtype: torch.dtype) -> Program:
    n, rows, columns = by_device(device, cpu=(16, 256, 192), gpu=(32, 1024, 768))
    x = normal(n, rows, columns, device=device, dtype=dtype)
    y = normal(n, columns, rows, device=device, dtype=dtype)
    return Program(_over_axes, (x, y))


def _standardised(x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Instance statistics over space, channels last in the result, and a histogram-like count."""
    centred = (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)
    spread = centred.float().var((2, 3), keepdim=True)
    result = (centred * torch.rsqrt(spread + 1e-5).to(x.dtype)).permute(0, 2, 3, 1).contiguous()
    return result, (result > 1).sum((1, 2)), result.float().mean((0, 1, 2))


def _channels(device: torch.device, dtype: torch.dtype) -> Program:
    n, channels, side = by_device(device, cpu=(8, 64, 56), gpu=(32, 128, 112))
    x = normal(n, channels, side, side, device=device, dtype=dtype)
    mean, scale = (normal(channels, device=device, dtype=dtype) for _ in range(2))
    return Program(_standardised, (x, mean, scale))


WORKLOADS = (
    Workload("normalisations", "inference", "normalisation", _normalisations),
    Workload("normalisations_step", "training", "normalisation", _normalisations_step),
    Workload("softmaxes", "inference", "softmax", _softmaxes),
    Workload("axes", "inference", "reduction", _axes),
    Workload("channels_last", "inference", "reduction", _channels),
)
