"""Trees: how a group is put together, join by join.

A tree is a value: immutable, hashable, with its hash computed once. It never judges whether it is
legal; :mod:`fusewise.search.legality` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fusewise.schedule.plan import Plan, Step
from fusewise.schedule.problem import Problem


class Tree:
    """A group under construction: a :class:`Leaf` or a :class:`Join`.

    Attributes:
        nodes: names in fused order.
        mask: bitset of the nodes, bit i being the problem's node i.
        steps: the fusions that build it, children before parents.
    """

    __slots__ = ("_hash", "mask", "nodes", "steps")
    leaf: ClassVar[bool]

    nodes: tuple[str, ...]
    mask: int
    steps: tuple[Step, ...]
    _hash: int

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Tree)
            and self._hash == other._hash
            and self.nodes == other.nodes
            and self.steps == other.steps
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"Tree({'+'.join(self.nodes)})"

    @property
    def members(self) -> frozenset[str]:
        """Names, without their order."""
        return frozenset(self.nodes)


class Leaf(Tree):
    """A node alone."""

    __slots__ = ()
    leaf = True

    def __init__(self, name: str, index: int) -> None:
        self.nodes = (name,)
        self.mask = 1 << index
        self.steps = ()
        self._hash = hash(name)


class Join(Tree):
    """Two groups made one, ``first`` before ``second``.

    ``reorder`` says whether the loops of one side are reordered for it. ``step`` is the fusion
    itself; those before it in ``steps`` build the two sides.
    """

    __slots__ = ("first", "reorder", "second")
    leaf = False

    def __init__(self, first: Tree, second: Tree, *, reorder: bool = False) -> None:
        self.first = first
        self.second = second
        self.reorder = reorder
        self.nodes = first.nodes + second.nodes
        self.mask = first.mask | second.mask
        step = Step("fuse", first.nodes[0], second.nodes[0], reorder)
        self.steps = (*first.steps, *second.steps, step)
        self._hash = hash((first, second, reorder))

    @property
    def step(self) -> Step:
        """The fusion that makes one group of the two sides."""
        return self.steps[-1]


def subtrees(tree: Tree) -> Iterator[Tree]:
    """Every subtree, the tree itself last, children before parents, first side before second."""
    # Two stacks instead of recursion: a left-deep tree is as deep as its group is large.
    pending, found = [tree], []
    while pending:
        top = pending.pop()
        found.append(top)
        if isinstance(top, Join):
            pending += (top.first, top.second)
    return reversed(found)


def trees_of(problem: Problem, plan: Plan) -> tuple[Tree, ...]:
    """The tree of each group of ``plan``, in the order of its groups."""
    grown: dict[str, Tree] = {node.name: Leaf(node.name, i) for i, node in enumerate(problem.nodes)}
    for step in plan.steps:
        if step.kind == "fuse":
            join = Join(grown[step.first], grown[step.second], reorder=step.reorder)
            for name in join.nodes:
                grown[name] = join
    return tuple(grown[group[0]] for group in plan.groups)
