"""Weights of layers: made sparse, rounded while trained, updated, served by slot."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.low_precision import drawn_matrix


def sparse_patterns(draw: Draw) -> Program:
    """Weights kept two of four, by size, by input norms or by row, and decayed elsewhere."""
    rows, width = drawn_matrix(draw, 8)
    kind, weighed = draw.choice(("pairs", "size", "rows", "soft")), draw.chance(0.5)
    ending, few = draw.choice(("same", "few", "act")), draw.choice((2, 2, 1))

    def run(w: Tensor, x: Tensor, cut: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        size = w.detach().float().abs() * (x.float().square().mean(0).sqrt() if weighed else 1.0)
        if kind == "pairs":
            part = size.view(rows, -1, 4)
            place = torch.arange(4, device=w.device)
            equal = (part[..., None] == part[..., None, :]) & (place[:, None] > place)
            above = (part[..., None] < part[..., None, :]) | equal
            keep = (above.sum(-1) < few).flatten(1)
        elif kind == "rows":
            keep = size > size.mean(-1, keepdim=True) * cut.abs()[:, None]
        else:
            keep = size > cut.abs().mean() * size.mean()
        if kind == "soft":
            y = torch.sign(w) * functional.relu(w.abs() - torch.sigmoid(cut)[:, None])
        else:
            y = w * keep + (w - w.detach()) * ~keep
        if ending == "few":
            four = keep.view(rows, -1, 4)
            bits = (four.int() << torch.arange(4, device=w.device)).sum(-1).to(torch.uint8)
            at, part = four.cumsum(-1) * four, y.view(rows, -1, 4)
            return torch.stack([(part * (at == n)).sum(-1) for n in range(1, few + 1)], -1), bits
        if ending == "act":
            return torch.relu(y + g).square(), keep.float().mean(0)
        return y - 2e-4 * ~keep * g, (size * keep).sum() / size.sum()

    args = (draw.tensor((rows, width)), draw.tensor((draw.choice((4, 32, 128)), width), grad=False))
    return Program(run, (*args, draw.tensor((rows,)), draw.tensor((rows, width))), draw.training)


def learned_steps(draw: Draw) -> Program:
    """Trained rounding with gradients to steps, offsets or clips, few-valued weights: LSQ, PACT."""
    kind = draw.choice(("step", "clip", "few", "sign", "curve"))
    levels, pixels, smooth = draw.choice((1, 3, 7, 127)), draw.chance(0.4), draw.chance(0.5)
    rows, width = drawn_matrix(draw, 8)
    side = min(draw.choice((7, 8, 14, 28)), max(1, int((draw.numel / width) ** 0.5)))
    batch, turned = max(1, draw.numel // (width * side**2)), draw.chance(0.5)

    def through(rough: Tensor, x: Tensor) -> Tensor:
        out: Tensor = x + (rough - x).detach()
        return out

    def run(x: Tensor, step: Tensor, shift: Tensor) -> Tensor:
        h = x.float()
        if pixels:
            step, shift = step[:, None, None], shift[:, None, None]
        if kind == "step":
            size = functional.softplus(step.float()) * (h.detach().abs().mean() + 0.01)
            size = torch.lerp(size.detach(), size, 1 / math.sqrt(levels))
            v = ((h - shift) / size).clamp(-levels - 1, levels)
            return (through(torch.round(v), v) * size + shift).to(x.dtype)
        if kind == "clip":
            top = step.float().abs() + 0.1
            v = torch.relu(h + shift) if smooth else (h + shift).abs()
            v = torch.minimum(v, top) / top * levels
            return (through(torch.round(v), v) * top / levels).to(x.dtype)
        axes = tuple(range(1, x.ndim))
        if kind == "curve":
            v = torch.tanh(h)
            v = v / (2 * v.abs().amax()) + 0.5
            return ((2 * through(torch.round(v * levels) / levels, v) - 1) * step).to(x.dtype)
        h = h - h.mean(axes, keepdim=True) + shift
        mean = h.abs().mean(axes, keepdim=True)
        rough = torch.sign(h) * (h.abs() > 0.7 * mean if kind == "few" else 1.0) * mean
        h = through(rough, h.clamp(-1, 1)) * step
        return (functional.hardswish(h) if smooth else torch.relu(h)).to(x.dtype)

    step, shift, shape = draw.tensor((width,)), draw.tensor((width,)), (batch, width, side, side)
    x = draw.image(shape, turned=turned) if pixels else draw.tensor((rows, width))
    return Program(run, (x, step, shift), draw.training)


def weight_updates(draw: Draw) -> Program:
    """Steps of layers: centred, cautious, sharp, orthogonal, slow weights, merged differences."""
    kind = draw.choice(("centred", "cautious", "sharp", "ahead", "merged", "orthogonal"))
    count, images, decay = draw.between(1, 5), draw.chance(0.4), draw.choice((0.0, 0.1))
    sizes, most = [drawn_matrix(draw, 9) for _ in range(count)], 1024
    sizes = [(max(2, rows // (4 * count)), width) for rows, width in sizes]

    def turned(u: Tensor) -> Tensor:
        h = u.flatten(1) / (u.square().sum().sqrt() + 1e-6)
        if h.shape[1] > min(most, h.shape[0]):
            return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).view_as(u)
        s = h.t() @ h
        return (3.4445 * h + h @ (2.0315 * s @ s - 4.775 * s)).view_as(u)

    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, factor: Tensor) -> None:
        d, axes = g.float(), tuple(range(1, g.ndim))
        if kind == "sharp":
            v.copy_(p)
            p.add_((p.float().square() * d * factor).to(p.dtype))
        elif kind == "ahead":
            p.copy_(m.lerp_(p - 0.1 * g, 0.5))
            v.lerp_(m, 0.001)
        elif kind == "merged":
            apart = torch.stack([(t - p).float() for t in (g, m, v)])
            least = apart.abs().mean((*axes, g.ndim), keepdim=True)
            kept = torch.where(apart.abs() > least, apart, 0.0)
            agree = torch.sign(kept) * torch.sign(kept.sum(0)) > 0
            p.add_(((kept * agree).sum(0) / agree.sum(0).clamp(min=1)).to(p.dtype))
        else:
            d = d - d.mean(axes, keepdim=True) if kind == "centred" else d
            u = m.mul_(0.9).add_(d.to(m.dtype)).float() * 0.9 + d
            if kind == "cautious":
                u = u * (u * d > 0) / (u * d > 0).float().mean().clamp(min=1e-3)
            u = turned(u) if kind == "orthogonal" else u
            p.mul_(1 - 0.1 * decay).sub_((0.01 * u).to(p.dtype))

    def run(*layers: list[Tensor]) -> list[Tensor]:
        total = torch.stack([(p * g).float().square().sum() for p, g, *_ in layers]).sum()
        for p, g, m, v in layers:
            step(p, g, m, v, 0.05 / (total.sqrt() + 1e-6))
        return [p for p, *_ in layers]

    shapes = [(n, m // 9, 3, 3) if images else (n, m) for n, m in sizes]
    return Program(run, tuple([draw.tensor(s, grad=False) for _ in range(4)] for s in shapes))


def served_slots(draw: Draw) -> Program:
    """Requests served together: adapters by slot, states by slot, and words by summed odds."""
    kind, width = (
        draw.choice(("low", "mixed", "states", "words")),
        draw.choice((64, 320, 768, 1024)),
    )
    words, sharp = min(draw.choice((512, 5003, 32000, 50257)), max(64, draw.numel // 2)), 0.9
    rank, slots, few = draw.choice((4, 8, 16)), draw.choice((2, 5, 16)), draw.choice((2, 3, 6))
    size = {"low": width * rank, "mixed": width * few, "states": width * rank, "words": words}[kind]
    rows = max(2, draw.numel // size)

    def adapt(x: Tensor, low: Tensor, up: Tensor, at: Tensor, weight: Tensor) -> Tensor:
        if kind == "mixed":
            share = functional.softmax(weight.float(), -1).to(x.dtype)[..., None]
            return x + (low * share).sum(1) * (at > 0)[:, None]
        inner = (x[:, None] * low[at]).sum(-1) * torch.sigmoid(weight[:, :1])
        return torch.where((at > 0)[:, None], x + (inner[..., None] * up[at]).sum(1), x)

    def advance(states: Tensor, x: Tensor, fade: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        new = states[at] * torch.exp(-functional.softplus(fade))[..., None]
        new = new + x[..., None] * fade[:, :rank, None].transpose(1, 2)
        y = functional.layer_norm((new * torch.tanh(new)).sum(-1), (width,))
        return states.index_copy(0, at, new), y

    def pick(scores: Tensor, past: Tensor, heat: Tensor, live: Tensor) -> tuple[Tensor, ...]:
        s, ones = scores.float() / heat[:, None], live.float()[:, None].expand_as(past)
        seen = torch.zeros_like(s).scatter_add(1, past, ones)
        s = torch.where(seen > 0, torch.where(s > 0, s / 1.3, s * 1.3), s) - 0.1 * seen
        best, order = s.sort(-1, descending=True)
        p = functional.softmax(best, -1)
        p = functional.normalize(torch.where(p.cumsum(-1) - p < sharp, p, 0.0), 1.0, -1)
        token = order.gather(1, p.argmax(-1, keepdim=True)).squeeze(1)
        return torch.where(live, token, 0), torch.zeros_like(p).scatter(1, order, p)

    if kind == "words":
        heat = draw.tensor((rows,), dtype=torch.float32, grad=False, positive=True)
        scores, past = draw.tensor((rows, words), grad=False), draw.indices((rows, 40), words)
        return Program(pick, (scores, past, heat, draw.mask((rows,), 0.9)))
    if kind == "states":
        order = draw.tensor((rows,), dtype=torch.float32, grad=False).argsort()[: rows // 2 + 1]
        fresh = [draw.tensor((rows // 2 + 1, width)) for _ in "xf"]
        return Program(advance, (draw.tensor((rows, width, rank)), *fresh, order), draw.training)
    low = draw.tensor((rows, few, width) if kind == "mixed" else (slots, rank, width))
    up, weight = draw.tensor((slots, rank, width)), draw.tensor((rows, few))
    x, at = draw.tensor((rows, width)), draw.indices((rows,), slots)
    return Program(adapt, (x, low, up, at, weight), draw.training)


#: Every family here.
FAMILIES = (sparse_patterns, learned_steps, weight_updates, served_slots)
