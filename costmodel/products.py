"""How long a GPU takes for a matrix product: whole waves of blocks, by a library or a template.

Each multiprocessor computes blocks of the result one after the other, and all of them wait for the
last (NVIDIA, Matrix Multiplication Background User's Guide: tile and wave quantization). A library
chooses among several shapes of blocks, and may cut long sums; a template has one. Knows products
of matrices in fp32 and in 16 bits; those with a vector are about how fast a matrix is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import HALVES, Node, Problem
from fusewise.schedule.products import MOST_COLUMN_BYTES

#: Operators that are nothing but a product, with something added at most.
_PRODUCTS: Final = frozenset(
    {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"}
)
#: Rows of a template's block, and where sums are long and there is work for all of the device
#: nevertheless; values that each element is a sum over from which on they are long.
_ROWS, _MANY_ROWS, _LONG = 64, 128, 512


@dataclass(frozen=True, slots=True)
class _Rates:
    """What a type's products come to on a GPU, beside its probed rate.

    Fitted to the products of the dataset ``h200``: 568 of fp32 and 813 in 16 bits without a batch.
    Their times are met within 16 and 13 % on average, where operations over the rate are off by a
    factor of 2.
    """

    #: Microseconds that a library takes beside a launch.
    start_us: float
    #: Values of a sum that take as long as it takes a block to begin and to end.
    ahead: int
    #: Bytes that move for each byte of the partial results where sums are cut.
    parts: float
    #: Part of the probed rate that a library reaches, by rows and columns of a block.
    library: Mapping[tuple[int, int], float]
    #: The same for a template's blocks of few and of many rows. By the products with something
    #: after them in ``docs/kernel-choices.md``.
    template: Mapping[int, float]


_FULL: Final = _Rates(
    start_us=2.9,
    ahead=32,
    parts=2.0,
    library={(128, 128): 0.95, (64, 64): 0.85, (64, 32): 0.65, (32, 64): 0.65, (32, 32): 0.65},
    template={_ROWS: 0.85, _MANY_ROWS: 0.85},
)
_HALF: Final = _Rates(
    start_us=1.5,
    ahead=200,
    parts=8.0,
    library={(256, 128): 0.8, (128, 256): 0.8, (128, 128): 1.0, (128, 64): 0.95, (64, 128): 0.95}
    | {(64, 64): 0.95, (64, 32): 0.95, (32, 64): 0.95},
    template={_ROWS: 0.65, _MANY_ROWS: 0.8},
)
#: In how many pieces a library cuts sums, and bytes of a partial result.
_CUTS: Final = (1, 2, 4, 8, 16, 32)
_PARTIAL_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products of ``rows`` by ``inner`` values with ``inner`` by ``columns``."""

    batch: int
    rows: int
    columns: int
    inner: int
    #: Whether in 16 bits; in fp32 otherwise.
    half: bool

    @property
    def numel(self) -> int:
        """Elements of the result."""
        return self.batch * self.rows * self.columns

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return 2 if self.half else 4

    @property
    def bytes(self) -> int:
        """What is read and written once."""
        read = self.batch * self.inner * (self.rows + self.columns)
        return self.itemsize * (read + self.numel)


def product_of(problem: Problem, node: Node) -> Product | None:
    """The product that a library call or a template computes.

    None where it is none, one with a vector, of other types, or its sizes do not follow from what
    it reads, writes and computes.
    """
    if not node.flops or not node.numel or not node.origins or node.origins[-1] not in _PRODUCTS:
        return None
    dtype = problem.buffer_by_name[node.writes[0].buffer].dtype
    if dtype != "torch.float32" and dtype not in HALVES:
        return None
    half = dtype in HALVES
    inner, left = divmod(node.flops, 2 * node.numel)
    if left or not inner:
        return None
    # Rows and columns, each as often as there are matrices in the batch.
    sides = [read.bytes / ((2 if half else 4) * inner) for read in node.reads]
    for rows, columns in itertools.permutations(sides, 2):
        batch = round(rows * columns / node.numel)
        if batch and rows * columns == batch * node.numel and rows % batch == columns % batch == 0:
            found = Product(batch, int(rows) // batch, int(columns) // batch, inner, half)
            return found if min(found.rows, found.columns) > 1 else None
    return None


def library_us(product: Product, profile: DeviceProfile) -> float:
    """Microseconds that a library takes on a GPU, by its best blocks."""
    rates = _rates(product)
    moving_us = _moving_us(product.bytes, profile)
    best_us = min(
        max(_waves_us(product, profile, block, part, cut), moving_us)
        + _partial_us(product, profile, cut)
        for (block, part), cut in itertools.product(rates.library.items(), _CUTS)
    )
    return profile.launch_us + rates.start_us + best_us


def template_us(product: Product, profile: DeviceProfile) -> float:
    """Microseconds that a template takes on a GPU in blocks of :func:`template_rows`."""
    rates = _rates(product)
    rows = template_rows(product, profile)
    columns = 1 << (product.columns - 1).bit_length()
    block = (rows, min(columns, MOST_COLUMN_BYTES // product.itemsize))
    computing_us = _waves_us(product, profile, block, rates.template[rows], 1)
    return profile.launch_us + max(computing_us, _moving_us(product.bytes, profile))


def template_rows(product: Product, profile: DeviceProfile) -> int:
    """Rows that a template's block had best have."""
    many = fills(product.numel, _MANY_ROWS, profile)
    return _MANY_ROWS if product.half and product.inner >= _LONG and many else _ROWS


def fills(numel: int, rows: int, profile: DeviceProfile) -> bool:
    """Whether there are blocks of so many rows and columns for all of a GPU."""
    return numel >= rows**2 * profile.cores


def _rates(product: Product) -> _Rates:
    return _HALF if product.half else _FULL


def _waves_us(
    product: Product, profile: DeviceProfile, block: tuple[int, int], part: float, cut: int
) -> float:
    """Microseconds of computing in blocks, each sum in ``cut`` pieces, at a part of the rate."""
    rows, columns = block
    gfs = profile.half if product.half else profile.flops_gfs
    blocks = math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
    waves = math.ceil(product.batch * blocks * cut / profile.cores)
    inner = math.ceil(product.inner / cut) + _rates(product).ahead
    # GFLOP/s are 10^3 operations a microsecond.
    return waves * profile.cores * 2 * rows * columns * inner / (part * gfs * 1e3)


def _partial_us(product: Product, profile: DeviceProfile, cut: int) -> float:
    """Microseconds of storing partial results and adding them up."""
    if cut == 1:
        return 0.0
    moved = _rates(product).parts * _PARTIAL_BYTES * (cut + 1) * product.numel
    return _moving_us(moved, profile)


def _moving_us(moved: float, profile: DeviceProfile) -> float:
    # GB/s are 10^3 bytes a microsecond.
    return moved / (profile.copy_gbs * 1e3)
