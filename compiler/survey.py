"""Surveying one graph under one set of choices: lowering it, and searching plans for it.

Predicts only. What comes out is candidates with predicted times; nothing is compiled or timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fusewise.compiler.inductor.choices import ONEDNN, WIDE, config_patches, stage_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.hooks import listening
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.onednn_products import onednn_count
from fusewise.compiler.inductor.refusals import Refusal, classify
from fusewise.compiler.inductor.templates import suited_products
from fusewise.compiler.inductor.thresholds import ORDERING_SETTING, TILING_SETTINGS, Figures
from fusewise.compiler.inductor.wide_products import half_products
from fusewise.compiler.reports import RulesReport
from fusewise.compiler.ruled import Lowered, check_apart, report_rules
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import Kernel, kernels_of
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Choice
from fusewise.search.beam import Budget, beam_search
from fusewise.search.finishing import Finishes
from fusewise.search.repair import Keeping, repaired
from fusewise.search.result import SearchResult, unsearched
from fusewise.search.rules import Rulings

#: Plans of each lowering that go on to the shortlist.
_PLANS_KEPT = 8


@dataclass(frozen=True)
class Predictor:
    """The cost model on a device, with what is known of extern kernels there."""

    model: CostModel
    profile: DeviceProfile
    #: Microseconds of extern kernels by node signature.
    extern_us: Mapping[str, float]
    #: Part of a kernel's time that other block sizes are expected to save, by signature, as far as
    #: that is known.
    savings: Mapping[str, float] = field(default_factory=dict)
    #: Whether kernels are tuned where they run, also those of which little is expected. It takes a
    #: pool that compiles what is tried.
    tunes: bool = False
    #: Costs by problem (its ``id``), for as long as they are to be remembered; None for not at all.
    costs: dict[int, PlanCost] | None = field(default=None, repr=False, compare=False)

    def plans(self, problem: Problem) -> PlanCost:
        """Costs of the plans of one problem."""
        known = {} if self.costs is None else self.costs
        found = known.get(id(problem))
        if found is None or found.model is not self.model:
            found = PlanCost(problem, self.profile, self.model, self.extern_us)
            known[id(problem)] = found
        return found

    def finishes(self, plan: Plan, problem: Problem) -> Finishes:
        """What is worth trying on a plan that its costs say nothing of."""
        return Finishes(plan, self.plans(problem), self.savings)


@dataclass(frozen=True)
class Grounds:
    """What Inductor went by while it lowered a graph and was asked for fusions."""

    figures: Figures
    #: Whether a fusion was refused since the two sides are tiled differently.
    tiling_refused: bool
    #: Whether one was allowed that needed other loops.
    reordered: bool
    #: Choices about products that would change some of them.
    products: frozenset[str] = frozenset()

    def matter(self, choices: Sequence[Choice]) -> bool:
        """Whether anything might have come out otherwise under ``choices``."""
        if any(choice.of_part or choice.name in self.products for choice in choices):
            return True
        patches = config_patches(choices)
        tiling = [name for name in patches if name in TILING_SETTINGS]
        for name in tiling:
            del patches[name]
        if (tiling and self.tiling_refused) or (self.reordered and ORDERING_SETTING in patches):
            return True
        patches.pop(ORDERING_SETTING, None)
        return self.figures.matter(patches)


@dataclass(frozen=True)
class Survey:
    """One graph under one set of choices."""

    choices: tuple[Choice, ...]
    problem: Problem
    default_plan: Plan
    result: SearchResult
    #: Best predicted first; Inductor's own plan under these choices among them.
    candidates: tuple[Candidate, ...]
    #: What was stored and what inlined, in the order of the lowered graph.
    decisions: tuple[InliningDecision, ...]
    #: Nodes of products whose matrices lie as templates want them.
    suited: frozenset[str] = frozenset()
    #: What came of the user's rules; None where there are none.
    rules: RulesReport | None = None
    #: What the lowering and the fusions went by, as far as it was noted.
    grounds: Grounds | None = None

    @property
    def best_us(self) -> float:
        """Predicted time of the best plan, in microseconds."""
        return min(c.predicted_us for c in self.candidates if c.predicted_us is not None)

    def kernels(self, candidate: Candidate, predictor: Predictor) -> Counter[Kernel]:
        """The kernels of one of the candidates, with how often each occurs."""
        plan = candidate.schedule.plan
        assert plan is not None
        return kernels_of(self.problem, predictor.plans(self.problem).breakdown(plan))


class _Costs:
    """Group times for the search."""

    def __init__(self, cost: PlanCost) -> None:
        self._cost = cost

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        return self._cost.score(groups).us


def survey(
    graph: GraphCompile,
    predictor: Predictor,
    *,
    key: str,
    kind: str,
    choices: tuple[Choice, ...] = (),
    budget: Budget | None = None,
    lowered: Lowered | None = None,
    plans: bool = True,
) -> Survey:
    """Lower ``graph`` under ``choices``, extract the problem, and search its plans.

    Args:
        graph: the graph.
        predictor: times of kernels.
        key: of the problem.
        kind: of the graph.
        choices: other than Inductor's own.
        budget: of the search.
        lowered: the user's rules with what they want of the lowering. The default then is
            Inductor's plan as they want it.
        plans: whether to search for other plans at all.

    Raises:
        PlanError: what rules want of the lowering cannot be under these choices.
    """
    forced = () if lowered is None else lowered.choices
    found: list[Survey] = []
    refused: list[bool] = []

    def hear(_first: str, _second: str, reason: str) -> None:
        if not refused and classify(reason) is Refusal.TILING:
            refused.append(True)

    def visit(live: LiveGraph) -> None:
        legality = InductorLegality(live)
        problem = extract_problem(
            live.scheduler,
            live.nodes,
            key=key,
            kind=kind,  # type: ignore[arg-type]
            possible_fusions=legality.possible_fusions(),
        )
        cost = predictor.plans(problem)
        default, keeping, told = live.default_plan, None, None
        if lowered is not None:
            check_apart(lowered, problem)
            rulings = Rulings(problem, lowered.rules, lowered.matched)
            fixed = repaired(problem, default, legality, rulings)
            default, keeping = fixed.plan, Keeping(rulings, fixed.bound)
            told = report_rules(lowered, rulings, fixed.unmet)
        if plans:
            result = beam_search(problem, default, legality, _Costs(cost), budget, keeping)
        else:
            result = unsearched(default, cost.plan(default).us)
        # Inductor as it is puts kernels together after fusion, where no plan sees to the rules.
        ruled = bool(forced) or (keeping is not None and not keeping.rulings.idle)
        origin = "choices" if choices else "rules" if ruled else "default"
        candidates = _candidates((*forced, *choices), cost, result, origin)
        grounds = None
        if live.figures is not None:
            wide = Choice(WIDE, True) in choices
            counted = {WIDE: half_products(graph.gm), ONEDNN: onednn_count(graph.gm, wide=wide)}
            products = frozenset(name for name, count in counted.items() if count)
            grounds = Grounds(live.figures, bool(refused), legality.reordered, products)
        found.append(
            Survey(
                choices,
                problem,
                default,
                result,
                candidates,
                live.decisions,
                suited_products(live.nodes),
                told,
                grounds,
            )
        )

    with listening(hear):
        graph.survey((*forced, *choices), visit)
    return found[0]


def search_plans(
    live: LiveGraph, problem: Problem, cost: PlanCost, budget: Budget
) -> tuple[Candidate, ...]:
    """Search the plans of a graph that is held as Inductor lowers it by itself.

    Args:
        live: the graph.
        problem: that was extracted of it; possible fusions need not be in it.
        cost: of its plans.
        budget: of the search.

    Returns:
        The best plans, the best predicted first, Inductor's own among them.
    """
    legality = InductorLegality(live)
    asked = msgspec.structs.replace(problem, possible_fusions=legality.possible_fusions())
    result = beam_search(asked, live.default_plan, legality, _Costs(cost), budget)
    return _candidates((), cost, result, "default")


def _candidates(
    choices: tuple[Choice, ...], cost: PlanCost, result: SearchResult, origin: str
) -> tuple[Candidate, ...]:
    """The best plans as candidates; ``origin`` is that of the plan that the search began with."""
    lowering = tuple(c for c in choices if stage_of(c) == "lowering")
    codegen = tuple(c for c in choices if stage_of(c) == "codegen")
    plans = list(result.plans[:_PLANS_KEPT])
    if result.default not in plans:
        plans.append(result.default)
    candidates = []
    for scored in plans:
        candidate = scored.candidate(lowering, codegen)
        interval = cost.plan(scored.plan)
        if candidate.origin == "default":
            # Only Inductor's plan under its own choices is the default that others are held to.
            candidate = msgspec.structs.replace(candidate, origin=origin)
        candidates.append(
            msgspec.structs.replace(
                candidate,
                predicted_us=interval.us,
                predicted_low_us=interval.low_us,
                predicted_high_us=interval.high_us,
            )
        )
    return tuple(candidates)


def default_candidate(surveys: Sequence[Survey]) -> Candidate:
    """Inductor's own schedule: its own plan under its own choices, or that as rules want it."""
    return next(c for c in surveys[0].candidates if c.baseline)
