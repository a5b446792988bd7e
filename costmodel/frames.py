"""The loops of a group's nodes as its kernel runs them, and what each access is under them.

Nodes that share a kernel share its loops: those whose own stand in another order are turned round.
Knows nothing of blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from fusewise.costmodel.dimensions import Mover, Shape, mover_of
from fusewise.costmodel.layout import SECTOR_BYTES, Layout, layout_of, merged_loops, turned
from fusewise.costmodel.lookups import found_beside, sought_along
from fusewise.costmodel.meeting import Met, Moving
from fusewise.schedule.problem import Node, Problem

_Key = tuple[str, str]
#: Bytes within which accesses of equal steps meet the same lines.
_NEAR = 1 << 15
#: Places of a buffer that a node reads which goes over it by a window, at the least.
_WINDOW = 4


@dataclass(slots=True, eq=False)
class _Under:
    """An access under the loops of its node as a kernel runs them."""

    layout: Layout
    #: As in ``layout``.
    origin: int
    looked_up: bool
    anywhere: bool
    #: Numbers that reads, and stores, have in common of one buffer that go through it by the same
    #: steps.
    read: int
    stored: int
    #: By bytes, whether written, near and again: what it is in a kernel.
    movers: dict[tuple[int, bool, bool, bool], Mover]


@dataclass(slots=True, eq=False)
class _Frame:
    """A node as a kernel runs it."""

    shape: Shape
    accesses: dict[_Key, _Under]
    #: Whether it reduces nothing and goes through memory in steps along its last loop.
    steps: bool


class Frames:
    """Loops and layouts of one problem's nodes, which are numbered as given."""

    def __init__(
        self,
        nodes: Sequence[Node],
        problem: Problem,
        followed: Sequence[Mapping[_Key, int]],
        *,
        blocks: bool,
    ) -> None:
        """``nodes`` are of ``problem``; ``followed`` are the sizes, in elements, of buffers that
        each goes through in the order of its loops although it looks up where; ``blocks`` of
        threads run them, or loops."""
        self._nodes = nodes
        self._blocks = blocks
        self._loops = [
            tuple(extent for extent in (*n.ranges[0], *n.ranges[1]) if extent > 1) for n in nodes
        ]
        self._outer = [sum(extent > 1 for extent in n.ranges[0]) for n in nodes]
        self._layouts = [
            _layouts(n, problem, loops, sizes)
            for n, loops, sizes in zip(nodes, self._loops, followed, strict=True)
        ]
        self._placed = [_placed(n, len(loops)) for n, loops in zip(nodes, self._loops, strict=True)]
        self._outside = [n.numel for n in nodes]
        self._lengths = [n.rnumel for n in nodes]
        self._turns = [n.numel * n.rnumel for n in nodes]
        #: By the node that each is turned round to; -1 for none.
        self._frames: list[dict[int, _Frame]] = [{} for _ in nodes]
        self._places: dict[tuple[str, tuple[int, ...], tuple[int, ...], int], int] = {}

    def resting(self, i: int) -> int:
        """Reads of node ``i`` that stay along a row of it, but not along all its loops."""
        row = self._row(i)
        read = self._read(i)
        return sum(1 for each in read if each is not None and each.stays(row) and any(each.steps))

    def rests(self, i: int) -> bool:
        """Whether all reads of node ``i`` stay along a row of it, and there are some."""
        row = self._row(i)
        read = self._read(i)
        return bool(read) and all(each is not None and each.stays(row) for each in read)

    def _row(self, i: int) -> int:
        """Turns along a row of node ``i``: what it reduces to one, else its innermost loop."""
        if self._nodes[i].rnumel > 1:
            return self._nodes[i].rnumel
        return self._loops[i][-1] if self._loops[i] else 1

    def _read(self, i: int) -> list[Layout | None]:
        """The layouts of what node ``i`` reads, each once."""
        return [
            self._layouts[i][key] for key in {(a.buffer, a.index) for a in self._nodes[i].reads}
        ]

    def turns(self, i: int, main: int) -> tuple[int, ...]:
        """The order in which node ``i`` has the loops of ``main``; empty where it needs none."""
        left = list(self._loops[i])
        if sorted(left) != sorted(self._loops[main]):
            return ()
        reduced = math.prod(left[self._outer[i] :])
        if reduced > 1 and reduced != math.prod(self._loops[main][: self._outer[main]]):
            # Of reductions only those of the other's results go along with it.
            return ()
        alike = self._alike(i, main)
        if alike:
            return alike
        order = []
        for extent in self._loops[main]:
            at = left.index(extent)
            order.append(at)
            left[at] = 0
        return tuple(order)

    def _alike(self, i: int, main: int) -> tuple[int, ...]:
        """The same, told from a buffer that both go through; empty where there is none.

        Extents alone do not tell loops apart where two of them are equal.
        """
        loops = self._loops[i]
        pairs = [
            (one, other)
            for (buffer, _), other in self._layouts[main].items()
            if other is not None
            for (name, _), one in self._layouts[i].items()
            if name == buffer and one is not None and sorted(one.steps) == sorted(other.steps)
        ]
        pairs.sort(key=lambda pair: -sum(map(bool, pair[0].steps)))
        for one, other in pairs:
            left = dict(enumerate(zip(loops, one.steps, strict=True)))
            order = []
            for extent, step in zip(self._loops[main], other.steps, strict=True):
                at = next((k for k, v in left.items() if v == (extent, step)), None)
                if at is None:
                    break
                order.append(at)
                del left[at]
            else:
                return tuple(order)
        return ()

    def frame(self, i: int, order: tuple[int, ...]) -> tuple[Shape, dict[_Key, Layout]]:
        """Loops and layouts of node ``i``, turned round to ``order`` where that is not empty."""
        layouts = {key: m for key, m in self._layouts[i].items() if m is not None}
        loops = self._loops[i]
        placed = self._placed[i]
        if order:
            layouts = {key: turned(m, order) for key, m in layouts.items()}
            loops = tuple(loops[at] for at in order)
            placed = [{order.index(at) for at in place} for place in placed]
        merged = merged_loops(loops, self._outer[i], list(layouts.values()), placed)
        return Shape(*merged), layouts

    def _along_rows(
        self, ids: Sequence[int], main: int, moving: Sequence[Moving]
    ) -> set[tuple[int, str]]:
        """Reads of reductions across the rows of a kernel that goes along them, by node and buffer.

        Where both ways are taken at once what is read for one way serves the other.
        """
        lengths = self._lengths
        length = lengths[main]
        across = {i for i in ids if lengths[i] not in (1, length)}
        if not across:
            return set()
        along = {key[0] for i, key, _, written, _ in moving if i not in across and not written}
        return {(i, key[0]) for i, key, _, _, _ in moving if i in across and key[0] in along}

    def kernel(self, ids: Sequence[int], met: Met) -> tuple[list[Shape], list[Mover], bool]:
        """Loops of the nodes ``ids`` of a group, its accesses, and whether a node beside a
        reduction goes through memory in steps."""
        main, crossed, moving = met.main, met.crossed, met.moving
        frames: dict[int, _Frame] = {}
        whole, steps = self._turns[main], False
        for i in ids:
            turned_to = main if i in crossed else -1
            frame = frames[i] = self._frames[i].get(turned_to) or self._framed(i, turned_to)
            steps = steps or (frame.steps and self._outside[i] == whole)
        movers = []
        beside = self._along_rows(ids, main, moving)
        first: dict[int, int] = {}
        looked_up: Counter[Hashable] = Counter()
        for i, key, size, written, again in moving:
            under = frames[i].accesses.get(key)
            if under is None or (beside and not written and (i, key[0]) in beside):
                continue
            # What lies beside what the same block has just read is in its cache.
            place = under.stored if written else under.read
            origin = under.origin
            again_at = first.get(place)
            if again_at is None:
                first[place] = origin
                near = False
            elif again_at == origin and not again and not under.looked_up:
                # The same under another name.
                continue
            elif under.looked_up:
                # One neighbour of what an interpolation looks up after the other.
                near = not under.anywhere
            else:
                near = 0 < abs(origin - again_at) * under.layout.itemsize < _NEAR
            if under.anywhere and self._blocks and not written:
                sector = (place, under.layout.origin * under.layout.itemsize // SECTOR_BYTES)
                near = found_beside(sector, under.layout.origin, looked_up)
            told = (size, written, near, again)
            mover = under.movers.get(told)
            if mover is None:
                mover = under.movers[told] = mover_of(under.layout, self._turns[i], *told)
            movers.append(mover)
        return [frame.shape for frame in frames.values()], movers, steps

    def _framed(self, i: int, main: int) -> _Frame:
        """Node ``i`` with its loops turned round to those of ``main``; as they are where -1."""
        shape, layouts = self.frame(i, self.turns(i, main) if main >= 0 else ())
        accesses = {
            key: _Under(
                layout=layout,
                origin=layout.origin,
                looked_up=layout.looked_up,
                anywhere=layout.anywhere,
                read=self._place(key, layout, 0),
                stored=self._place(key, layout, 1),
                movers={},
            )
            for key, layout in layouts.items()
        }
        steps = self._lengths[i] == 1 and any(m.steps and m.steps[-1] > 1 for m in layouts.values())
        found = self._frames[i][main] = _Frame(shape, accesses, steps)
        return found

    def _place(self, key: _Key, layout: Layout, written: int) -> int:
        """The number of the places that accesses with these steps go to in a buffer."""
        place = (key[0], layout.steps, layout.loops, written)
        return self._places.setdefault(place, len(self._places))


def _placed(node: Node, loops: int) -> list[set[int]]:
    """Positions of the loops that each of the places goes along that a node computes.

    Where a problem does not tell, those of a window go along a loop each.
    """
    if not any(name == "index_expr" for name, _ in node.ops):
        return []
    told = {each.along for each in node.computed if each.name == "index_expr"}
    if not told:
        reads = Counter(a.buffer for a in node.reads)
        return [{at} for at in range(loops)] if max(reads.values(), default=0) >= _WINDOW else []
    return [{at for at in range(loops) if along >> at & 1} for along in told]


def _layouts(
    node: Node, problem: Problem, loops: tuple[int, ...], sizes: Mapping[_Key, int]
) -> dict[_Key, Layout | None]:
    """The layouts of a node's accesses; those looked up know along which loops they may move."""
    accesses = {(a.buffer, a.index): a for a in (*node.reads, *node.writes)}
    found = {key: layout_of(a, loops) for key, a in accesses.items()}
    for key, layout in found.items():
        if layout is not None and accesses[key].held < 1.0:
            found[key] = layout._replace(held=accesses[key].held)
    if not any(a.looked_up for a in accesses.values()):
        return found
    steps = {key: layout.steps for key, layout in found.items() if layout is not None}
    sought = sought_along(node, problem, steps, len(loops))
    for key, layout in found.items():
        if layout is None or not layout.anywhere:
            continue
        if sizes.get(key):
            followed = layout_of(accesses[key], loops, sizes[key], sought)
            found[key] = followed and followed._replace(held=layout.held)
        else:
            found[key] = layout._replace(sought=sought)
    return found
