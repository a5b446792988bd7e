"""Looking at one graph under one set of choices after the other, while there is time.

Predicts only, as ``survey`` does for each of them; nothing is compiled or timed.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fusewise.compiler.alternatives import (
    Alternative,
    alternatives,
    few,
    multiplied,
    together,
    try_alternatives,
)
from fusewise.compiler.block_savings import read_survey
from fusewise.compiler.inductor.aside import Copies
from fusewise.compiler.inductor.choices import ONEDNN, WIDE, schedule_of, stage_of, variants
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.generating import settings_here
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.ruled import Lowered
from fusewise.compiler.survey import Predictor, Survey, survey
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import Gains, kinds_of, sure_total
from fusewise.schedule.errors import PlanError, first_line
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import FINISHED_KINDS
from fusewise.schedule.schedule import Choice
from fusewise.search.beam import Budget

log = logging.getLogger(__name__)

#: Share of the time after which no further choice about the whole graph is looked at, where there
#: are single nodes to decide on.
_VARIANTS_SHARE = 0.6
#: Choices of how a graph multiplies, the greatest gains first. Where there are products they take
#: most of the time, so that all else is looked at on top of what is chosen here.
_PRODUCTS = (WIDE, ONEDNN)
#: Part of the time of a graph's generated kernels that no choice about the whole graph takes off.
_STAYS = 0.5
#: Choices about the whole graph that mode predict looks at.
LOOKS_PREDICTED = 2
#: Parts of the time that is left in which the search of plans may take one, where the graph is as
#: Inductor lowers it and under each other choice, and the least seconds of it.
_FIRST_PART, _OTHER_PART, _LEAST_SEARCH_S = 2, 4, 0.05
#: How much faster another library has to multiply to be worth a look.
_LEAST_FASTER = 1.2


#: What Inductor writes under the choices of a look, and what block sizes may save of it.
Reading = tuple[Program, dict[str, float]]


@dataclass(frozen=True)
class Begun:
    """Looks that copies of this process take, by the choices that each is under."""

    asked: tuple[tuple[Choice, ...], ...]
    #: None where there are none.
    copies: Copies | None

    def answers(
        self, wanted: Collection[tuple[Choice, ...]], timeout_s: float | None
    ) -> dict[tuple[Choice, ...], Survey | Exception]:
        """What came of those that are ``wanted``, and maybe of others; waits for it that long."""
        if self.copies is None:
            return {}
        places = [at for at, choices in enumerate(self.asked) if choices in wanted]
        found = self.copies.wait(places, timeout_s)
        return {choices: found[at] for at, choices in enumerate(self.asked) if at in found}

    def reading(self, choices: tuple[Choice, ...]) -> Reading | None:
        """What :func:`read_survey` gives for the look under ``choices``; waits for it.

        None where no copy has read it, or it failed at that.
        """
        if self.copies is None or choices not in self.asked:
            return None
        place = len(self.asked) + self.asked.index(choices)
        found = self.copies.wait([place]).get(place)
        if not isinstance(found, tuple):
            return None
        program, savings = found
        return replace(program, settings=settings_here(program.settings)), savings


@contextmanager
def looks_begun(
    graph: GraphCompile,
    predictor: Predictor,
    *,
    key: str,
    kind: str,
    gains: Gains,
    only: bool,
    most: int,
    budget_s: float | None,
) -> Iterator[Begun | None]:
    """Begin to look at the graph under all that may be wanted, while other things are done here.

    Which of these looks are wanted is known once the graph was looked at as Inductor lowers it: for
    :func:`survey_all` inside of this, with the same arguments. Gives None where they cannot be
    taken so. Where nothing is measured what is written under each of these choices is read, too.
    """
    plans = not only or gains.may(["plan"])
    about: dict[str, Any] = {"key": key, "kind": kind, "plans": plans}
    every = _but_products(predictor.profile.kind)
    promising = () if only else few(every, (), most)[0]
    asked = [c for c in every if c in promising or _may_be_taken(c, gains)]
    look = functools.partial(survey, graph, predictor, **about)
    first = functools.partial(look, budget=_limit(budget_s, _FIRST_PART))
    limit = _limit(budget_s, _OTHER_PART)
    jobs = [first, *(functools.partial(look, choices=c, budget=limit) for c in asked)]
    with graph.begun_aside(jobs, functools.partial(_read, graph) if only else None) as copies:
        yield None if copies is None else Begun(((), *asked), copies)


def _read(graph: GraphCompile, found: Survey) -> Reading | None:
    return read_survey(graph, found) if found.choices else None


def _limit(left_s: float | None, part: int) -> Budget:
    """One ``part``-th of the seconds that are left, for a search of plans."""
    return Budget(seconds=None if left_s is None else max(_LEAST_SEARCH_S, left_s / part))


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
    only: bool = False,
    begun: Begun | None = None,
) -> list[Survey]:
    """Survey a graph under Inductor's own choices, then under others that change it.

    First how it multiplies; with what is predicted best of that each choice about the whole graph,
    then single values that might better be stored or inlined, by themselves and together.

    Args:
        budget_s: seconds after which no further choice is looked at, and for the search of each;
            None for no limit but the search's own, so that the result never depends on the clock.
        lowered: the user's rules with what they want of the lowering.
        told: is told of choices that the graph cannot be lowered under, and why.
        most: of others to look at, the most promising, and once at what of them gains put together;
            None for all.
        gains: what may be taken of what is found without being measured: the most promising of it
            are looked at whatever the time.
        only: whether the rest is not looked at.
        begun: looks that are being taken, of :func:`looks_begun`.
    """
    gains = gains or Gains(demands={})
    plans = not only or gains.may(["plan"])
    looks = _Looks(graph, predictor, key, kind, budget_s, lowered, told, plans=plans)
    first = looks.first(begun)
    ways = [
        choices
        for choices in _ways_to_multiply(first, predictor.profile, timed=graph.times_products)
        if not only or _may_be_taken(choices, gains)
    ]
    products, base = _multiplied(first, looks, ways, gains)
    offered: Sequence[Alternative] = alternatives(base, predictor.profile)
    every = _but_products(predictor.profile.kind)
    whole = [choices for choices in every if _matter(base, choices)]
    most_saved = _most_saved(base, predictor)
    taken = [choices for choices in whole if _may_be_taken(choices, gains, most_saved)]
    if only:
        whole = taken
        offered = [one for one in offered if _may_be_taken(one.choices, gains)]
    if most is not None:
        whole, offered = few(whole, offered, most)
    anyway = [choices for choices in whole if choices in taken][:LOOKS_PREDICTED]
    asked = [*whole, *(one.choices for one in offered)]
    looks.ahead([together(base.choices, choices) for choices in asked], begun)
    looks.share = _VARIANTS_SHARE if offered else 1.0
    others: list[Survey] = []
    for choices in whole:
        both = together(base.choices, choices)
        alike = [s for s in others if _names(s.choices) == _names(both)]
        if all(_matter(s, choices) for s in alike):
            found = looks(both, anyway=choices in anyway)
            others += [] if found is None else [found]
    looks.share = 1.0
    most_together = None if most is None else 1
    single = try_alternatives(base, offered, looks, most_together)
    return [first, *products, *others, *single]


def _but_products(kind: str) -> list[tuple[Choice, ...]]:
    """Choices about the whole graph but those of how it multiplies."""
    return [choices for choices in variants(kind) if choices[0].name not in _PRODUCTS]


def _multiplied(
    first: Survey, looks: _Looks, ways: Sequence[tuple[Choice, ...]], gains: Gains
) -> tuple[list[Survey], Survey]:
    """The graph with its products computed otherwise, whatever the time: one after the other.

    And what all else is tried on: only what promises by itself as much as its kind has to. What is
    gained by the rest would have it taken along.
    """
    found: list[Survey] = []
    base = first
    for choices in ways:
        if not _matter(base, choices):
            continue
        other = looks(together(base.choices, choices), anyway=True)
        if other is not None:
            found.append(other)
            saved = 1.0 - other.best_us / base.best_us
            base = other if saved > 0.0 and _may_be_taken(choices, gains, saved) else base
    return found, base


def _ways_to_multiply(
    first: Survey, profile: DeviceProfile, *, timed: bool
) -> Iterator[tuple[Choice, ...]]:
    """Choices about products that may be worth something on the device.

    ``timed``: as for :func:`multiplied`.
    """
    for choices in variants(profile.kind):
        if choices[0].name in _PRODUCTS and _may_pay(choices[0].name, profile):
            yield choices
    yield from (one.choices for one in multiplied(first, profile, timed=timed))


def _may_be_taken(choices: Sequence[Choice], gains: Gains, most_saved: float = 1.0) -> bool:
    """Whether a prediction may be enough for ``choices`` that save such a part of the time."""
    schedule = schedule_of(choices, None)
    demand = gains.asked(kinds_of(schedule.lowering, schedule.codegen, own_plan=True))
    return demand is not None and demand.share <= most_saved


def _most_saved(surveyed: Survey, predictor: Predictor) -> float:
    """Part of a graph's time that other kernels in the place of those generated might take off."""
    groups = predictor.plans(surveyed.problem).breakdown(surveyed.default_plan)
    kinds = {node.name: node.kind for node in surveyed.problem.nodes}
    generated = [g for g in groups if not {kinds[name] for name in g.names} & FINISHED_KINDS]
    total_us = sure_total(groups)
    return (1.0 - _STAYS) * sum(group.us for group in generated) / total_us if total_us else 0.0


def _matter(surveyed: Survey, choices: Sequence[Choice]) -> bool:
    """Whether a graph might come out otherwise under ``choices``, all others being the same."""
    return surveyed.grounds is None or surveyed.grounds.matter(choices)


def _may_pay(name: str, profile: DeviceProfile) -> bool:
    """Whether another way to multiply can be worth anything on the device at all."""
    if name == WIDE:
        return not profile.multiplies_half_fast
    return profile.onednn_gfs > _LEAST_FASTER * profile.flops_gfs


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

    def first(self, begun: Begun | None) -> Survey:
        """The graph under Inductor's own choices."""
        answers = {} if begun is None else begun.answers([()], self._left())
        found = answers.get(())
        if not isinstance(found, Survey):
            # What fails aside tells here why.
            found = self._survey((), _FIRST_PART)
        self._seen.add(_shape(found))
        return found

    def ahead(self, asked: Sequence[tuple[Choice, ...]], begun: Begun | None) -> None:
        """Look at all of ``asked`` at a time, where this process can be copied for that.

        What comes of a look does not depend on where it was taken.
        """
        if self._left() == 0:
            return
        begun = begun or Begun((), None)
        late = [choices for choices in asked if choices not in begun.asked]
        jobs = [functools.partial(self._survey, choices, _OTHER_PART) for choices in late]
        with self._graph.begun_aside(jobs) as copies:
            for one in (begun, Begun(tuple(late), copies)):
                self._found |= one.answers(asked, self._left())
        if copies is None:
            found = zip(late, self._graph.aside(jobs, self._left()), strict=True)
            self._found |= {choices: other for choices, other in found if other is not None}

    def _taken(self, choices: tuple[Choice, ...]) -> Survey:
        found = self._found.pop(choices, None)
        if found is None:
            return self._survey(choices, _OTHER_PART)
        if isinstance(found, Exception):
            raise found
        return found

    def __call__(self, choices: tuple[Choice, ...], *, anyway: bool = False) -> Survey | None:
        """The graph under other choices; None where they are impossible or idle, or time is up.

        ``anyway``: look at them even if it is.
        """
        late = self._budget_s is not None and self._spent() > self.share * self._budget_s
        if late and not anyway:
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

    def _left(self) -> float | None:
        """Seconds that are left, at least 0; None where there is no limit."""
        return None if self._budget_s is None else max(0.0, self._budget_s - self._spent())

    def _survey(self, choices: tuple[Choice, ...], part: int) -> Survey:
        """Survey with one ``part``-th of the time that is left for the search of plans."""
        return survey(
            self._graph,
            self._predictor,
            key=self._key,
            kind=self._kind,
            choices=choices,
            budget=_limit(self._left(), part),
            lowered=self._lowered,
            plans=self._plans,
        )


def _shape(found: Survey) -> tuple[tuple[str, ...], Plan]:
    """What a lowering is to the scheduler: equal shapes give equal code."""
    return tuple(node.signature for node in found.problem.nodes), found.default_plan
