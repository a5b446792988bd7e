"""Blocks of language models: biases, packed documents, mixers of tokens, routers, sampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def _tokens(draw: Draw, widths: tuple[int, ...]) -> tuple[int, int, int]:
    """Batch, length and width."""
    batch, width = draw.choice((1, 2, 3, 8)), draw.choice(widths)
    return batch, max(3, draw.numel // (batch * width)), width


def bucketed_bias(draw: Draw) -> Program:
    """Scores with biases by distance within documents: buckets looked up, or slopes: T5, ALiBi."""
    heads, causal, bucketed = draw.choice((2, 4, 6, 12)), draw.chance(0.5), draw.chance(0.6)
    length = min(draw.choice((16, 33, 64, 128, 257, 512)), max(3, int((draw.numel / heads) ** 0.5)))
    batch, cap = max(1, draw.numel // (heads * length**2)), draw.choice((None, 20.0, 50.0))

    def run(scores: Tensor, table: Tensor, document: Tensor) -> Tensor:
        at, exact = torch.arange(length, device=scores.device), 8
        far = at[None, :] - at[:, None]
        if bucketed:
            side = torch.zeros_like(far) if causal else (far > 0).long() * 16
            n = -far.clamp(max=0) if causal else far.abs()
            large = exact + (torch.log(n.clamp(min=1).float() / exact) / math.log(16) * 8).long()
            bias = table[side + torch.where(n < exact, n, large.clamp(max=15))].permute(2, 0, 1)
        else:
            head = torch.arange(1, heads + 1, device=scores.device)
            bias = -far.abs() * torch.pow(2.0, -8.0 * head / heads)[:, None, None] + table[0, 0]
        h = scores.float() if cap is None else cap * torch.tanh(scores.float() / cap)
        seen = (document[:, :, None] == document[:, None, :]) & (far <= (0 if causal else length))
        return functional.softmax((h + bias).masked_fill(~seen[:, None], -1e9), -1).to(scores.dtype)

    args = (draw.tensor((batch, heads, length, length)), draw.tensor((32, heads)))
    return Program(run, (*args, draw.indices((batch, length), 3).cumsum(1) // 32), draw.training)


def sampling_logits(draw: Draw) -> Program:
    """Logits on the way to a sampled token: repetitions, frequencies, bans, heat, min-p, noise."""
    words = min(draw.choice((1000, 8192, 32000, 50257)), max(50, draw.numel // 2))
    rows, past = draw.numel // words + 1, draw.choice((4, 33, 128))
    penalty, banned = draw.choice(("repetition", "frequency", "none")), draw.chance(0.4)
    cut, picked = draw.choice(("min_p", "epsilon", "none")), draw.chance(0.5)

    def run(logits: Tensor, before: Tensor, heat: Tensor, ban: Tensor, noise: Tensor) -> Tensor:
        s = logits.float()
        if penalty == "repetition":
            seen = s.gather(1, before)
            s = s.scatter(1, before, torch.where(seen < 0, seen * 1.2, seen / 1.2))
        elif penalty == "frequency":
            count = torch.zeros_like(s).scatter_add(1, before, torch.ones_like(before).float())
            s = s - 0.3 * count - 0.5 * (count > 0)
        s = (s.index_fill(1, ban, -1e9) if banned else s) / heat[:, None]
        p = functional.softmax(s, -1)
        if cut != "none":
            least = 0.1 * p.amax(-1, keepdim=True) if cut == "min_p" else 3e-4
            p = torch.where(p < least, 0.0, p)
            p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)
        return (p / noise).argmax(-1) if picked else p

    args = (draw.tensor((rows, words), grad=False), draw.indices((rows, past), words))
    heat = draw.tensor((rows,), dtype=torch.float32, grad=False, positive=True)
    noise = draw.tensor((rows, words), dtype=torch.float32, grad=False, positive=True)
    return Program(run, (*args, heat, draw.indices((5,), words), noise))


def token_shift(draw: Draw) -> Program:
    """Tokens mixed with the ones before them for several projections, decays and gates: RWKV."""
    batch, length, width = _tokens(draw, (48, 64, 128, 320, 512, 768))
    parts, adapted, channel = draw.between(2, 5), draw.chance(0.4), draw.chance(0.3)
    length = max(3, length * 2 // parts)

    def run(x: Tensor, mu: Tensor, bonus: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        h = functional.layer_norm(x, (width,))
        apart = torch.cat((last[:, None], h[:, :-1]), 1) - h
        share = torch.tanh(apart * bonus) if adapted else 1.0
        mixed = [h + apart * (share * mu[i]) for i in range(parts)]
        if channel:
            return x + torch.sigmoid(mixed[1]) * torch.relu(mixed[0]).square() * bonus, h[:, -1]
        decay = torch.exp(-torch.exp(mixed[0].float() - 3 + bonus)).to(x.dtype)
        return (decay, *(functional.silu(m) for m in mixed[1:]), h[:, -1])

    args = (draw.tensor((batch, length, width)), draw.tensor((parts, width)))
    return Program(run, (*args, draw.tensor((width,)), draw.tensor((batch, width))), draw.training)


def state_space(draw: Draw) -> Program:
    """State spaces discretised, decayed by step or in chunks, summed over the state: Mamba."""
    batch, length, width = _tokens(draw, (24, 64, 128, 384))
    states, summed, gated = draw.choice((4, 8, 16, 64)), draw.chance(0.5), draw.chance(0.6)
    length = -(-length // states)

    def run(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> Tensor:
        step = functional.softplus(dt.float() - 2)
        decay = step[..., None] * -torch.exp(a.float().clamp(max=1))
        fresh = (step * x)[..., None] * b[:, :, None]
        if summed:
            total = decay.cumsum(1)
            h = (fresh * torch.exp(-total.clamp(min=-20))).cumsum(1) * torch.exp(total)
        else:
            h = torch.exp(decay) * state[:, None] + fresh
        y = (h * c[:, :, None]).sum(-1) + x * a[:, 0]
        return (y * functional.silu(dt) if gated else y).to(x.dtype)

    args = [draw.tensor((batch, length, width)) for _ in range(2)]
    args += [draw.tensor((width, states)), *(draw.tensor((batch, length, states)) for _ in "bc")]
    state = draw.tensor((batch, width, states), grad=draw.training and not summed)
    return Program(run, (*args, state), draw.training)


def router_losses(draw: Draw) -> Program:
    """Probabilities of experts with what keeps them even: balance, z loss, places, biases."""
    experts, few = draw.choice((4, 8, 16, 60, 64, 256)), draw.choice((1, 2, 4))
    tokens, biased = max(4, draw.numel // experts), draw.chance(0.4)
    placed, capacity = draw.chance(0.4), max(1, tokens * few // experts)

    def run(scores: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        s = scores.float()
        p = torch.sigmoid(s) if biased else functional.softmax(s, -1)
        chosen = (p + bias if biased else p).topk(few, -1).indices
        hot = functional.one_hot(chosen, experts).sum(1) * keep[:, None]
        weight = functional.normalize(p.gather(-1, chosen), 1.0, -1)
        if placed:
            weight = weight * ((hot.cumsum(0) - hot).gather(-1, chosen) < capacity)
        count, share = hot.sum(0).float(), (p * keep[:, None]).sum(0) / keep.sum().clamp(min=1)
        balance = (count / count.sum().clamp(min=1) * share).sum() * experts
        return weight.to(scores.dtype), balance + 1e-3 * torch.logsumexp(s, -1).square().mean()

    args = (draw.tensor((tokens, experts)), draw.tensor((experts,), grad=False))
    return Program(run, (*args, draw.mask((tokens,), 0.9)), draw.training)


def residual_streams(draw: Draw) -> Program:
    """Several residual streams read by weights and written back: hyper-connections."""
    batch, length, width = _tokens(draw, (48, 64, 256, 384, 768))
    streams, last = draw.choice((2, 4, 4, 5)), draw.chance(0.3)
    length, dynamic = -(-length // streams), draw.chance(0.6)

    def run(x: Tensor, out: Tensor, a: Tensor, b: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = x.transpose(2, 3) if last else x
        if dynamic:
            score = torch.tanh((functional.rms_norm(h, (width,)) * gain).mean(-1))
            a, b = a * (1 + score[..., None]), b + score
        read = (h[:, :, :, None] * a[..., None]).sum(2)
        new = read[:, :, 1:] + b[..., None] * out[:, :, None]
        return functional.rms_norm(read[:, :, 0], (width,)), new.transpose(2, 3) if last else new

    shape = (batch, length, width, streams) if last else (batch, length, streams, width)
    args = (draw.tensor(shape), draw.tensor((batch, length, width)))
    gain = draw.tensor((width,), grad=draw.training and dynamic)
    mix = (draw.tensor((streams, streams + 1)), draw.tensor((streams,)), gain)
    return Program(run, (*args, *mix), draw.training)


def copied_words(draw: Draw) -> Program:
    """Odds of words mixed with attention to those of the source, and their loss: pointers."""
    words = min(draw.choice((200, 1000, 5003, 32000)), max(50, draw.numel // 2))
    rows, length = max(2, draw.numel // words), draw.choice((7, 32, 100, 400))
    covered, target = draw.chance(0.4), draw.indices((rows, 1), words)

    def run(scores: Tensor, attention: Tensor, gate: Tensor, source: Tensor, at: Tensor) -> Tensor:
        gate, weight = torch.sigmoid(gate.float()), functional.softmax(attention.float(), -1)
        p = functional.softmax(scores.float(), -1) * gate
        p = p.scatter_add(1, source, weight * (1 - gate))
        loss = -torch.log(p.gather(1, at) + 1e-9).mean()
        if covered:
            loss = loss + torch.minimum(weight, weight.cumsum(0) - weight).sum(-1).mean()
        return loss

    args = (draw.tensor((rows, words)), draw.tensor((rows, length)), draw.tensor((rows, 1)))
    return Program(run, (*args, draw.indices((rows, length), words), target), draw.training)


#: Every family here.
FAMILIES = (
    bucketed_bias,
    sampling_logits,
    token_shift,
    state_space,
    router_losses,
    residual_streams,
    copied_words,
)
