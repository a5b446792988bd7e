"""Speech: convolution modules, delay nets, streams with cached frames, joints of labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

#: Frames that utterances, chunks of streams and windows have.
_STEPS = (16, 24, 49, 64, 99, 100, 149, 200, 256, 299, 374, 512, 750, 1000, 1500, 2048)
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.silu,
    functional.silu,
    functional.gelu,
    torch.relu,
)


def drawn_frames(draw: Draw, widths: tuple[int, ...], share: int = 1) -> tuple[int, int, int]:
    """Batch, frames and width of ``numel`` elements over ``share``."""
    numel = max(64, draw.numel // share)
    width = draw.choice([n for n in widths if 8 * n <= numel] or widths[:1])
    few = numel // (width * draw.choice((4, 16, 64, 10**6)))
    steps = min(max(draw.choice(_STEPS), few), max(4, numel // width))
    return max(2, numel // (width * steps)), steps, width


def convolution_modules(draw: Draw) -> Program:
    """Gated channels, padded frames, normed and activated, and half residuals: conformers."""
    batch, steps, width = drawn_frames(draw, (16, 64, 144, 176, 256, 512, 768, 1024), 3)
    kind = draw.choice(("gate", "batch", "layer", "group", "half", "half"))
    act = draw.choice(_ACTIVATIONS)
    size, last, convolved = draw.choice((3, 7, 9, 15, 31)), draw.chance(0.4), draw.chance(0.2)
    ends = (size - 1, 0) if draw.chance(0.4) else (size // 2, size // 2)

    def half(x: Tensor, h: Tensor, gain: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        low, high = (h if last else h.transpose(1, 2)).chunk(2, -1)
        x = x + 0.5 * (low + bias) * (keep.to(x.dtype) / 0.9)[..., None]
        y = functional.layer_norm(x, (width,), gain, bias)
        return (y, x) if act is torch.relu else (functional.layer_norm(y + act(high), (width,)), y)

    def run(x: Tensor, h: Tensor, gain: Tensor, bias: Tensor, keep: Tensor, w: Tensor) -> Tensor:
        h = functional.glu(h.transpose(1, 2) if last else h, 1).masked_fill(~keep[:, None], 0.0)
        if kind == "gate" or convolved:
            h = functional.pad(h, ends)
        h = functional.conv1d(h, w, groups=width) if convolved else h
        if kind == "gate":
            return h * gain[:, None] + bias[:, None]
        if kind == "batch":
            var, mean = torch.var_mean(h.float(), (0, 2), keepdim=True, correction=0)
            h = ((h - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype) * gain[:, None] + bias[:, None]
        elif kind == "group":
            h = functional.group_norm(h, 1, gain, bias)
        else:
            h = functional.layer_norm(h.transpose(1, 2), (width,), gain, bias).transpose(1, 2)
        return x + act(h).transpose(1, 2)

    wide = (batch, steps, 2 * width) if last else (batch, 2 * width, steps)
    args = [draw.tensor(shape) for shape in ((batch, steps, width), wide, (width,), (width,))]
    args.append(draw.mask((batch, steps), 0.9))
    if kind == "half":
        return Program(half, tuple(args), draw.training)
    w = draw.tensor((width, 1, size), grad=draw.training and convolved)
    return Program(run, (*args, w), draw.training)


def delay_nets(draw: Draw) -> Program:
    """Groups of channels chained, gates of means over time, context beside frames: ECAPA, CAM++."""
    batch, steps, width = drawn_frames(draw, (32, 64, 128, 512, 1024, 1536), 2)
    kind = draw.choice(("chained", "excited", "context", "pooled", "segments"))
    parts, act = draw.choice((2, 4, 8)), draw.choice((torch.relu, torch.tanh, functional.relu6))
    span, masked, first = draw.choice((10, 50, 100)), draw.chance(0.6), draw.chance(0.5)

    def batch_normed(h: Tensor) -> Tensor:
        var, mean = torch.var_mean(h.float(), (0, 2), keepdim=True, correction=0)
        return ((h - mean) * torch.rsqrt(var + 1e-5)).to(h.dtype)

    def chained(x: Tensor, gain: Tensor) -> Tensor:
        found: list[Tensor] = []
        for piece in x.chunk(parts, 1):
            h = piece + found[-1] if found else piece
            near = functional.pad(h, (1, 1), "reflect")
            found.append(act(near[..., 2:] - near[..., :-2] + h))
        h = torch.cat(found, 1)
        return x + (batch_normed(h) if first else h) * gain[:, None]

    def pooled(x: Tensor, score: Tensor, real: Tensor) -> Tensor:
        score = score.float().masked_fill(~real[:, None], -1e4) if masked else score.float()
        share = functional.softmax(score, -1)
        mean = (share * x).sum(-1)
        var = (share * x.float().square()).sum(-1) - mean.square()
        h = torch.cat((mean, var.clamp(min=1e-4).sqrt()), 1)
        return ((h - h.mean(0)) * torch.rsqrt(h.var(0, correction=0) + 1e-5)).to(x.dtype)

    def run(x: Tensor, other: Tensor, gain: Tensor, real: Tensor) -> Tensor:
        h = act(x) if first else batch_normed(act(x))
        if kind == "segments":
            local = functional.avg_pool1d(h, span, span, ceil_mode=True)[..., None]
            local = local.expand(-1, -1, -1, span).flatten(2)[..., :steps]
            return other * torch.sigmoid((h.mean(-1, keepdim=True) + local) * gain[:, None])
        weight = real.to(h.dtype)[:, None] if masked else torch.ones_like(h[:, :1])
        mean = (h * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp(min=1)
        if kind == "excited":
            return other + h * torch.sigmoid(mean * gain[:, None])
        gap = ((h - mean).square() * weight).mean(2, keepdim=True) + 1e-4
        return torch.cat((h, mean.expand_as(h), gap.sqrt().expand_as(h)), 1)

    span = min(span, steps)
    x, gain = draw.tensor((batch, width, steps)), draw.tensor((width,))
    real = draw.mask((batch, steps), 0.8)
    if kind == "chained":
        return Program(chained, (x, gain), draw.training)
    if kind == "pooled":
        return Program(pooled, (x, draw.tensor(x.shape), real), draw.training)
    other = draw.tensor(x.shape, grad=draw.training and kind != "context")
    return Program(run, (x, other, gain, real), draw.training)


def streamed_scores(draw: Draw) -> Program:
    """Scores with relative places within chunks and what lies left, and cached frames: streams."""
    heads, kind = (
        draw.choice((2, 4, 8, 12)),
        draw.choice(("shifted", "clipped", "biased", "cached")),
    )
    steps = min(draw.choice((16, 40, 64, 99, 160, 250, 512)), max(4, int((draw.numel / 16) ** 0.5)))
    chunk, left = draw.choice((4, 8, 16, 25)), draw.choice((1, 2, 4, 100))
    batch, far = max(1, draw.numel // (2 * heads * steps**2)), min(steps, draw.choice((8, 16, 64)))
    side, scaled = draw.choice((16, 32, 36, 64)), draw.chance(0.5)

    def score(x: Tensor, other: Tensor, length: Tensor) -> Tensor:
        at = torch.arange(steps, device=x.device)
        apart = at[None, :] - at[:, None]
        place = apart.clamp(-far, far) + far if kind == "clipped" else apart + steps - 1
        h = (x + other.gather(-1, place.expand(batch, heads, -1, -1))).float() * side**-0.5
        piece = at // chunk
        behind = piece[:, None] - piece[None, :]
        hidden = (behind < 0) | (behind > left) | (at >= length[:, None, None])
        h = functional.softmax(h.masked_fill(hidden[:, None], -1e4), -1)
        return h.masked_fill(hidden[:, None], 0.0).to(x.dtype)

    def biased(q: Tensor, bias: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        h = (q + bias).view(batch, -1, heads, side)
        h = functional.normalize(h, dim=-1) if scaled else h * side**-0.5
        return tuple((h + w).transpose(1, 2).contiguous() for w in (u, v))

    def cached(x: Tensor, past: Tensor, bias: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = (x + bias).view(batch, -1, 2, heads, side).permute(2, 0, 3, 1, 4)
        h = torch.cat((past, h * gain if scaled else torch.tanh(h)), 3)
        return h[0], h[1], h[:, :, :, -past.shape[3] :].contiguous()

    if kind in {"biased", "cached"}:
        batch = draw.choice((1, 4, 16, 64))
        steps, width = max(2, draw.numel // (2 * batch * heads * side)), heads * side
        if kind == "biased":
            args = [draw.tensor((batch, steps, width)), draw.tensor((width,))]
            args += [draw.tensor((heads, side)) for _ in range(2)]
            return Program(biased, tuple(args), draw.training)
        past = draw.tensor((2, batch, heads, max(1, steps // draw.choice((1, 2, 8))), side))
        args = [draw.tensor((batch, steps, 2 * width)), past, draw.tensor((2 * width,))]
        gain = draw.tensor((side,), grad=draw.training and scaled)
        return Program(cached, (*args, gain), draw.training)
    last = 2 * far + 1 if kind == "clipped" else 2 * steps - 1
    args = [draw.tensor((batch, heads, steps, n)) for n in (steps, last)]
    return Program(score, (*args, draw.indices((batch,), steps) + 1), draw.training)


def joint_scores(draw: Draw) -> Program:
    """Frames and labels added pair by pair, odds of blanks and labels, paths: transducers, CTC."""
    kind = draw.choice(("sum", "pruned", "odds", "durations", "paths", "simple"))
    width = draw.choice((29, 64, 128, 256, 500, 512, 640, 1024))
    labels = min(draw.choice((3, 5, 12, 25, 51)), max(2, draw.numel // (16 * width)))
    steps = min(draw.choice((8, 25, 50, 100, 250)), max(3, draw.numel // (width * labels)))
    batch, hot = max(1, draw.numel // (width * labels * steps)), draw.choice((1.0, 1.0, 2.0))
    act, normed = draw.choice((torch.tanh, torch.relu)), draw.chance(0.3)

    def joined(frames: Tensor, words: Tensor, bias: Tensor, start: Tensor) -> Tensor:
        if kind == "pruned":
            at = start[..., None] + torch.arange(4, device=start.device)
            near = words.gather(1, at.flatten(1)[..., None].expand(-1, -1, width))
            h = frames[:, :, None] + near.view(batch, steps, 4, width)
        else:
            h = frames[:, :, None] + words[:, None]
        h = functional.layer_norm(h, (width,)) if normed else h
        return act(h + bias)

    def odds(x: Tensor, at: Tensor, real: Tensor) -> tuple[Tensor, ...]:
        h = x.float() / hot
        h, spare = h.split((width - 5, 5), -1) if kind == "durations" else (h, h[..., :5])
        p = functional.log_softmax(h, -1)
        label = p.gather(-1, at[:, None, :, None].expand(-1, steps, -1, -1))[..., 0]
        label = label.masked_fill(~real[:, :, None], -1e4)
        if kind == "durations":
            return label, p[..., 0], functional.log_softmax(spare, -1)
        return label[:, :, :-1], p[..., 0]

    def paths(x: Tensor, at: Tensor, skip: Tensor) -> Tensor:
        p = functional.log_softmax(x.float(), -1).gather(-1, at[:, None].expand(-1, x.shape[1], -1))
        total = torch.where(torch.arange(at.shape[1], device=x.device) <= 1, p[:, 0], -1e4)
        for t in range(1, min(6, x.shape[1])):
            one = functional.pad(total[:, :-1], (1, 0), value=-1e4)
            two = functional.pad(total[:, :-2], (2, 0), value=-1e4).masked_fill(~skip, -1e4)
            total = torch.logsumexp(torch.stack((total, one, two)), 0) + p[:, t]
        return -torch.logaddexp(total[:, -1], total[:, -2]).mean() - p[:, 6:].mean()

    def simple(frames: Tensor, words: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        top, most = (h.amax(-1, keepdim=True).detach() for h in (frames, words))
        both = (frames - top).exp() @ (words - most).exp().transpose(1, 2)
        norm = (both.float() + 1e-6).log() + top + most.transpose(1, 2)
        label = frames.gather(2, at[:, None].expand(-1, frames.shape[1], -1)) - norm
        label = label + words.gather(2, at[..., None]).transpose(1, 2)
        return label, frames[..., :1] + words[:, None, :, 0] - norm

    at = draw.indices((batch, labels), max(2, width - 5))
    if kind in {"sum", "pruned"}:
        labels, share = (max(labels, 6), 4) if kind == "pruned" else (labels, labels)
        steps = max(2, draw.numel // (batch * width * share))
        args = [draw.tensor((batch, n, width)) for n in (steps, labels)]
        start = draw.indices((batch, steps), labels - 3) if kind == "pruned" else at
        return Program(joined, (*args, draw.tensor((width,)), start), draw.training)
    if kind in {"odds", "durations"}:
        x = draw.tensor((batch, steps, labels, width))
        return Program(odds, (x, at, draw.mask((batch, steps), 0.9)), draw.training)
    x = draw.tensor((batch, max(8, steps * labels), width))
    if kind == "simple":
        return Program(simple, (x, draw.tensor((batch, labels, width)), at), draw.training)
    places, skip = (batch, 2 * labels + 1), draw.mask((batch, 2 * labels + 1), 0.4)
    return Program(paths, (x, draw.indices(places, width), skip), draw.training)


#: Every family here.
FAMILIES = (convolution_modules, delay_nets, streamed_scores, joint_scores)
