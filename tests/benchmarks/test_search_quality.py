"""Enumerating legal plans, the searches among them, and the regret that is told of each."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fusewise.compiler.measuring.job import GraphResult, ProgramResult
from fusewise.schedule.plan import Plan, is_acyclic, unfused
from fusewise.schedule.schedule import Candidate, Schedule

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as they import each other: from their own folder."""
    names = ("legal_plans", "one_search", "search_quality", "search_scaling", "workloads")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield {name: import_module(name) for name in names}
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _partitions(names: list[str]) -> Iterator[list[list[str]]]:
    """Every way to put names into groups."""
    if not names:
        yield []
        return
    first, *rest = names
    for found in _partitions(rest):
        yield [[first], *found]
        for at in range(len(found)):
            yield [*found[:at], [first, *found[at]], *found[at + 1 :]]


@pytest.fixture(scope="module")
def small(scripts) -> tuple[Any, Any]:
    """A made-up problem of seven nodes and its legal plans."""
    scaling = scripts["search_scaling"]
    problem = scaling.problem_of(7, 2)
    legal = scripts["legal_plans"].LegalPlans(problem, scaling.Rules(problem), 5000)
    return problem, legal


def test_all_legal_plans_are_found_and_no_other(scripts, small) -> None:
    problem, legal = small
    nodes = problem.node_by_name

    def connected(group: list[str]) -> bool:
        """Whether joins of groups that share a buffer lead to it: the made-up compiler's rule."""
        if any(nodes[name].kind == "extern" for name in group) and len(group) > 1:
            return False
        used = {n: {a.buffer for a in (*nodes[n].reads, *nodes[n].writes)} for n in group}
        reached, left = {group[0]}, set(group[1:])
        while near := {n for n in left if any(used[n] & used[m] for m in reached)}:
            reached |= near
            left -= near
        return not left

    expected = {
        frozenset(map(frozenset, groups))
        for groups in _partitions(list(nodes))
        if all(map(connected, groups)) and is_acyclic(problem, groups)
    }
    # Of these, a few may be reached only through partitions that close a cycle.
    assert set(legal.next_to) <= expected
    assert len(legal.next_to) >= 0.9 * len(expected) > 20
    for partition, near in legal.next_to.items():
        assert all(abs(len(other) - len(partition)) == 1 for other in near)
        trees = legal.trees(partition)
        assert {tree.members for tree in trees} == set(partition)


def test_too_many_plans_are_given_up(scripts, small) -> None:
    problem, legal = small
    module, scaling = scripts["legal_plans"], scripts["search_scaling"]
    count = len(legal.next_to)
    assert len(module.LegalPlans(problem, scaling.Rules(problem), count).next_to) == count
    with pytest.raises(module.TooManyError):
        module.LegalPlans(problem, scaling.Rules(problem), count - 1)


def test_searches_among_them(scripts, small) -> None:
    problem, legal = small
    module = scripts["legal_plans"]
    costs = scripts["search_scaling"].Costs(problem)

    def us(partition: Any) -> float:
        return float(costs.score(sorted(partition, key=sorted)).sum())

    best = min(map(us, legal.next_to))
    taken = module.greedy(legal, us)
    assert best <= us(taken) < us(legal.unfused)
    assert all(us(other) >= us(taken) for other in legal.next_to[taken] if len(other) < len(taken))
    seen = module.annealed(legal, us, legal.unfused, 400, random.Random(0))
    assert len(set(seen)) == len(seen) <= 401
    assert seen[0] == legal.unfused and set(seen) <= set(legal.next_to)
    assert min(map(us, seen)) < 1.05 * best
    assert seen == module.annealed(legal, us, legal.unfused, 400, random.Random(0))
    some = module.drawn(list(legal.next_to), 10, random.Random(1))
    assert len(set(some)) == len(some) <= 10


def _space(scripts, times: dict[str, float], listed: list[str]) -> tuple[Any, dict[Plan, str]]:
    plans = {code: unfused([f"{code}{i}" for i in range(2)]) for code in times}
    made = {
        code: Candidate(schedule=Schedule(plan=plan), origin="beam", groups=2)
        for code, plan in plans.items()
    }
    space = scripts["one_search"]._Space(None, len(times), made["own"])
    for name in scripts["search_quality"].STRATEGIES:
        if name not in ("random", "greedy, Inductor"):
            space.listed[name] = [made[code] for code in listed]
    return space, {plan: code for code, plan in plans.items()}


def _result(times: dict[str, float], wrong: tuple[str, ...] = (), rounds: int = 20) -> GraphResult:
    programs = [
        ProgramResult(
            code,
            [us * (1 + 0.001 * (i % 3)) for i in range(rounds)],
            [0.1 if code in wrong else 1e-7],
        )
        for code, us in times.items()
    ]
    return GraphResult(programs, "fp64", "calls", [1e-7], {}, {})


def test_regret_is_over_the_best_of_all_plans(scripts) -> None:
    times = {"own": 100.0, "slow": 120.0, "good": 90.0, "best": 80.0, "other": 95.0}
    space, codes = _space(scripts, times, ["slow", "own", "good", "other", "best"])
    told = scripts["one_search"].judged(space, codes, list(times), _result(times))
    beam = told["regret"]["beam, model"]
    # The default's own code is no candidate, and is always at hand.
    assert beam == pytest.approx({"1": 0.25, "2": 0.125, "4": 0.0, "8": 0.0}, abs=0.01)
    assert told["regret"]["greedy, Inductor"]["8"] == pytest.approx(0.25, abs=0.01)
    assert told["best_of_default"] == pytest.approx(0.8, abs=0.01)
    chance = told["regret"]["random"]
    assert 0 < chance["2"] < chance["1"] < 0.25 and chance["4"] == pytest.approx(0)


def test_wrong_results_are_no_best_plan(scripts) -> None:
    times = {"own": 100.0, "wrong": 50.0, "right": 90.0}
    space, codes = _space(scripts, times, ["wrong", "right"])
    told = scripts["one_search"].judged(space, codes, list(times), _result(times, ("wrong",)))
    assert told["usable"] == 2
    assert told["regret"]["beam, model"]["1"] == pytest.approx(1 / 0.9 - 1, abs=0.01)
    assert told["regret"]["beam, model"]["2"] == pytest.approx(0, abs=0.01)


def test_too_few_rounds_are_told(scripts) -> None:
    times = {"own": 100.0, "right": 90.0}
    space, codes = _space(scripts, times, ["right"])
    told = scripts["one_search"].judged(space, codes, list(times), _result(times, rounds=5))
    assert "5 rounds" in told["skipped"]


def test_figures_and_picture(scripts, tmp_path: Path) -> None:
    quality = scripts["search_quality"]
    graphs = [
        {
            "program": f"p{i}",
            "kind": "forward",
            "nodes": 3,
            "skipped": None,
            "regret": {
                name: {str(k): i / 100 / k for k in (1, 2, 4, 8)} for name in quality.STRATEGIES
            },
        }
        for i in range(11)
    ]
    skipped = {"program": "p0", "kind": "backward", "nodes": 2, "skipped": "too few"}
    kept = quality.distinct([*graphs, graphs[0], skipped])
    assert kept == graphs
    found = quality.summarised(kept)["beam, model"]
    assert found["1"] == pytest.approx({"median": 0.05, "p90": 0.09})
    assert found["4"] == pytest.approx({"median": 0.0125, "p90": 0.0225})
    pytest.importorskip("matplotlib")
    quality._draw(kept, tmp_path / "quality.svg")
    assert (tmp_path / "quality.svg").read_text().startswith("<?xml")


def test_programs_are_there(scripts) -> None:
    names = [name for name in scripts["search_quality"].PROGRAMS if ":" not in name]
    assert set(names) <= {case.name for case in scripts["workloads"].CASES}
    pairs = itertools.combinations(scripts["search_quality"].PROGRAMS, 2)
    assert all(a != b for a, b in pairs)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_a_real_graph_is_measured(
    scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    module = scripts["one_search"]
    # How many plans this one has differs among versions of torch.
    monkeypatch.setattr(module, "_LEAST_PLANS", 3)
    order = module.Order(device=device, home=str(tmp_path), seconds=4.0, most=50, scale=0.1)
    runner = module._Runner(order)
    runner.run("generated:layer_norm/3-0")
    (told,) = runner.found
    assert told["kind"] == "inference" and told["partitions"] >= 3
    assert told["plans"] >= told["partitions"] and 2 <= told["codes"] <= told["plans"]
    # On a machine that is busy there may be no time for enough rounds.
    if told["skipped"] is None:
        assert set(told["regret"]) == set(scripts["search_quality"].STRATEGIES)
        assert told["best_of_default"] > 0
    else:
        assert "rounds" in told["skipped"]
