"""Moving pictures, volumes and several senses: tubelets, frames, warps, flows, joined tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _clip(draw: Draw, channels: Sequence[int], multiple: int = 1) -> tuple[int, ...]:
    """Batch, channels, frames, height and width (the last three multiples)."""
    most = draw.numel // (8 * multiple**3)
    width = draw.choice([c for c in channels if c <= most] or channels[:1])
    left = max(1, draw.numel // (width * multiple**3))
    frames = min(draw.choice((2, 3, 4, 5, 8, 16, 24)), max(2, round(left ** (1 / 3))))
    most = max(1, int((left / frames) ** 0.5))
    high = min(draw.choice((4, 7, 8, 14, 16, 28, 56, 112, 512)), most)
    wide = min(most, high if draw.chance(0.5) else high + draw.between(1, high))
    batch = max(1, left // (frames * high * wide))
    return batch, width, frames * multiple, high * multiple, wide * multiple


def _maps(draw: Draw, shape: Sequence[int]) -> Tensor:
    """A tensor [N, C, D, H, W], NDHWC in memory by chance."""
    order = draw.choice((torch.contiguous_format, torch.channels_last_3d))
    x = draw.tensor(shape, grad=False).contiguous(memory_format=order)
    return x.requires_grad_(draw.training)


def tubelets(draw: Draw) -> Program:
    """Clips cut into pieces of a few frames, or such pieces placed in time and space: ViViT."""
    cut, normed = draw.chance(0.5), draw.chance(0.6)
    size = draw.choice((2, 4, 8)) if cut else 1
    shape = _clip(draw, (1, 3) if cut else (24, 48, 96, 192, 384, 768), size)
    batch, width, (frames, rows, columns) = *shape[:2], [extent // size for extent in shape[2:]]

    def run(x: Tensor, found: Tensor, times: Tensor, places: Tensor) -> Tensor:
        if cut:
            h = x.reshape(batch, width, frames, size, rows, size, columns, size).float()
            h = h.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4, 6).flatten(1, 3)
            var, mean = torch.var_mean(h, 2, keepdim=True)
            h = (h - mean) / (var.sqrt() + 1e-6) if normed else h
            return (found - h.flatten(2)).square().mean(-1)
        h = x.flatten(3).permute(0, 2, 3, 1) + times[:, None] + places
        h = torch.cat((places[:1].expand(batch, frames, 1, -1), h), 2) if normed else h
        return functional.layer_norm(h.flatten(1, 2), (width,), times[0])

    found = draw.tensor((batch, frames * rows * columns, width * size**3) if cut else (1,))
    places = (draw.tensor((frames, width)), draw.tensor((rows * columns, width)))
    return Program(run, (_maps(draw, shape), found, *places), draw.training)


def frame_differences(draw: Draw) -> Program:
    """Frames beside those before: channels moved in time, excited, held steady, coded by block."""
    kind, size = draw.choice(("moved", "excited", "steady", "coded")), draw.choice((2, 4, 8))
    few = kind in {"steady", "coded"}
    shape = _clip(draw, (1, 3) if few else (16, 24, 64, 80, 256), size if few else 1)
    batch, width, frames, part = *shape[:3], max(1, shape[1] // size)

    def run(x: Tensor, y: Tensor, gain: Tensor) -> Tensor | tuple[Tensor, ...]:
        if kind == "coded":
            rest = (x.float() - y).unflatten(3, (-1, size)).unflatten(2, (-1, size))
            mean = rest.mean((3, 5), keepdim=True)
            step = gain[..., None, None].float().abs() + 0.1
            scaled = (rest - mean) / step
            whole = scaled + (scaled.round() - scaled).detach()
            back = (whole * step + mean).flatten(4, 5).flatten(2, 3).to(x.dtype)
            return back + y, torch.log2(1 + whole.abs()).sum((1, 3, 5))
        h, z = (side.unflatten(0, (batch, frames)) for side in (x, y))
        if kind == "steady":
            near = torch.exp(-5 * z.float().diff(dim=1).square().sum(2, keepdim=True))
            return torch.mean(h.diff(dim=1).abs() * near, (0, 2, 3, 4))
        h = torch.relu(h * gain + z)
        if kind == "excited":
            apart = functional.pad(h.mean((3, 4)).diff(dim=1), (0, 0, 0, 1))
            return h + h * torch.tanh(apart)[..., None, None]
        ahead = functional.pad(h[:, 1:, :part], (0, 0, 0, 0, 0, 0, 0, 1))
        behind = functional.pad(h[:, :-1, part : 2 * part], (0, 0, 0, 0, 0, 0, 1, 0))
        return torch.cat((ahead, behind, h[:, :, 2 * part :]), 2).flatten(0, 1) + x

    sides = [draw.image((batch * frames, width, *shape[3:])) for _ in "xy"]
    return Program(run, (*sides, draw.tensor((width, 1, 1))), draw.training)


def volume_maps(draw: Draw) -> Program:
    """Maps over time or depth: norms with activations, pooled, grown or gated by the whole."""
    shape = _clip(draw, (8, 16, 24, 32, 64, 128, 320), 2)
    norm = draw.choice(("batch", "instance", "group"))
    act = getattr(functional, draw.choice(("relu", "leaky_relu", "silu", "gelu")))
    end = draw.choice(("most", "mean", "windows", "grown", "gated", "none"))

    def run(x: Tensor, low: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        if norm == "batch":
            normed = functional.batch_norm(x, None, None, gain, bias, training=True)
        else:
            groups = 4 if norm == "group" else x.shape[1]
            normed = functional.group_norm(x, groups, gain, bias)
        h: Tensor = act(normed)
        if end in {"most", "mean"}:
            h = h.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
            return low + (h.amax((3, 5, 7)) if end == "most" else h.mean((3, 5, 7)))
        if end == "windows":
            h = functional.max_pool3d(h, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        elif end == "grown":
            return torch.cat((h, functional.interpolate(low, scale_factor=2.0)), 1)
        return h * torch.sigmoid(h.mean((2, 3, 4), keepdim=True)) if end == "gated" else h * gain[0]

    low = _maps(draw, (*shape[:2], *(extent // 2 for extent in shape[2:])))
    args = (_maps(draw, shape), low, *(draw.tensor((shape[1],)) for _ in "gb"))
    return Program(run, args, draw.training)


def axial_scores(draw: Draw) -> Program:
    """Attention along time or within frames: heads brought there, or scores by offset."""
    depth, most = draw.choice((16, 32, 40, 64)), max(2, int((draw.numel / 4) ** 0.5))
    side = min(most, draw.choice((2, 4, 8, 14, 16, 49, 64, 196)))
    brought, timed, causal = draw.chance(0.5), draw.chance(0.5), draw.chance(0.5)
    heads = draw.choice((1, 2, 3, 6, 12)) if draw.numel > 12 * side * max(side, depth) else 1
    rest = max(1, draw.numel // (heads * side * (2 * depth if brought else side)))
    other = min(rest, draw.choice((4, 9, 16, 49, 196)))

    def run(x: Tensor, table: Tensor, real: Tensor) -> Tensor | tuple[Tensor, ...]:
        if brought:
            h = x.unflatten(-1, (2, heads, depth))
            h = h.permute(3, 0, 2, 4, 1, 5) if timed else h.permute(3, 0, 1, 4, 2, 5)
            q, k = functional.rms_norm(h, (depth,)) * (1 + table)
            return (q * depth**-0.5).contiguous(), k.transpose(-1, -2).contiguous()
        far = torch.arange(side, device=x.device)[:, None] - torch.arange(side, device=x.device)
        h = x.float() * depth**-0.5 + table[far + side - 1].permute(2, 0, 1)
        seen = real & (far >= 0) if causal else real
        return functional.softmax(h.masked_fill(~seen, -1e4), -1).to(x.dtype)

    length = (side, other) if timed else (other, side)
    last = (*length, 2 * heads * depth) if brought else (other, heads, side, side)
    x = draw.tensor((max(1, rest // other), *last))
    table = draw.tensor((side, depth) if brought else (2 * side, heads))
    return Program(run, (x, table, draw.mask((x.shape[0], other, 1, 1, side), 0.9)), draw.training)


def flow_updates(draw: Draw) -> Program:
    """Flow refined in rounds: gated units on maps, or likeness looked up around places: RAFT."""
    looked, reach, rounds = draw.chance(0.5), draw.choice((1, 3, 4)), draw.choice((1, 2))
    side = min(draw.choice((8, 16, 28, 44, 62)), max(4, int((draw.numel / 64) ** 0.5)))
    count = max(1, draw.numel // side**2)
    width = min(draw.choice((32, 64, 96, 128)), max(8, count // 6))

    def unit(h: Tensor, gates: Tensor, fresh: Tensor) -> Tensor:
        for part in gates.chunk(rounds):
            z, r = torch.sigmoid(part).chunk(2, 1)
            h = (1 - z) * h + z * torch.tanh(fresh + r * h)
        return torch.cat((h, torch.relu(fresh)), 1)

    def lookup(likeness: Tensor, centres: Tensor) -> Tensor:
        level = functional.avg_pool2d(likeness[:, None], rounds)[:, 0]
        last, low = level.shape[2] - 1, torch.floor(centres)
        near = low.long()[..., None] + torch.arange(-reach, reach + 2, device=level.device)
        inside, near = (near >= 0) & (near <= last), near.clamp(0, last)
        at = near[:, 1, :, None] * (last + 1) + near[:, 0, None]
        h = level.flatten(1).gather(1, at.flatten(1)).view(at.shape)
        h = h * (inside[:, 1, :, None] & inside[:, 0, None])
        u, v = (centres - low).to(h.dtype)[..., None, None].unbind(1)
        h = h[:, :, :-1] * (1 - u) + h[:, :, 1:] * u
        return (h[:, :-1] * (1 - v) + h[:, 1:] * v).flatten(1)

    if looked:
        centres = draw.tensor((count, 2), dtype=torch.float32, grad=False) * 2 + side / 2
        return Program(lookup, (draw.tensor((count, side, side)), centres), draw.training)
    batch = max(1, count // (3 * width))
    h, fresh = (draw.image((batch, width, side, side)) for _ in "hf")
    gates = draw.image((rounds * batch, 2 * width, side, side))
    return Program(unit, (h, gates, fresh), draw.training)


def labelled_volumes(draw: Draw) -> Program:
    """Losses of classes over volumes: overlap and entropy, on coarser levels too: nnU-Net."""
    batch, classes, *extents = _clip(draw, (2, 3, 4, 5, 14), 2)
    kind, coarse = draw.choice(("both", "regions", "hard", "edges")), draw.chance(0.5)
    over = draw.choice(((0, 2, 3, 4), (2, 3, 4)))

    def lost(logits: Tensor, labels: Tensor) -> Tensor:
        s, y = logits.float(), functional.one_hot(labels, classes).movedim(-1, 1).float()
        p = torch.sigmoid(s) if kind == "regions" else functional.softmax(s, 1)
        if kind == "regions":
            error = functional.binary_cross_entropy_with_logits(s, y, reduction="none")
        elif kind == "edges":
            error = p * (y - functional.avg_pool3d(y, (1, 3, 3), 1, (0, 1, 1))).abs()
        else:
            error = functional.cross_entropy(s, labels, reduction="none")
            error = torch.where(error > error.mean(), error, 0.0) if kind == "hard" else error
        both, sizes = (p * y).sum(over), (p + y).sum(over)
        return error.mean() + 1 - ((2 * both + 1e-5) / (sizes + 1e-5)).mean()

    def run(logits: Tensor, low: Tensor, labels: Tensor) -> Tensor:
        loss = lost(logits, labels)
        return loss + 0.5 * lost(low, labels[:, ::2, ::2, ::2]) if coarse else loss

    low = draw.tensor((batch, classes, *(extent // 2 for extent in extents)))
    labels = draw.indices((batch, *extents), classes)
    return Program(run, (_maps(draw, (batch, classes, *extents)), low, labels), draw.training)


def deformed_volumes(draw: Draw) -> Program:
    """Volumes moved by a field between eight voxels, or how like they are nearby: VoxelMorph."""
    batch, width, *extents = _clip(draw, (1, 2, 4), 2)
    kind = draw.choice(("image", "field", "likeness"))

    def moved(x: Tensor, field: Tensor) -> Tensor:
        out, places = torch.zeros_like(x), []
        for i, extent in enumerate(extents):
            steps = torch.arange(extent, device=x.device).view(-1, *(1,) * (2 - i))
            places.append(steps + field[:, i].float())
        for corner in range(8):
            at, weight = torch.zeros_like(places[0]).long(), torch.ones_like(places[0])
            for i, extent in enumerate(extents):
                near = places[i].floor() + (corner >> i) % 2
                weight = weight * (1 - (places[i] - near).abs())
                at = at * extent + near.long().clamp(0, extent - 1)
            where = at.flatten(1)[:, None].expand(-1, x.shape[1], -1)
            out = out + x.flatten(2).gather(2, where).view_as(x) * weight[:, None].to(x.dtype)
        return out

    def run(x: Tensor, y: Tensor, field: Tensor) -> Tensor:
        if kind == "field":
            return field + moved(field, field)
        if kind == "image":
            slopes = torch.stack([field.diff(dim=i).float().square().mean() for i in (2, 3, 4)])
            return (moved(x, field) - y).square().mean((1, 2, 3, 4)) + slopes.sum()
        parts = torch.cat((x, y, x * x, y * y, x * y), 1).float()
        means = functional.avg_pool3d(parts, (1, 3, 3), 1, (0, 1, 1)).chunk(5, 1)
        spread = (means[2] - means[0] ** 2) * (means[3] - means[1] ** 2)
        return 1 - ((means[4] - means[0] * means[1]) ** 2 / (spread.clamp(min=0) + 1e-5)).mean()

    shapes = ((batch, width, *extents), (batch, width, *extents), (batch, 3, *extents))
    return Program(run, tuple(draw.tensor(shape) for shape in shapes), draw.training)


def modalities(draw: Draw) -> Program:
    """Words, sounds and pictures: typed tokens joined, gates across, scores of pairs."""
    kind, first = draw.choice(("joined", "gated", "latents", "pairs")), draw.chance(0.5)
    width = draw.choice((64, 96, 256, 384, 768, 1024)) if draw.chance(0.8) else 32
    batch = min(draw.choice((2, 3, 8, 16)), max(2, draw.numel // (4 * width)))
    length = max(2, draw.numel // (batch * width))
    words = min(length, draw.choice((4, 9, 33, 77)))

    def run(a: Tensor, b: Tensor, types: Tensor, real: Tensor) -> Tensor:
        if kind == "joined":
            h = functional.layer_norm(a.transpose(1, 2) if first else a, (width,), types[2])
            return torch.cat((b + types[0], h + types[1]), 1)
        if kind == "gated":
            pooled = (b * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
            h = a + pooled[:, None] if first else a * torch.sigmoid(pooled)[:, None]
            return a * torch.tanh(types[0]) + functional.gelu(h)
        h = a.float() * types[0, 0].float().exp().clamp(max=20)
        if kind == "latents":
            p = functional.softmax(h.masked_fill(~real[:, None, None], -1e4), -1)
            return (p * real.any(-1)[:, None, None, None]).to(a.dtype)
        peaks = h.amax(-1).mean(-1) if first else torch.logsumexp(h, -1).amax(-1)
        own = torch.arange(peaks.shape[0], device=h.device)
        return functional.cross_entropy(peaks, own) + functional.cross_entropy(peaks.t(), own)

    shape: tuple[int, ...] = (batch, length, width)
    if kind == "joined" and first:
        shape = (batch, width, length)
    elif kind == "latents":
        few = min(draw.choice((1, 8, 32, 64)), max(1, draw.numel // (batch * words)))
        shape = (batch, max(1, draw.numel // (batch * few * words)), few, words)
    elif kind == "pairs":
        sounds = min(draw.choice((4, 10, 16, 50)), max(1, draw.numel // (8 * words)))
        many = max(2, int((draw.numel / (sounds * words)) ** 0.5))
        shape = (many, many, sounds, words)
    args = (draw.tensor(shape), draw.tensor((batch, words, width)), draw.tensor((3, width)))
    return Program(run, (*args, draw.mask((batch, words), 0.8)), draw.training)


#: Every family here.
FAMILIES = (
    tubelets,
    frame_differences,
    volume_maps,
    axial_scores,
    flow_updates,
    labelled_volumes,
    deformed_volumes,
    modalities,
)
