"""How Inductor's Triton kernels cut their loops into blocks, guessed from the loops alone.

The rules are those of torch/_inductor/runtime/triton_heuristics.py (``_reduction_configs``,
``_persistent_reduction_configs``), of ``Reduction.num_splits`` for hints and of
``InductorChoices.should_use_persistent_reduction``. A guess: where Inductor tunes among several
block sizes, the one that keeps the device busiest is taken. Nothing here is of the CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from fusewise.costmodel.geometry import walk
from fusewise.schedule.problem import Node

#: ``inner`` reductions run along memory, ``outer`` ones across it; others are tuned.
Hint = Literal["inner", "outer", "tuned"]

_POINTWISE_BLOCK: Final = 1024
_LONGEST_ROW: Final = 2048
_PERSISTENT_ELEMENTS: Final = 4096
_PERSISTENT_ROWS: Final = (1, 8, 32, 128)
#: Longest row that is held whole.
_HELD: Final[dict[Hint, int]] = {"inner": 1024, "outer": 64, "tuned": 64}
#: Reductions no longer than this, or with so many results for each multiprocessor, get no hint.
_SHORT, _MANY_RESULTS = 32, 64
#: Inductor's hints; one that is not here was not kept, and is guessed.
_HINTS: Final[dict[str, Hint]] = {
    "inner": "inner",
    "outer": "outer",
    "outer_tiny": "tuned",
    "default": "tuned",
}
_PLAIN_INDEX = re.compile(r"i\d+ : \d+")


class Tile(NamedTuple):
    """The blocks of one kernel."""

    #: Blocks that are launched.
    programs: float
    #: Turns that the loop over a reduction takes in each.
    turns: float
    #: Elements that a block holds at once.
    elements: float
    #: Of these, along the reduction; 1 without one.
    along: float
    #: Whether a block holds whole rows, without a loop.
    persistent: bool
    #: Whether Inductor tunes the block sizes when it first runs.
    tuned: bool


def reduction_hint(node: Node, cores: int) -> Hint:
    """What Inductor takes a reduction for on a device of so many multiprocessors."""
    if all(_PLAIN_INDEX.fullmatch(a.index) for a in node.reads if a.kind != "opaque"):
        return "inner"
    if node.hint in _HINTS:
        return _HINTS[node.hint]
    if node.numel == 1:
        return "inner"
    if node.rnumel <= _SHORT or node.numel >= cores * _MANY_RESULTS:
        return "tuned"
    loops = (*node.ranges[0], *node.ranges[1])
    steps = [walk(a, loops).step for a in node.reads if a.kind in ("contiguous", "strided")]
    if not steps:
        return "tuned"
    inner = sum(step == 1 for step in steps)
    return "inner" if 2 * inner > len(steps) else "outer"


def tile_of(
    iterations: float,
    reductions: Collection[tuple[int, int, Hint]],
    loads: int,
    cores: int,
) -> Tile:
    """The blocks of a kernel.

    Args:
        iterations: of its largest node.
        reductions: results, length and hint of each reduction in it.
        loads: values that it loads.
        cores: multiprocessors of the device.
    """
    if not reductions:
        return Tile(math.ceil(iterations / _POINTWISE_BLOCK), 1, _POINTWISE_BLOCK, 1, False, False)
    hints = {hint for _, _, hint in reductions}
    hint: Hint = hints.pop() if len(hints) == 1 else "tuned"
    rows, length, _ = max(reductions, key=lambda r: r[1])
    if len({(rows, length) for rows, length, _ in reductions}) > 1:
        # Along one dimension and another at once: each block takes some rows of the longer way
        # (``mix_order_reduction``).
        rows, length, _ = max(reductions, key=lambda r: r[0])
        each = max(1, rows // (8 * cores))
        held = _power(length)
        return Tile(math.ceil(rows / each), each, held, held, length <= _HELD["inner"], True)
    persistent = length <= _HELD[hint]
    tuned = hint == "tuned"
    blocks = _persistent(rows, length, hint) if persistent else _looped(rows, length, hint, loads)
    across, along = min(blocks, key=lambda b: _load(rows, length, b, cores))
    return Tile(
        programs=math.ceil(rows / across),
        turns=math.ceil(length / along),
        elements=across * along,
        along=along,
        persistent=persistent,
        tuned=tuned or len(blocks) > 1,
    )


def _load(rows: int, length: int, block: tuple[int, int], cores: int) -> tuple[float, int]:
    """How long a block size keeps the busiest multiprocessor; of equals the largest block wins."""
    across, along = block
    programs, turns = math.ceil(rows / across), math.ceil(length / along)
    # A multiprocessor has room for some 2,048 elements in flight.
    together = max(1, _LONGEST_ROW // (across * along))
    return turns * math.ceil(programs / (cores * together)), -across * along


def _persistent(rows: int, length: int, hint: Hint) -> Sequence[tuple[int, int]]:
    held = _power(length)
    blocks = [
        (across, held)
        for across in _PERSISTENT_ROWS
        if across == 1 or (length * across <= _PERSISTENT_ELEMENTS and across <= rows)
    ]
    if hint == "inner" and length >= 256:  # noqa: PLR2004
        return blocks[:1] if rows // 8 < 128 else [(max(1, min(1024 // length, 8)), held)]  # noqa: PLR2004
    return blocks[-1:] if hint == "outer" else blocks


def _looped(rows: int, length: int, hint: Hint, loads: int) -> Sequence[tuple[int, int]]:
    held = _power(length)
    most = _LONGEST_ROW // 2 if rows >= 1024 and loads >= 10 else _LONGEST_ROW  # noqa: PLR2004
    contiguous = (2 if length <= _LONGEST_ROW else 1, min(held, most))
    outer = _outer(_power(rows), held, loads)
    if hint == "inner":
        return [contiguous]
    if hint == "outer":
        return [outer]
    return [contiguous, outer, (64, min(held, 64)), (8, min(held, 512)), (64, min(held, 4))]


def _outer(rows: int, length: int, loads: int) -> tuple[int, int]:
    if rows <= 1024:  # noqa: PLR2004
        return max(min(rows // 128, 8), 2), min(length, 64)
    if rows // 4096 <= 8:  # noqa: PLR2004
        return 16, min(length, 32)
    across = max(min(256, _power(rows // 4096)), 64)
    if loads < 4 or length <= 128:  # noqa: PLR2004
        return across, min(length, max(512 // across, 1))
    return min(across, 32), min(length, 64 if length >= 2048 else 32)  # noqa: PLR2004


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()
