"""Sounds: encoders of waves, smoothed spectra, vocoders and codes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.speech import drawn_frames


def wave_encoders(draw: Draw) -> Program:
    """Channels of waves normed over time or by frame, placed, masked, layers mixed: wav2vec."""
    kind = draw.choice(("group", "layer", "place", "masked", "mixed"))
    layers = draw.choice((3, 5, 7, 13)) if kind == "mixed" else 1
    batch, steps, width = drawn_frames(draw, (32, 64, 128, 512, 512, 768, 1024), layers)
    if kind == "group":
        batch, steps = max(1, batch // 8), steps * min(batch, 8)
    convolved, affine, scaled = draw.chance(0.25), draw.chance(0.6), draw.chance(0.5)
    penalised = draw.chance(0.5)

    def wave(x: Tensor, gain: Tensor, bias: Tensor, w: Tensor) -> Tensor:
        h = functional.conv1d(x, w, stride=5) if convolved else x
        if kind == "group":
            return functional.gelu(functional.group_norm(h, width, gain, bias))
        h = functional.layer_norm(h.transpose(1, 2), (width,), gain, bias if affine else None)
        h = functional.gelu(h.transpose(1, 2))
        return h * 0.1 + h.detach() * 0.9 if scaled else h

    def place(x: Tensor, gain: Tensor, bias: Tensor, h: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        y = torch.where(keep[..., None], x, gain) if kind == "masked" else x
        h = functional.gelu(h[:, :, :-1] + bias[:, None]).transpose(1, 2)
        y = functional.layer_norm(y + h, (width,), gain if affine else None)
        return (y, x.float().square().mean()) if penalised else (y,)

    def mixed(x: Tensor, score: Tensor, keep: Tensor) -> Tensor:
        h = functional.layer_norm(x, (width,)) if scaled else x
        h = (functional.softmax(score, 0)[:, None, None, None] * h).sum(0)
        real = keep.to(h.dtype)[..., None]
        return (h * real).sum(1) / real.sum(1).clamp(min=1) if penalised else h

    keep = draw.mask((batch, steps), 0.5)
    if kind == "mixed":
        x = draw.tensor((layers, batch, steps, width))
        return Program(mixed, (x, draw.tensor((layers,)), keep), draw.training)
    moments = (draw.tensor((width,)), draw.tensor((width,)))
    if kind in {"place", "masked"}:
        x, h = draw.tensor((batch, steps, width)), draw.tensor((batch, width, steps + 1))
        return Program(place, (x, *moments, h, keep), draw.training)
    x = draw.tensor((batch, 1, 5 * steps + 5) if convolved else (batch, width, steps))
    w = draw.tensor((width, 1, 10), grad=draw.training and convolved)
    return Program(wave, (x, *moments, w), draw.training)


def smoothed_spectra(draw: Draw) -> Program:
    """Energies over smoothed ones, sliding means, joined or warped frames, losses: PCEN."""
    kind = draw.choice(("energy", "sliding", "joined", "warped", "loss"))
    batch, steps, bands = drawn_frames(draw, (20, 40, 64, 80, 128, 201, 257, 513, 1025), 2)
    first, many, spread = draw.chance(0.5), draw.choice((3, 4, 7)), draw.choice((10, 51, 300))
    squared, axis = draw.chance(0.5), 2 if first else 1
    steps = max(steps, many + 1)

    def energy(x: Tensor, gain: Tensor, root: Tensor, bias: Tensor) -> Tensor:
        power = (x.float().transpose(1, 2) if first else x.float()).square() + 1e-6
        level, rest, shift = 0.1 * power, 0.9, 1
        while shift < min(steps, 64):
            level = level + rest * functional.pad(level[:, :-shift], (0, 0, shift, 0))
            rest, shift = rest * rest, 2 * shift
        a, r, d = torch.sigmoid(gain.float()), torch.sigmoid(root.float()), bias.float().exp()
        return ((power * (level + 1e-4) ** -a + d) ** r - d**r).to(x.dtype)

    def features(x: Tensor, gain: Tensor, bias: Tensor, at: Tensor, cut: Tensor) -> Tensor:
        if kind == "sliding":
            size = min(spread, steps)
            total = functional.pad(x.float().cumsum(axis), (1, 0) if first else (0, 0, 1, 0))
            mean = (
                total.narrow(axis, size, steps + 1 - size) - total.narrow(axis, 0, steps + 1 - size)
            ) / size
            return (x.narrow(axis, size - 1, steps + 1 - size) - mean).to(x.dtype)
        h = x.transpose(1, 2) if first else x
        if kind == "joined":
            h = h.unfold(1, many, max(1, many - 1)).transpose(2, 3).flatten(2)
            return functional.layer_norm(h, (many * bands,)) * gain.repeat(many)
        low = at.floor().long().clamp(0, steps - 2)
        share, low = (at - low)[..., None], low[..., None].expand(-1, -1, bands)
        h = torch.lerp(h.gather(1, low).float(), h.gather(1, low + 1).float(), share)
        h = torch.where(cut[..., None], h.mean((1, 2), keepdim=True), h)
        return ((h - gain) * torch.exp(bias)).to(x.dtype)

    def loss(real: Tensor, imaginary: Tensor, target: Tensor) -> Tensor:
        h = (real.float().square() + imaginary.float().square()).clamp(min=1e-7).sqrt()
        y = target.float().abs() + 1e-3
        axes = (1, 2) if squared else (0, 1, 2)
        apart = (y - h).square().sum(axes).sqrt() / y.square().sum(axes).sqrt()
        return apart.mean() + (y.log() - h.log()).abs().mean()

    shape = (batch, bands, steps) if first else (batch, steps, bands)
    if kind == "loss":
        parts = (draw.tensor(shape), draw.tensor(shape), draw.tensor(shape, grad=False))
        return Program(loss, parts, draw.training)
    x, used = draw.tensor(shape), draw.training and kind == "energy"
    moments = [draw.tensor((bands,), grad=used) for _ in range(3)]
    if kind == "energy":
        return Program(energy, (x, *moments), draw.training)
    moved = torch.arange(steps) + draw.tensor((batch, steps), dtype=torch.float32, grad=False)
    return Program(
        features, (x, *moments[:2], moved, draw.mask((batch, steps), 0.1)), draw.training
    )


def wave_generators(draw: Draw) -> Program:
    """Snakes, finer steps, summed branches, overlaps added, folded periods: vocoders."""
    kind = draw.choice(("snake", "finer", "fields", "overlaps", "phases", "periods", "scores"))
    batch, steps, width = drawn_frames(draw, (8, 16, 32, 64, 96, 256, 512), 2)
    period, branches = draw.choice((2, 3, 5, 7, 11)), draw.choice((2, 3, 3, 4))
    slope, paired = draw.choice((0.1, 0.2)), draw.chance(0.5)

    def snake(h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        a, b = gain.exp()[:, None], (bias if paired else gain).exp()[:, None]
        return h + torch.sin(h * a).square() / (b + 1e-6)

    def run(x: Tensor, other: Tensor, gain: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        if kind == "snake":
            return (snake(x + bias[:, None], gain, bias), x + other)
        if kind == "finer":
            h = functional.pad(x, (2, 2), "replicate")
            h = torch.stack((h[..., 1:-1], 0.75 * h[..., 1:-1] + 0.25 * h[..., 2:]), -1).flatten(2)
            return (functional.avg_pool1d(snake(h, gain, bias), 2)[..., 1:],)
        if kind == "phases":
            size = torch.exp(x.float()).clamp(max=100.0)
            angle = other.float() + bias[:, None]
            return size * torch.cos(angle), size * torch.sin(angle)
        left = -steps % period
        h = functional.leaky_relu(functional.pad(x + bias[:, None], (0, left), "reflect"), slope)
        y = functional.pad(other, (0, left), "reflect")
        h, y = (z.view(batch, width, -1, period) for z in (h, y))
        return (h.transpose(2, 3).contiguous(), (h - y).abs().mean())

    def fields(gain: Tensor, *outs: Tensor) -> tuple[Tensor, ...]:
        total = sum((h + outs[0] * w for h, w in zip(outs[1:], gain, strict=False)), outs[0])
        h = functional.leaky_relu(total / len(outs), slope)
        return (torch.tanh(h).mean(1), h) if paired else (h,)

    def overlaps(x: Tensor, window: Tensor) -> Tensor:
        h = functional.pad((x * window).unflatten(-1, (4, -1)), (0, 0, 0, 0, 0, 3))
        square = window.square().view(4, -1).sum(0) + 0.1
        h = torch.stack([h[:, :, i].roll(i, 1) for i in range(4)]).sum(0) / square
        return h.flatten(1).clamp(-1, 1)

    def scores(real: Tensor, fake: Tensor, above: Tensor) -> Tensor:
        hinge = functional.relu(1 - real.float()).mean() + functional.relu(1 + fake.float()).mean()
        square = (1 - real.float()).square().mean() + fake.float().square().mean()
        return (hinge if paired else square) + 2 * (above - fake).abs().float().mean((1, 2)).sum()

    if kind == "overlaps":
        size = 4 * max(1, width // 4)
        args = (draw.tensor((batch, steps, size)), draw.tensor((size,), grad=False))
        return Program(overlaps, args, draw.training)
    shape = (batch, width, max(steps, 16))
    steps = shape[2]
    if kind in {"fields", "scores"}:
        x = [draw.tensor(shape) for _ in range(branches if kind == "fields" else 3)]
        if kind == "scores":
            return Program(scores, tuple(x), draw.training)
        return Program(fields, (draw.tensor((branches,)), *x), draw.training)
    x = [draw.tensor(shape), draw.tensor(shape), draw.tensor((width,)), draw.tensor((width,))]
    return Program(run, tuple(x), draw.training)


def sound_codes(draw: Draw) -> Program:
    """Nearest codes passed straight through, in groups, delayed, told from others: EnCodec."""
    kind = draw.choice(("rounds", "product", "others", "delayed", "labels"))
    many, width = draw.choice((16, 64, 320, 512, 1024)), draw.choice((8, 16, 64, 128, 256))
    many = min(many, max(4, draw.numel // (16 * width)))
    batch, rounds, unit = draw.choice((2, 4, 16)), draw.choice((1, 2, 4)), draw.chance(0.5)

    def nearest(x: Tensor, table: Tensor) -> Tensor:
        h = x.reshape(-1, width).float()
        h, table = (functional.normalize(y, dim=-1) if unit else y for y in (h, table.float()))
        far = h.square().sum(-1, keepdim=True) - 2 * h @ table.t() + table.square().sum(-1)
        return far.argmin(-1).view(x.shape[:-1])

    def run(x: Tensor, tables: Tensor) -> tuple[Tensor, ...]:
        rest, found, loss = x.transpose(1, 2), torch.zeros_like(x.transpose(1, 2)), x.new_zeros(())
        for i in range(rounds):
            code = functional.embedding(nearest(rest, tables[i]), tables[i])
            loss = loss + functional.mse_loss(rest, code.detach())
            loss = loss + 0.25 * functional.mse_loss(code, rest.detach())
            passed = rest + (code - rest).detach()
            rest, found = rest - passed.detach(), found + passed
        return found.transpose(1, 2).contiguous(), loss

    def product(x: Tensor, noise: Tensor, table: Tensor) -> tuple[Tensor, ...]:
        h = x.float().view(-1, 2, many)
        soft = functional.softmax((h + noise.view_as(h)) / 1.5, -1)
        hard = (soft == soft.amax(-1, keepdim=True)).float()
        p = functional.softmax(h, -1).mean(0)
        variety = torch.exp(-(p * (p + 1e-7).log()).sum(-1)).sum()
        return (hard + soft - soft.detach()).to(x.dtype) * table, 1 - variety / (2 * many)

    def others(x: Tensor, target: Tensor, at: Tensor) -> Tensor:
        h = torch.cat((target[None], target[at.flatten()].view(*at.shape, width)))
        same = functional.cosine_similarity(x.float()[None], h.float(), -1) / 0.1
        equal = functional.pad((h[1:] == target).all(-1), (0, 0, 1, 0))
        same = same.masked_fill(equal, -1e4)
        return functional.cross_entropy(same.t(), torch.zeros_like(at[0]))

    def delayed(codes: Tensor, tables: Tensor, place: Tensor) -> Tensor:
        h = place.expand(batch, -1, -1)
        for i in range(codes.shape[1]):
            late = functional.pad(codes[:, i], (i, 0), value=many - 1)[:, : codes.shape[2]]
            h = h + functional.embedding(late, tables[i])
        return functional.layer_norm(h, (width,)) if unit else h

    rows = max(2, draw.numel // width)
    if kind in {"rounds", "labels"}:
        rows, unit = max(4, draw.numel // (rounds * (many + 2 * width))), unit or kind == "labels"
        x = draw.tensor((batch, width, max(1, rows // batch)))
        return Program(run, (x, draw.tensor((rounds, many, width))), draw.training)
    if kind == "product":
        rows = max(2, draw.numel // (4 * many))
        noise = draw.tensor((rows, 2 * many), dtype=torch.float32, grad=False)
        args = (draw.tensor((rows, 2 * many)), noise, draw.tensor((2, many)))
        return Program(product, args, draw.training)
    if kind == "others":
        rows, few = max(2, draw.numel // (width * 20)), draw.choice((5, 10, 20))
        pair = (draw.tensor((rows, width)), draw.tensor((rows, width)))
        return Program(others, (*pair, draw.indices((few, rows), rows)), draw.training)
    books, steps = draw.choice((4, 8, 9)), max(4, rows // batch)
    codes, tables = draw.indices((batch, books, steps), many), draw.tensor((books, many, width))
    return Program(delayed, (codes, tables, draw.tensor((steps, width))), draw.training)


#: Every family here.
FAMILIES = (wave_encoders, smoothed_spectra, wave_generators, sound_codes)
