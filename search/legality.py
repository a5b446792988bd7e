"""What the search asks of the compiler and of the cost model, as protocols.

Holds no implementation: the live compiler's answers are given in from outside, and so are costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fusewise.costmodel.interface import FloatArray
from fusewise.search.tree import Tree


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two groups may be fused, and why not."""

    legal: bool
    #: Short code of the ground of a refusal, such as ``numel``; "" where legal.
    reason: str = ""
    #: The ground in words, with the values that clash.
    detail: str = ""
    #: Whether the loops of one side have to be reordered for it.
    reorder: bool = False


class Legality(Protocol):
    """The compiler's own rules on which groups may be fused."""

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        """Whether ``first`` and ``second``, in this order, may be fused.

        Has to be a function of the two trees alone, whatever the other groups are. Cycles are the
        search's own matter. A fresh answer costs 50 to 500 µs, so the search asks only for what it
        would take, and never twice for one pair.
        """
        ...


class GroupCost(Protocol):
    """Time of groups."""

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        """Predicted time of each group in microseconds, finite and in the order given.

        The search calls it once a step with all groups that are new in that step.
        """
        ...
