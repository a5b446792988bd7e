"""Surveying one graph: lowering it under each lowering choice and searching plans for each.

Predicts only. What comes out is candidates with predicted times; nothing is compiled or timed.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fusewise.compiler.alternatives import Alternative, alternatives, few, try_alternatives
from fusewise.compiler.inductor.choices import WIDE, config_patches, schedule_of, stage_of, variants
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.hooks import listening
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.refusals import Refusal, classify
from fusewise.compiler.inductor.thresholds import ORDERING_SETTING, TILING_SETTINGS, Figures
from fusewise.compiler.inductor.wide_products import half_products
from fusewise.compiler.reports import RulesReport
from fusewise.compiler.ruled import Lowered, check_apart, report_rules
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import Gains, Kernel, kernels_of, kinds_of
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.errors import PlanError, first_line
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Choice
from fusewise.search.beam import Budget, beam_search
from fusewise.search.repair import Keeping, repaired
from fusewise.search.result import SearchResult, unsearched
from fusewise.search.rules import Rulings

log = logging.getLogger(__name__)

#: Plans of each lowering that go on to the shortlist.
_PLANS_KEPT = 8
#: Share of the time after which no further choice about the whole graph is looked at, where there
#: are single nodes to decide on.
_VARIANTS_SHARE = 0.6


@dataclass(frozen=True)
class Predictor:
    """The cost model on a device, with what is known of extern kernels there."""

    model: CostModel
    profile: DeviceProfile
    #: Microseconds of extern kernels by node signature.
    extern_us: Mapping[str, float]

    def plans(self, problem: Problem) -> PlanCost:
        """Costs of the plans of one problem."""
        return PlanCost(problem, self.profile, self.model, self.extern_us)


@dataclass(frozen=True)
class Grounds:
    """What Inductor went by while it lowered a graph and was asked for fusions."""

    figures: Figures
    #: Whether a fusion was refused since the two sides are tiled differently.
    tiling_refused: bool
    #: Whether one was allowed that needed other loops.
    reordered: bool
    #: Whether it multiplies 16-bit values that it might multiply in fp32.
    halves: bool = False

    def matter(self, choices: Sequence[Choice]) -> bool:
        """Whether anything might have come out otherwise under ``choices`` about the graph."""
        if self.halves and any(choice.name == WIDE for choice in choices):
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
            halves = bool(half_products(graph.gm))
            grounds = Grounds(live.figures, bool(refused), legality.reordered, halves)
        found.append(
            Survey(choices, problem, default, result, candidates, live.decisions, told, grounds)
        )

    with listening(hear):
        graph.survey((*forced, *choices), visit)
    return found[0]


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


def survey_all(
    graph: GraphCompile,
    predictor: Predictor,
    *,
    key: str,
    kind: str,
    budget_s: float | None,
    lowered: Lowered | None = None,
    told: Callable[[str], None] = log.debug,
    most: int | None = None,
    gains: Gains | None = None,
) -> list[Survey]:
    """Survey a graph under Inductor's own choices, then under others that change it.

    First each choice about the whole graph, then single values that might better be stored or
    inlined, by themselves and together.

    Args:
        budget_s: seconds after which no further choice is looked at, and for the search of each;
            None for no limit but the search's own, so that the result never depends on the clock.
        lowered: the user's rules with what they want of the lowering.
        told: is told of choices that the graph cannot be lowered under, and why.
        most: of others to look at, the most promising, and once at what of them gains put together;
            None for all.
        gains: what may be taken of what is found; the rest is not looked at. None where all may.
    """
    plans = gains is None or gains.may(["plan"])
    looks = _Looks(graph, predictor, key, kind, budget_s, lowered, told, plans=plans)
    first = looks.first()
    offered: Sequence[Alternative] = alternatives(first, predictor.profile)
    whole = [
        choices
        for choices in variants(predictor.profile.kind)
        if _matter(first, choices) and _may_pay(choices, predictor.profile)
    ]
    if gains is not None:
        whole = [choices for choices in whole if _may_be_taken(choices, gains)]
        offered = [one for one in offered if _may_be_taken(one.choices, gains)]
    if most is not None:
        whole, offered = few(whole, offered, most)
    looks.ahead([*whole, *(alternative.choices for alternative in offered)])
    looks.share = _VARIANTS_SHARE if offered else 1.0
    others: list[Survey] = []
    for choices in whole:
        alike = [s for s in others if _names(s.choices) == _names(choices)]
        if all(_matter(s, choices) for s in alike):
            found = looks(choices)
            others += [] if found is None else [found]
    looks.share = 1.0
    together = None if most is None else 1
    return [first, *others, *try_alternatives(first, offered, looks, together)]


def _may_be_taken(choices: Sequence[Choice], gains: Gains) -> bool:
    """Whether a prediction is ever enough for ``choices``."""
    schedule = schedule_of(choices, None)
    return gains.may(kinds_of(schedule.lowering, schedule.codegen, own_plan=True))


def _matter(surveyed: Survey, choices: Sequence[Choice]) -> bool:
    """Whether a graph might come out otherwise under ``choices``, all others being the same."""
    return surveyed.grounds is None or surveyed.grounds.matter(choices)


def _may_pay(choices: Sequence[Choice], profile: DeviceProfile) -> bool:
    """Whether a choice about the whole graph can be worth anything on the device at all."""
    return not profile.multiplies_half_fast or all(choice.name != WIDE for choice in choices)


def _names(choices: Sequence[Choice]) -> set[str]:
    return {choice.name for choice in choices}


class _Looks:
    """Surveys of one graph under one set of choices after the other, while there is time."""

    def __init__(
        self,
        graph: GraphCompile,
        predictor: Predictor,
        key: str,
        kind: str,
        budget_s: float | None,
        lowered: Lowered | None,
        told: Callable[[str], None],
        *,
        plans: bool,
    ) -> None:
        self._graph = graph
        self._plans = plans
        self._told = told
        self._predictor = predictor
        self._key = key
        self._kind = kind
        self._budget_s = budget_s
        self._lowered = lowered
        self._start = time.monotonic()
        self._seen: set[tuple[tuple[str, ...], Plan]] = set()
        #: Of the time, how much may be gone when another look begins.
        self.share = 1.0
        #: What was looked at aside, before it is asked for.
        self._found: dict[tuple[Choice, ...], Survey | Exception] = {}

    def first(self) -> Survey:
        """The graph under Inductor's own choices."""
        found = self._survey((), 2)
        self._seen.add(_shape(found))
        return found

    def ahead(self, asked: Sequence[tuple[Choice, ...]]) -> None:
        """Look at all of ``asked`` at a time, where this process can be copied for that.

        What comes of a look does not depend on where it was taken.
        """
        left = None if self._budget_s is None else self._budget_s - self._spent()
        if left is not None and left <= 0:
            return
        jobs = [functools.partial(self._survey, choices, 4) for choices in asked]
        for choices, found in zip(asked, self._graph.aside(jobs, left), strict=True):
            if found is not None:
                self._found[choices] = found

    def _taken(self, choices: tuple[Choice, ...]) -> Survey:
        found = self._found.pop(choices, None)
        if found is None:
            return self._survey(choices, 4)
        if isinstance(found, Exception):
            raise found
        return found

    def __call__(self, choices: tuple[Choice, ...]) -> Survey | None:
        """The graph under other choices; None where time is up, or they are impossible or idle."""
        if self._budget_s is not None and self._spent() > self.share * self._budget_s:
            return None
        try:
            other = self._taken(choices)
        except (PlanError, RuntimeError) as error:
            # What rules or choices store or inline cannot be under these, or Inductor fails at
            # what it does not meet by itself: these are out, the others are not.
            asked = ", ".join(f"{choice.name}={choice.value}" for choice in choices)
            log.info("not lowered under %s", asked, exc_info=True)
            self._told(f"{asked}: {first_line(error)}")
            return None
        codegen = any(stage_of(choice) == "codegen" for choice in choices)
        shape = _shape(other)
        if shape in self._seen and not codegen:
            return None
        self._seen.add(shape)
        return other

    def _spent(self) -> float:
        return time.monotonic() - self._start

    def _survey(self, choices: tuple[Choice, ...], part: int) -> Survey:
        """Survey with one ``part``-th of the time that is left for the search of plans."""
        left = None if self._budget_s is None else self._budget_s - self._spent()
        limit = Budget(seconds=None if left is None else max(0.05, left / part))
        return survey(
            self._graph,
            self._predictor,
            key=self._key,
            kind=self._kind,
            choices=choices,
            budget=limit,
            lowered=self._lowered,
            plans=self._plans,
        )


def _shape(found: Survey) -> tuple[tuple[str, ...], Plan]:
    """What a lowering is to the scheduler: equal shapes give equal code."""
    return tuple(node.signature for node in found.problem.nodes), found.default_plan


def default_candidate(surveys: Sequence[Survey]) -> Candidate:
    """Inductor's own schedule: its own plan under its own choices, or that as rules want it."""
    return next(c for c in surveys[0].candidates if c.baseline)
