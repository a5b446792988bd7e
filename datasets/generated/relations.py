"""Relations of nodes and points: gated edges, degrees, rule books of sites, triples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.structures import drawn_ends, totals


def edge_gates(draw: Draw) -> Program:
    """Edges by both of their ends, as normed gates or as shares: GatedGCN, GATv2, transformers."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((16, 32, 64, 96, 128, 256))
    ends, nodes = drawn_ends(draw, max(8, draw.numel // width))
    kind, norm = draw.choice(("gate", "add", "dot")), draw.choice(("batch", "layer", "none"))
    joined = draw.chance(0.5)

    def gate(x: Tensor, edge: Tensor, vector: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        source, target = ends.unbind(0)
        a, b, value, own = x.chunk(4, -1)
        h = a[target] + b[source] + edge * vector
        if norm == "batch":
            h = functional.batch_norm(h, None, None, vector, training=True)
        elif norm == "layer":
            h = functional.layer_norm(h, (width,), vector)
        share = torch.sigmoid(h)
        y = totals(share * value[source], target, nodes) / (totals(share, target, nodes) + 0.1)
        return functional.relu(own + y), edge + functional.relu(h)

    def attend(x: Tensor, edge: Tensor, vector: Tensor, ends: Tensor) -> Tensor:
        source, target = ends.unbind(0)
        q, k, v, own = x.view(nodes, 4, heads, -1).unbind(1)
        e, way = edge.view(-1, heads, width // heads), vector.view(heads, -1)
        if kind == "add":
            score = (functional.leaky_relu(q[target] + k[source] + e, 0.2) * way).sum(-1)
        else:
            score = (q[target] * (k[source] + e)).sum(-1) * (width // heads) ** -0.5
        s, wide = score.float(), target[:, None].expand(-1, heads)
        most = s.new_full((nodes, heads), -1e4).scatter_reduce(0, wide, s.detach(), "amax")
        s = (s - most[target]).exp()
        share = (s / (totals(s, target, nodes)[target] + 1e-6)).to(x.dtype)[..., None]
        y = totals((v[source] + e if kind == "dot" else v[source]) * share, target, nodes) + own
        return functional.elu(y.flatten(1) * vector if joined else y.mean(1))

    args = (draw.tensor((nodes, 4 * width)), draw.tensor((ends.shape[1], width)))
    # Without the vector among what scores nothing would reach it.
    used = kind in {"gate", "add"} or joined
    vector = draw.tensor((width,), grad=draw.training and used)
    return Program(gate if kind == "gate" else attend, (*args, vector, ends), draw.training)


def degrees(draw: Draw) -> Program:
    """Several aggregates scaled by degree, sums by kind of edge, layers joined: PNA, R-GCN, JK."""
    width, kind = draw.choice((8, 16, 32, 75, 128, 256)), draw.choice(("many", "kinds", "layers"))
    ends, nodes = drawn_ends(draw, max(8, draw.numel // width))
    lists, joined = draw.choice((2, 3, 4, 6)), draw.choice(("cat", "max", "soft"))
    ranged, scaled = draw.chance(0.5) and not draw.training, draw.chance(0.6)

    def gather(x: Tensor, edge: Tensor, gain: Tensor, ends: Tensor) -> Tensor:
        source, target = ends.unbind(0)
        sent = functional.relu(x[source] + edge)
        degree = totals(torch.ones_like(target, dtype=torch.float32), target, nodes)[:, None]
        many = degree.clamp(min=1).to(x.dtype)
        mean, square = (totals(h, target, nodes) / many for h in (sent, sent * sent))
        parts = [x, mean, torch.sqrt(functional.relu(square - mean * mean) + 1e-3)]
        if ranged:
            wide = target[:, None].expand_as(sent)
            parts += [torch.zeros_like(x).scatter_reduce(0, wide, sent, m) for m in ("amax", "sum")]
        scale = (torch.log(degree + 1) / 2).to(x.dtype)
        h = torch.cat(parts, -1)
        return torch.cat((h, h * scale, h / (scale + 0.1)), -1) if scaled else h * gain[:1]

    def relate(x: Tensor, edge: Tensor, gain: Tensor, ends: Tensor) -> Tensor:
        h = x * gain[-1]
        shares = zip(ends.tensor_split(lists, 1), edge.tensor_split(lists), gain, strict=False)
        for (source, target), own, weight in shares:
            many = totals(torch.ones_like(own[:, :1]), target, nodes).clamp(min=1)
            h = h + totals(x[source] * weight + own, target, nodes) / many
        return functional.relu(functional.layer_norm(h, (width,))) if scaled else h.tanh() + x

    def join(layers: Tensor, gain: Tensor) -> Tensor:
        h = layers * gain[:lists, None]
        if joined == "cat":
            return functional.relu(
                functional.layer_norm(h.transpose(0, 1).flatten(1), (h[:, 0].numel(),))
            )
        if joined == "max":
            return functional.normalize(h.amax(0), dim=-1)
        share = functional.softmax(h.float().sum(-1), 0).to(h.dtype)
        return (layers * share[..., None]).sum(0)

    if kind == "layers":
        layers = draw.tensor((lists, -(-ends.shape[1] // lists), width))
        return Program(join, (layers, draw.tensor((lists, width))), draw.training)
    args = (draw.tensor((nodes, width)), draw.tensor((ends.shape[1], width)))
    gain = draw.tensor((lists + 1, width if kind == "kinds" else 1), grad=False)
    return Program(gather if kind == "many" else relate, (*args, gain, ends), draw.training)


def point_sets(draw: Draw) -> Program:
    """Sparse sites by rule books, farthest points, balls of points, points in a curve's order."""
    kind, width = draw.choice(("sites", "far", "balls", "order")), draw.choice((8, 16, 32, 64, 96))
    count, batch = draw.choice((8, 9, 16, 27)), draw.choice((1, 2, 8))
    rows, flag, side = max(8, draw.numel // width), draw.chance(0.5), draw.choice((16, 48, 128))
    size = {"far": draw.numel // (4 * batch), "balls": rows // (count * batch)}.get(kind, rows)

    def sites(x: Tensor, weight: Tensor, sent: Tensor, books: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for book, w, part in zip(books, weight[1:], sent, strict=True):
            y = y.index_add(0, book[1], x[book[0]] * w if flag else part)
        y = functional.batch_norm(y, None, None, weight[0], training=True)
        return functional.relu(y + x) if flag else functional.relu(y)[books[:, 0]]

    def far(place: Tensor, least: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        p, chosen = (place.transpose(1, 2) if flag else place), [last]
        for _ in range(2):
            centre = p.gather(1, chosen[-1][:, None, None].expand(-1, 1, 3))
            least = torch.minimum(least, (p - centre).float().square().sum(-1))
            chosen.append(least.argmax(-1))
        return least, torch.stack(chosen, 1)

    def balls(x: Tensor, place: Tensor, gain: Tensor, at: Tensor) -> Tensor:
        flat = at.flatten(1)[:, None]
        near = place.gather(2, flat.expand(-1, 3, -1)).unflatten(2, (-1, count)) - place[..., None]
        found = x.gather(2, flat.expand(-1, width, -1)).unflatten(2, (-1, count))
        inside = near.float().square().sum(1, keepdim=True) < side / 16
        h = torch.cat((near, (found - x[..., None]) * gain[:, None, None]), 1) * inside
        if flag:
            h = functional.batch_norm(h, None, None, training=True)
        return functional.relu(h).amax(-1)

    def order(x: Tensor, gain: Tensor, along: Tensor, back: Tensor) -> Tensor:
        h = functional.layer_norm(x[along].view(-1, side, width), (width,), gain)
        share = functional.softmax(h if flag else h * gain, 1)
        return x + ((h - h.mean(1, keepdim=True)) * share).flatten(0, 1)[back]

    if kind == "far":
        shape = (batch, 3, max(2, size)) if flag else (batch, max(2, size), 3)
        least = draw.tensor((batch, max(2, size)), dtype=torch.float32, grad=False, positive=True)
        last = draw.indices((batch,), max(2, size))
        return Program(far, (draw.tensor(shape, grad=False), least, last))
    if kind == "balls":
        x, place = (draw.tensor((batch, n, max(2, size))) for n in (width, 3))
        at = draw.indices((batch, max(2, size), count), max(2, size))
        return Program(balls, (x, place, draw.tensor((width,)), at), draw.training)
    if kind == "order":
        ranks = draw.tensor((-(-rows // side) * side,), dtype=torch.float32, grad=False).argsort()
        x, gain = draw.tensor((len(ranks), width)), draw.tensor((width,))
        return Program(order, (x, gain, ranks, ranks.argsort()), draw.training)
    sent = draw.tensor((count, max(2, rows // count), width), grad=draw.training and not flag)
    books = draw.indices((count, 2, sent.shape[1]), max(2, rows // 4))
    x = draw.tensor((max(2, rows // 4), width), grad=draw.training and flag)
    weight = draw.tensor((count + 1, width))
    return Program(sites, (x, weight, sent, books), draw.training)


def triples(draw: Draw) -> Program:
    """Scores of triples against negatives and their losses: products, translations, turns."""
    kind = draw.choice(("complex", "translated", "turned", "diagonal"))
    width, wrong = draw.choice((16, 50, 64, 100, 200)), draw.choice((1, 5, 16, 64, 256))
    rows = max(2, draw.numel // (2 * width * (wrong + 3)))
    entities, relations = max(4, rows * draw.choice((1, 2))), draw.choice((11, 18, 237))
    paired, loss = draw.chance(0.4), draw.choice(("margin", "weighted", "softmax"))

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1) if paired else x.chunk(2, -1)
        return a, b

    def score(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        if kind == "translated":
            return 9 - (functional.normalize(h, dim=-1) + r - t).float().abs().sum(-1) / width
        if kind == "diagonal":
            return (h * r * t).float().sum(-1)
        (a, b), (c, d), (e, f) = halves(h), halves(r), halves(t)
        if kind == "turned":
            c, d = torch.cos(c), torch.sin(c)
            apart = (a * c - b * d - e).float().square() + (a * d + b * c - f).float().square()
            return 6 - (apart + 1e-4).sqrt().sum(-1) / width
        return ((a * c - b * d) * e + (a * d + b * c) * f).float().sum(-1)

    def run(table: Tensor, kinds: Tensor, facts: Tensor, others: Tensor) -> Tensor:
        h, r, t = table[facts[:, 0]][:, None], kinds[facts[:, 1]][:, None], table[facts[:, 2]]
        good, bad = score(h, r, t[:, None]), score(h, r, table[others])
        if loss == "margin":
            return functional.relu(bad - good + 1).mean()
        if loss == "softmax":
            cubes = (h.float().abs() ** 3).sum() + (t.float().abs() ** 3).sum()
            return (torch.cat((good, bad), 1).logsumexp(1) - good[:, 0]).mean() + cubes * 1e-5
        share = functional.softmax(bad.detach(), 1)
        low = (share * functional.logsigmoid(-bad)).sum(1)
        return -(functional.logsigmoid(good[:, 0]) + low).mean() / 2

    args = (draw.tensor((entities, 2 * width)), draw.tensor((relations, 2 * width)))
    facts = torch.stack([draw.indices((rows,), n) for n in (entities, relations, entities)], 1)
    return Program(run, (*args, facts, draw.indices((rows, wrong), entities)), draw.training)


#: Every family here.
FAMILIES = (edge_gates, degrees, point_sets, triples)
