"""Beam search over complete plans of one problem.

The graph is cut into parts of a few dozen nodes, so that work grows with the number of nodes and
not with its square. All parts go step by step together and all new groups of a step are scored in
one call. A second round, with the cuts moved, starts from the best plan of the first. Nothing
depends on the clock unless a budget in seconds is given.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fusewise.schedule.plan import Plan, check_plan
from fusewise.schedule.problem import Problem
from fusewise.search.assembly import Stepwise, Whole
from fusewise.search.ledger import Ledger
from fusewise.search.legality import GroupCost, Legality
from fusewise.search.orders import reordered
from fusewise.search.part import Part
from fusewise.search.part_beam import Limits, PartBeam, State
from fusewise.search.plans import Plans
from fusewise.search.region import (
    Terrain,
    arrange,
    cut,
    descendants,
    is_fixed,
    neighbours,
    regions,
    runs,
)
from fusewise.search.repair import Closing, Keeping
from fusewise.search.result import SearchResult
from fusewise.search.rules import RuledLegality
from fusewise.search.tree import Tree, trees_of

#: Complete plans built for each node where no limit is given.
STATES_PER_NODE: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may spend. Without ``seconds`` its result does not depend on the clock."""

    #: Wall-clock limit; what is under way is finished first, a few hundredths of a second.
    seconds: float | None = None
    #: Complete plans of parts built; None for twelve a node.
    states: int | None = None
    #: Plans kept from step to step.
    width: int = 6
    #: Plans given back.
    keep: int = 16
    #: Nodes that are searched together. A larger part is searched more fully and takes longer.
    part_nodes: int = 32


def beam_search(
    problem: Problem,
    default: Plan,
    legality: Legality,
    cost: GroupCost,
    budget: Budget | None = None,
    keeping: Keeping | None = None,
) -> SearchResult:
    """Search for plans of ``problem`` that take less time than ``default``.

    Args:
        problem: the graph.
        default: the compiler's own plan with its steps. Groups that hold a node of a kind in
            ``FIXED_KINDS`` stay as it has them, and its ``align`` steps stay in plans that are
            derived from it.
        legality: the compiler's rules, asked once for a pair of trees.
        cost: time of groups in microseconds. Never asked for groups of nodes that run nothing.
        budget: limits; those of :class:`Budget` if None.
        keeping: rules that every plan given back keeps; ``default`` has to keep them.

    Raises:
        PlanError: ``default`` is no complete acyclic plan of ``problem``.
        ModelError: the cost of a group is missing or not finite.
    """
    budget = budget or Budget()
    check_plan(problem, default)
    if keeping is not None:
        legality = RuledLegality(legality, keeping.rulings)
    return _Search(problem, default, Ledger(legality, cost), budget, keeping).run()


class _Search:
    """One run of the search: its rounds, and the gathering of whole plans from their parts."""

    def __init__(
        self,
        problem: Problem,
        default: Plan,
        ledger: Ledger,
        budget: Budget,
        keeping: Keeping | None,
    ) -> None:
        self._began = time.monotonic()
        self._keeping = keeping
        self._problem = problem
        self._default = default
        self._ledger = ledger
        self._budget = budget
        self._stepwise = Stepwise(problem, default)
        self._states = 0
        self._exhausted = False

    def run(self) -> SearchResult:
        problem, budget, ledger = self._problem, self._budget, self._ledger
        trees = arrange(problem, trees_of(problem, self._default)) or []
        ledger.score(tree.members for tree in trees if runs(problem, tree))
        free = [tree for tree in trees if not is_fixed(problem, tree)]
        near = neighbours(problem, sum(tree.mask for tree in free))
        terrain = Terrain(problem, near, descendants(problem))
        closing = None
        if self._keeping is not None:
            bound, permits = self._keeping.bound, self._keeping.rulings.permits
            terrain = replace(terrain, bound=bound, permits=permits)
            closing = Closing(problem, ledger, self._keeping.rulings)
        index = problem.index
        tied = [(1 << index[s.first], 1 << index[s.second]) for s in self._stepwise.aligns]
        areas = regions(free, near, tied)
        cuts = [cut(area, budget.part_nodes) for area in areas]
        large = any(len(runs_of) > 1 for runs_of in cuts)
        total = budget.states or STATES_PER_NODE * len(problem.nodes)

        beams = [self._beams(runs_of, terrain, construct=True) for runs_of in cuts]
        flat = [beam for some in beams for beam in some]
        self._advance(flat, total * 2 // 3 if large else total)
        whole = Whole(problem, trees, flat, [beam.start for beam in flat])
        best = whole.best()
        plans = Plans(problem, self._stepwise, ledger, self._default, closing)
        for origin, states in whole.deviations(max(1, budget.keep // 4)):
            plans.add(whole, states, origin)
        if large and not self._late():
            whole = self._second_round(whole, best, beams, terrain, total // 3)
            best = whole.best()
        plans.add_best(whole, best, budget.keep)
        if not self._late():
            some = max(1, budget.keep // 4)
            for variant in reordered(problem, ledger, whole.trees(best), some):
                plans.add_trees(variant, whole.foreign(best), "order")
            for variant in reordered(problem, ledger, trees, some):
                plans.add_trees(variant, frozenset(), "order")
        return plans.result(
            budget.keep,
            states=self._states,
            exhausted=self._exhausted,
            seconds=time.monotonic() - self._began,
        )

    def _second_round(
        self,
        whole: Whole,
        best: Sequence[State],
        beams: Sequence[Sequence[PartBeam]],
        terrain: Terrain,
        states: int,
    ) -> Whole:
        """Search anew, from the best plan and with other cuts, what was cut in the first round."""
        kept = [some[0] for some in beams if len(some) == 1]
        again = []
        for some in beams:
            if len(some) > 1:
                names = {name for beam in some for name in beam.part.names}
                moved = [t for t in whole.arranged(best) or [] if t.nodes[0] in names]
                size = self._budget.part_nodes
                again += self._beams(cut(moved, size, shifted=True), terrain, construct=False)
        self._advance(again, states)
        chosen = dict(zip(map(id, whole.parts), best, strict=True))
        start = [*(chosen[id(beam)] for beam in kept), *(beam.start for beam in again)]
        return whole.with_parts([*kept, *again], start, whole.foreign(best))

    def _beams(
        self, runs_of: Sequence[Sequence[Tree]], terrain: Terrain, *, construct: bool
    ) -> list[PartBeam]:
        return [
            PartBeam(Part(terrain, run, self._ledger), construct=construct)
            for run in runs_of
            if sum(len(tree) for tree in run) > 1
        ]

    def _advance(self, beams: Sequence[PartBeam], states: int) -> None:
        """Take all beams forward together until each is done or the budget is spent."""
        nodes = sum(len(beam.part.names) for beam in beams) or 1
        going: list[tuple[PartBeam, Generator[list[int], None, None]]] = []
        for beam in beams:
            share = max(2, states * len(beam.part.names) // nodes)
            going.append((beam, beam.steps(Limits(self._budget.width, share))))
        opening = True
        while going:
            asked: list[tuple[PartBeam, Generator[list[int], None, None], list[int]]] = []
            for beam, steps in going:
                # The first step only scores the plan to start from: without it there is no result.
                if not opening and self._late():
                    break
                fresh = next(steps, None)
                if fresh is not None:
                    asked.append((beam, steps, fresh))
            opening = False
            self._ledger.score(beam.part.group(mask) for beam, _, fresh in asked for mask in fresh)
            for beam, _, fresh in asked:
                beam.part.learn(fresh)
            if self._late():
                self._exhausted = self._exhausted or bool(asked)
                break
            going = [(beam, steps) for beam, steps, _ in asked]
        for beam in beams:
            self._states += len(beam.found)
            self._exhausted = self._exhausted or beam.exhausted

    def _late(self) -> bool:
        seconds = self._budget.seconds
        return seconds is not None and time.monotonic() - self._began > seconds
