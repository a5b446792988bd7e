"""Accesses of a problem's nodes, each looked up once: what a group has to know of it.

Tells of one access what it adds to which column, if it moves anything; what the accesses of a
group make of each other is in ``fusewise.costmodel.meeting``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.geometry import looked_up_steps, walk
from fusewise.costmodel.lookups import (
    component_of,
    computes_places,
    lookups_told,
    places_sought,
)
from fusewise.schedule.problem import Access, Buffer, Node, Problem

#: Bytes that memory moves at least: a cache line, and a sector of one.
_LINE_BYTES: Final = {"cpu": 64, "cuda": 32}

#: Columns of distinct bytes that move, by the way that they are accessed.
DISTINCT: Final = (
    "read_contiguous",
    "read_strided",
    "read_broadcast",
    "read_gather",
    "read_opaque",
    "written_contiguous",
    "written_strided",
    "written_atomic",
    "written_other",
)
#: The columns that accesses are summed into, counts of what they come to last.
MET: Final = (
    *DISTINCT,
    "line_bytes",
    "across_bytes",
    "runs",
    "random_bytes",
    "cached",
    "reread",
    "stores_removed",
    "reads_removed",
    "touched",
    "narrow",
    "half",
    "wide",
    "unaligned",
    "loop_shapes",
    "passes",
    "inputs",
    "outputs",
    "intermediates",
    "loads",
    "live_values",
)
#: Where each of them stands.
AT: Final = {name: i for i, name in enumerate(MET)}
_READ_AT: Final = {
    "contiguous": AT["read_contiguous"],
    "strided": AT["read_strided"],
    "broadcast": AT["read_broadcast"],
    "gather": AT["read_gather"],
    "atomic": AT["read_opaque"],
    "opaque": AT["read_opaque"],
}
_WRITE_AT: Final = {
    "contiguous": AT["written_contiguous"],
    "strided": AT["written_strided"],
    "broadcast": AT["written_other"],
    "gather": AT["written_other"],
    "atomic": AT["written_atomic"],
    "opaque": AT["written_other"],
}
#: Where the touched bytes of an element width are summed; 4 bytes are what is left.
_WIDTH_AT: Final = {1: AT["narrow"], 2: AT["half"], 8: AT["wide"], 16: AT["wide"]}
#: Where what belongs into none of them goes: behind the last.
NOT_SUMMED: Final = len(MET)
#: A buffer of this part of the last-level cache stays there while it is looked up.
_NEAR: Final = 4
#: Four-byte elements in the 32 bytes that a cache moves at the least.
_SECTOR_ELEMENTS: Final = 8


@dataclass(slots=True, eq=False)
class Touch:
    """An access with all that a group needs to know of it, looked up once."""

    slot: int  # identity of (buffer, index, where a lookup leads, which of the node's it is)
    buffer: int
    at: int  # where its distinct bytes are summed
    bytes: int
    again: int  # its distinct bytes that come from a cache where another reads the buffer, too
    touched: int
    line: float
    random: int
    across: int  # its distinct bytes where neighbours lie along an outer loop
    along: int  # its distinct bytes where they lie along the innermost
    runs: float
    unaligned: int  # its touched bytes where rows begin anywhere
    width_at: int
    size: float  # of the whole buffer
    outside: bool  # a write: somebody who is no node needs the buffer
    users: int  # a write: bitset of the nodes that read it
    key: tuple[str, str]
    corners: int  # of a lookup at computed places: of the buffer, at most; else 0
    row: int  # of a lookup that leads anywhere: identity of the line that it finds; else -1
    component: int  # of a row: where it is that a lookup finds


def wanted(node: Node) -> Node:
    """``node`` with each read under a mask touching what the mask lets it."""

    def held(access: Access) -> Access:
        if access.held == 1.0:
            return access
        touched = round(access.touched * access.held)
        size = min(access.bytes, touched * access.itemsize)
        return msgspec.structs.replace(access, touched=touched, bytes=size)

    if all(access.held == 1.0 for access in node.reads):
        return node
    return msgspec.structs.replace(node, reads=tuple(map(held, node.reads)))


def moving_reads(node: Node, problem: Problem) -> list[Access]:
    """The reads of a node that move data.

    One that overwrites a buffer has to wait for it, and that stands there as a read of all of it.
    """
    written = [problem.buffer_by_name.get(access.buffer) for access in node.writes]
    overwritten = {alias for buffer in written if buffer is not None for alias in buffer.aliases}
    return [a for a in node.reads if a.kind != "opaque" or a.buffer not in overwritten]


class Touches:
    """The accesses of one problem on one device."""

    def __init__(self, problem: Problem, profile: DeviceProfile, rank: Mapping[str, int]) -> None:
        """``rank``: the number of each node by name."""
        self._problem = problem
        self._profile = profile
        self._rank = rank
        self._slots: dict[tuple[str, Hashable, Hashable], int] = {}
        self._rows: dict[Hashable, int] = {}
        self._buffer_ids: dict[str, int] = {}

    def reads(self, node: Node, *, along: bool) -> list[Touch]:
        """The reads of a node that move data; ``along``: whether its lookups go along its loops."""
        return self._touches(moving_reads(node, self._problem), node, _READ_AT, along)

    def writes(self, node: Node, *, along: bool) -> list[Touch]:
        """The writes of a node, see :meth:`reads`."""
        return self._touches(node.writes, node, _WRITE_AT, along)

    def elements(self, access: Access) -> int:
        """Elements of the whole buffer."""
        size = _size_of(access, self._problem.buffer_by_name.get(access.buffer))
        return size // max(access.itemsize, 1)

    def _touches(
        self, accesses: Sequence[Access], node: Node, at: dict[str, int], along: bool
    ) -> list[Touch]:
        told = lookups_told(accesses)
        return [
            self._touch(a, node, at, along, told.get((a.buffer, a.index), a.index))
            for a in accesses
        ]

    def _touch(
        self, access: Access, node: Node, at: dict[str, int], along: bool, told: Hashable
    ) -> Touch:
        buffer = self._problem.buffer_by_name.get(access.buffer)
        touched = access.touched * access.itemsize
        line_bytes = _LINE_BYTES[self._profile.kind]
        per_line = max(line_bytes // max(access.itemsize, 1), 1)
        steps = walk(access, (*node.ranges[0], *node.ranges[1]))
        run_bytes = steps.run * access.itemsize
        # An index that starts over somewhere is told as strided, but goes to the next neighbour.
        kind = "contiguous" if access.kind == "strided" and steps.step == 1 else access.kind
        line = 0.0
        random = 0
        sought = None
        corners = 0
        row, component = -1, 0
        again = access.bytes
        if access.looked_up:
            sought = places_sought(node, self._problem)
            computed = computes_places(node)
            corners = _corners(access, node) if computed else 0
            if not along and not computed:
                line_found, component = component_of(access, line_bytes)
                row = self._rows.setdefault(line_found, len(self._rows))
            # Whole rows are looked up (an embedding): one jump a line, not one an element.
            rows = steps.step == 1
            if along:
                # From one turn of the loops to the next it goes on to a neighbour, or stays.
                line = touched
                if self._profile.kind == "cpu" and computed:
                    # Neighbours are looked up, which a core has near whoever of them came first.
                    line, again = min(touched, _size_of(access, buffer)), 0
            elif 0 < _size_of(access, buffer) <= self._profile.cache_bytes // _NEAR:
                # What fits the cache is never far, but comes in sectors.
                line = touched if rows else touched * min(_SECTOR_ELEMENTS, per_line)
            else:
                random = touched // per_line if rows else touched
        elif steps.least > 1:
            line = access.bytes * min(steps.least, per_line)
        elif run_bytes < min(line_bytes, access.bytes):
            line = access.bytes * line_bytes / run_bytes
        outside, users = self._needed_by(buffer)
        return Touch(
            slot=self._slots.setdefault((access.buffer, told, sought), len(self._slots)),
            buffer=self._buffer_ids.setdefault(access.buffer, len(self._buffer_ids)),
            at=at[kind],
            bytes=access.bytes,
            again=again,
            touched=touched,
            line=line,
            random=random,
            across=access.bytes if steps.across else 0,
            along=access.bytes if steps.step == 1 else 0,
            # A loop over nothing runs nowhere.
            runs=access.bytes / max(run_bytes, 1),
            unaligned=0 if steps.aligned else touched,
            width_at=_WIDTH_AT.get(access.itemsize, NOT_SUMMED),
            size=float(buffer.bytes) if buffer is not None and buffer.bytes > 0 else np.inf,
            outside=outside or access.kind == "atomic",
            users=users,
            key=(access.buffer, access.index),
            corners=corners,
            row=row,
            component=component,
        )

    def _needed_by(self, buffer: Buffer | None) -> tuple[bool, int]:
        """Whether something that is no node needs the buffer, and the bitset of nodes that do.

        A buffer that shares its memory with others is needed: what is stored is the other's value.
        """
        if buffer is None or buffer.is_input or buffer.is_output or buffer.aliases:
            return True, 0
        users = 0
        for name in buffer.users:
            rank = self._rank.get(name)
            if rank is None:
                return True, 0
            users |= 1 << rank
        return False, users


def _corners(access: Access, node: Node) -> int:
    """Places of one buffer that an interpolation finds in each turn, at most.

    Two for each of the indices that it computes, or as many as one node of it looks up.
    """
    own = sum(a.looked_up and a.buffer == access.buffer for a in node.reads)
    return max(1 << len(looked_up_steps(access.index)), own)


def _size_of(access: Access, buffer: Buffer | None) -> int:
    return buffer.bytes if buffer is not None and buffer.bytes > 0 else access.bytes
