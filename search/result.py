"""What a search gives back. Only data."""

from __future__ import annotations

from dataclasses import dataclass

from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.ledger import Considered


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """A complete plan with its predicted time."""

    plan: Plan
    #: Sum over the groups, in microseconds for one run; nodes that run nothing are left out.
    predicted_us: float
    #: ``default``; ``neighbour``, one move from it; ``part``, it but for one part of the graph;
    #: ``beam``, further from it; ``unfused``; ``constructive``, come of that; or ``order``, the
    #: groups of another plan put together in another order.
    origin: str

    def candidate(
        self, lowering: tuple[Choice, ...] = (), codegen: tuple[Choice, ...] = ()
    ) -> Candidate:
        """The plan as a candidate under the given choices."""
        return Candidate(
            schedule=Schedule(lowering=lowering, plan=self.plan, codegen=codegen),
            origin=self.origin,
            groups=len(self.plan.groups),
            predicted_us=self.predicted_us,
        )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best plans of one problem and what it took to find them."""

    #: Distinct complete plans, best predicted first, ties by plan id. The default is among them.
    plans: tuple[ScoredPlan, ...]
    default: ScoredPlan
    #: Complete plans built, over all parts.
    states: int
    #: Distinct groups scored.
    groups_scored: int
    #: Fresh verdicts asked.
    verdicts: int
    #: Merges refused, by the ground; ``cycle`` for those that close one.
    refused: tuple[tuple[str, int], ...]
    #: Whether the budget ended the search before it had nothing more to try.
    exhausted: bool
    #: Seconds that the search took.
    seconds: float
    considered: tuple[Considered, ...]

    @property
    def best(self) -> ScoredPlan:
        """The plan with the least predicted time."""
        return self.plans[0]


def unsearched(default: Plan, predicted_us: float) -> SearchResult:
    """The result where nothing is searched for: the compiler's own plan."""
    own = ScoredPlan(default, predicted_us, "default")
    return SearchResult((own,), own, 0, 0, 0, (), exhausted=False, seconds=0.0, considered=())
