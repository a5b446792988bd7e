"""What a plan takes beyond its kernels alone, by schedules that were measured.

A kernel is timed by itself, again and again on the same memory. In a program somebody calls it,
memory is handed out for what it leaves, others read that later from wherever it is by then, and
the caches hold what was used last. Each is worth so much for a call, a buffer, a byte, a
microsecond; how much is fitted to whole programs (``fusewise.training.overheads``), since no kernel
by itself tells. Nothing here predicts a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from fusewise.schedule.problem import Buffer, Problem

#: Bytes that stored data are counted by.
_MB: Final = 1e6


class Amounts(NamedTuple):
    """What a group or a plan has that it takes longer by."""

    #: Graphs that run, and kernels and library calls in them.
    graphs: float = 0.0
    calls: float = 0.0
    #: Buffers that memory is handed out for, or taken over from another one.
    buffers: float = 0.0
    #: What one kernel stores and another reads, in 10^6 bytes.
    stored_mb: float = 0.0
    #: Times of generated kernels and of library calls alone, in microseconds.
    generated_us: float = 0.0
    library_us: float = 0.0


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds for each of :class:`Amounts`."""

    graph_us: float = 0.0
    call_us: float = 0.0
    buffer_us: float = 0.0
    stored_us_mb: float = 0.0
    #: Parts of their own times that kernels take longer among others.
    generated: float = 0.0
    library: float = 0.0

    def around_us(self, amounts: Amounts) -> float:
        """What is added to the kernels alone, in microseconds."""
        rates: tuple[float, ...] = msgspec.structs.astuple(self)
        return math.fsum(rate * amount for rate, amount in zip(rates, amounts, strict=True))


#: For models that nothing is known of.
NONE: Final = Overheads()


@runtime_checkable
class KnowsOverheads(Protocol):
    """A model that has some."""

    @property
    def overheads(self) -> Overheads | None:
        """What plans take beyond their kernels, where that is known."""


class Leaving:
    """What groups of one problem leave in memory."""

    def __init__(self, problem: Problem) -> None:
        seen: set[str] = set()
        #: Buffers that each node is the first to write, but for those in others' memory.
        self._made: dict[str, list[Buffer]] = {}
        for node in problem.nodes:
            made = self._made.setdefault(node.name, [])
            for access in node.writes:
                buffer = problem.buffer_by_name.get(access.buffer)
                if buffer is None or buffer.is_input or buffer.aliases or buffer.name in seen:
                    continue
                seen.add(buffer.name)
                made.append(buffer)

    def of(self, names: Collection[str]) -> Amounts:
        """Buffers of a group that it does not keep to itself, and what it stores for others."""
        inside = set(names)
        buffers, stored = 0, 0
        for name in names:
            for buffer in self._made.get(name, ()):
                if not buffer.is_output and inside.issuperset(buffer.users):
                    continue
                buffers += 1
                stored += 0 if buffer.is_output else buffer.bytes
        return Amounts(buffers=buffers, stored_mb=stored / _MB)
