"""Images: a block of a diffusion U-Net, and a network of convolutions at inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, normal, placed


class _UnetBlock(nn.Module):
    """Residual block of a diffusion U-Net (Ho et al. 2020): group norm, SiLU, time embedding."""

    def __init__(self, channels: int, embedded: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(embedded, 2 * channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x [n, channels, height, width], time [n, embedded]."""
        y = self.first(functional.silu(self.first_norm(x)))
        scale, shift = self.time(functional.silu(time))[:, :, None, None].chunk(2, dim=1)
        y = self.second_norm(y) * (1 + scale) + shift
        return (x + self.second(functional.silu(y))) * 0.5**0.5


def _unet(device: torch.device, dtype: torch.dtype) -> Program:
    n, channels, side, embedded = by_device(device, cpu=(4, 32, 32, 64), gpu=(16, 256, 64, 512))
    x = normal(n, channels, side, side, device=device, dtype=dtype)
    time = normal(n, embedded, device=device, dtype=dtype)
    return Program(placed(_UnetBlock(channels, embedded), device, dtype, "inference"), (x, time))


class _UnetStep(nn.Module):
    """The block with the loss of denoising."""

    def __init__(self, channels: int, embedded: int) -> None:
        super().__init__()
        self.block = _UnetBlock(channels, embedded)

    def forward(self, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        """noise as x; the loss."""
        return functional.mse_loss(self.block(x, time).float(), noise.float())


def _unet_step(device: torch.device, dtype: torch.dtype) -> Program:
    n, channels, side, embedded = by_device(device, cpu=(4, 32, 16, 32), gpu=(8, 128, 64, 256))
    x, noise = (normal(n, channels, side, side, device=device, dtype=dtype) for _ in range(2))
    time = normal(n, embedded, device=device, dtype=dtype)
    step = placed(_UnetStep(channels, embedded), device, dtype, "training")
    return Program(step, (x, time, noise), backward=True)


class _Gated(nn.Module):
    """Depthwise convolution, squeeze and excitation, hard swish (Howard et al. 2019)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, height, width] to the same."""
        y = functional.hardswish(self.norms[0](self.depthwise(x)))
        gate = functional.hardsigmoid(
            self.excite(functional.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        )
        return x + self.norms[1](self.pointwise(y * gate))


def _gated(device: torch.device, dtype: torch.dtype) -> Program:
    n, channels, side = by_device(device, cpu=(8, 64, 28), gpu=(64, 128, 56))
    x = normal(n, channels, side, side, device=device, dtype=dtype)
    return Program(placed(_Gated(channels), device, dtype, "inference"), (x,))


WORKLOADS = (
    Workload("unet_block", "inference", "diffusion", _unet),
    Workload("unet_step", "training", "diffusion", _unet_step, (FP32,)),
    Workload("squeeze_excite", "inference", "vision", _gated),
)
