"""Quantised inference and training: int8 values in memory, arithmetic in floating point."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, normal


def _quantised(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """int8 weight and the scale of each group of columns."""
    grouped = weight.float().view(weight.shape[0], -1, group)
    scale = grouped.abs().amax(-1, keepdim=True) / 127
    return (grouped / scale).round().to(torch.int8).view_as(weight), scale.to(weight.dtype)


def _weight_only(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Linear with weights dequantised on the way, then GELU. Scale is [out, groups, 1]."""
    out, groups, _ = scale.shape
    wide = (weight.view(out, groups, -1).to(x.dtype) * scale).view(out, -1)
    return functional.gelu(functional.linear(x, wide, bias))


def _dequantised(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(64, 1024), gpu=(64, 4096))
    weight, scale = _quantised(normal(width, width, device=device, dtype=dtype, scale=0.02), 128)
    x, bias = (normal(*s, device=device, dtype=dtype) for s in ((n, width), (width,)))
    return Program(_weight_only, (x, weight, scale, bias))


def _per_token(x: Tensor, norm: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """RMSNorm, one scale a row, rounding to int8, an integer-valued product, and back again."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * norm.float()
    row = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    rounded = torch.clamp(torch.round(y / row), -128, 127)
    product = rounded.to(x.dtype) @ weight.to(x.dtype).t()
    return (product.float() * row * scale.view(1, -1).float()).to(x.dtype), rounded.to(torch.int8)


def _dynamic(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(1024, 512), gpu=(4096, 2048))
    weight, scale = _quantised(normal(width, width, device=device, dtype=dtype, scale=0.02), width)
    x = normal(n, width, device=device, dtype=dtype)
    norm = 1 + normal(width, device=device, dtype=dtype, scale=0.1)
    return Program(_per_token, (x, norm, weight, scale))


def _fake_quantised(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Quantisation-aware training with a straight-through estimator (Jacob et al. 2018)."""

    def rounded(value: Tensor, by: Tensor) -> Tensor:
        clipped = torch.clamp(value / by, -128, 127)
        return (clipped + (clipped.round() - clipped).detach()) * by

    y = rounded(x, scale) @ rounded(weight, weight.detach().abs().amax() / 127).t()
    return functional.relu(y).float().square().mean()


def _aware(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(512, 384), gpu=(8192, 1024))
    x = normal(n, width, device=device, dtype=dtype).requires_grad_()
    weight = normal(width, width, device=device, dtype=dtype, scale=0.02).requires_grad_()
    scale = torch.tensor(0.03, device=device, dtype=dtype).requires_grad_()
    return Program(_fake_quantised, (x, weight, scale), backward=True)


WORKLOADS = (
    Workload("dequantised_linear", "inference", "quantised", _dequantised),
    Workload("per_token_linear", "inference", "quantised", _dynamic),
    Workload("fake_quantised_step", "training", "quantised", _aware, (FP32,)),
)
