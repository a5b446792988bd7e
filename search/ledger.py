"""The ledger of one search: every verdict and every cost once, with the counts.

Decides nothing; it only sees to it that nothing is asked twice and that all that was asked can be
told afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fusewise.schedule.errors import ModelError
from fusewise.search.legality import GroupCost, Legality, Verdict
from fusewise.search.tree import Tree

#: Reason code of a merge that would have to run both before and after another group.
CYCLE = "cycle"


@dataclass(frozen=True, slots=True)
class Considered:
    """A merge that the search looked at."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    verdict: Verdict
    #: Predicted time of the two apart less that of both together, in microseconds; None where the
    #: merge was asked for another reason than its time.
    saved_us: float | None


class Ledger:
    """Memo of verdicts and costs, in the order in which they were asked."""

    def __init__(self, legality: Legality, cost: GroupCost) -> None:
        self._legality = legality
        self._cost = cost
        self._verdicts: dict[tuple[Tree, Tree], Verdict] = {}
        self._saved: dict[tuple[Tree, Tree], float | None] = {}
        self._cycles: dict[tuple[Tree, Tree], float] = {}
        self._us: dict[frozenset[str], float] = {}

    @property
    def verdicts(self) -> int:
        """Fresh verdicts asked so far."""
        return len(self._verdicts)

    @property
    def scored(self) -> int:
        """Groups scored so far."""
        return len(self._us)

    def verdict(self, first: Tree, second: Tree, saved_us: float | None = None) -> Verdict:
        """The compiler's verdict, asked at most once."""
        pair = (first, second)
        known = self._verdicts.get(pair)
        if known is None:
            known = self._verdicts[pair] = self._legality.verdict(first, second)
            self._saved[pair] = saved_us
        return known

    def note_cycle(self, first: Tree, second: Tree, saved_us: float) -> None:
        """Remember a merge that was refused because it closes a cycle in some plan."""
        self._cycles.setdefault((first, second), saved_us)

    def us(self, group: frozenset[str]) -> float:
        """Cost of a group that was scored before, in microseconds."""
        return self._us[group]

    def known(self, group: frozenset[str]) -> bool:
        """Whether the group was scored."""
        return group in self._us

    def score(self, groups: Iterable[frozenset[str]]) -> None:
        """Score those of ``groups`` that are new, in one call.

        Raises:
            ModelError: the cost of a group is missing or not finite.
        """
        fresh = [group for group in dict.fromkeys(groups) if group not in self._us]
        if not fresh:
            return
        costs = self._cost.score(fresh).tolist()
        for group, us in zip(fresh, costs, strict=False):
            if not math.isfinite(us):
                raise ModelError(
                    f"predicted time {us} for the group {sorted(group)}",
                    subject="cost model",
                    remedy="use another cost model, such as the roofline",
                )
            self._us[group] = us
        if len(costs) != len(fresh):
            raise ModelError(
                f"{len(costs)} predictions for {len(fresh)} groups",
                subject="cost model",
                remedy="return one time for each group",
            )

    def refused(self) -> tuple[tuple[str, int], ...]:
        """How many merges were refused on each ground, by the name of the ground."""
        counts: dict[str, int] = {}
        for verdict in self._verdicts.values():
            if not verdict.legal:
                counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
        if self._cycles:
            counts[CYCLE] = counts.get(CYCLE, 0) + len(self._cycles)
        return tuple(sorted(counts.items()))

    def considered(self) -> tuple[Considered, ...]:
        """Every merge that was looked at, in order; those that close a cycle last."""
        asked = [
            Considered(first.nodes, second.nodes, verdict, self._saved[first, second])
            for (first, second), verdict in self._verdicts.items()
        ]
        cyclic = Verdict(
            legal=False, reason=CYCLE, detail="would have to run before and after another group"
        )
        return (
            *asked,
            *(
                Considered(first.nodes, second.nodes, cyclic, saved)
                for (first, second), saved in self._cycles.items()
            ),
        )
