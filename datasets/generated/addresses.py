"""Orders and addresses: comparisons, memories, hashes, tiles and curves."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.transforms import bits_of


def compared_orders(draw: Draw) -> Program:
    """Orders by comparisons alone: exchanged pairs, counted ranks, soft ranks, packed survivors."""
    kind = draw.choice(("exchanged", "counted", "soft", "packed"))
    size = draw.choice((8, 16, 32, 64)) if kind != "packed" else draw.choice((100, 1000, 4096))
    width = draw.choice((1, 1, 4, 32)) if kind == "packed" else 1
    size = min(size, max(8, draw.numel // (2 * width))) if kind == "packed" else size
    blown = size // 8 if kind in ("counted", "soft") else 1
    rows, first = max(2, draw.numel // (size * width * max(1, blown))), draw.chance(0.4)
    power = min(size.bit_length() - 1, draw.choice((2, 3, 4)))

    def exchange(x: Tensor, value: Tensor) -> Tensor:
        h = (x.T if first else x) + value
        for stage in range(1, power + 1):
            for half in (2**i for i in reversed(range(stage))):
                a, b = h.reshape(rows, -1, 2, half).unbind(2)
                at = torch.arange(size // (2 * half), device=x.device) * 2 * half
                up = ((at >> stage) & 1 == 0)[:, None]
                low, high = torch.minimum(a, b), torch.maximum(a, b)
                pair = (torch.where(up, low, high), torch.where(up, high, low))
                h = torch.stack(pair, 2).view(rows, size)
        return h

    def count(x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        h = x.T if first else x
        gap = h[:, None, :] - h[:, :, None]
        if kind == "soft":
            rank = torch.sigmoid(4 * gap.float()).sum(-1) + 0.5
            goal = value.float().argsort(-1).float() + 1
            return 1 - functional.cosine_similarity(rank, goal, -1).mean(), rank
        at = torch.arange(size, device=x.device)
        rank = ((gap > 0) | ((gap == 0) & (at < at[:, None]))).sum(-1)
        return torch.zeros_like(h).scatter(1, rank, h), torch.where(rank < size // 4, value, 0)

    def pack(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        place = keep.long().cumsum(1) - 1
        total = place[:, -1:] + 1
        place = torch.where(keep, place, size)[..., None].expand(-1, -1, width)
        out = x.new_zeros(rows, size + 1, width).scatter(1, place, x)
        return out[:, :size], torch.arange(size, device=x.device) < total

    if kind == "packed":
        keep = draw.mask((rows, size), draw.choice((0.1, 0.5, 0.9)))
        return Program(pack, (draw.tensor((rows, size, width)), keep), draw.training)
    args = (draw.tensor((size, rows) if first else (rows, size)),)
    value = draw.tensor((rows, size), grad=draw.training and kind != "soft")
    return Program(exchange if kind == "exchanged" else count, (*args, value), draw.training)


def addressed_memory(draw: Draw) -> Program:
    """Memories found by likeness, shifted, sharpened, erased and written, or of outer products."""
    width, slots = draw.choice((8, 20, 32, 64, 128)), draw.choice((16, 50, 128, 256))
    kind = draw.choice(("located", "written", "outer", "recalled"))
    slots = width if kind == "outer" and draw.chance(0.5) else slots
    rows = max(1, draw.numel // (slots * width))
    sharp, normed, last = draw.chance(0.5), draw.chance(0.5), draw.chance(0.3)

    def locate(m: Tensor, key: Tensor, gates: Tensor, before: Tensor) -> Tensor:
        like = functional.cosine_similarity(m.float(), key[:, None].float(), -1, 1e-6)
        w = functional.softmax(like * functional.softplus(gates[:, :1]), -1)
        w = torch.lerp(
            functional.softmax(before.float(), -1), w, torch.sigmoid(gates[:, 1:2].float())
        )
        turn = functional.softmax(gates[:, 2:5].float(), -1)
        w = sum(
            (torch.roll(w, i - 1, -1) * turn[:, i : i + 1] for i in range(3)), torch.zeros_like(w)
        )
        if sharp:
            w = (w + 1e-6).pow(1 + functional.softplus(gates[:, 5:].float()))
            w = w / w.sum(-1, keepdim=True)
        return w

    def run(m: Tensor, key: Tensor, gates: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        memory = m.transpose(1, 2) if last else m
        if kind == "recalled":
            like = (memory * key[:, None]).sum(-1).float()
            like = like.square() if sharp else functional.relu(like).pow(3)
            share = like / (like.sum(-1, keepdim=True) + 1e-6) if normed else like.clamp(max=9)
            return (share[..., None] * memory).sum(1).to(m.dtype), like.amax(-1)
        if kind == "outer":
            k = functional.normalize(functional.silu(key.float()), dim=-1)
            decay = torch.sigmoid(gates[:, :1].float() + 2)[..., None]
            held = (memory * k[:, None]).sum(-1) if normed else 0.0
            change = torch.sigmoid(gates[:, 1:2].float()) * (before - held)
            new = decay * memory + change[..., None] * k[:, None]
            return new.to(m.dtype), (new * key[:, None]).sum(-1).to(m.dtype)
        w = locate(memory, key, gates, before)
        read = (w[..., None] * memory).sum(1)
        if kind == "located":
            return read.to(m.dtype), w
        erase = torch.sigmoid(key)[:, None] * w[..., None]
        return (memory * (1 - erase) + w[..., None] * torch.tanh(read)[:, None]).to(m.dtype), w

    args = (draw.tensor((rows, width, slots) if last else (rows, slots, width)),)
    more = [draw.tensor((rows, n)) for n in (width, 6, slots)]
    return Program(run, (*args, *more), draw.training)


def hashed_addresses(draw: Draw) -> Program:
    """Sign bits as bucket codes, tables addressed by two halves of keys, sums by signed hashes."""
    kind = draw.choice(("codes", "halves", "halves", "signed", "signed", "sums"))
    bits, width = draw.choice((4, 8, 12, 16)), draw.choice((16, 32, 64, 256))
    rounds, side = draw.choice((1, 2, 4, 8)), draw.choice((16, 32, 64, 100))
    per = {"codes": rounds * bits, "halves": 2 * side, "signed": width, "sums": width}[kind]
    rows, few = max(2, draw.numel // per), draw.choice((2, 4, 8))
    packed, buckets = draw.chance(0.5), draw.choice((97, 512, 4096))

    def code(x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        h = x.view(rows, rounds, bits)
        if not packed:
            both = torch.cat((h, -h), -1).argmax(-1)
            return both + 2 * bits * torch.arange(rounds, device=x.device), (both == before)
        weight = 1 << torch.arange(bits, device=x.device)
        packet = ((h > 0).long() * weight).sum(-1)
        apart = packet ^ before
        count = torch.stack([apart >> i & 1 for i in range(bits)]).sum(0)
        return packet.int(), (count <= 1).any(-1)

    def halve(scores: Tensor, table: Tensor) -> Tensor:
        top, at = scores.view(rows, 2, side).topk(few, -1)
        total = (top[:, 0, :, None] + top[:, 1, None, :]).flatten(1)
        place = (at[:, 0, :, None] * side + at[:, 1, None, :]).flatten(1)
        best, chosen = total.topk(few, -1)
        share = functional.softmax(best.float(), -1).to(table.dtype)
        found = functional.embedding(place.gather(1, chosen), table)
        return (share[..., None] * found).sum(1)

    def sketch(x: Tensor, number: Tensor) -> Tensor:
        mixed = (number * 40503 ^ (number >> 5)) & 0xFFFFFF
        sign = ((mixed >> 11 & 1) * 2 - 1).to(x.dtype)
        if kind == "sums":
            check = (number * 31 + (number >> 3)).cumsum(-1) & 0xFFFF
            return (check[:, -1] << 16 | number.sum(-1) & 0xFFFF) ^ (check[:, 0] * 7)
        if packed:
            return x.new_zeros(rows, 64).index_add(1, mixed[0] % 64, x * sign[0])
        return x.new_zeros(buckets, width).index_add(0, mixed[:, 0] % buckets, x * sign[:, :1])

    if kind == "codes":
        before = draw.indices((rows, rounds), 2 * bits)
        return Program(code, (draw.tensor((rows, rounds * bits), grad=False), before))
    if kind == "halves":
        width = min(width, max(8, 2 * draw.numel // side**2))
        args = (draw.tensor((rows, 2 * side)), draw.tensor((side**2, width)))
        return Program(halve, args, draw.training)
    shape = (rows, width) if kind == "sums" else (1, width) if packed else (rows, 1)
    number = draw.indices(shape, 2**20)
    trained = draw.training and kind != "sums"
    return Program(sketch, (draw.tensor((rows, width), grad=trained), number), trained)


def _crossing(size: int, device: torch.device) -> Tensor:
    """Rows and columns of a square in the order of interleaved bits."""
    bits = bits_of(torch.arange(size * size, device=device), 2 * (size.bit_length() - 1))
    return torch.stack(
        [
            torch.stack([b << i for i, b in enumerate(part)]).sum(0)
            for part in (bits[1::2], bits[::2])
        ]
    )


def tiled_orders(draw: Draw) -> Program:
    """Tiles, space-filling and reversed orders, coarse masks made fine, checks of integers."""
    power, kind = (
        draw.choice((2, 3, 4, 5, 6)),
        draw.choice(("tiles", "filling", "blocks", "checks")),
    )
    side, inner = 2**power, draw.choice((1, 4, 16, 32, 96, 128))
    inner, tile = 1 if kind == "blocks" else inner, min(side, draw.choice((4, 8, 16)))
    rows, back = max(1, draw.numel // (side * side * inner)), draw.chance(0.5)
    normed, spread = draw.chance(0.5), draw.chance(0.5)

    def tiles(x: Tensor, gain: Tensor) -> Tensor:
        h = x.view(rows, side // tile, tile, side // tile, tile, inner)
        if back:
            h = (h * gain).permute(0, 1, 3, 5, 2, 4)
            return h.reshape(rows, -1, inner, tile * tile).contiguous()
        h = h.permute(0, 2, 4, 1, 3, 5)
        h = h - h.amax((1, 2), keepdim=True) if normed else h * gain
        return h.reshape(rows, tile * tile, -1)

    def filling(x: Tensor, gain: Tensor) -> Tensor:
        down, across = _crossing(side, x.device)
        place = down * side + (across ^ (down >> 1) if spread else across)
        h = x.flatten(1, 2)
        h = h.scatter(1, place[:, None].expand_as(h), h * gain) if back else h[:, place] * gain
        if normed:
            h = functional.layer_norm(h, (inner,))
        return h.view(rows, -1, 4, inner).amax(2) if spread else h

    def blocks(x: Tensor, coarse: Tensor) -> Tensor:
        fine = coarse.repeat_interleave(tile, 1).repeat_interleave(tile, 2)
        h = x[..., 0].float().masked_fill(~fine, -1e4)
        if normed:
            return functional.softmax(h, -1).masked_fill(~fine, 0).to(x.dtype)
        return h.view(rows, side // tile, tile, side // tile, tile).amax((2, 4))

    def checks(words: Tensor) -> tuple[Tensor, ...]:
        h = words.flatten(1, 2)
        at = torch.arange(h.shape[1], device=h.device)[:, None]
        low = (h.long() & 0xFF).sum(1) % 65521
        high = ((h.long() & 0xFF) * (at + 1)).sum(1) % 65521
        odd = torch.stack([h >> i & 1 for i in range(4)]).sum(0) & 1
        return low | high << 16, odd.bool(), (h * 73 ^ (h >> 2)).flip(1) if back else odd.sum(-1)

    if kind == "checks":
        words = draw.tensor((rows, side, side, inner), dtype=torch.int32 if spread else torch.int16)
        return Program(checks, (words,))
    x = draw.tensor((rows, side, side, inner))
    if kind == "blocks":
        coarse = draw.mask((rows, side // tile, side // tile), 0.4)
        return Program(blocks, (x, coarse), draw.training)
    gained = draw.training and (kind == "filling" or back or not normed)
    gain = draw.tensor((inner,), grad=gained)
    return Program(tiles if kind == "tiles" else filling, (x, gain), draw.training)


#: Every family here.
FAMILIES = (compared_orders, addressed_memory, hashed_addresses, tiled_orders)
