"""Diffusion models: embedded time steps, steps of the sampler, modulated norms, added noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


class _Embedded(nn.Module):
    def __init__(self, width: int, inner: int, flipped: bool) -> None:
        super().__init__()
        self.width = width
        self.flipped = flipped
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, inner)

    def forward(self, steps: Tensor) -> Tensor:
        half = self.width // 2
        place = torch.arange(half, device=steps.device, dtype=torch.float32)
        angle = steps.float()[:, None] * torch.exp(-math.log(10000.0) * place / half)
        parts = (angle.cos(), angle.sin()) if self.flipped else (angle.sin(), angle.cos())
        h = torch.cat(parts, -1).to(self.first.weight.dtype)
        out: Tensor = functional.silu(self.second(functional.silu(self.first(h))))
        return out


def timestep_embedding(draw: Draw) -> Program:
    """Sines and cosines of time steps through a small network: tiny kernels and products."""
    batch, width = draw.log_between(1, 256), draw.choice((32, 128, 256, 320))
    inner, flipped = draw.choice((128, 512, 1280)), draw.chance(0.5)
    module = draw.module(lambda: _Embedded(width, inner, flipped))
    return Program(module, (draw.indices((batch,), 1000),), draw.training)


def sampler_step(draw: Draw) -> Program:
    """One step of a sampler with guidance: few elementwise operations on latents and scalars."""
    channels, side = draw.choice((3, 4, 16)), draw.choice((8, 32, 64, 128))
    batch = max(1, draw.numel // (2 * channels * side * side))
    kind = draw.choice(("ddim", "euler", "ancestral", "second_order"))
    guided, clipped, rescaled = draw.chance(0.6), draw.chance(0.3), draw.chance(0.3)

    def run(x: Tensor, noise: Tensor, alphas: Tensor, step: Tensor, last: Tensor) -> Tensor:
        out = noise
        if guided:
            free, wanted = noise.chunk(2)
            out = free + 7.5 * (wanted - free)
            if rescaled:
                ratio = wanted.float().std((1, 2, 3), keepdim=True) / (
                    out.float().std((1, 2, 3), keepdim=True) + 1e-6
                )
                out = out * ratio.to(out.dtype)
        now, then = alphas[step], alphas[(step - 1).clamp(min=0)]
        clean = (x.float() - (1 - now).sqrt() * out) / now.sqrt()
        if clipped:
            clean = clean.clamp(-1, 1)
        if kind == "euler":
            result = x + out * (then - now)
        elif kind == "second_order":
            result = x + (1.5 * out - 0.5 * last) * (then - now)
        else:
            result = then.sqrt() * clean + (1 - then).sqrt() * out
            if kind == "ancestral":
                result = result + 0.1 * torch.randn_like(result)
        return result.to(x.dtype)

    latents = (batch, channels, side, side)
    args = (
        draw.tensor(latents, grad=False),
        draw.tensor((2 * batch if guided else batch, *latents[1:]), grad=False),
        torch.linspace(0.999, 0.01, 1000),
        torch.tensor(draw.between(1, 999)),
        draw.tensor(latents, grad=False),
    )
    return Program(run, args)


def modulated(draw: Draw) -> Program:
    """Adaptive norms of transformers: shift, scale and gate of each sample around a block."""
    batch = draw.choice((1, 2, 8, 32))
    width = draw.choice((64, 384, 768, 1152))
    length = max(1, draw.numel // (batch * width))
    norm = draw.choice(("layer", "rms", "group"))
    gated = draw.chance(0.6)

    def run(x: Tensor, change: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        shift, scale, gate = functional.silu(change).unsqueeze(1).chunk(3, -1)
        h = x + gate * other if gated else x
        if norm == "layer":
            y = functional.layer_norm(h, h.shape[-1:])
        elif norm == "rms":
            y = functional.rms_norm(h, h.shape[-1:])
        else:
            y = functional.group_norm(h.transpose(1, 2), 8).transpose(1, 2)
        return y * (1 + scale) + shift, h

    args = (
        draw.tensor((batch, length, width)),
        draw.tensor((batch, 3 * width)),
        draw.tensor((batch, length, width)),
    )
    return Program(run, args, draw.training)


def noised(draw: Draw) -> Program:
    """The loss of a diffusion model around its network: noise added, errors weighed by step."""
    channels, side = draw.choice((3, 4, 16)), draw.choice((8, 32, 64))
    batch = max(1, draw.numel // (channels * side * side))
    velocity, weighted = draw.chance(0.4), draw.chance(0.5)

    def run(x: Tensor, noise: Tensor, found: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        a = share[:, None, None, None]
        root, rest = a.sqrt(), (1 - a).sqrt()
        mixed = root * x + rest * noise
        wanted = root * noise - rest * x if velocity else noise
        error = (found.float() - wanted).square().mean((1, 2, 3))
        if weighted:
            error = error * (share / (1 - share)).clamp(max=5.0)
        return mixed.to(x.dtype), error.mean()

    shape = (batch, channels, side, side)
    args = (
        draw.tensor(shape, grad=False),
        draw.tensor(shape, grad=False),
        draw.tensor(shape),
        draw.tensor((batch,), dtype=torch.float32, grad=False).sigmoid(),
    )
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (timestep_embedding, sampler_step, modulated, noised)
