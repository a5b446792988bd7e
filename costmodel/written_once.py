"""What a loop body computes once though it is written out again and again, or only here and there.

A value that is inlined into several users stands in the body of a node once for each of them; the
code generators find equal expressions and compute them once. Where a problem does not say what is
computed it has counts alone, and how often a body repeats itself is told from the leaves of its
expressions: loads, of which the places are known, and, where a body computes the places that it
looks up, positions in its loops. Nothing here knows what an operation costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Final

from fusewise.schedule.problem import Computed, Node

#: What tells the pieces of a concatenation apart.
_CHOOSING = frozenset(("ge", "lt", "and_", "where", "masked", "index_expr"))

#: What expressions start from.
_LEAVES: Final = frozenset({"load", "index_expr"})
#: From how often on leaves are written for that of a chain.
_CHAIN: Final = 8.0

#: Operations by name, with how often each is computed in one turn of the loops.
Counts = tuple[tuple[str, float], ...]


def operations_of(node: Node) -> Counts:
    """The operations of a node's body, repetitions of equal expressions counted as one.

    Where the node does not say so, each stands as much less often than it is written as leaves do,
    but once at the least, and of a long chain once for each of its steps.
    """
    if node.computed:
        return _summed(node.computed)
    accesses = (*node.reads, *node.writes)
    loops = 0
    if any(access.looked_up for access in accesses):
        loops = sum(extent > 1 for extent in (*node.ranges[0], *node.ranges[1]))
    places = len({(access.buffer, access.index) for access in node.reads})
    return _operations(node.ops, places, loops)


@lru_cache(maxsize=1 << 16)
def _summed(computed: Sequence[Computed]) -> Counts:
    counts: dict[str, float] = {}
    for each in computed:
        counts[each.name] = counts.get(each.name, 0.0) + each.count
    return tuple(counts.items())


@lru_cache(maxsize=1 << 16)
def _operations(written: Sequence[tuple[str, int]], places: int, loops: int) -> Counts:
    counted = dict(written)
    loads = counted.get("load", 0)
    # Masks compare positions, too, each with another bound: those are left as they are.
    positions = counted.get("index_expr", 0) if loops else 0
    leaves = min(loads, places) + min(positions, loops)
    again = (loads + positions) / leaves if leaves else 1.0
    return tuple((name, max(count / again, _least(name, count, again))) for name, count in written)


def _least(name: str, count: int, again: float) -> float:
    """How many of an operation that is written ``count`` times are computed at the least.

    Leaves that are written so often stand below a chain in which each step reads the one before
    more than once: its ``n`` steps, written 1, 2, 4 and so on times, are ``2^n - 1`` altogether.
    """
    in_chain = again >= _CHAIN and name not in _LEAVES
    return min(count, math.log2(1.0 + count) if in_chain else 1.0)


def in_common(one: Counts, other: Counts) -> Counts:
    """The operations that two bodies both have: what one computes that the other has computed.

    Told for bodies that :func:`read_alike`. Which values an operation is on is not known.
    """
    done = dict(other)
    return tuple((name, min(count, done[name])) for name, count in one if name in done)


def read_alike(one: Set[tuple[str, str]], other: Set[tuple[str, str]]) -> bool:
    """Whether one of two nodes reads all (buffers and indices) that the other does: not nothing."""
    return bool(other) and (other <= one or one <= other)


def taken_part(node: Node) -> float:
    """Which part of its masked loads a node comes to at a place: one piece of a concatenation.

    A body has all of them, each under a mask of its own, and where a whole vector is outside of a
    mask nothing is computed under it. Of masks that are chosen one inside of the other, as those of
    margins are, a place comes to some: the root of their number, which fits kernels. 1 where masks
    are neither: these have a bound at each end, two at most, and one is chosen among them. 1 where
    a node says what it computes: each operation has its own part then.
    """
    if node.computed:
        return 1.0
    counts = dict(node.ops)
    pieces, choices = counts.get("masked", 0), counts.get("where", 0)
    bounds = counts.get("ge", 0) + counts.get("lt", 0)
    if pieces == 0 or bounds > 2 * pieces:
        return 1.0
    if choices >= pieces:
        return float(pieces**-0.5)
    return (pieces - choices) / pieces


def taken(operations: Counts, pieces: int, part: float) -> Counts:
    """``operations`` where those of each of so many ``pieces`` are computed for a part of them."""
    return tuple(
        (name, count * part if count >= pieces and name not in _CHOOSING else count)
        for name, count in operations
    )
