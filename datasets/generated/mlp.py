"""Feed-forward parts: gated elementwise products, small products around them, whole blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation (Hendrycks and Gimpel 2016), as GPT-2 has it."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3))))


ACTIVATIONS: tuple[Activation, ...] = (
    functional.silu,
    functional.gelu,
    gelu_tanh,
    functional.relu,
    torch.sigmoid,
    torch.tanh,
    functional.mish,
    functional.softplus,
)


def gated(draw: Draw) -> Program:
    """The elementwise part of a gated MLP: gate and value in two tensors or halves of one."""
    *outer, width = draw.shape(draw.between(2, 3))
    shape = (*outer, width // 2 * 2)
    act = draw.choice(ACTIVATIONS)
    halves, biased, clamped = draw.chance(0.5), draw.chance(0.4), draw.chance(0.2)

    def run(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
        if halves:
            gate, value = (x + bias if biased else x).chunk(2, -1)
        else:
            gate, value = (x + bias if biased else x), y
        if clamped:
            gate, value = gate.clamp(max=7.0), value.clamp(-7.0, 7.0)
        return act(gate) * value

    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor(shape[-1:]))
    return Program(run, args, draw.training)


class _GatedMlp(nn.Module):
    def __init__(self, width: int, inner: int, act: Activation, gate: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.gate = nn.Linear(width, inner) if gate else None
        self.down = nn.Linear(inner, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        inner = self.up(h)
        inner = self.act(inner) if self.gate is None else self.act(self.gate(h)) * inner
        out: Tensor = x + self.down(inner)
        return out


def gated_mlp(draw: Draw) -> Program:
    """A whole feed-forward block with small products."""
    width = _narrow(draw, (16, 32, 48, 64, 128, 256, 512, 1024))
    inner = width * draw.choice((2, 3, 4))
    rows = max(1, draw.numel // inner)
    act, gate = draw.choice(ACTIVATIONS), draw.chance(0.6)
    module = draw.module(lambda: _GatedMlp(width, inner, act, gate))
    return Program(module, (draw.tensor((rows, width)),), draw.training)


def _narrow(draw: Draw, widths: Sequence[int]) -> int:
    """A width whose products take about as long as the elementwise work beside them."""
    most = max(widths[0], int(draw.numel**0.5 / 2))
    return draw.choice([width for width in widths if width <= most])


class _Composed(nn.Module):
    """A run of shape-preserving pieces with a residual stream."""

    def __init__(self, width: int, plan: tuple[tuple[str, Activation], ...]) -> None:
        super().__init__()
        self.plan = plan
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(width)) for _ in plan])
        self.products = nn.ModuleList(
            [nn.Linear(width, width) if kind == "product" else nn.Identity() for kind, _ in plan]
        )

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for (kind, act), scale, product in zip(self.plan, self.scales, self.products, strict=True):
            if kind == "norm":
                h = functional.layer_norm(h, h.shape[-1:], scale)
            elif kind == "rms":
                h = h * torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-6).to(h.dtype)
                h = h * scale
            elif kind == "act":
                h = act(h * scale)
            elif kind == "softmax":
                h = functional.softmax(h, -1) * scale
            elif kind == "centre":
                h = h - h.mean(0, keepdim=True)
            elif kind == "product":
                h = act(product(h))
            else:
                h = x = x + h
        return x + h


def composed(draw: Draw) -> Program:
    """Norms, activations, softmaxes, products and residuals in random order."""
    width = _narrow(draw, (16, 32, 64, 96, 128, 256, 768))
    rows = max(2, draw.numel // width)
    kinds = ("norm", "rms", "act", "softmax", "centre", "product", "residual", "residual")
    plan = tuple((draw.choice(kinds), draw.choice(ACTIVATIONS)) for _ in range(draw.between(3, 9)))
    module = draw.module(lambda: _Composed(width, plan))
    return Program(module, (draw.tensor((rows, width)),), draw.training)


#: Every family here.
FAMILIES = (gated, gated_mlp, composed)
