"""Generative models of images: conditions, targets, guidance, compared features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def drawn_picture(draw: Draw, channels: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, channels, height and width (both even)."""
    width = draw.choice([c for c in channels if c * 16 <= draw.numel] or channels[:1])
    most = max(1, int((draw.numel / width) ** 0.5 / 2))
    high = min(most, draw.choice((2, 4, 7, 8, 14, 16, 32, 48, 64, 128)))
    wide = high if draw.chance(0.6) else min(most, high + draw.between(1, high))
    return max(2, draw.numel // (4 * width * high * wide)), width, 2 * high, 2 * wide


def conditioned_blocks(draw: Draw) -> Program:
    """Norms and gates by a condition around residuals: images with skips, grown images, tokens."""
    batch, width, high, wide = drawn_picture(draw, (32, 64, 128, 192, 320, 512, 1024))
    kind, scaled = draw.choice(("image", "skipped", "grown", "tokens", "tokens")), draw.chance(0.5)
    groups = draw.choice((4, 8, 16, 32))

    def run(x: Tensor, skip: Tensor, change: Tensor, gain: Tensor) -> Tensor:
        h = functional.group_norm(x + gain[:, None, None], groups, gain)
        parts = change[..., None, None].chunk(3, 1)
        h = functional.silu(h * (1 + parts[0]) + parts[1] if scaled else h + parts[0])
        if kind == "skipped":
            return functional.silu(functional.group_norm(torch.cat((h, skip), 1), groups))
        if kind == "grown":
            low = functional.interpolate(skip, scale_factor=2.0, mode="nearest")
            low = functional.pad(low, (1, 1, 1, 1), mode="replicate")
            low = low[..., :-2] + 2 * low[..., 1:-1] + low[..., 2:]
            low = low[:, :, :-2] + 2 * low[:, :, 1:-1] + low[:, :, 2:]
            return low / 16 + torch.stack([(h * part).sum(1) for part in parts], 1)
        return (x + parts[2] * h) * 2**-0.5

    def join(x: Tensor, skip: Tensor, change: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        shift, scale, gate = change[:, None].chunk(3, -1)
        first = x + gate * skip
        h = functional.layer_norm(first, (width,)) * (1 + scale) + shift
        if scaled:
            heads = functional.rms_norm(h.unflatten(-1, (groups, -1)), (width // groups,))
            return heads.transpose(1, 2).contiguous(), first * gain
        return first, torch.cat((h, functional.gelu(skip, approximate="tanh") * gain), -1)

    given = (draw.tensor((batch, 3 * width)), draw.tensor((width,)))
    if kind == "tokens":
        tokens = (draw.tensor((batch, high * wide, width)) for _ in "xs")
        return Program(join, (*tokens, *given), draw.training)
    sides = (batch, 3, high // 2, wide // 2) if kind == "grown" else (batch, width, high, wide)
    skip = draw.image(sides, grad=draw.training and kind in {"skipped", "grown"})
    return Program(run, (draw.image((batch, width, high, wide)), skip, *given), draw.training)


def velocity_targets(draw: Draw) -> Program:
    """Losses by target: straight paths, velocities, scaled outputs, consistency, sliced scores."""
    kind = draw.choice(("straight", "velocity", "scaled", "consistent", "sliced"))
    shape: tuple[int, ...] = drawn_picture(draw, (1, 3, 4, 16, 32))
    if draw.chance(0.3):
        shape = (shape[0], shape[2] * shape[3], shape[1])
    kept, rest = draw.chance(0.4), (1,) * (len(shape) - 1)

    def run(clean: Tensor, noise: Tensor, found: Tensor, time: Tensor) -> tuple[Tensor, ...]:
        t, h = time.view(-1, *rest), found.float()
        if kind == "straight":
            mixed, wanted = (1 - t) * clean + t * noise, noise - clean
            weight = torch.exp(-0.5 * torch.logit(time).square()) / (time * (1 - time))
        elif kind == "velocity":
            a, b = torch.cos(1.5 * t), torch.sin(1.5 * t)
            mixed, wanted = a * clean + b * noise, a * noise - b * clean
            weight = (1 / torch.tan(1.5 * time)).square().clamp(max=5.0)
        else:
            s = torch.exp(3 * t - 2)
            mixed, wanted = clean + s * noise, clean.float()
            h = mixed * 0.25 / (s * s + 0.25) + h * 0.5 * s * torch.rsqrt(s * s + 0.25)
            weight = torch.exp(-time)
        if kind == "sliced":
            along = (h * noise).flatten(1).sum(1)
            return mixed.to(clean.dtype), 0.5 * along.square().mean() + (along * weight).sum()
        error = (h - wanted).square()
        error = torch.sqrt(error + 1e-3) - 0.03 if kind == "consistent" else error
        error = error.flatten(1).mean(1)
        weight = weight * (time > time.mean()) if kept else weight
        return mixed.to(clean.dtype), (error * weight).mean(), error.detach()

    data = (draw.tensor(shape, grad=False) for _ in "cn")
    time = draw.tensor((shape[0],), dtype=torch.float32, grad=False).sigmoid()
    return Program(run, (*data, draw.tensor(shape), time), draw.training)


def guided_steps(draw: Draw) -> Program:
    """Sampling steps with several states: guidance projected or rescaled, past outputs, masks."""
    guide = draw.choice(("projected", "rescaled", "double", "none"))
    kind, bounded = draw.choice(("past", "noisy", "linear")), draw.chance(0.4)
    ways, painted = {"none": 1, "double": 3}.get(guide, 2), draw.chance(0.4)
    batch, *sides = drawn_picture(draw, (3, 4, 8, 16))
    shape, over = (-(-batch // ways), *sides), (1, 2, 3)

    def led(free: Tensor, wanted: Tensor) -> Tensor:
        apart = wanted - free
        if guide == "projected":
            size = apart.square().sum(over, keepdim=True).sqrt()
            apart = apart * (15 / (size + 1e-6)).clamp(max=1)
            unit = wanted / (wanted.square().sum(over, keepdim=True).sqrt() + 1e-6)
            return wanted + 4 * (apart - (apart * unit).sum(over, keepdim=True) * unit)
        out = free + 7.5 * apart
        return out * (0.7 * wanted.std(over, keepdim=True) / out.std(over, keepdim=True) + 0.3)

    def run(
        x: Tensor, found: Tensor, past: Tensor, table: Tensor, at: Tensor
    ) -> tuple[Tensor, ...]:
        parts = found.float().chunk(ways)
        if guide == "double":
            out = parts[0] + 1.5 * (parts[1] - parts[0]) + 6 * (parts[2] - parts[1])
        else:
            out = parts[0] if guide == "none" else led(parts[0], parts[1])
        now, then = table[at], table[at + 1]
        clean = x - now * out
        if bounded:
            peak = clean.abs().amax(over, keepdim=True).clamp(min=1)
            clean = clean.clamp(-3, 3) / peak
        if kind == "past":
            share = then / now
            h = share * x + (1 - share) * (1.5 * clean - 0.5 * past[0])
        elif kind == "noisy":
            up = (then * then * (1 - (then / now).square())).sqrt()
            h = clean + (then * then - up * up).sqrt() * out + up * past[1]
        else:
            h = x + (then - now) * (23 * out - 16 * past[0] + 5 * past[1]) / 12
        h = torch.where(past[1] > 0, h, past[0] + then * past[1]) if painted else h
        return h.to(x.dtype), torch.stack((clean.to(x.dtype), past[0]))

    found = draw.tensor((ways * shape[0], *sides), grad=False)
    args = (draw.tensor(shape, grad=False), found, draw.tensor((2, *shape), grad=False))
    return Program(run, (*args, torch.linspace(10, 0.01, 51), draw.indices((1,), 50)))


def compared_features(draw: Draw) -> Program:
    """Features of images compared: unit channels, products of channels, critics, penalties."""
    kind = draw.choice(("unit", "products", "critic", "penalty"))
    shape = drawn_picture(draw, (16, 64, 128) if kind == "products" else (3, 32, 64, 192, 512))
    shape, logistic = (max(2, shape[0] // 2), *shape[1:]), draw.chance(0.5)
    area = shape[2] * shape[3]

    def run(x: Tensor, y: Tensor, table: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        if kind == "unit":
            h = functional.normalize(x, dim=1) - functional.normalize(torch.relu(y), dim=1)
            return ((h.square() * table[0][:, None, None]).sum(1).mean((1, 2)),)
        if kind == "products":
            first, second = x.flatten(2), y.flatten(2)
            h = torch.bmm(first, first.mT / area) - torch.bmm(second, second.mT / area)
            return h.float().square().mean((1, 2)), (x.mean((2, 3)) - y.mean((2, 3))).abs().sum()
        if kind == "critic":
            pooled = [functional.leaky_relu(h, 0.2).mean((2, 3)).float() for h in (x, y)]
            real, fake = ((h * (1 + table[labels])).sum(1) for h in pooled)
            if logistic:
                return functional.softplus(fake - real).mean(), torch.sigmoid(real - fake)
            return torch.relu(1 - real).mean() + torch.relu(1 + fake).mean(), real - fake
        size = torch.sqrt(x.float().square().sum((1, 2, 3)) + 1e-8)
        middle = size.mean().detach() * 0.01 + table[0, 0] if logistic else 1.0
        return ((size - middle).square().mean(), (y.float() * x).sum((1, 2, 3)))

    turned, table = draw.chance(0.5), draw.tensor((10, shape[1]))
    images = (draw.image(shape, turned=turned) for _ in "xy")
    return Program(run, (*images, table, draw.indices((shape[0],), 10)), draw.training)


#: Every family here.
FAMILIES = (conditioned_blocks, velocity_targets, guided_steps, compared_features)
