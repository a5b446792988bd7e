"""What blocks and warps of a Triton kernel touch: sectors, vectors, threads side by side.

For many block sizes at once: arrays have an axis of accesses [A], one of sizes [n], and where there
is one of dimensions, it comes first [D, A, n]. Threads are taken to be spread as Triton's pass
``TritonGPUCoalesce`` does it: along the dimension with the longest run of neighbours first, each
thread holding as many of them as make 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.triton_facts import Access

#: Bytes that memory is read and written in, bytes that a thread takes at once at the most, and
#: threads of a warp.
SECTOR: Final = 32
VECTOR: Final = 16
WARP: Final = 32

Array = npt.NDArray[np.float64]


class Tiles:
    """The accesses of a kernel, as arrays."""

    def __init__(self, accesses: Sequence[Access], dims: Sequence[str]) -> None:
        """``dims``: of the kernel, in the order of a block."""
        self.width = _column([access.width for access in accesses])
        #: Whether an access has elements of its own along a dimension [D, A, 1].
        self.along: npt.NDArray[np.bool_] = np.array(
            [[[dim in access.dims] for access in accesses] for dim in dims], dtype=bool
        )
        levels = [_levels(access, dims) for access in accesses]
        deepest = max(map(len, levels), default=0)
        padded = np.array(
            [[*each, *[(0, 1, 1, 0)] * (deepest - len(each))] for each in levels], dtype=np.float64
        ).reshape(len(levels), deepest, 4)
        #: By level, those of small steps first [L, A, 1]: the dimension, the positions from one to
        #: the next, how many there are, and the bytes between them.
        self._dim = padded[:, :, 0].T.astype(int)
        self._step, self._extent, self._stride = np.moveaxis(padded[:, :, 1:, None], 2, 0).swapaxes(
            1, 2
        )
        beyond = np.where(self._stride > SECTOR, self._stride, 0) % SECTOR
        self._aligned = (beyond == 0).all(axis=0)
        runs = np.array([[_run(access, dim) for access in accesses] for dim in dims], dtype=float)
        #: Neighbours in memory of each access, along each dimension [D, A].
        self.runs: Array = runs
        # The longest run first, of equals the last dimension.
        order = np.array(
            [
                sorted(range(len(dims)), key=lambda d: (-runs[d, a], -d))
                for a in range(len(accesses))
            ]
        )
        #: Dimensions of each access, the one that threads go along first [D, A].
        self.order = order.T
        #: Elements that a thread could take at once.
        self.vector_most = _column([_vector(access) for access in accesses])

    def touched(self, tile: Array) -> Array:
        """Sectors that accesses touch [A, n], for positions along each dimension [D, A, n]."""
        every = np.arange(len(self.width))
        span = np.broadcast_to(self.width, tile.shape[1:])
        pieces = np.ones(tile.shape[1:])
        for dim, step, extent, stride in zip(
            self._dim, self._step, self._extent, self._stride, strict=True
        ):
            covered = np.clip(np.ceil(tile[dim, every] / step), 1.0, extent)
            # A step that leaves no sector out makes the stretch longer, a larger one another one.
            near = stride <= np.maximum(span, SECTOR)
            span = np.where(near, span + stride * (covered - 1.0), span)
            pieces = np.where(near, pieces, pieces * covered)
        whole = np.ceil(span / SECTOR)
        return pieces * np.where(self._aligned, whole, (span - self.width) / SECTOR + 1.0)

    def elements(self, tile: Array) -> Array:
        """Elements of each access [A, n], for positions along each dimension [D, 1, n]."""
        counted: Array = np.where(self.along, tile, 1.0).prod(axis=0)
        return counted

    def vector(self, tile: Array, threads: Array) -> Array:
        """Elements that a thread takes at once [A, n]."""
        every = np.arange(len(self.width))
        inner = np.where(self.along, tile, 1.0)[self.order[0], every]
        each = np.maximum(self.elements(tile) / threads, 1.0)
        found: Array = np.minimum(np.minimum(self.vector_most, inner), each)
        return found

    def spread(self, tile: Array, threads: Array, vector: Array) -> tuple[Array, Array]:
        """Positions that ``threads`` [n] take side by side, and the threads along each dimension.

        Both [D, A, n], for positions of the block along each dimension [D, 1, n].
        """
        every = np.arange(len(self.width))
        within = np.where(self.along, tile, 1.0)
        positions, along = np.ones(within.shape), np.ones(within.shape)
        left = np.broadcast_to(threads, within.shape[1:]).astype(np.float64)
        for rank, dim in enumerate(self.order):
            each = vector if rank == 0 else 1.0
            there = within[dim, every]
            used = np.minimum(np.maximum(np.ceil(there / each), 1.0), left)
            positions[dim, every] = np.minimum(used * each, there)
            along[dim, every] = used
            left = np.maximum(left / used, 1.0)
        return positions, along


def _column(numbers: Sequence[float]) -> Array:
    return np.array(numbers, dtype=np.float64)[:, None]


def _levels(access: Access, dims: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Dimension, positions, extent and bytes of each level that goes somewhere."""
    found = []
    for dim, moves in zip(access.dims, access.levels, strict=True):
        step = 1
        for extent, stride in moves:
            if stride:
                found.append((dims.index(dim), step, extent, abs(stride) * access.width))
            step *= extent
    return sorted(found, key=lambda level: level[3])


def _run(access: Access, dim: str) -> int:
    """Neighbours in memory along a dimension."""
    return access.runs[dim] if dim in access.dims and abs(access.strides[dim]) == 1 else 1


def _vector(access: Access) -> float:
    """Elements that always lie side by side, at a multiple of their size, up to 16 bytes."""
    inner = [dim for dim in access.dims if access.strides[dim] == 1]
    if not inner:
        return 1.0
    dim = max(inner, key=lambda name: access.runs[name])
    divisor = VECTOR // access.width
    for name, moves in zip(access.dims, access.levels, strict=True):
        for at, (extent, stride) in enumerate(moves):
            first = name == dim and at == 0
            if not first:
                divisor = _common(divisor, stride)
            if first and (len(moves) > 1 or name in access.masked):
                divisor = _common(divisor, extent)
    return float(max(divisor, 1))


def _common(power: int, number: Any) -> int:
    """The largest power of two that divides both."""
    while power > 1 and number % power:
        power //= 2
    return power
