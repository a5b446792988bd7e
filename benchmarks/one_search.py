"""All legal plans of one program's graphs, measured, and what each search would have chosen.

A process that ``search_quality`` starts: it reads names of programs and answers each with a line
of JSON. Plans that give the same code are timed once, all codes of a graph in one interleaved run
of the measuring process.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from legal_plans import LegalPlans, Partition, TooManyError, annealed, drawn, greedy
from workloads import named

from fusewise.compiler.contest import announce, graph_job
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.inductor.interceptors import LiveGraph, Program
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.job import Budget, GraphResult, ProgramJob
from fusewise.compiler.options import Options
from fusewise.compiler.session import Session, device_of, unmeasurable
from fusewise.compiler.survey import Predictor
from fusewise.compiler.visiting import visit_graphs
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.datasets.corpora import on_device, open_corpus
from fusewise.datasets.corpus import CorpusSpec, GraphSample
from fusewise.schedule.errors import FusewiseError, MeasureError, first_line
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.assembly import Stepwise
from fusewise.search.beam import beam_search
from fusewise.search.gate import judge
from fusewise.search.interleave import ratios
from fusewise.search.ledger import Ledger
from fusewise.search.orders import reordered
from fusewise.search.shortlist import shortlist

#: Candidates that are measured, beside Inductor's own schedule.
KS = (1, 2, 4, 8)
#: A graph has to leave more to choose than five: of fewer, four candidates miss nothing.
_LEAST_PLANS = 6
#: Orders of fusing that are looked at for each partition, beside the first.
_ORDERS = 2
#: Shortlisted for each that is to be measured, as in mode measure.
_SPARE = 3
#: Draws that the figures of chance are the mean of.
_DRAWS = 200
#: Rounds that two halves of can each give a median.
_LEAST_ROUNDS = 8
#: Times that a graph waits for its turn on the device, half a minute each.
_TURNS = 6
#: Building all programs of a graph may take this long.
_BUILDING_S = 300.0


class Order(msgspec.Struct, frozen=True):
    """How to measure, as it stands in the argument of the process."""

    device: str
    #: Folder of the store and the models.
    home: str
    #: Seconds of timing for each graph.
    seconds: float
    #: Legal plans that a graph may have at most.
    most: int
    #: Factor on the sizes of generated programs.
    scale: float
    #: Whether the plans are only to be counted.
    count: bool = False


@dataclass
class _Space:
    """The plans of one graph, and what is predicted for them."""

    problem: Problem
    partitions: int
    default: Candidate
    plans: dict[Plan, Candidate] = field(default_factory=dict)
    #: By strategy the candidates that it would have measured, the most promising first.
    listed: dict[str, list[Candidate]] = field(default_factory=dict)
    #: Complete plans that the beam search looked at, which is what the others may look at as well.
    states: int = 0


class _Costs:
    def __init__(self, cost: PlanCost) -> None:
        self._cost = cost

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        return self._cost.score(groups).us


def explored(live: LiveGraph, key: str, kind: str, predictor: Predictor, most: int) -> _Space:
    """Enumerate the plans of a graph and let each search go through them.

    Raises:
        TooManyError: there are more than ``most`` legal partitions.
    """
    legality = InductorLegality(live)
    problem = extract_problem(
        live.scheduler,
        live.nodes,
        key=key,
        kind=kind,  # type: ignore[arg-type]
        possible_fusions=legality.possible_fusions(),
    )
    cost = predictor.plans(problem)
    legal = LegalPlans(problem, legality, most)
    stepwise = Stepwise(problem, live.default_plan)
    ledger = Ledger(legality, _Costs(cost))

    def candidate(plan: Plan, origin: str) -> Candidate:
        us = cost.plan(plan).us
        return Candidate(
            schedule=Schedule(plan=plan), origin=origin, groups=len(plan.groups), predicted_us=us
        )

    space = _Space(problem, len(legal.next_to), candidate(live.default_plan, "default"))
    space.plans[live.default_plan] = space.default
    of: dict[Partition, Candidate] = {}
    every = frozenset(node.name for node in problem.nodes)
    for partition in legal.next_to:
        trees = legal.trees(partition)
        ledger.score(tree.members for tree in trees)
        for at, variant in enumerate((trees, *reordered(problem, ledger, trees, _ORDERS))):
            plan = stepwise.plan(variant, every)
            found = space.plans.setdefault(plan, candidate(plan, "enumerated"))
            if at == 0:
                of[partition] = found

    def us(partition: Partition) -> float:
        return of[partition].predicted_us or 0.0

    found = beam_search(problem, live.default_plan, legality, _Costs(cost))
    for scored in found.plans:
        space.plans.setdefault(scored.plan, candidate(scored.plan, scored.origin))
    space.states = max(found.states, 1)
    draw = random.Random(0)
    partitions = list(legal.next_to)
    strategies: dict[str, list[Candidate]] = {
        "beam, model": [space.plans[scored.plan] for scored in found.plans],
        "greedy, model": [of[greedy(legal, us)]],
        "annealing, model": [of[p] for p in annealed(legal, us, legal.unfused, space.states, draw)],
        "random, model": [of[p] for p in drawn(partitions, space.states, draw)],
        "all plans, model": list(space.plans.values()),
    }
    for name, candidates in strategies.items():
        listed = shortlist(space.default, candidates, 1 + max(KS) * _SPARE)
        space.listed[name] = list(listed[1:])
    return space


class _Runner:
    """Goes through the graphs of programs."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._home = Path(order.home)
        self.found: list[dict[str, Any]] = []
        self._program = ""
        self._session = self._new_session()

    def _new_session(self) -> Session:
        options = Options(store=self._home / "store.duckdb", top_k=max(KS))
        return Session(options=options, inductor_options={}, observed=())

    def run(self, name: str) -> None:
        """Measure the graphs of a program that are small enough."""
        self._program, self.found = name, []
        self._session.forward_key = None
        visit_graphs(sample_of(name, self._order), self._session, self._graph)

    def _graph(self, graph: GraphCompile) -> Any:
        told: dict[str, Any] = {"program": self._program, "kind": graph.kind, "skipped": None}
        self.found.append(told)
        try:
            told |= self._measured(graph)
        except Exception as error:  # noqa: BLE001 - the other graphs are still worth measuring
            told["skipped"] = first_line(error)
        return graph.compile(None, None)

    def _measured(self, graph: GraphCompile) -> dict[str, Any]:
        session, order = self._session, self._order
        device = device_of(graph.gm, graph.example_inputs)
        predictor = session.predictor(device)
        with graph.settings(None):
            key = graph_key(
                graph.gm, graph.example_inputs, graph.kwargs, predictor.profile.key, "bench"
            ).key
        spaces: list[_Space] = []

        def look(live: LiveGraph) -> None:
            # Inductor would make an error of its own of one that passes through it.
            with suppress(TooManyError):
                spaces.append(explored(live, key, graph.kind, predictor, order.most))

        began = time.perf_counter()
        graph.survey((), look)
        if not spaces:
            return {"skipped": f"more than {order.most} legal plans"}
        space = spaces[0]
        told = {
            "nodes": len(space.problem.nodes),
            "partitions": space.partitions,
            "plans": len(space.plans),
            "states": space.states,
            "model": predictor.model.name,
            "explore_s": time.perf_counter() - began,
        }
        reason = unmeasurable(graph, session)
        if space.partitions < _LEAST_PLANS:
            reason = f"{space.partitions} legal plans leave nothing to choose"
        if reason is not None or order.count:
            return told | {"skipped": reason or "only counted"}
        job = graph_job(
            graph,
            key=key,
            device=str(device),
            observed=session.observed,
            forward_key=session.forward_key,
        )
        announce(job)
        if graph.kind == "forward":
            session.forward_key = key
        began = time.perf_counter()
        programs, codes, failed = generated(graph, space)
        told["generate_s"] = time.perf_counter() - began
        began = time.perf_counter()
        result = timed(programs, str(device), order.seconds)
        told["measure_s"] = time.perf_counter() - began
        return told | {"failed_plans": failed} | judged(space, codes, list(programs), result)


def generated(
    graph: GraphCompile, space: _Space
) -> tuple[dict[str, Program], dict[Plan, str], int]:
    """Programs by code, the default's first; the code of each plan; how many plans gave none."""
    programs: dict[str, Program] = {}
    codes: dict[Plan, str] = {}
    failed = 0
    for plan in space.plans:
        try:
            program = graph.generate(Schedule(plan=plan))
        except Exception:  # noqa: BLE001 - code generators may assert on unusual plans
            failed += 1
            continue
        codes[plan] = program.code_hash
        programs.setdefault(program.code_hash, program)
    return programs, codes, failed


def timed(programs: dict[str, Program], device: str, seconds: float) -> GraphResult:
    """Time all programs in one interleaved run."""
    library = build_library(
        [(p.source, p.settings) for p in programs.values()], timeout_s=_BUILDING_S
    )
    jobs = [
        ProgramJob(code, p.source, p.constants, p.settings, library) for code, p in programs.items()
    ]
    budget = Budget(seconds=seconds, min_rounds=12, max_rounds=60, target_interval=0.003, more=True)
    process = measuring_process(device)
    for left in reversed(range(_TURNS)):
        try:
            result = process.measure(jobs, budget, _BUILDING_S + 10 * seconds)
        except MeasureError as error:
            # Others held the device all the while. What was compiled is kept, as is the graph.
            if not left or "Timeout" not in str(error):
                raise
        else:
            break
    process.let_go()
    return result


def judged(
    space: _Space, codes: dict[Plan, str], order: Sequence[str], result: GraphResult
) -> dict[str, Any]:
    """Regret of each strategy after each number of candidates.

    A strategy takes the fastest of the default and its first k candidates with new code, by the
    even rounds. Its regret is that one's time over the time of what all plans together would have
    led to in the same way, less 1, by the odd rounds: a minimum of many noisy times would
    otherwise look faster than it is.
    """
    programs = dict(zip(order, result.programs, strict=True))
    if result.programs[0].failure:
        return {"skipped": f"Inductor's own program fails: {result.programs[0].failure}"}
    samples = [program.samples for program in result.programs]
    gate = judge(
        samples, [program.errors for program in result.programs], resolutions=result.resolutions
    )
    base = result.programs[0].samples
    if len(base) < _LEAST_ROUNDS:
        return {"codes": len(programs), "skipped": f"only {len(base)} rounds in the time given"}
    own = order[0]
    choosing: dict[str, float] = {}
    telling: dict[str, float] = {}
    for (code, program), ruling in zip(programs.items(), gate.rulings, strict=True):
        # Two rounds at least for each half; what was dropped before was far behind.
        if (ruling.sound or code == own) and len(program.samples) >= 4:
            by_round = ratios(program.samples, base)
            choosing[code] = statistics.median(by_round[::2])
            telling[code] = statistics.median(by_round[1::2])
    oracle = min(choosing, key=lambda code: (choosing[code], code))

    def regret(candidates: Sequence[str]) -> float:
        taken = min((own, *candidates), key=lambda code: (choosing[code], code))
        return telling[taken] / telling[oracle] - 1

    regrets: dict[str, dict[str, float]] = {"greedy, Inductor": {str(k): regret(()) for k in KS}}
    for name, listed in space.listed.items():
        fresh = list(
            dict.fromkeys(
                codes[c.schedule.plan]
                for c in listed
                if c.schedule.plan in codes and codes[c.schedule.plan] != own
            )
        )
        usable = [[code for code in fresh[:k] if code in choosing] for k in KS]
        regrets[name] = {str(k): regret(some) for k, some in zip(KS, usable, strict=True)}
    others = [code for code in choosing if code != own]
    draw = random.Random(0)
    regrets["random"] = {
        str(k): statistics.fmean(
            regret(draw.sample(others, min(k, len(others)))) for _ in range(_DRAWS)
        )
        for k in KS
    }
    return {
        "codes": len(programs),
        "usable": len(choosing),
        "rounds": len(base),
        "default_us": statistics.median(base),
        "best_of_default": telling[oracle],
        "regret": regrets,
        "clock": result.clock,
    }


def sample_of(name: str, order: Order) -> GraphSample:
    """The program of that name: a workload of the benchmarks, or ``corpus:program``.

    Raises:
        FusewiseError: there is none of that name.
    """
    device = torch.device(order.device)
    corpus, _, program = name.partition(":")
    if not program:
        case = named(name)
        built = case.build(device)
        return GraphSample(
            name=name,
            family=case.workload.family,
            module=built.function,
            args=built.args,
            training=built.backward,
        )
    spec = CorpusSpec(name=corpus, scale=order.scale)
    return on_device(next(iter(open_corpus(spec).build(program))), device)


def main() -> None:
    """Answer names of programs, a line each, until there are no more."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    if order.device == "cuda":
        torch.cuda.set_device(0)
    runner = _Runner(order)
    for line in sys.stdin:
        name = line.strip()
        try:
            runner.run(name)
        except FusewiseError as error:
            told = {"program": name, "kind": "", "skipped": str(error)}
            runner.found = runner.found or [told]
        print(json.dumps({"program": name, "graphs": runner.found}), flush=True)


if __name__ == "__main__":
    main()
