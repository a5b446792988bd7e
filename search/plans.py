"""The plans that one search gives back: gathered, freed of doubles, ranked.

Scores nothing: every group it is given was scored before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.search.assembly import Stepwise, Whole
from fusewise.search.ledger import Ledger
from fusewise.search.part_beam import State
from fusewise.search.repair import Closing
from fusewise.search.result import ScoredPlan, SearchResult
from fusewise.search.tree import Tree, trees_of


class Plans:
    """Gathers complete plans. The default is in it from the start."""

    def __init__(
        self,
        problem: Problem,
        stepwise: Stepwise,
        ledger: Ledger,
        default: Plan,
        closing: Closing | None = None,
    ) -> None:
        self._problem = problem
        self._closing = closing
        self._stepwise = stepwise
        self._ledger = ledger
        self._idle = {node.name for node in problem.nodes if node.kind == "nop"}
        self._default = ScoredPlan(default, self._us(trees_of(problem, default)), "default")
        self._found: dict[Plan, ScoredPlan] = {default: self._default}

    def add(self, whole: Whole, states: Sequence[State], origin: str) -> bool:
        """Take in a combination, unless it closes a cycle or is known; whether it was taken."""
        trees = whole.arranged(states)
        return trees is not None and self.add_trees(trees, whole.foreign(states), origin)

    def add_best(self, whole: Whole, best: Sequence[State], keep: int) -> None:
        """Take in ``best``, plans far from it, and then the next best, ``keep`` in all."""
        taken = int(self.add(whole, best, _origin(best)))
        # The next best combinations differ from the best in one place. A model that errs does so
        # in many places at once, so some of what is kept has the runner-up in every place.
        runners = [part.ranked(3) for part in whole.parts]
        for rank in (1, 2):
            states = [ranked[min(rank, len(ranked) - 1)] for ranked in runners]
            taken += self.add(whole, states, _origin(states))
        for tried, states in enumerate(whole.near_best(best, keep)):
            if taken >= keep or tried > 2 * keep:
                return
            taken += self.add(whole, states, _origin(states))

    def add_trees(self, trees: Sequence[Tree], foreign: frozenset[str], origin: str) -> bool:
        """Take in the groups of a whole graph, known to close no cycle; whether it was new."""
        if self._closing is not None:
            trees = self._closing.closed(trees)
            self._ledger.score(t.members for t in trees if not self._idle.issuperset(t.nodes))
        plan = self._stepwise.plan(trees, foreign)
        if plan in self._found:
            return False
        self._found[plan] = ScoredPlan(plan, self._us(trees), origin)
        return True

    def result(self, keep: int, *, states: int, exhausted: bool, seconds: float) -> SearchResult:
        """The ``keep`` best, with room for plans of other origins than the beam, and counts."""
        ranked = sorted(self._found.values(), key=lambda plan: (plan.predicted_us, plan.plan.id))
        room = max(1, keep // 4)
        chosen = {self._default.plan, *(plan.plan for plan in ranked[:1])}
        for origins in ({"neighbour", "part"}, {"order"}):
            chosen.update([plan.plan for plan in ranked if plan.origin in origins][:room])
        for plan in ranked:
            if len(chosen) < keep:
                chosen.add(plan.plan)
        return SearchResult(
            plans=tuple(plan for plan in ranked if plan.plan in chosen),
            default=self._default,
            states=states,
            groups_scored=self._ledger.scored,
            verdicts=self._ledger.verdicts,
            refused=self._ledger.refused(),
            exhausted=exhausted,
            seconds=seconds,
            considered=self._ledger.considered(),
        )

    def _us(self, trees: Sequence[Tree]) -> float:
        return math.fsum(
            self._ledger.us(tree.members) for tree in trees if not self._idle.issuperset(tree.nodes)
        )


def _origin(states: Sequence[State]) -> str:
    """What a combination mostly is."""
    origins = {state.origin for state in states}
    for origin in ("constructive", "beam", "neighbour", "unfused"):
        if origin in origins:
            return origin
    return "default"
