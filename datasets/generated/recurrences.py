"""Recurrent cells and units over a few steps: gates, norms, spikes, bases."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def log_recurrences(draw: Draw) -> Program:
    """Recurrences by running sums of logarithms, or by step with highways: minGRU, SRU, QRNN."""
    kind = draw.choice(("logs", "exponents", "highway", "pooled"))
    width, axis = draw.choice((16, 48, 64, 128, 256, 512, 768)), draw.choice((0, 1))
    most = 12 if kind in ("highway", "pooled") else max(4, draw.numel // (2 * width))
    steps, bounded = min(draw.choice((4, 5, 8, 33, 64, 197, 512, 1000)), most), draw.chance(0.5)
    batch = max(1, draw.numel // (2 * width * steps))

    def scanned(x: Tensor, first: Tensor, gain: Tensor) -> Tensor:
        value, gate = (x.float() + gain[0]).chunk(2, -1)
        keep, take = -functional.softplus(gate), -functional.softplus(-gate)
        size = torch.where(value >= 0, (value.relu() + 0.5).log(), -functional.softplus(-value))
        total = keep.cumsum(axis)
        if kind == "logs":
            h = total + torch.logcumsumexp(take + size - total, axis)
            return (torch.logaddexp(h, total + first.unsqueeze(axis)).exp()).to(x.dtype)
        total = total.clamp(min=-20)
        h = (torch.exp(take + size - total)).cumsum(axis) + first.unsqueeze(axis)
        return (h * total.exp()).to(x.dtype)

    def stepped(x: Tensor, first: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        cell, outs = first, []
        for part in x.unbind(axis):
            value, gate = part.chunk(2, -1)
            old = cell * gain[0, :width] if kind == "highway" else gain[0, :width]
            forget = torch.sigmoid(gate + old)
            cell = forget * cell + (1 - forget) * (value.tanh() if bounded else value)
            share = torch.sigmoid(gate * gain[0, width:])
            outs.append(share * torch.tanh(cell) + (1 - share) * value if bounded else share * cell)
        return torch.stack(outs, axis), cell

    shape = (steps, batch) if axis == 0 else (batch, steps)
    args = (draw.tensor((*shape, 2 * width)), draw.tensor((batch, width)))
    run = stepped if kind in ("highway", "pooled") else scanned
    return Program(run, (*args, draw.tensor((1, 2 * width))), draw.training)


def normed_cells(draw: Draw) -> Program:
    """Cells of normalised gates over a few steps, some kept, scaled by factors: LSTM, HyperNet."""
    width, steps = draw.choice((24, 64, 100, 128, 256, 512, 1024)), draw.between(1, 5)
    kind = draw.choice(("whole", "gates", "plain", "generated"))
    coupled, dropped, peeped = draw.chance(0.4), draw.chance(0.4), draw.chance(0.4)
    gates = 3 if coupled else 4
    batch = max(1, draw.numel // (gates * width * steps))
    product = width in (24, 64, 128) and draw.chance(0.3)

    def run(x: Tensor, own: Tensor, gain: Tensor, cell: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        h, outs = torch.tanh(cell), []
        for step in range(steps):
            past = h @ own if product else h.repeat(1, gates) * own[0]
            g = (x[:, step] + past).view(batch, gates, width)
            if kind == "whole":
                g = functional.layer_norm(g, (gates, width), gain[:gates], gain[gates:])
            elif kind == "gates":
                g = functional.layer_norm(g, (width,)) * gain[:gates] + gain[gates:]
            elif kind == "generated":
                factor = torch.tanh(h.unflatten(-1, (-1, 4)).mean(-1)).repeat_interleave(4, -1)
                g = g * (1 + factor[:, None] * gain[:gates]) + gain[gates:]
            else:
                g = g * gain[:gates] + gain[gates:]
            if coupled:
                new, z = torch.tanh(torch.sigmoid(g[:, 0]) * h + g[:, 1]), torch.sigmoid(g[:, 2])
                after = (1 - z) * new + z * h
            else:
                peep = cell * gain[0] if peeped else 0.0
                kept, fresh = torch.sigmoid(g[:, 0] + 1 + peep), torch.sigmoid(g[:, 1] + peep)
                cell = kept * cell + fresh * torch.tanh(g[:, 2])
                shown = functional.layer_norm(cell, (width,)) if kind == "gates" else cell
                after = torch.sigmoid(g[:, 3]) * torch.tanh(shown)
            h = torch.where(keep, h, after) if dropped else after
            outs.append(h)
        return torch.stack(outs, 1), cell

    own = (width if product else 1, gates * width)
    shapes = (own, (2 * gates, width), (batch, width))
    args = (draw.tensor((batch, steps, gates * width)), *(draw.tensor(shape) for shape in shapes))
    return Program(run, (*args, draw.mask((batch, width), 0.1)), draw.training)


def spiking(draw: Draw) -> Program:
    """Leaky neurons that fire and are reset over some steps, with smooth slopes: SNN, ALIF."""
    steps, channels = draw.choice((2, 4, 4, 6, 8)), draw.choice((2, 16, 64, 128, 256, 700))
    side = min(draw.choice((1, 4, 7, 8, 16, 32)), max(1, int((draw.numel / channels / 8) ** 0.5)))
    batch = max(1, draw.numel // (steps * channels * side * side))
    slope, tracked = draw.choice(("arc", "sigmoid", "triangle", "fast")), draw.chance(0.3)
    reset, out = draw.choice(("zero", "less", "none")), draw.choice(("spikes", "rate", "voltage"))

    def soft(v: Tensor) -> Tensor:
        if slope == "arc":
            return torch.atan(v * torch.pi) / torch.pi + 0.5
        if slope == "sigmoid":
            return torch.sigmoid(4 * v)
        if slope == "triangle":
            return torch.where(
                v < 0, 0.5 * (1 + v).relu().square(), 1 - 0.5 * (1 - v).relu().square()
            )
        return 0.5 * v / (1 + v.abs()) + 0.5

    def run(x: Tensor, leak: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        currents = (x * 2 + bias[:, None, None]).unflatten(0, (steps, batch))
        decay = torch.sigmoid(leak)[:, None, None]
        v, bound, spikes = torch.zeros_like(currents[0]), torch.ones_like(currents[0]), []
        for current in currents:
            v = v * decay + current * (1 - decay)
            smooth = soft(v - bound)
            fired = smooth + ((v > bound).to(v.dtype) - smooth).detach()
            v = v * (1 - fired) if reset == "zero" else v - bound * fired if reset == "less" else v
            bound = 1 + 0.9 * (bound - 1) + 0.1 * fired.detach() if tracked else bound
            spikes.append(fired)
        if out == "spikes":
            return torch.stack(spikes).flatten(0, 1), v
        rate = torch.stack(spikes).float().mean(0)
        return (rate, rate.mean((0, 2, 3))) if out == "rate" else (v, rate.mean())

    x = draw.image((steps * batch, channels, side, side))
    return Program(run, (x, *(draw.tensor((channels,)) for _ in "lb")), draw.training)


def radial_units(draw: Draw) -> Program:
    """Units by distance to centres, hats and tables between knots, largest of groups, rivals."""
    kind = draw.choice(("gaussians", "hats", "centres", "table", "maxout", "rivals"))
    width, many = draw.choice((8, 24, 64, 128, 320, 768)), draw.choice((3, 5, 8, 12))
    wide = kind in ("gaussians", "hats", "centres")
    rows, shared = max(2, draw.numel // (width * (many // 2 if wide else 1))), draw.chance(0.4)

    def run(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        knots = torch.linspace(-2, 2, many, device=x.device, dtype=x.dtype)
        if kind in ("gaussians", "hats"):
            far = (x[..., None] - knots) * ((many - 1) / 4)
            basis = torch.exp(-far.square()) if kind == "gaussians" else (1 - far.abs()).relu()
            h = (basis * (weight[0] if shared else weight)).sum(-1)
            return h + scale * functional.silu(x)
        if kind == "centres":
            far = (x[:, None].float() - weight.t()).square().sum(-1) / width
            near = torch.exp(-far * (1 + scale[0] ** 2))
            return near / near.sum(-1, keepdim=True).clamp(min=1e-6) if shared else near
        if kind == "table":
            at = ((x.detach().float() + 2) * ((many - 1) / 4)).clamp(0, many - 1.001)
            low, share = at.long(), (at - at.floor()).to(x.dtype)
            table, slope = weight[0], x * scale
            found: Tensor = slope * (table[low] * (1 - share) + table[low + 1] * share)
            return found
        if kind == "maxout":
            h = (x * scale).unflatten(-1, (-1, 4) if shared else (4, -1))
            largest: Tensor = h.amax(-1 if shared else -2) + weight[0, 0]
            return largest
        power = functional.pad(x.float().square(), (many // 2, many // 2))
        rivals = power.unfold(-1, many // 2 * 2 + 1, 1).sum(-1)
        h = x * scale * torch.rsqrt(1 + weight.mean() ** 2 * rivals)
        return (h - weight[0, 0] * h.mean(-1, keepdim=True)).relu().to(x.dtype) if shared else h

    args = (draw.tensor((rows, width)), draw.tensor((width, many)), draw.tensor((width,)))
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (
    log_recurrences,
    normed_cells,
    spiking,
    radial_units,
)
