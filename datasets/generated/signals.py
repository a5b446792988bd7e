"""Signals of bodies, waves and sensors: electrodes, phases, echoes, orientations, images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def electrodes(draw: Draw) -> Program:
    """Electrodes referenced, mixed in space, powers and covariances logged: EEG, EMG filters."""
    places, steps = draw.choice((3, 8, 22, 64, 128)), draw.choice((64, 250, 256, 1000, 1125))
    steps = min(steps, max(16, draw.numel // (2 * places)))
    batch = max(2, draw.numel // (places * steps))
    kind = draw.choice(("spatial", "power", "variance", "covariance", "windows", "bands"))
    few, flat, size = draw.choice((2, 4, 8)), draw.chance(0.5), draw.choice((8, 15, 25))

    def run(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
        h = (x - x.mean(1, keepdim=True) if flat else x) * gain[:, None]
        if kind == "spatial":
            h = (h[:, None] * weight[:, :, None]).sum(2)
            return functional.avg_pool1d(functional.elu(h), 4)
        if kind == "power":
            h = functional.batch_norm(h, None, None, gain, gain, training=True)
            h = functional.avg_pool1d(h.float().square(), size, size // 2)
            return h.clamp(min=1e-6).log().flatten(1)
        if kind == "variance":
            h = (h[:, None] * weight[:, :, None]).sum(2).float().var(-1)
            return (h / h.sum(1, keepdim=True)).clamp(min=1e-6).log()
        if kind == "covariance":
            h = h.float() - h.float().mean(-1, keepdim=True)
            first = (h[:, :few, None] * h[:, None]).mean(-1)
            scale = torch.rsqrt(h.square().mean(-1) + 1e-6)
            return first * scale[:, :few, None] * scale[:, None]
        if kind == "windows":
            total = functional.pad(torch.stack((h, h.square())).float().cumsum(-1), (1, 0))
            mean, square = ((total[..., size:] - total[..., :-size]) / size).unbind(0)
            deviation = (square - mean.square()).clamp(min=1e-4).sqrt()
            return ((h[..., size - 1 :] - mean) / deviation).clamp(-5, 5).to(x.dtype)
        h = functional.pad(h, (size, 0))
        bands = [h[..., size:] - weight[i, 0] * h[..., i : i + steps] for i in range(few)]
        return torch.stack([band.float().abs().mean(-1).log1p() for band in bands], -1)

    x = draw.tensor((batch, places, steps))
    if draw.chance(0.3):
        turned = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
        x = turned.requires_grad_(x.requires_grad)
    mixed = draw.training and kind in ("spatial", "variance", "bands")
    args = (x, draw.tensor((few, places), grad=mixed), draw.tensor((places,)))
    return Program(run, args, draw.training)


def phases(draw: Draw) -> Program:
    """Envelopes and angles of real and imaginary parts, how channels keep step, slow rhythms."""
    channels, steps = draw.choice((2, 8, 19, 32, 64)), draw.choice((96, 250, 512, 1024, 5000))
    steps = min(steps, max(16, draw.numel // (4 * channels)))
    batch = max(1, draw.numel // (2 * channels * steps))
    kind = draw.choice(("envelope", "locked", "unwrapped", "lag", "beats"))
    joined, far = draw.chance(0.5), draw.between(1, max(1, channels // 2))

    def run(x: Tensor, turn: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        real, imag = x.float().unbind(-1) if joined else x.float().unbind(1)
        c, s = torch.cos(turn.float()), torch.sin(turn.float())
        real, imag = real * c - imag * s, real * s + imag * c
        size = (real.square() + imag.square() + 1e-8).sqrt()
        if kind == "envelope":
            slow = functional.avg_pool1d(size, 9, 1, 4)
            return ((size / (slow + 1e-3)) * gain[:, None]).to(x.dtype), slow.amax(-1)
        if kind == "beats":
            mean, over = size.mean(-1, keepdim=True), size.diff(dim=-1)
            beats = (over[..., :-1] > 0) & (over[..., 1:] <= 0) & (size[..., 1:-1] > mean)
            return beats.cumsum(-1).int(), (size[..., 1:-1] * beats).sum(-1) * gain
        one, two = real / size, imag / size
        other, beside = (torch.roll(h, far, 1) for h in (one, two))
        if kind in ("locked", "lag"):
            h, v = one * other + two * beside, two * other - one * beside
            if kind == "lag":
                return (v.sum(-1) / (v.abs().sum(-1) + 1e-6) * gain,)
            return (h.mean(-1).square() + v.mean(-1).square() + 1e-8).sqrt() * gain, h.mean((0, 2))
        angle = torch.atan2(imag, real)
        step = angle.diff(dim=-1)
        step = step - 2 * math.pi * torch.round(step.detach() / (2 * math.pi))
        return (step.cumsum(-1) + angle[..., :1]).to(x.dtype), step.mean(-1) * gain

    shape = (batch, channels, steps, 2) if joined else (batch, 2, channels, steps)
    trained = draw.training
    turn = draw.tensor((channels, 1) if draw.chance(0.5) else (steps,))
    return Program(run, (draw.tensor(shape), turn, draw.tensor((channels,))), trained)


def echoes(draw: Draw) -> Program:
    """Pulses matched by shifted products, cells above their surroundings, beams: radar, sonar."""
    receivers, cells = draw.choice((2, 4, 8, 16)), draw.choice((64, 128, 257, 512, 1024))
    kind = draw.choice(("matched", "guarded", "beams", "delays", "loaded"))
    cells = min(cells, max(16, draw.numel // (4 * receivers)))
    batch = max(1, draw.numel // (2 * receivers * cells))
    taps, looks, logged = draw.choice((3, 5, 8)), draw.choice((3, 8, 12)), draw.chance(0.5)

    def power(real: Tensor, imag: Tensor) -> Tensor:
        size = real.float().square() + imag.float().square()
        return 10 * (size + 1e-6).log10() if logged else size

    def run(real: Tensor, imag: Tensor, pulse: Tensor, late: Tensor) -> Tensor:
        c, s = pulse[0], pulse[1]
        if kind == "matched":
            cut = [h.unfold(-1, taps, 1) for h in (real, imag)]
            h = (cut[0] * c[:taps] + cut[1] * s[:taps]).sum(-1)
            return power(h, (cut[1] * c[:taps] - cut[0] * s[:taps]).sum(-1))
        if kind == "guarded":
            h = power(real, imag)
            wide, near = functional.avg_pool1d(h, 17, 1, 8), functional.avg_pool1d(h, 5, 1, 2)
            noise = (17 * wide - 5 * near) / 12
            return torch.where(h > 1.5 * noise, h - noise, 0.1 * h) * (1 + c.mean() * s.mean())
        if kind == "delays":
            at = (torch.arange(cells, device=real.device) + late[..., None]) % cells
            at = at[None].expand(batch, -1, -1)
            share = functional.softmax(c[:receivers], 0)[:, None]
            return power(*((h.gather(-1, at) * share).sum(1) for h in (real, imag))) + s.mean()
        if kind == "beams":
            place = torch.arange(receivers, device=real.device)[:, None]
            angle = torch.linspace(-1, 1, looks, device=real.device)[:, None, None] * place
            c, s = (part[:receivers, None] * angle.cos() + angle.sin() for part in (c, s))
            one, two = real[:, None], imag[:, None]
            return power((one * c + two * s).sum(2), (two * c - one * s).sum(2)).amax(1)
        pairs = (real.float().square() + imag.float().square()).mean(-1)
        weight = c[:receivers] / (pairs + 0.1 * pairs.mean(1, keepdim=True))
        weight = (weight / weight.abs().sum(1, keepdim=True))[..., None]
        return power((real * weight).sum(1), (imag * weight).sum(1) + s.mean())

    args = (draw.tensor((batch, receivers, cells)), draw.tensor((batch, receivers, cells)))
    late = draw.indices((receivers,), cells)
    return Program(run, (*args, draw.tensor((2, 16)), late), draw.training)


def orientations(draw: Draw) -> Program:
    """Turn rates summed to quaternions and pulled to gravity, step by step: inertial sensors."""
    steps, sensors = draw.choice((2, 3, 4, 6)), draw.choice((1, 6, 17))
    batch, last = max(4, draw.numel // (12 * steps * sensors)), draw.chance(0.5)
    kind, wrong = draw.choice(("gradient", "mixed", "turned", "error")), draw.chance(0.5)

    def product(one: Tensor, two: Tensor) -> Tensor:
        a, b, c, d = one.unbind(-1)
        w, x, y, z = two.unbind(-1)
        rows = (a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y)
        return torch.stack(
            (*rows, a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w), -1
        )

    def run(rates: Tensor, pull: Tensor, start: Tensor, bias: Tensor) -> Tensor:
        q = functional.normalize(start.float(), dim=-1)
        turns, pulls, outs = rates.float() - bias, functional.normalize(pull.float(), dim=-1), []
        for step in range(steps):
            turn, down = ((h[..., step, :] if last else h[step]) for h in (turns, pulls))
            if kind == "turned":
                turn = turn + 0.1 * down if wrong else turn * (1 + down)
                angle = (turn.square().sum(-1, keepdim=True) + 1e-8).sqrt()
                half = torch.cat(((angle / 2).cos(), turn * ((angle / 2).sin() / angle)), -1)
                q = product(q, half)
            else:
                w, x, y, z = q.unbind(-1)
                lies = torch.stack((x * z - w * y, w * x + y * z, w * w + z * z - 0.5), -1) * 2
                fault = torch.linalg.cross(down, lies, dim=-1)
                turn = turn + 0.5 * fault if kind != "gradient" else turn - 0.1 * (lies - down)
                q = q + 0.05 * product(q, functional.pad(turn, (1, 0)))
            q = functional.normalize(q, dim=-1)
            outs.append(q)
        h = torch.stack(outs, -2 if last else 0)
        if kind != "error":
            return h * torch.where(h[..., :1] < 0, -1.0, 1.0) if wrong else h.to(rates.dtype)
        near = (h[..., :3] * pulls).sum(-1) if wrong else h[..., 0]
        return (1 - near.square()).mean()

    shape = (batch, sensors, steps, 3) if last else (steps, batch, sensors, 3)
    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor((batch, sensors, 4)))
    return Program(run, (*args, draw.tensor((3,))), draw.training)


def reconstructed(draw: Draw) -> Program:
    """Pictures made sharp by ratios, true to measured frequencies, from coils or like patches."""
    side = min(draw.choice((16, 28, 64, 96, 128, 320)), max(6, int((draw.numel / 4) ** 0.5)))
    coils, rounds = draw.choice((1, 4, 8, 12)), draw.between(1, 2)
    kind = draw.choice(("ratios", "measured", "coils", "patches", "patches", "smooth"))
    coils = coils if kind in ("measured", "coils") else draw.choice((1, 3))
    batch, joined = max(1, draw.numel // (2 * coils * side * side)), draw.chance(0.5)
    reach, soft = draw.choice(((0, 1), (1, 1), (2, 0))), draw.chance(0.5)

    def blur(h: Tensor, point: Tensor) -> Tensor:
        near = functional.pad(h, (1, 1, 1, 1), "replicate")
        cuts = ((i, j) for i in range(3) for j in range(3))
        parts = [near[..., i : i + side, j : j + side] * point[i, j] for i, j in cuts]
        return torch.stack(parts).sum(0) if soft else sum(parts[1:], parts[0])

    def sharpen(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        point = functional.softmax(kernel.float().view(-1), 0).view(3, 3)
        h, x = other.float().abs() + 0.1, x.float().abs()
        for _ in range(rounds):
            if kind == "ratios":
                h = h * blur(torch.where(seen, x / (blur(h, point) + 1e-3), 1.0), point.flip(0, 1))
                continue
            down, right = h.diff(dim=-2), h.diff(dim=-1)
            size = (down[..., :-1].square() + right[..., :-1, :].square() + 1e-4).rsqrt()
            flow = functional.pad(down[..., :-1] * size, (0, 1, 1, 1))
            over = functional.pad(right[..., :-1, :] * size, (1, 1, 0, 1))
            h = h - 0.1 * (blur(h, point) - x - flow.diff(dim=-2) - over.diff(dim=-1))
        return h.to(kernel.dtype)

    def alike(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        weights = torch.full_like(total[:, :1], 1e-6)
        high, wide = reach
        for i in range(-high, high + 1):
            for j in range(-wide, wide + 1):
                moved = torch.roll(x, (i, j), (2, 3)).float()
                far = (moved - other).square().mean(1, keepdim=True)
                far = functional.avg_pool2d(far, 3, 1, 1) + kernel[0, 0] ** 2
                near = torch.exp(-far) * (seen if soft else 1.0)
                total, weights = total + near * moved, weights + near
        return (total / weights).to(x.dtype)

    def combine(x: Tensor, other: Tensor, kernel: Tensor, seen: Tensor) -> Tensor:
        real, imag = x.float().unbind(-1) if joined else x.float().unbind(1)
        one, two = other.float().unbind(-1) if joined else other.float().unbind(1)
        if kind == "measured":
            share = torch.sigmoid((kernel if soft else kernel[1, 1]).float().mean() + 2)
            parts = [
                torch.where(seen, (1 - share) * h + share * k, h)
                for h, k in ((real, one), (imag, two))
            ]
            return torch.stack(parts, -1 if joined else 1).to(x.dtype)
        norm = torch.rsqrt((one.square() + two.square()).sum(1, keepdim=True) + 1e-6)
        one, two = one * norm, two * norm
        h, v = (real * one + imag * two).sum(1), (imag * one - real * two).sum(1)
        if soft:
            return (h.square() + v.square() + 1e-8).sqrt() + kernel.float().mean()
        back = torch.where(seen, real - h[:, None] * one + v[:, None] * two, 0.0)
        return back.to(x.dtype) + kernel[0, 0]

    pair = (batch, coils, side, side, 2) if joined else (batch, 2, coils, side, side)
    whole = kind in ("measured", "coils")
    shape = pair if whole else (batch, coils, side, side)
    x, other = (draw.tensor(shape) if whole else draw.image(shape) for _ in "xo")
    seen = draw.mask((side, side) if draw.chance(0.5) else (side,), 0.4)
    run = combine if whole else alike if kind == "patches" else sharpen
    return Program(run, (x, other, draw.tensor((3, 3)), seen), draw.training)


#: Every family here.
FAMILIES = (
    electrodes,
    phases,
    echoes,
    orientations,
    reconstructed,
)
