"""What nodes of one Triton kernel do together, and what of their work none of them needs.

The work of a group is that of its nodes, added up; this takes out of it what is done once for
several of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.blocks import Hint
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.frames import Frames
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.operations import CLASSES
from fusewise.costmodel.partials import SUMMED, places_of, row_operations
from fusewise.costmodel.shared_work import SharedWork
from fusewise.schedule.problem import Node, mask_of

IndexArray = npt.NDArray[np.intp]


def columns_at(names: Iterable[str]) -> slice | IndexArray:
    """Where columns stand: a stretch of neighbours is written at once."""
    at = [COLUMN[name] for name in names]
    if at == list(range(at[0], at[0] + len(at))):
        return slice(at[0], at[0] + len(at))
    return np.array(at, dtype=np.intp)


#: Where the classes of operations stand in ``SUMMED``, and what is done once by nodes that do the
#: same.
CLASSES_SUMMED = slice(SUMMED.index(CLASSES[0]), SUMMED.index(CLASSES[-1]) + 1)
_WORK = [SUMMED.index(name) for name in (*CLASSES, "welford", "online_softmax", "address")]
#: What the first result of a reduction of several takes alone: the column of all of them, and the
#: one that it has of its own.
_FIRST_ALONE = {"welford": ("welford", "means"), "online_softmax": ("online_softmax", "")}


class Kernel(NamedTuple):
    """The nodes of a group, by their numbers."""

    #: In ascending order, in that in which they are generated, and as a bitset.
    ids: list[int]
    order: list[int]
    mask: int
    #: Results, length and hint of each reduction in it.
    reductions: list[tuple[int, int, Hint]]
    #: Whether it loops over these.
    loops: bool


class DoneOnce:
    """Work that nodes of one problem, numbered as given, do once for several of them."""

    def __init__(
        self,
        nodes: Sequence[Node],
        kinds: Sequence[tuple[object, ...]],
        sums: FloatArray,
        frames: Frames,
    ) -> None:
        """``kinds`` are equal for nodes that reduce the same, ``sums`` [N, S] as in ``SUMMED``."""
        self._sums = sums
        # Results of one reduction are nodes of their own that do the same.
        first: dict[object, int] = {}
        self._twin = [
            first.setdefault((kind, node.ops, node.numel), i) if node.kind == "reduction" else i
            for i, (kind, node) in enumerate(zip(kinds, nodes, strict=True))
        ]
        # Whoever stores only the first of several (the mean, the maximum) computes no other.
        several = {twin for i, twin in enumerate(self._twin) if twin != i}
        self._firsts = {
            i: _FIRST_ALONE[prefix]
            for i in several
            for prefix in _FIRST_ALONE
            if nodes[i].reduction_type.startswith(prefix)
        }
        self._shared = SharedWork(nodes)
        # Lookups of nodes with equal loops mostly go by the same places.
        self._places = [(node.ranges, places_of(node)) for node in nodes]
        self._of_rows = [
            row_operations(node, frames.resting(i), wholly=frames.rests(i))
            for i, node in enumerate(nodes)
        ]
        # Bitsets, so that a group tells at once whether it has such a node.
        self._twins = mask_of(i for i, twin in enumerate(self._twin) if twin != i)
        self._placing = mask_of(i for i, (_, each) in enumerate(self._places) if each is not None)
        self._saving = mask_of(i for i, found in enumerate(self._of_rows) if found.any())
        self._leading = mask_of(self._firsts)

    def take_out(self, row: FloatArray, kernel: Kernel) -> None:
        """Take out of ``row``, as in ``SUMMED``, what nodes do together and what none needs.

        Less than nought may be left of a class, where nothing is done together.
        """
        ids, mask = kernel.ids, kernel.mask
        classes = row[CLASSES_SUMMED]
        again = []
        if mask & self._twins:
            again = [i for i in ids if self._twin[i] != i and mask >> self._twin[i] & 1]
        if again:
            at = np.array(again, dtype=np.intp)
            row[_WORK] -= self._sums[at][:, _WORK].sum(axis=0)
        others = ids
        if again or mask & self._placing:
            # What finds places is taken out by itself.
            others = [i for i in ids if i not in again and self._places[i][1] is None]
        if mask & self._placing:
            self._take_places_out(classes, ids)
        shared = self._shared.repeated(others)
        if shared is not None:
            classes[:] = np.maximum(classes - shared, 0.0)
        if kernel.reductions and mask & self._saving:
            saved = [self._of_rows[i] for i in ids if self._saving >> i & 1 and i not in again]
            if saved:
                once = np.add.reduce(saved)
                classes[:] = np.maximum(classes - once, 0.0)
        for i in self.alone(kernel):
            full, alone = self._firsts[i]
            steps = self._sums[i, SUMMED.index(full)]
            row[SUMMED.index(full)] -= steps
            if alone:
                row[SUMMED.index(alone)] += steps

    def _take_places_out(self, classes: FloatArray, ids: Sequence[int]) -> None:
        alike: dict[object, list[FloatArray]] = {}
        for i in ids:
            loops, found = self._places[i]
            if found is not None:
                alike.setdefault(loops, []).append(found)
        for several in alike.values():
            if len(several) > 1:
                repeated = np.sum(several, axis=0) - np.max(several, axis=0)
                classes[:] = np.maximum(classes - repeated, 0.0)

    def alone(self, kernel: Kernel) -> list[int]:
        """Nodes that are the first result of a reduction of several, the others outside of it.

        A loop keeps all that a Welford reduction has whichever of it is stored: each step needs it.
        """
        if not kernel.mask & self._leading:
            return []
        others = {self._twin[i] for i in kernel.ids if self._twin[i] != i}
        return [
            i
            for i in kernel.ids
            if i in self._firsts
            and i not in others
            and not (kernel.loops and self._firsts[i][0] == "welford")
        ]
