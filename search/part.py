"""A part: the few dozen nodes that one beam runs over, and the moves between plans of it.

Nodes are bits of small integers here, in an order that keeps all dependencies, and a plan of the
part is a tuple of group masks. Whether a move is worth it is the beam's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fusewise.schedule.problem import bits, mask_of
from fusewise.search.ledger import Ledger
from fusewise.search.region import Terrain
from fusewise.search.tree import Join, Leaf, Tree, subtrees

#: Most ways to split one group that are looked at; larger groups get evenly spread ones.
_MAX_SPLITS: Final = 24

Masks = tuple[int, ...]


class Move(NamedTuple):
    """One way from a plan to a neighbouring one. Masks are of the part's own bits."""

    #: ``merge``: first and second become one. ``split``: second leaves first. ``shift``: node
    #: ``second`` of first goes over to ``third``.
    kind: str
    first: int
    second: int
    third: int = 0

    def removed(self) -> Masks:
        """Groups that are no more."""
        if self.kind == "merge":
            return self.first, self.second
        if self.kind == "split":
            return (self.first,)
        return self.first, self.third

    def added(self) -> Masks:
        """Groups that come instead."""
        if self.kind == "merge":
            return (self.first | self.second,)
        if self.kind == "split":
            return self.second, self.first ^ self.second
        return self.first ^ self.second, self.third | self.second


class Part:
    """Nodes of a run of groups, with the trees and costs found for their subsets."""

    def __init__(self, terrain: Terrain, trees: Sequence[Tree], ledger: Ledger) -> None:
        """``trees``: the groups to start from, in an order that keeps all dependencies."""
        self.ledger = ledger
        problem = terrain.problem
        ids = [problem.index[name] for tree in trees for name in tree.nodes]
        ancestors = problem.ancestors
        # A node has more ancestors than any of its ancestors has: the count is a valid order.
        # Groups stand in a valid order already, so sorting within each keeps both.
        at = 0
        for tree in trees:
            end = at + len(tree)
            ids[at:end] = sorted(ids[at:end], key=lambda i: (ancestors[i].bit_count(), i))
            at = end
        self.ids = ids
        self.names = [problem.nodes[i].name for i in ids]
        local = {i: 1 << at for at, i in enumerate(ids)}
        self._below = [0] * len(ids)
        self._near = [0] * len(ids)
        # Nodes that must run after a node and after something outside that must run after it too.
        self._apart = [0] * len(ids)
        own = mask_of(ids)
        for at, i in enumerate(ids):
            outside = ancestors[i] & ~own
            for j in bits(ancestors[i] & own):
                above = local[j].bit_length() - 1
                self._below[above] |= 1 << at
                if terrain.below[j] & outside:
                    self._apart[above] |= 1 << at
            for j in bits(terrain.near[i] & own):
                self._near[at] |= local[j]
        #: The tree that builds a group, for every group known to be legal.
        self.tree: dict[int, Tree] = {}
        self.us: dict[int, float] = {}
        self._names_of: dict[int, frozenset[str]] = {}
        self._below_of: dict[int, int] = {}
        self._near_of: dict[int, int] = {}
        self._apart_of: dict[int, int] = {}
        self._splits: dict[int, Masks] = {}
        self._unbuildable: set[int] = set()
        self._refused: set[tuple[int, int]] = set()
        for at, i in enumerate(ids):
            self.tree[1 << at] = Leaf(self.names[at], i)
        self.start: Masks = tuple(self._adopt(tree, local) for tree in trees)
        self.alone: Masks = tuple(1 << at for at in range(len(ids)))
        self._permits = terrain.permits
        self._permitted: dict[int, bool] = {}
        self._bound = [self._adopt(tree, local) for tree in terrain.bound if tree.mask & own]
        #: The plan in which nothing is fused but what has to be.
        self.loose: Masks = self._loose()

    def _adopt(self, tree: Tree, local: dict[int, int]) -> int:
        mask = 0
        for sub in subtrees(tree):
            mask = sum(local[i] for i in bits(sub.mask))
            self.tree.setdefault(mask, sub)
        return mask

    def _loose(self) -> Masks:
        if not self._bound:
            return self.alone
        joined = sum(self._bound)
        waiting = [*self._bound, *(bit for bit in self.alone if not bit & joined)]
        waiting.sort(key=lambda mask: mask & -mask)
        order: list[int] = []
        left = sum(self.alone)
        while waiting:
            # A group is ready once no node that is left has to run before one of its own.
            at = next(
                i
                for i, mask in enumerate(waiting)
                if not any(self._below[j] & mask for j in bits(left & ~mask))
            )
            order.append(waiting.pop(at))
            left &= ~order[-1]
        return tuple(order)

    def group(self, mask: int) -> frozenset[str]:
        """Names of the nodes of a mask."""
        known = self._names_of.get(mask)
        if known is None:
            known = self._names_of[mask] = frozenset(self.names[i] for i in bits(mask))
        return known

    def unknown(self, masks: Iterable[int]) -> list[int]:
        """Those of ``masks`` whose cost is not known here yet."""
        fresh = []
        for mask in masks:
            if mask not in self.us:
                group = self.group(mask)
                if self.ledger.known(group):
                    self.us[mask] = self.ledger.us(group)
                else:
                    fresh.append(mask)
        return fresh

    def learn(self, masks: Iterable[int]) -> None:
        """Take over the costs of groups that were scored since."""
        for mask in masks:
            self.us[mask] = self.ledger.us(self.group(mask))

    def gain(self, move: Move) -> float:
        """Microseconds that a move adds; below zero is better. All costs must be known."""
        us = self.us
        kind, first, second, third = move
        if kind == "merge":
            return us[first | second] - us[first] - us[second]
        if kind == "split":
            return us[second] + us[first ^ second] - us[first]
        return us[first ^ second] + us[third | second] - us[first] - us[third]

    def moves(self, masks: Masks, *, shifts: bool) -> list[Move]:
        """All moves from a plan, in a fixed order; those of single nodes only with ``shifts``."""
        found: list[Move] = []
        for at, mask in enumerate(masks):
            near = self.near(mask)
            for other in masks[at + 1 :]:
                if other & near:
                    found.append(Move("merge", mask, other))
                    if shifts:
                        found += self._shifts(mask, other)
                        found += self._shifts(other, mask)
            if mask & (mask - 1):
                found += [Move("split", mask, sub) for sub in self.splits(mask)]
        return found

    def _shifts(self, source: int, target: int) -> list[Move]:
        if not source & (source - 1):
            return []
        touching = source & self.near(target)
        return [Move("shift", source, 1 << i, target) for i in bits(touching)]

    def splits(self, mask: int) -> Masks:
        """What can be taken out of a group: its two last sides, its inner groups, its nodes."""
        known = self._splits.get(mask)
        if known is None:
            tree = self.tree[mask]
            bit_of = {name: 1 << i for i in bits(mask) for name in (self.names[i],)}
            taken = [
                sum(bit_of[name] for name in sub.nodes) for sub in subtrees(tree) if sub is not tree
            ]
            low = mask & -mask
            # Both halves of one split are subtrees at the root; keep one of each pair.
            unique = list(dict.fromkeys(t if t & low else t ^ mask for t in taken))
            unique = [t for t in unique if self._keeps(t) and self._keeps(mask ^ t)]
            if len(unique) > _MAX_SPLITS:
                spread = [i * (len(unique) - 1) // (_MAX_SPLITS - 1) for i in range(_MAX_SPLITS)]
                unique = [unique[i] for i in spread]
            known = self._splits[mask] = tuple(unique)
        return known

    def below(self, mask: int) -> int:
        """Nodes that must run after some node of the mask, by dependencies between nodes."""
        known = self._below_of.get(mask)
        if known is None:
            known = 0
            for i in bits(mask):
                known |= self._below[i]
            self._below_of[mask] = known
        return known

    def apart(self, mask: int) -> int:
        """Nodes that some node of the mask cannot be fused with for what lies between, outside."""
        known = self._apart_of.get(mask)
        if known is None:
            known = 0
            for i in bits(mask):
                known |= self._apart[i]
            self._apart_of[mask] = known
        return known

    def near(self, mask: int) -> int:
        """Nodes outside that touch some node of the mask."""
        known = self._near_of.get(mask)
        if known is None:
            known = 0
            for i in bits(mask):
                known |= self._near[i]
            known &= ~mask
            self._near_of[mask] = known
        return known

    def applied(self, masks: Masks, move: Move) -> Masks | None:
        """The plan after a move, in a valid order, or None where it closes a cycle.

        Asks for no verdict.
        """
        if move.kind == "merge":
            return self._merged(masks, move.first, move.second, self.gain(move))
        parted = self._parted(masks, move.first, move.second)
        if parted is None or move.kind == "split":
            return parted
        return self._merged(parted, move.second, move.third, self.gain(move))

    def _merged(self, masks: Masks, first: int, second: int, gain: float) -> Masks | None:
        i, j = masks.index(first), masks.index(second)
        if i > j:
            i, j, first, second = j, i, second, first
        # Only groups between the two can lie on a way from one to the other.
        reach = self.below(first)
        through = self.apart(first)
        before, after = [], []
        for mask in masks[i + 1 : j]:
            if mask & reach:
                below = self.below(mask)
                reach |= below
                through |= below
                after.append(mask)
            else:
                before.append(mask)
        if through & second:
            if first in self.tree and second in self.tree:
                self.ledger.note_cycle(self.tree[first], self.tree[second], -gain)
            return None
        return (*masks[:i], *before, first | second, *after, *masks[j + 1 :])

    def _parted(self, masks: Masks, whole: int, part: int) -> Masks | None:
        rest = whole ^ part
        part_first, rest_first = self.below(part) & rest, self.below(rest) & part
        if part_first and rest_first:
            return None
        at = masks.index(whole)
        pair = (rest, part) if rest_first else (part, rest)
        return (*masks[:at], *pair, *masks[at + 1 :])

    def build(self, move: Move) -> bool:
        """Whether the groups that a move makes can be built; finds their trees, asks verdicts."""
        # A merge that is not permitted is refused by the verdict, which is remembered.
        if move.kind != "merge" and not all(map(self._keeps, move.added())):
            return False
        if move.kind == "merge":
            return self._join(move.first, move.second, -self.gain(move))
        rest = move.first ^ move.second
        if not (self._restrict(move.first, move.second) and self._restrict(move.first, rest)):
            return False
        return move.kind == "split" or self._join(move.second, move.third, -self.gain(move))

    def _keeps(self, mask: int) -> bool:
        """Whether a group splits nothing that is bound, and is permitted."""
        known = self._permitted.get(mask)
        if known is None:
            whole = all(bound & mask in (0, bound) for bound in self._bound)
            known = whole and self._permits(mask_of(self.ids[i] for i in bits(mask)))
            self._permitted[mask] = known
        return known

    def _join(self, a: int, b: int, saved_us: float) -> bool:
        whole = a | b
        if whole in self.tree:
            return self._keeps(whole)
        # What is depended on comes first; else what comes earlier.
        if self.below(b) & a or (not self.below(a) & b and b & -b < a & -a):
            a, b = b, a
        if (a, b) in self._refused:
            return False
        first, second = self.tree[a], self.tree[b]
        verdict = self.ledger.verdict(first, second, saved_us)
        if verdict.legal:
            self.tree[whole] = Join(first, second, reorder=verdict.reorder)
        else:
            self._refused.add((a, b))
        return verdict.legal

    def _restrict(self, whole: int, mask: int) -> bool:
        """Find a tree for a subset of a group: the group's own tree with the others left out."""
        if mask in self.tree:
            return True
        if mask in self._unbuildable:
            return False
        bit_of = {name: 1 << i for i in bits(whole) for name in (self.names[i],)}
        left: dict[Tree, int] = {}
        for sub in subtrees(self.tree[whole]):
            if isinstance(sub, Join):
                a, b = left[sub.first], left[sub.second]
                if a and b and (a | b) not in self.tree:
                    first, second = self.tree[a], self.tree[b]
                    verdict = self.ledger.verdict(first, second)
                    if not verdict.legal:
                        self._unbuildable.add(mask)
                        return False
                    self.tree[a | b] = Join(first, second, reorder=verdict.reorder)
                left[sub] = a | b
            else:
                left[sub] = bit_of[sub.nodes[0]] & mask
        return True
