"""Detected boxes: grids decoded, boxes assigned, heat maps of centres, costs of matches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def decoded_grids(draw: Draw) -> Program:
    """Outputs of several levels decoded on their grids and joined, the best kept: YOLO."""
    kind, best = draw.choice(("anchors", "free", "bins")), draw.chance(0.3)
    classes, bins = draw.choice((1, 6, 20, 80)), draw.choice((8, 16, 17))
    kinds = draw.choice((2, 3, 3, 9)) if kind == "anchors" else 1
    outputs = kinds * (classes + 1 + (4 * bins if kind == "bins" else 4))
    side = min(draw.choice((8, 12, 20, 40, 52, 80)), max(4, int((draw.numel / outputs) ** 0.5)))
    batch = max(1, draw.numel // (side * side * outputs))

    def run(sizes: Tensor, *levels: Tensor) -> Tensor:
        found = []
        for i, x in enumerate(levels):
            h = x.unflatten(1, (kinds, -1)).permute(0, 1, 3, 4, 2).float()
            sides = [torch.arange(n, device=x.device) + 0.5 for n in x.shape[:1:-1]]
            grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)
            near, rest = h.split((h.shape[-1] - classes - 1, classes + 1), -1)
            if kind == "bins":
                step = torch.arange(bins, device=x.device)
                near = (functional.softmax(near.unflatten(-1, (4, bins)), -1) * step).sum(-1)
                low, high = grid - near[..., :2], grid + near[..., 2:]
                place, size = (low + high) / 2, high - low
            elif kind == "free":
                place, size = near[..., :2] + grid, near[..., 2:].clamp(max=8).exp()
            else:
                place, size = torch.sigmoid(near).chunk(2, -1)
                place, size = 2 * place + grid - 1, (2 * size).square() * sizes[:, None, None]
            boxes = torch.cat((place, size), -1) * (8 << i)
            found.append(torch.cat((boxes, torch.sigmoid(rest)), -1).flatten(1, 3))
        boxes = torch.cat(found, 1)
        if not best:
            return boxes.to(levels[0].dtype)
        top = (boxes[..., 4] * boxes[..., 5:].amax(-1)).topk(min(100, side), -1).indices
        return boxes.gather(1, top[..., None].expand(-1, -1, boxes.shape[-1]))

    sizes = draw.tensor((kinds, 2), dtype=torch.float32, grad=False, positive=True)
    sides = [max(1, side >> i) for i in range(draw.between(1, 4))]
    levels = (draw.image((batch, outputs, each, each + draw.choice((0, 3)))) for each in sides)
    return Program(run, (sizes, *levels), draw.training)


def box_area(sides: Tensor) -> Tensor:
    """Products of widths and heights, none below nought."""
    return sides[..., 0].clamp(min=0) * sides[..., 1].clamp(min=0)


def _overlap(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Overlap of boxes by their corners, less what their hull or their centres lie apart."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    inner = box_area(high - low)
    area, other = (box_area(box[..., 2:] - box[..., :2]) for box in (a, b))
    union = area + other - inner + 1e-6
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    if kind == "giou":
        return inner / union - 1 + union / (box_area(hull) + 1e-6)
    gap = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]).square().sum(-1) / 4
    return inner / union - (gap / (hull.square().sum(-1) + 1e-6) if kind == "diou" else 0)


def assigned_boxes(draw: Draw) -> Program:
    """Losses of boxes that places are assigned to: encoded, overlaps, distributed distances."""
    encoded, kind = draw.chance(0.4), draw.choice(("iou", "giou", "diou"))
    bins, shared = draw.choice((8, 16, 17, 33)), draw.chance(0.5)
    batch, outputs = draw.choice((1, 2, 8, 16, 64)), 4 if encoded else 4 * bins
    rows, many = max(2, draw.numel // (batch * outputs)), draw.choice((1, 7, 20, 100))

    def run(h: Tensor, place: Tensor, boxes: Tensor, at: Tensor, share: Tensor) -> Tensor:
        wanted, keep = boxes.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, 4)), at >= 0
        weight = keep * share if shared else keep.float()
        middle, size = place[:, :2], place[:, 2:]
        if encoded:
            sides = ((wanted[..., 2:] - wanted[..., :2]).clamp(min=1e-3) / size).log()
            gap = ((wanted[..., 2:] + wanted[..., :2]) / 2 - middle) / size
            target = torch.cat((10 * gap, 5 * sides), -1)
            loss = functional.smooth_l1_loss(h.float(), target, reduction="none").sum(-1)
            return (loss * weight).sum() / weight.sum().clamp(min=1)
        logs = functional.log_softmax(h.float().unflatten(-1, (4, bins)), -1)
        sides = (logs.exp() * torch.arange(bins, device=h.device)).sum(-1)
        found = torch.cat((middle - sides[..., :2], middle + sides[..., 2:]), -1)
        goal = torch.cat((middle - wanted[..., :2], wanted[..., 2:] - middle), -1)
        goal = goal.clamp(0, bins - 1.01)[..., None]
        low, part = goal.long(), goal.frac()
        spread = logs.gather(-1, low) * (1 - part) + logs.gather(-1, low + 1) * part
        loss = 2 * (1 - _overlap(found, wanted, kind)) - 0.25 * spread.mean((-2, -1))
        return (loss * weight).sum() / weight.sum().clamp(min=1)

    place = draw.tensor((rows, 4), dtype=torch.float32, grad=False, positive=True) * 8
    middle = draw.tensor((batch, many, 2), dtype=torch.float32, grad=False).abs() * 8
    size = draw.tensor((batch, many, 2), dtype=torch.float32, grad=False, positive=True) * 4
    boxes, at = torch.cat((middle - size, middle + size), -1), draw.indices((batch, rows), many)
    at = at.masked_fill(draw.mask((batch, rows)), -1)
    share = draw.tensor((batch, rows), dtype=torch.float32, grad=False, positive=True)
    args = (draw.tensor((batch, rows, outputs)), place, boxes, at, share)
    return Program(run, args, draw.training)


def centre_maps(draw: Draw) -> Program:
    """Heat maps of centres: local maxima and their boxes, focal losses, drawn or given targets."""
    kind, window = draw.choice(("peaks", "focal", "drawn")), draw.choice((3, 3, 5))
    classes = draw.choice((1, 3, 10, 80))
    most = max(4, int((draw.numel / classes) ** 0.5))
    high, wide = (min(most, draw.choice((16, 25, 32, 64, 96, 128, 152))) for _ in range(2))
    batch, many = max(1, draw.numel // (classes * high * wide)), draw.choice((4, 16, 50))
    # Objects drawn are few, as each is drawn over all of a map.
    many = min(many, high * wide, 4 * classes if kind == "drawn" else 50)

    def run(heat: Tensor, near: Tensor, target: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        p = torch.sigmoid(heat.float()).clamp(1e-4, 1 - 1e-4)
        if kind == "peaks":
            top = functional.max_pool2d(p, window, 1, window // 2)
            score, at = (p * (top == p)).flatten(1).topk(many, -1)
            label, at = at // (high * wide), at % (high * wide)
        boxes = near.flatten(2).gather(2, at[:, None].expand(-1, 4, -1)).transpose(1, 2).float()
        middle = torch.stack((at % wide, at // wide), -1) + 0.5
        if kind == "peaks":
            middle, size = middle + boxes[..., :2].sigmoid(), boxes[..., 2:].exp()
            return torch.cat((middle - size / 2, middle + size / 2, score[..., None]), -1), label
        wanted = target.float().sigmoid()
        if kind == "drawn":
            x, y = (torch.arange(n, device=heat.device) + 0.5 for n in (wide, high))
            down, along = (y - middle[..., 1:]).square(), (x - middle[..., :1]).square()
            far = down[..., None] + along[:, :, None]
            wanted = torch.exp(-far / 8).amax(1, keepdim=True)
        missed, hits = (1 - wanted) ** 4 * p**2 * torch.log(1 - p), wanted > 0.95  # noqa: PLR2004
        loss = -torch.where(hits, (1 - p) ** 2 * torch.log(p), missed).sum()
        return loss / hits.sum().clamp(min=1), (boxes - target.mean()).abs().mean()

    shape = (batch, classes, high, wide)
    target = draw.tensor(shape if kind == "focal" else (1,), grad=False)
    at = draw.indices((batch, many), high * wide)
    near = draw.image((batch, 4, high, wide))
    return Program(run, (draw.image(shape), near, target, at), draw.training)


def matching_costs(draw: Draw) -> Program:
    """Costs of each box with each: of queries and labels, of places near centres, or decays."""
    kind, many = draw.choice(("queries", "places", "decay")), draw.choice((5, 20, 63, 100, 300))
    classes, overlap = draw.choice((1, 20, 80, 91)), draw.choice(("iou", "giou", "diou"))
    rows = max(4, draw.numel // max(many, classes))
    if kind == "decay":
        rows, many, overlap = int(draw.numel**0.5) + 2, int(draw.numel**0.5) + 2, "iou"
    focal, few = draw.chance(0.5), min(rows, draw.choice((1, 4, 10)))

    def run(scores: Tensor, place: Tensor, other: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        a, b = (torch.cat((h[:, :2] - h[:, 2:], h[:, :2] + h[:, 2:]), -1) for h in (place, other))
        iou = _overlap(a[:, None], a if kind == "decay" else b, overlap)
        if kind == "decay":
            same = (label[:, None] == label) & torch.ones_like(iou).triu(1).bool()
            most = (iou := iou * same).amax(0)[:, None]
            soft = torch.exp(-2 * (iou.square() - most.square()))
            decay = soft if focal else (1 - iou) / (1 - most + 1e-3)
            return (scores[:, 0].float() * decay.amin(0),)
        p = scores.float().sigmoid() if focal else functional.softmax(scores.float(), -1)
        p = p[:, label]
        if kind == "queries":
            far = (place[:, None] - other).abs().sum(-1)
            odds = 0.25 * (1 - p) ** 2 * -(p + 1e-6).log() if focal else -p
            return 5 * far + 2 * odds - 2 * iou, iou.amax(1)
        inside = ((place[:, None, :2] - other[:, :2]).abs() < other[:, 2:]).all(-1)
        cost = -(p + 1e-4).log() - 3 * (iou + 1.01).clamp(min=1e-6).log() + 1e5 * ~inside
        count = iou.topk(few, 0).values.sum(0).clamp(min=1).long()
        return cost.amin(1), cost.argmin(1), count, inside.any(1)

    sides, dtype = (rows, many), torch.float32
    boxes = (draw.tensor((n, 4), dtype=dtype, grad=False, positive=True) for n in sides)
    scores = draw.tensor((rows, classes), grad=False)
    return Program(run, (scores, *boxes, draw.indices((many,), classes)))


#: Every family here.
FAMILIES = (decoded_grids, assigned_boxes, centre_maps, matching_costs)
