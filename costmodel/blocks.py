"""Which block sizes Inductor's Triton kernels are tried with, from the loops alone.

The rules are those of torch/_inductor/runtime/triton_heuristics.py (``triton_config``,
``_reduction_configs``, ``_persistent_reduction_configs``, ``adapt_config_for_tiling``). Sizes are
those of the loops, filled up to powers of two. Which of several blocks turns out the fastest is the
business of ``fusewise.costmodel.tiles``. Nothing here is of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

#: ``inner`` reductions run along memory, ``outer`` ones across it, short ``outer_tiny`` ones too;
#: ``default`` ones are tuned.
Hint = Literal["inner", "outer", "outer_tiny", "default"]

#: Threads of a warp.
WARP: Final = 32
_LONGEST: Final = 2048
_HELD_ELEMENTS: Final = 4096
_HELD_ROWS: Final = (1, 8, 32, 128)
#: Most loads with which whole rows of a loop are tried, and the longest of these.
_FEW_LOADS, _WHOLE = 8, 32768
#: Least elements along a reduction that is shared out with two other dimensions.
_LEAST_TURN: Final = 4
#: Square and other blocks of a pointwise kernel in two dimensions, inner first.
_FLAT: Final = ((32, 32), (64, 64), (256, 16), (16, 256))


class Block(NamedTuple):
    """What one program of a kernel holds at once."""

    #: Elements along each dimension outside the reduction, the inner first.
    across: tuple[int, ...]
    #: Elements along the reduction; 1 without one.
    along: int
    warps: int

    @property
    def elements(self) -> int:
        """All of them."""
        return math.prod(self.across) * self.along

    @property
    def each(self) -> float:
        """Elements of a thread."""
        return self.elements / (self.warps * WARP)


def power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=1 << 12)
def pointwise_blocks(extents: tuple[int, ...], *, square: bool) -> tuple[Block, ...]:
    """Blocks of a kernel without a reduction.

    Args:
        extents: of its dimensions, the inner first; three at most.
        square: whether it has one input and one output, for which only square ones are tried.
    """
    hints = [power(extent) for extent in extents]
    most = max(256, min(math.prod(hints) // 128, 1024))
    if len(hints) == 1:
        return _pointwise(hints, (most,), 256), _pointwise(hints, (most // 2,), 64)
    if len(hints) > 2:  # noqa: PLR2004
        return (_pointwise(hints, (16, 16, 16), 256),)
    shapes = _FLAT[:1] if square else (*_FLAT, (most, 1), (1, most))
    return tuple(_pointwise(hints, shape, 256) for shape in shapes)


def _pointwise(hints: Sequence[int], shape: Sequence[int], each_warp: int) -> Block:
    across = _grown(hints, shape, (2147483647, 65535, 65535))
    elements = math.prod(across)
    warps = _warps(elements // each_warp, 8, 1)
    return Block(across, 1, max(warps, 4) if elements >= 128 else warps)  # noqa: PLR2004


def _grown(
    hints: Sequence[int], shape: Sequence[int], grids: Sequence[int] = ()
) -> tuple[int, ...]:
    """``shape`` within ``hints``; what one dimension lacks the others get."""
    target = math.prod(shape)
    if math.prod(hints) < target:
        target //= 8
    across = [min(one, hint) for one, hint in zip(shape, hints, strict=True)]
    for i, hint in enumerate(hints):
        most = grids[i] if grids else hint
        while across[i] < hint and (across[i] * most < hint or math.prod(across) < target):
            across[i] *= 2
    return tuple(across)


def _warps(wanted: int, most: int, least: int = 2) -> int:
    return power(min(max(wanted, least), most))


@lru_cache(maxsize=1 << 12)
def held_blocks(
    extents: tuple[int, ...], length: int, hint: Hint, shares: tuple[float, ...] = ()
) -> tuple[Block, ...]:
    """Blocks of a kernel that holds whole rows of ``length``.

    Args:
        extents: of the results, the inner first; two at most.
        length: of a row.
        hint: what the reduction is taken for.
        shares: how much memory lies along each dimension of the results, and along the rows;
            needed where there are two of the former.
    """
    hints = [power(extent) for extent in extents]
    row = power(length)
    rows = [n for n in _HELD_ROWS if n * row <= _HELD_ELEMENTS or (n == 1 and len(hints) == 1)]
    if len(hints) > 1:
        return tuple(_tiled(hints, _shared(hints, shares, n), row) for n in rows or (1,))
    results = hints[0]
    blocks = tuple(
        _block(results, n, row, hint, intensive=True) for n in rows if n == 1 or n <= results
    )
    if hint == "inner" and row >= 256:  # noqa: PLR2004
        if row > 1024 or results // 8 < 128:  # noqa: PLR2004
            return blocks[:1]
        return (Block((min(max(1024 // row, 1), 8, results),), row, 1),)
    if hint == "outer":
        return blocks[-1:]
    if hint == "outer_tiny":
        return (_block(results, _tiny(row), row, "default"),)
    return blocks


@lru_cache(maxsize=1 << 12)
def looped_blocks(
    extents: tuple[int, ...],
    length: int,
    hint: Hint,
    loads: int,
    shares: tuple[float, ...] = (),
    *,
    whole: bool = False,
) -> tuple[Block, ...]:
    """Blocks of a kernel that loops over rows of ``length``; see :func:`held_blocks`.

    ``loads`` are the values that it loads, reductions counted in. Where what is read again is
    ``whole`` rows, blocks of these are tried as well.
    """
    hints = [power(extent) for extent in extents]
    row = power(length)
    intensive = hints[0] >= 1024 and loads >= 10  # noqa: PLR2004
    most = min(row, _LONGEST // 2 if intensive else _LONGEST)

    def block(across: int, along: int, warps: int = 0) -> Block:
        if len(hints) > 1:
            *shape, turn = _shared((*hints, row), shares, across * along)
            return _tiled(hints, tuple(shape), min(turn, row))
        return _block(hints[0], across, min(along, row), hint, warps=warps, intensive=intensive)

    contiguous = block(2 if row <= _LONGEST else 1, most)
    outer = block(*_outer(hints[0], row, loads))
    tiny = block(_tiny(row), most)
    more: tuple[Block, ...] = ()
    if whole and loads <= _FEW_LOADS:
        more = (block(max(_HELD_ELEMENTS // row, 1), min(row, _WHOLE)),)
    if len(hints) == 1 and hint != "default":
        return (*more, {"inner": contiguous, "outer": outer, "outer_tiny": tiny}[hint])
    return (*more, contiguous, outer, tiny, block(64, 64), block(8, 512), block(64, 4, 8))


def _tiny(row: int) -> int:
    return 2 * (256 // row) if row <= 256 else 1  # noqa: PLR2004


def _outer(results: int, row: int, loads: int) -> tuple[int, int, int]:
    if results <= 1024:  # noqa: PLR2004
        return max(min(results // 128, 8), 2), min(row, 64), 0
    if results // 4096 <= 8:  # noqa: PLR2004
        return 16, 32, 0
    across = max(min(256, power(results // 4096)), 64)
    if loads < 4 or row <= 128:  # noqa: PLR2004
        return across, 512 // across, 0
    return min(across, 32), 64 if row >= 2048 else 32, 4  # noqa: PLR2004


def _block(
    results: int, across: int, along: int, hint: Hint, *, warps: int = 0, intensive: bool = False
) -> Block:
    target = across * along
    across = min(across, results)
    wanted = along // 128 if hint == "inner" else across * along // 128
    most = 16 if along <= 8192 else 32  # noqa: PLR2004
    while across < results and across * along < target:
        across *= 2
    return Block((across,), along, _warps(warps or wanted, most // 2 if intensive else most))


def _shared(hints: Sequence[int], shares: Sequence[float], target: int) -> tuple[int, ...]:
    """``target`` elements shared out among dimensions by what lies along each.

    The rule is ``match_target_block_product``; a third dimension is that of the reduction.
    """
    left = dict(enumerate(shares[: len(hints)]))
    # The outer dimension is named before the inner one.
    order = (1, 0, *range(2, len(hints)))
    if not any(left.values()):
        left = dict.fromkeys(left, 1.0)
    shape = [_LEAST_TURN if i > 1 else 1 for i in range(len(hints))]
    while math.prod(shape) < target and left:
        dimension = max((i for i in order if i in left), key=left.__getitem__)
        if shape[dimension] >= hints[dimension]:
            del left[dimension]
            continue
        shape[dimension] *= 2
        left[dimension] /= 2
    return tuple(shape)


def _tiled(hints: Sequence[int], shape: tuple[int, ...], along: int) -> Block:
    elements = math.prod(shape) * along
    return Block(
        tuple(min(s, h) for s, h in zip(shape, hints, strict=True)),
        along,
        _warps(_warps(elements // 256, 8, 1), 16),
    )
