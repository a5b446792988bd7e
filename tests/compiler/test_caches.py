"""Caches: code of one plan never stands for another, and a second run compiles nothing.

Two fresh processes after each other share every cache of Inductor's and the stores.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

from fusewise.compiler.inductor.interceptors import Applier
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory, profiled: Path, in_fresh_process: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two processes in a row tell, by name of the request."""

    def home(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        (folder / "devices").symlink_to(profiled)
        return folder

    predicted, measured, other = home("predicted"), home("measured"), home("other")

    def request(program: str, mode: str, folder: Path, **more: Any) -> dict[str, Any]:
        options = {"fusewise.mode": mode, "fusewise.store": str(folder / "store.duckdb")}
        options |= {"fusewise.top_k": 1, "fusewise.budget_s": 2}
        return {"program": program, "options": options | more}

    plan = {"fusewise.plan": str(predicted / "plan.json")}
    default = request("chain", "predict", predicted)
    alone = request("chain", "replay", predicted, **plan)
    trained = request("training", "measure", measured)
    first = in_fresh_process(
        [default, alone | {"plan": default["options"]["fusewise.store"]}, trained]
    )
    again = request("chain", "predict", other)
    second = in_fresh_process([alone, default, trained, again])
    return (
        dict(zip(("default", "alone", "trained"), first, strict=True)),
        dict(zip(("alone", "default", "trained", "again"), second, strict=True)),
    )


def test_all_caches_are_on() -> None:
    assert inductor_config.fx_graph_cache
    assert torch._functorch.config.enable_autograd_cache


def test_every_run_is_right(processes: Any) -> None:
    for name, run in itertools.chain.from_iterable(process.items() for process in processes):
        assert run["close"], name
        assert run["warnings"] == []
        assert [graph["fallback"] for graph in run["graphs"]] == [None] * len(run["graphs"])


def test_two_plans_in_one_process_run_different_code(processes: Any) -> None:
    first, _ = processes
    assert first["default"]["codes"] != first["alone"]["codes"]
    assert first["default"]["loops"] < first["alone"]["loops"]
    # A compile that waits for a decision, and comes to another than its own, is looked up as well.
    assert first["default"]["misses"] in (1, 2) and first["alone"]["misses"] == 1
    assert first["alone"]["graphs"][0]["source"] == "plan file"


def test_second_process_takes_each_plan_its_own_code_from_the_cache(processes: Any) -> None:
    first, second = processes
    for name in ("alone", "default"):
        assert (second[name]["hits"], second[name]["misses"]) == (1, 0)
        assert second[name]["codes"] == first[name]["codes"]


def test_second_run_compiles_nothing_and_chooses_the_same(processes: Any) -> None:
    first, second = processes
    graphs = first["trained"]["graphs"]
    assert [graph["kind"] for graph in graphs] == ["forward", "backward"]
    assert {graph["source"] for graph in graphs} <= {"measured", "predicted"}
    assert "measured" in {graph["source"] for graph in graphs}
    repeated = second["trained"]
    assert [graph["source"] for graph in repeated["graphs"]] == ["store"] * 2
    for key in ("kind", "key", "chosen", "candidates"):
        assert [graph[key] for graph in repeated["graphs"]] == [graph[key] for graph in graphs]
    assert (repeated["hits"], repeated["misses"]) == (2, 0)


def test_prediction_is_the_same_in_every_process(processes: Any) -> None:
    first, second = processes
    (one,), (two,) = first["default"]["graphs"], second["again"]["graphs"]
    assert (one["source"], two["source"]) == ("predicted", "predicted")
    assert (one["key"], one["chosen"]) == (two["key"], two["chosen"])
    assert one["candidates"] == two["candidates"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=str)
def test_cached_code_is_of_the_plan_that_was_asked_for(
    live: Any, device: str, order: tuple[int, ...]
) -> None:
    scale = 1.5 + order[0] / 8

    def f(x: Any) -> Any:
        # The order decides which plan is cached first; each starts with a program of its own.
        scaled = x * scale
        return scaled.sum(-1), scaled.amax(-1)

    make = live.Make(device, torch.float32)
    (graph,) = live.capture(live.UserProgram(f, (make.tensor(6, 20),)))
    names = [node.name for node in graph.surveyed.problem.nodes]
    schedules = (None, Schedule(plan=unfused(names)), Schedule(plan=graph.surveyed.default))

    def compiled(i: int) -> tuple[str, bool]:
        schedule = schedules[i]
        applier = Applier(schedule.plan if schedule else None)
        counters.clear()
        with graph.context():
            code = graph.compile.compile(schedule, applier)
        inductor = counters["inductor"]
        # Only what was not cached is lowered.
        assert (applier.program is None) == bool(inductor["fxgraph_cache_hit"])
        live.difference(code([v.clone() for v in graph.inputs]), graph.eager()[:2])
        return code.source_code, bool(inductor["fxgraph_cache_hit"])

    fresh = {i: compiled(i) for i in order}
    cached = {i: compiled(i) for i in reversed(order)}
    assert [hit for _, hit in fresh.values()] == [False] * 3
    assert [hit for _, hit in cached.values()] == [True] * 3
    sources = {i: source for i, (source, _) in fresh.items()}
    assert {i: source for i, (source, _) in cached.items()} == sources
    # Inductor's own plan, given as one, is the same code under a key of its own.
    assert sources[0] == sources[2] != sources[1]


def test_tag_of_the_user_stays_in_the_key(live: Any, device: str) -> None:
    (graph,) = live.captured("softmax", device)
    compile_graph: Callable[..., Any] = graph.compile.compile
    schedule = Schedule(plan=graph.surveyed.default)
    hits = []
    for tag in ("mine", "other", "mine"):
        counters.clear()
        with torch.compiler.config.patch(cache_key_tag=tag), graph.context():
            compile_graph(schedule, Applier(schedule.plan))
        hits.append(counters["inductor"]["fxgraph_cache_hit"])
    assert hits == [0, 0, 1]
    assert torch.compiler.config.cache_key_tag == ""
