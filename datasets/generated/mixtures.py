"""Long programs: stages of all kinds on one stream, and programs of other families together."""

# Stages are called alike, whatever each has a use for.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated import (
    attention,
    caches,
    chains,
    diffusion,
    gathers,
    images,
    joins,
    layouts,
    losses,
    masks,
    mlp,
    norms,
    quantised,
    recommendation,
    reductions,
    scatters,
    tiny,
    wide,
)
from fusewise.datasets.generated.draw import Draw, Program

#: A stage takes the stream, a row, and places of its rows, and gives a stream of the same shape.
Stage = Callable[[Tensor, Tensor, Tensor], Tensor]


def _layer_norm(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return functional.layer_norm(h, h.shape[-1:], row)


def _rms_norm(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    h32 = h.float()
    return (h32 * torch.rsqrt(h32.square().mean(-1, keepdim=True) + 1e-6)).to(h.dtype) * row


def _softmax(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return functional.softmax(h * row, -1) + h


def _column_norm(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    centred = h - h.mean(0, keepdim=True)
    return centred * torch.rsqrt(centred.float().square().mean(0) + 1e-5).to(h.dtype)


def _gate(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    first, second = (h + row).chunk(2, -1)
    return torch.cat((functional.silu(first) * second, torch.tanh(second)), -1)


def _rotate(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    first, second = h.chunk(2, -1)
    angle = at.float()[:, None] * row.float()
    return h * angle.cos().to(h.dtype) + torch.cat((-second, first), -1) * angle.sin().to(h.dtype)


def _gather(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return h + 0.5 * torch.tanh(h[at])


def _scatter(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return torch.tanh(torch.zeros_like(h).index_add(0, at, h * row)) + h


def _quantised(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    step = h.abs().amax(-1, keepdim=True).clamp(min=1e-3) / 127
    y = h / step
    return (y + (torch.round(y) - y).detach()) * step


def _masked(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    kept = at < at.shape[0] // 2
    return torch.where(kept[:, None], h, 0.1 * h + row)


def _running(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return h + torch.tanh(h.float()).cumsum(-1).to(h.dtype) / h.shape[-1]


def _shifted(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    before = functional.pad(h, (0, 0, 1, 0))[:-1]
    return h * torch.sigmoid(row) + before * (1 - torch.sigmoid(row))


def _centred(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return (h - h.mean()) * torch.rsqrt(h.float().var(correction=0) + 1e-3).to(h.dtype)


def _squeezed(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return h * torch.sigmoid(h.amax(-1, keepdim=True) * 0.1)


def _activated(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return functional.gelu(h * row) + functional.softplus(h - row)


def _dropped(h: Tensor, row: Tensor, at: Tensor) -> Tensor:
    return functional.dropout(h, 0.1, training=True) + h


STAGES: tuple[Stage, ...] = (
    _layer_norm,
    _rms_norm,
    _softmax,
    _column_norm,
    _gate,
    _rotate,
    _gather,
    _scatter,
    _quantised,
    _masked,
    _running,
    _shifted,
    _centred,
    _squeezed,
    _activated,
    _dropped,
)


def stages(draw: Draw) -> Program:
    """Three to twelve stages of all kinds on one stream, with residuals and values kept."""
    rows, width = draw.shape(2)
    width = max(2, width // 2 * 2)
    plan = [draw.choice(STAGES) for _ in range(draw.between(3, 12))]
    residual = [draw.chance(0.4) for _ in plan]
    kept = [draw.chance(0.2) for _ in plan]

    def run(x: Tensor, gains: list[Tensor], at: Tensor) -> list[Tensor]:
        h, found = x, []
        for stage, gain, add, keep in zip(plan, gains, residual, kept, strict=True):
            y = stage(h, gain, at)
            h = (h + y) * 0.5 if add else y
            if keep:
                found.append(h)
        return [*found, h]

    args = (
        draw.tensor((rows, width)),
        [draw.tensor((width,)) for _ in plan],
        draw.indices((rows,), rows),
    )
    return Program(run, args, draw.training)


#: What is put together; optimisers and modules with many parameters are left out.
_TOGETHER: tuple[Callable[[Draw], Program], ...] = (
    attention.softmax,
    attention.rope,
    caches.decode_step,
    chains.many_users,
    chains.pointwise_chain,
    diffusion.modulated,
    gathers.along_rows,
    gathers.gather_table,
    images.pooling,
    images.upsample,
    joins.concatenation,
    joins.splits,
    layouts.broadcast,
    layouts.transpose,
    losses.bce,
    losses.cross_entropy,
    masks.masked_means,
    masks.triangle,
    mlp.gated,
    norms.group_norm,
    norms.layer_norm,
    quantised.quantise,
    recommendation.interaction,
    reductions.columns,
    reductions.long_rows,
    reductions.scan,
    scatters.scatter_elements,
    tiny.channel_parameters,
    tiny.scalars,
    wide.side_by_side,
)


def together(draw: Draw) -> Program:
    """Two to four programs of other families in one graph, without anything between them."""
    count = draw.between(2, 4)
    programs = [
        draw.choice(_TOGETHER)(Draw(f"{draw.seed}/{number}", draw.scale / count))
        for number in range(count)
    ]

    def run(*given: tuple[Any, ...]) -> list[Any]:
        return [p.module(*args) for p, args in zip(programs, given, strict=True)]

    return Program(run, tuple(p.args for p in programs), training=any(p.training for p in programs))


#: Every family here.
FAMILIES = (stages, together)
