"""The problem: one lowered graph before fusion, as data.

A problem holds what features, search and explanations need to know about the nodes of a graph,
and nothing that needs the compiler to be alive: it is frozen, hashable and serialisable, so that
stored problems can be given new features later without measuring again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

import msgspec

NodeKind = Literal["pointwise", "reduction", "scan", "sort", "template", "extern", "foreach", "nop"]
AccessKind = Literal["contiguous", "strided", "broadcast", "gather", "atomic", "opaque"]

#: Kinds that become generated code and can take part in a fusion.
FUSIBLE_KINDS: frozenset[str] = frozenset({"pointwise", "reduction", "scan", "sort", "template"})
#: Kinds whose time is that of a finished kernel, not of a loop that is generated for the group.
FINISHED_KINDS: frozenset[str] = frozenset({"extern", "template"})
#: Types of buffers whose elements are floating-point numbers of 16 bits.
HALVES: frozenset[str] = frozenset({"torch.float16", "torch.bfloat16"})
#: Where it is not known which loops an index goes along.
UNPLACED = -1
#: Turns of the innermost loop that are skipped together where a mask lets none of them be.
LANES = 16


class Access(msgspec.Struct, frozen=True, array_like=True):
    """One read or write of a buffer by a node."""

    buffer: str
    kind: AccessKind
    #: Elements touched, counting each repetition over the loop (size hint).
    touched: int
    #: Distinct bytes touched (size hint): what must move if nothing is cached.
    bytes: int
    #: Bytes an element.
    itemsize: int
    #: Stride, in elements, of the innermost loop variable; 0 where it does not appear.
    stride: int
    #: Canonical index expression: two accesses with equal buffer and index read the same element
    #: in the same iteration.
    index: str
    #: Loops of the node that the index goes along, as bits: the outermost of those that turn more
    #: than once is bit 0. Negative where unknown, as in problems stored before it was kept.
    along: int = UNPLACED
    #: Share of its node's iterations, taken by :data:`LANES` neighbours, in which it is wanted at
    #: all: less than 1 for a read under a mask by positions.
    held: float = 1.0

    @property
    def looked_up(self) -> bool:
        """Whether it goes through places that were loaded or computed."""
        return self.kind in ("gather", "atomic")


class Computed(msgspec.Struct, frozen=True, array_like=True):
    """Operations that a node computes alike, equal expressions counted once."""

    name: str
    count: int
    #: Loops of the node that they go along, as in :attr:`Access.along`; they are the same for all
    #: turns of the others.
    along: int
    #: Share of the iterations in which they are computed, as in :attr:`Access.held`.
    held: float


class Node(msgspec.Struct, frozen=True):
    """A scheduler node: the smallest thing that a plan can place."""

    name: str
    kind: NodeKind
    device: str
    #: Loop extents outside the reduction, multiplied (size hint).
    numel: int
    #: Reduction extents, multiplied (size hint); 1 where nothing is reduced.
    rnumel: int
    #: Loop extents as written, iteration then reduction (size hints).
    ranges: tuple[tuple[int, ...], tuple[int, ...]]
    reduction_type: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    #: Operations in the loop body by name, with how often each occurs.
    ops: tuple[tuple[str, int], ...]
    #: Operators of the captured graph that ended up here, in order.
    origins: tuple[str, ...]
    #: ``file:line`` of the user's program, or "" where unknown.
    source: str
    #: Position in the order in which the compiler had the nodes.
    order: int
    #: The compiler's own estimate of the time it takes alone, in microseconds; 0 where it has none.
    compiler_us: float
    #: Floating-point operations of an extern or template node; 0 where unknown.
    flops: int
    #: Hash of everything that decides the code of this node alone, names left out.
    signature: str
    #: What the compiler goes by when it cuts a reduction on a GPU into blocks, in its own words:
    #: ``inner``, ``outer``, ``outer_tiny`` or ``default``; "" for other nodes and where unknown.
    hint: str = ""
    #: Library that computes an extern product where it is not the usual one: ``onednn``; else "".
    library: str = ""
    #: The operations again as a compiler computes them; empty where that is not known, as in
    #: problems stored before it was kept.
    computed: tuple[Computed, ...] = ()
    # What a user knows each of ``origins`` by, "" where unknown. Of the same length as ``origins``,
    # or empty in problems that were stored before these were kept.
    #: Path of the innermost module that it is in, as in ``named_modules()``.
    modules: tuple[str, ...] = ()
    #: Name of its node in the captured graph.
    fx_names: tuple[str, ...] = ()
    #: Its own ``file:line``; ``source`` is that of the last one.
    sources: tuple[str, ...] = ()
    #: The operator that it was a part of before that was taken apart.
    written_as: tuple[str, ...] = ()

    @property
    def fusible(self) -> bool:
        """Whether the node can share a kernel with another at all."""
        return self.kind in FUSIBLE_KINDS


class Buffer(msgspec.Struct, frozen=True):
    """Something that nodes read and write."""

    name: str
    bytes: int
    dtype: str
    is_input: bool
    is_output: bool
    #: Names of nodes that read it after it was written.
    users: tuple[str, ...]
    #: Names of buffers whose memory it shares: views of it and what it mutates.
    aliases: tuple[str, ...] = ()


class Dependency(msgspec.Struct, frozen=True, array_like=True):
    """``consumer`` must run after ``producer``."""

    consumer: str
    producer: str
    buffer: str
    #: Order only: the consumer overwrites what the producer reads, no data flows.
    weak: bool = False


class PossibleFusion(msgspec.Struct, frozen=True, array_like=True):
    """A pair that the compiler would have considered, with its own score."""

    first: str
    second: str
    #: The parts of the compiler's score, most significant first.
    score: tuple[int, ...]
    #: Whether it needs the loops of one side to be reordered.
    reorder: bool = False


class Problem(msgspec.Struct, frozen=True, dict=True):
    """One lowered graph before fusion."""

    #: Key of the graph and the settings it was lowered under.
    key: str
    kind: Literal["forward", "backward", "inference"]
    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    dependencies: tuple[Dependency, ...]
    possible_fusions: tuple[PossibleFusion, ...]

    @cached_property
    def node_by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def buffer_by_name(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each node: the bit that stands for it in a bitset."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node, the bitset of the nodes it must run after, however far (itself left out).

        Weak dependencies order nodes as strictly as others do, so they count.
        """
        direct = [0] * len(self.nodes)
        for dep in self.dependencies:
            direct[self.index[dep.consumer]] |= 1 << self.index[dep.producer]
        result = [0] * len(self.nodes)
        for i in self._topological():
            closure = direct[i]
            for j in bits(direct[i]):
                closure |= result[j]
            result[i] = closure
        return tuple(result)

    def _topological(self) -> list[int]:
        producers: list[set[int]] = [set() for _ in self.nodes]
        consumers: list[set[int]] = [set() for _ in self.nodes]
        for dep in self.dependencies:
            c, p = self.index[dep.consumer], self.index[dep.producer]
            if c != p:
                producers[c].add(p)
                consumers[p].add(c)
        waiting = [len(p) for p in producers]
        ready = [i for i, n in enumerate(waiting) if n == 0]
        order: list[int] = []
        while ready:
            i = ready.pop()
            order.append(i)
            for c in consumers[i]:
                waiting[c] -= 1
                if waiting[c] == 0:
                    ready.append(c)
        return order


def mask_of(ids: Iterable[int]) -> int:
    """The bitset of these numbers."""
    mask = 0
    for i in ids:
        mask |= 1 << i
    return mask


def bits(mask: int) -> list[int]:
    """Positions of the bits set in ``mask``, lowest first."""
    result = []
    while mask:
        low = mask & -mask
        result.append(low.bit_length() - 1)
        mask ^= low
    return result


def call_signature(node: Node) -> str:
    """Hash of what a library call is known by in every lowering of its graph.

    That is its operator and the sizes of what it reads and writes. The operators before it are left
    out, which its own signature has: what the compiler says it comes from depends on what was
    inlined there.
    """
    moved = [
        sorted((access.bytes, access.itemsize) for access in side)
        for side in (node.reads, node.writes)
    ]
    text = repr((node.kind, node.device, node.ranges, node.origins[-1:], node.library, moved))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def group_signature(problem: Problem, names: Sequence[str]) -> str:
    """Hash of everything in a problem that decides the code of a group, names left out.

    ``names`` are in fused order, which counts. Beside the nodes themselves that is which accesses
    meet in one buffer, and which buffers somebody outside needs.
    """
    inside = set(names)
    numbers: dict[str, int] = {}
    parts: list[object] = []
    for name in names:
        node = problem.node_by_name[name]
        accesses = []
        for access in (*node.reads, *node.writes):
            number = numbers.setdefault(access.buffer, len(numbers))
            buffer = problem.buffer_by_name.get(access.buffer)
            needed = buffer is None or buffer.is_output or not inside.issuperset(buffer.users)
            accesses.append((number, needed, buffer.dtype if buffer else ""))
        parts.append((node.signature, accesses))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
