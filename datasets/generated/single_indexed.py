"""Lookups, updates by index, and scans by themselves, each with sizes of its own.

What many of them in one program have in common hides what each of them costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

#: Something to call and its tensors: one part of a program.
Part = tuple[Callable[..., Any], tuple[Tensor, ...]]

_ROW_WIDTHS = (1, 1, 2, 3, 4, 8, 16, 32, 64, 100, 128, 256, 512, 768)
_ELEMENT_WIDTHS = (8, 32, 128, 300, 1024)
_COLUMN_WIDTHS = (4, 16, 49, 64, 196, 512, 1024)


def single_updates(draw: Draw) -> Program:
    """Additions by index: rows, elements, columns, planes, and gradients of resizing."""
    kinds = (_added_rows, _added_rows, _added_elements, _added_places, _added_columns, _resized)
    return together(draw, [draw.choice(kinds) for _ in range(draw.between(2, 4))])


def single_lookups(draw: Draw) -> Program:
    """Reads by index: rows, elements, columns, components of rows, places of planes."""
    kinds = (_rows, _elements, _columns, _components, _components, _places)
    return together(draw, [draw.choice(kinds) for _ in range(draw.between(2, 4))])


def single_scans(draw: Draw) -> Program:
    """Running sums and products along rows or across them, and short rows sorted."""
    return together(draw, [draw.choice((_scanned, _sorted)) for _ in range(draw.between(2, 4))])


def together(draw: Draw, kinds: list[Callable[[Draw, int], Part]]) -> Program:
    """One program of parts, each of other sizes: equal loops would become one kernel."""
    parts: list[Part] = []
    for kind in kinds:
        share = draw.choice((1, 2, 4, 16, 64))
        parts.append(kind(draw, max(64, draw.numel // (len(kinds) * share))))

    def run(*tensors: Tensor) -> list[Any]:
        found, at = [], 0
        for function, own in parts:
            found.append(function(*tensors[at : at + len(own)]))
            at += len(own)
        return found

    return Program(run, tuple(tensor for _, own in parts for tensor in own))


def _dtype(draw: Draw) -> torch.dtype:
    """Mostly of four bytes, which memory adds to itself."""
    return draw.choice((torch.float32, torch.float32, draw.dtype))


def _added_rows(draw: Draw, numel: int) -> Part:
    width = draw.choice(_ROW_WIDTHS)
    sources = max(4, numel // width)
    targets = draw.log_between(1, 4 * sources)
    dtype = _dtype(draw)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(targets, width, device=x.device, dtype=x.dtype).index_add(0, at, x)

    x = draw.tensor((sources, width), dtype=dtype, grad=False)
    return run, (x, draw.indices((sources,), targets))


def _added_elements(draw: Draw, numel: int) -> Part:
    width = draw.choice(_ELEMENT_WIDTHS)
    rows = max(4, numel // width)
    axis = draw.choice((0, 1))
    targets = draw.log_between(1, 2 * (rows, width)[axis])
    shape = (targets, width) if axis == 0 else (rows, targets)
    dtype = _dtype(draw)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(shape, device=x.device, dtype=x.dtype).scatter_add(axis, at, x)

    x = draw.tensor((rows, width), dtype=dtype, grad=False)
    return run, (x, draw.indices((rows, width), targets))


def _added_places(draw: Draw, numel: int) -> Part:
    size = (draw.log_between(2, 1024), draw.log_between(2, 1024))
    dtype = _dtype(draw)

    def run(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        plane = torch.zeros(size, device=x.device, dtype=x.dtype)
        return plane.index_put((i, j), x, accumulate=True)

    x = draw.tensor((numel,), dtype=dtype, grad=False)
    return run, (x, draw.indices((numel,), size[0]), draw.indices((numel,), size[1]))


def _added_columns(draw: Draw, numel: int) -> Part:
    width = draw.choice(_COLUMN_WIDTHS)
    rows = max(4, numel // width)
    targets = draw.log_between(1, 4 * width)
    dtype = _dtype(draw)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return torch.zeros(rows, targets, device=x.device, dtype=x.dtype).index_add(1, at, x)

    x = draw.tensor((rows, width), dtype=dtype, grad=False)
    return run, (x, draw.indices((width,), targets))


def _resized(draw: Draw, numel: int) -> Part:
    """The gradient of an image that is resized."""
    mode = draw.choice(("bilinear", "bilinear", "bicubic"))
    small = (draw.between(4, 64), draw.between(4, 64))
    large = tuple(max(2, round(side * draw.choice((0.5, 1.5, 2.0, 4.0, 8.0)))) for side in small)
    planes = max(1, min(2048, numel // (large[0] * large[1])))
    aligned = draw.chance(0.4)
    dtype = _dtype(draw)

    def run(x: Tensor, gradient: Tensor) -> Tensor:
        def resized(value: Tensor) -> Tensor:
            return functional.interpolate(value, size=large, mode=mode, align_corners=aligned)

        back = torch.func.vjp(resized, x)[1]
        found: Tensor = back(gradient)[0]
        return found

    x = draw.tensor((1, planes, *small), dtype=dtype, grad=False)
    return run, (x, draw.tensor((1, planes, *large), dtype=dtype, grad=False))


def _rows(draw: Draw, numel: int) -> Part:
    width = draw.choice(_ROW_WIDTHS)
    targets = max(4, numel // width)
    table = draw.tensor((draw.log_between(1, 4 * targets), width), grad=False)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return x[at] * 2.0

    return run, (table, draw.indices((targets,), table.shape[0]))


def _elements(draw: Draw, numel: int) -> Part:
    width = draw.choice(_ELEMENT_WIDTHS)
    rows = max(4, numel // width)
    axis = draw.choice((0, 1))
    size = draw.log_between(1, 4 * (rows, width)[axis])
    shape = (size, width) if axis == 0 else (rows, size)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return torch.gather(x, axis, at) * 2.0

    return run, (draw.tensor(shape, grad=False), draw.indices((rows, width), size))


def _columns(draw: Draw, numel: int) -> Part:
    width = draw.choice(_COLUMN_WIDTHS)
    rows = max(4, numel // width)
    size = draw.log_between(2, 4 * width)

    def run(x: Tensor, at: Tensor) -> Tensor:
        return x[:, at] * 2.0

    return run, (draw.tensor((rows, size), grad=False), draw.indices((width,), size))


def _components(draw: Draw, numel: int) -> Part:
    """Several elements of one row, each told apart: of boxes, faces, points."""
    width = draw.choice((2, 3, 4, 6, 8, 16))
    rows = draw.log_between(4, 4 * numel)
    apart = draw.chance(0.3)

    def run(x: Tensor, at: Tensor) -> Tensor:
        found = x[at]
        if apart:
            return torch.stack([found[:, i] * (i + 1.0) for i in range(width)])
        total = found[:, 0]
        for i in range(1, width):
            total = total * found[:, i] + i
        return total

    return run, (draw.tensor((rows, width), grad=False), draw.indices((numel,), rows))


def _places(draw: Draw, numel: int) -> Part:
    size = (draw.log_between(2, 2048), draw.log_between(2, 2048))

    def run(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[i, j] * 2.0

    indices = (draw.indices((numel,), side) for side in size)
    return run, (draw.tensor(size, grad=False), *indices)


def _scanned(draw: Draw, numel: int) -> Part:
    width = draw.choice((16, 48, 128, 300, 1024, 4000, 16384))
    shape = (max(1, numel // width), width)
    axis = draw.choice((0, 1, 1))
    scan = draw.choice((torch.cumsum, torch.cumsum, torch.cumprod, torch.logcumsumexp))

    def run(x: Tensor) -> Tensor:
        return scan(x, axis)

    return run, (draw.tensor(shape, grad=False),)


def _sorted(draw: Draw, numel: int) -> Part:
    width = draw.choice((8, 16, 31, 64, 100, 128, 256, 512))
    descending = draw.chance(0.5)

    def run(x: Tensor) -> Tensor:
        values, places = torch.sort(x, dim=-1, descending=descending)
        return values + places

    return run, (draw.tensor((max(1, numel // width), width), grad=False),)


#: Every family here.
FAMILIES = (single_updates, single_lookups, single_scans)
