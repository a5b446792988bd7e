"""Heads of dense prediction: context, pyramids, fused maps, regions, losses, points, exchange."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

_SIDES = (6, 7, 8, 12, 14, 16, 20, 24, 28, 32, 33, 48, 56, 64, 65, 97, 128, 160)
_WIDTHS = (8, 16, 19, 24, 32, 48, 64, 96, 128, 256, 512)
_NORMS = ("running", "running", "batch", "batch", "frozen")
_MODES = ("nearest", "bilinear", "aligned")


def _maps(draw: Draw, shrunk: int = 1, *, multiple: int = 1) -> tuple[int, int, int, int]:
    """Batch, channels, height and width (multiples) of maps of so many times fewer elements."""
    numel = max(64, draw.numel // shrunk)
    channels = draw.choice([c for c in _WIDTHS if c <= max(8, numel // 200)])
    most = max(6, int((numel / (2 * channels)) ** 0.5))
    sides = [min(most, draw.choice(_SIDES)) for _ in range(2)]
    height, width = (-(-side // multiple) * multiple for side in sides)
    return max(2, numel // (channels * height * width)), channels, height, width


def _norm(draw: Draw, channels: int) -> tuple[Tensor, ...]:
    """Gain, bias, running mean and running variance of a norm."""
    parts = [draw.tensor((channels,), grad=grad) for grad in (None, None, False)]
    return (*parts, draw.tensor((channels,), grad=False, positive=True))


def _normed(h: Tensor, norm: tuple[Tensor, ...], kind: str) -> Tensor:
    """Normalised by running or batch statistics, or scaled by what the running ones come to."""
    gain, bias, mean, spread = norm
    if kind != "frozen":
        return functional.batch_norm(h, mean, spread, gain, bias, training=kind == "batch")
    scale = gain * (spread + 1e-5).rsqrt()
    return h * scale[:, None, None] + (bias - mean * scale)[:, None, None]


def _resized(h: Tensor, size: tuple[int, ...], mode: str) -> Tensor:
    """Of that size by the mode, or bilinear with the corners aligned."""
    smooth, aligned = ("bilinear", True) if mode == "aligned" else (mode, None)
    return functional.interpolate(h, size, mode=smooth, align_corners=aligned)


def image_context(draw: Draw) -> Program:
    """Branches normalised and joined with means of the image or its bins, resized back: ASPP."""
    count, kind, dropped = draw.between(1, 4), draw.choice(_NORMS), draw.chance(0.3)
    batch, channels, *size = _maps(draw, 1 + count)
    bins, mode = draw.choice(((1,), (1,), (1,), (1, 2, 3, 6), (1, 3))), draw.choice(_MODES)
    act = draw.choice((functional.relu, functional.silu))

    def run(keep: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
        parts = [act(_normed(y, rest[:4], kind)) for y in rest[4:]]
        pools = [functional.adaptive_avg_pool2d(x, pool) for pool in bins]
        parts += [_resized(act(_normed(h, rest[:4], kind)), tuple(size), mode) for h in pools]
        return torch.cat(parts, 1) * keep / 0.9 if dropped else torch.cat(parts, 1)

    keep = draw.mask((batch, channels * (count + len(bins)), 1, 1), 0.9)
    x, *branches = draw.images([(batch, channels, *size)] * (1 + count))
    return Program(run, (keep, x, *_norm(draw, channels), *branches), draw.training)


def top_down(draw: Draw) -> Program:
    """Levels normalised, activated, resized and summed from the coarsest down, or all at once."""
    count, kind, mode = draw.between(2, 4), draw.choice(_NORMS), draw.choice(_MODES)
    order = draw.choice(("before", "before", "after", "finest", "joined"))
    batch, channels, *size = _maps(draw, 3, multiple=2 ** (count - 1))
    act = draw.choice((functional.relu, functional.silu))

    def run(*args: Tensor) -> list[Tensor]:
        norm, levels = args[:4], args[4:]
        if order in {"finest", "joined"}:
            fine = [_resized(act(_normed(x, norm, kind)), tuple(size), mode) for x in levels]
            return [torch.cat(fine, 1) if order == "joined" else torch.stack(fine).sum(0)]
        found = [act(_normed(levels[-1], norm, kind))]
        for x in levels[-2::-1]:
            above = _resized(found[-1], x.shape[2:], mode)
            h = act(_normed(x + above if order == "after" else x, norm, kind))
            found.append(h + above if order == "before" else h)
        return [*found, functional.max_pool2d(found[0], 1, 2)]

    shapes = [(batch, channels, *(side >> i for side in size)) for i in range(count)]
    return Program(run, (*_norm(draw, channels), *draw.images(shapes)), draw.training)


def fused_maps(draw: Draw) -> Program:
    """Detail and context fused by gates of channels or of pixels: BiSeNet, PIDNet."""
    kind, norm_kind = draw.choice(("joined", "refined", "guided")), draw.choice(_NORMS)
    batch, channels, *size = _maps(draw, 2, multiple=4)
    mode, factor = draw.choice(_MODES), draw.choice((1, 2, 4))
    gate = draw.choice((functional.sigmoid, functional.hardsigmoid))

    def run(x: Tensor, y: Tensor, weight: Tensor, *norm: Tensor) -> Tensor:
        if kind == "refined":
            share = gate(_normed(y.mean((2, 3), keepdim=True), norm, norm_kind))
            deep = y * share + functional.relu(y.amax((2, 3), keepdim=True) * weight[0, 0])
            return functional.relu(x + _resized(deep, tuple(size), mode))
        y = _resized(_normed(y, norm, norm_kind), tuple(size), mode)
        if kind == "joined":
            h = torch.cat((functional.relu(x), y), 1)
            share = gate(functional.relu(h.mean((2, 3)) @ weight) @ weight.t())
            return h + h * share[:, :, None, None]
        share = gate((x * y).sum(1, keepdim=True) * weight[0, 0])
        return share * y + (1 - share) * x

    maps = draw.images([(batch, channels, *(s // part for s in size)) for part in (1, factor)])
    weight = draw.tensor((2 * channels, max(4, channels // 4)))
    return Program(run, (*maps, weight, *_norm(draw, channels)), draw.training)


def object_context(draw: Draw) -> Program:
    """Softmax of classes over pixels and of pixels over classes, joined with features: OCR."""
    last, gathered, normed = draw.chance(0.4), draw.chance(0.5), draw.choice(_NORMS)
    classes, wide = draw.choice((2, 6, 19, 21, 59, 150)), draw.choice((16, 32, 64, 128, 256))
    most = max(16, draw.numel // (classes + wide))
    pixels = min(most, draw.choice((49, 196, 256, 1024, 2048, 4096, 65 * 65)))
    batch = max(1, most // pixels)

    def run(scores: Tensor, x: Tensor, *norm: Tensor) -> tuple[Tensor, ...]:
        s = scores.transpose(1, 2) if last else scores
        share = functional.softmax(s.float(), -1 if gathered else 1).to(x.dtype)
        context = torch.bmm(x, share.transpose(1, 2))
        if gathered:
            return functional.relu(context * norm[0][:wide, None]), share.amax(-1)
        h = torch.cat((torch.bmm(context / pixels, share), x), 1)[..., None]
        return (functional.relu(_normed(h, norm, normed)).squeeze(-1),)

    shape = (batch, pixels, classes) if last else (batch, classes, pixels)
    args = (draw.tensor(shape), draw.tensor((batch, wide, pixels)))
    return Program(run, (*args, *_norm(draw, 2 * wide)), draw.training)


def auxiliary_scores(draw: Draw) -> Program:
    """Losses of several heads resized to the labels with ignored pixels, or averaged scores."""
    classes, count = draw.choice((2, 5, 19, 21, 60, 150)), draw.between(1, 3)
    weighed, hard, ignored = draw.chance(0.3), draw.chance(0.4), draw.choice((-1, 255))
    classes = min(classes, max(2, draw.numel // 1000))
    most = max(2, int((draw.numel / (2 * classes)) ** 0.5) // 8)
    sides = [min(most, draw.choice((2, 4, 7, 8, 12, 16, 32))) for _ in range(2)]
    size = [8 * side + draw.choice((0, 0, 1)) for side in sides]
    batch = max(1, 2 * draw.numel // (classes * (count + 1) * size[0] * size[1]))
    mode, trained = draw.choice(_MODES[1:]), draw.chance(0.7)

    def run(target: Tensor, weight: Tensor, *heads: Tensor) -> Tensor:
        full = [_resized(s, target.shape[1:], mode).float() for s in heads]
        if not trained:
            shares = [functional.softmax(s, 1) for s in full]
            shares += [s.flip(-1) for s in shares] if hard else []
            return torch.stack(shares).mean(0).argmax(1).masked_fill(target == ignored, 0)
        total, least, by = weight.new_zeros(()), 0.7 if hard else -1.0, weight if weighed else None
        for i, s in enumerate(full):
            loss = functional.cross_entropy(s, target, by, None, ignored, reduction="none")
            kept = (target != ignored) & (loss.detach() > least)
            total = total + 0.4**i * (loss * kept).sum() / kept.sum().clamp(min=1)
        return total

    target, gone = draw.indices((batch, *size), classes), draw.mask((batch, *size), 0.1)
    weight = draw.tensor((classes,), dtype=torch.float32, grad=False, positive=True)
    shapes = [(batch, classes, *(2 * side >> (i > 0) for side in sides)) for i in range(count)]
    heads = (draw.image(shape, grad=trained) for shape in shapes)
    return Program(run, (target.masked_fill(gone, ignored), weight, *heads), trained)


def boundaries(draw: Draw) -> Program:
    """Edges of labels or one-hot maps by pooling or neighbours, and losses weighed by them."""
    kind, window = draw.choice(("pooled", "structure", "compared")), draw.choice((3, 3, 5))
    classes = draw.choice((2, 4, 8, 19, 21)) if kind == "pooled" else 1
    most = max(8, int((draw.numel / classes) ** 0.5))
    size = [min(most, draw.choice((28, 32, 56, 64, 97, 128, 256, 321))) for _ in range(2)]
    batch = max(1, draw.numel // (classes * size[0] * size[1]))

    def run(scores: Tensor, label: Tensor) -> Tensor:
        s, side, shared = scores.float(), window // 2, (2, 3)
        if kind == "pooled":
            hot = functional.one_hot(label, classes).movedim(-1, 1)
            maps = [1 - h.float() for h in (functional.softmax(s, 1), hot)]
            maps = [functional.max_pool2d(h, window, 1, side) - h for h in maps]
            pairs = [(a, functional.max_pool2d(b, 5, 1, 2)) for a, b in (maps, maps[::-1])]
            parts = [(a * b).sum(shared) / (a.sum(shared) + 1e-3) for a, b in pairs]
            return (1 - 2 * parts[0] * parts[1] / (parts[0] + parts[1] + 1e-3)).mean()
        wanted = (label[:, None] > 0).float()
        weight = 1 + 5 * (functional.avg_pool2d(wanted, window, 1, side) - wanted).abs()
        if kind == "compared":
            edge = functional.pad(label[..., 1:] != label[..., :-1], (0, 1))
            edge = edge | functional.pad(label[:, 1:] != label[:, :-1], (0, 0, 0, 1))
            part = edge.float().mean((1, 2), keepdim=True)
            weight = torch.where(edge, 1 - part, part)[:, None]
        loss = functional.binary_cross_entropy_with_logits(s, wanted, weight, reduction="none")
        p, total = torch.sigmoid(s), loss.sum(shared) / (weight.sum(shared) + 1e-3)
        inner, outer = ((h * weight).sum(shared) for h in (p * wanted, p + wanted))
        return (total + 1 - (inner + 1) / (outer - inner + 1)).mean()

    label = draw.indices((batch, *size), max(2, classes))
    return Program(run, (draw.image((batch, classes, *size)), label), draw.training)


def refined_points(draw: Draw) -> Program:
    """Scores refined at uncertain points: features sampled there, losses, or scores put back."""
    kind, mode = draw.choice(("sampled", "uncertain", "put_back", "loss")), draw.choice(_MODES)
    classes, wide = draw.choice((2, 19, 80)), draw.choice((8, 32, 64, 256))
    most = max(6, int((draw.numel / (classes + wide)) ** 0.5))
    height, width = (2 * (min(most, draw.choice(_SIDES)) // 2) for _ in range(2))
    points = max(2, min(8096, int((area := height * width) * draw.choice((0.1, 0.3, 0.7)))))
    batch = max(1, draw.numel // (classes * area + wide * (area + points)))

    def run(coarse: Tensor, fine: Tensor, place: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        if kind == "sampled":
            grid = place.tanh()[:, :, None].to(fine.dtype)
            maps = [functional.grid_sample(h, grid, align_corners=False) for h in (fine, coarse)]
            return torch.relu(torch.cat(maps, 1)).squeeze(-1), place
        full = _resized(coarse, (height, width), mode).flatten(2)
        if kind == "uncertain":
            first, second = full.float().topk(2, 1).values.unbind(1)
            found = (second - first).topk(points, 1).indices
            picked = fine.flatten(2).gather(2, found[:, None].expand(-1, wide, -1))
            return torch.stack((found % width, found // width), -1) + 0.5, torch.relu(picked)
        where = at[:, None].expand(-1, classes, -1)
        old = full.gather(2, where)
        if kind == "loss":
            return functional.cross_entropy(old.float(), at % classes), old.argmax(1)
        full = full.scatter(2, where, old + place[:, None, :, 0].to(old.dtype))
        return full.unflatten(2, (height, width)), full.argmax(1)

    coarse = draw.image((batch, classes, height // 2, width // 2))
    read = draw.training and kind in {"sampled", "uncertain"}
    fine = draw.image((batch, wide, height, width), grad=read)
    place = draw.tensor((batch, points, 2), dtype=torch.float32, grad=False)
    # No point occurs twice in an image, so that scores are put back in any order.
    at = (torch.arange(points) + draw.indices((batch, 1), area)) % area
    return Program(run, (coarse, fine, place, at), draw.training)


def exchanged_scales(draw: Draw) -> Program:
    """Several resolutions exchanged: down by strides, up by nearest, summed or gated: HRNet."""
    count, kind, gated = draw.between(2, 4), draw.choice(_NORMS), draw.chance(0.3)
    batch, channels, *size = _maps(draw, 3, multiple=2 ** (count - 1))
    mode, act = draw.choice(_MODES), draw.choice((functional.relu, functional.silu))
    down = draw.choice((None, functional.avg_pool2d, functional.max_pool2d))

    def run(*args: Tensor) -> list[Tensor]:
        normed, found = [_normed(x, args[:4], kind) for x in args[4:]], []
        for i, x in enumerate(args[4:]):
            h = x
            for j, other in enumerate(normed):
                step = 2 ** max(0, i - j)
                new = other[..., ::step, ::step] if down is None else down(other, step)
                new = new if j <= i else _resized(other, x.shape[2:], mode)
                h = h * torch.sigmoid(new) if gated else h + new
            found.append(act(h))
        return found

    shapes = [(batch, channels, *(side >> i for side in size)) for i in range(count)]
    return Program(run, (*_norm(draw, channels), *draw.images(shapes)), draw.training)


#: Every family here.
FAMILIES = (
    image_context,
    top_down,
    fused_maps,
    object_context,
    auxiliary_scores,
    boundaries,
    refined_points,
    exchanged_scales,
)
