"""Verdicts on nodes as parts of schedules: cached apart, replayed exactly, found by search."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._dynamo.utils import counters

import fusewise
from fusewise.compiler.alternatives import (
    Alternative,
    alternatives,
    drawn,
    together,
    try_alternatives,
)
from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.looking import survey_all
from fusewise.compiler.notices import FusewiseWarning
from fusewise.compiler.offering import choice_space
from fusewise.compiler.survey import Predictor, Survey, survey
from fusewise.costmodel.device import DeviceProfile, device_profile
from fusewise.costmodel.registry import load_model
from fusewise.datasets.rows import CandidateSummary, DecisionRow, GraphRow, Row, ScheduleRow
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.inlining import InliningDecision, Verdict, node_choice, node_choices
from fusewise.schedule.plan import Plan
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Choice, Schedule


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory, profiled: Path, in_fresh_process: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two processes that replay the same plan files, which differ in verdicts on nodes only."""
    home = tmp_path_factory.mktemp("home")
    (home / "devices").symlink_to(profiled)
    store = str(home / "store.duckdb")

    def request(mode: str, **more: Any) -> dict[str, Any]:
        options = {"fusewise.mode": mode, "fusewise.store": store, **more}
        return {"program": "training", "options": options}

    wanted: dict[str, dict[str, Any]] = {
        "none": {"forward": {}, "backward": {}},
        "forward": {"forward": {"div": "store"}, "backward": {}},
        "both": {"forward": {"exp": "store"}, "backward": {"mul": "store", "sigmoid": "inline"}},
    }
    replays = {
        name: request("replay", **{"fusewise.plan": str(home / f"{name}.json")}) for name in wanted
    }
    written = [replays[name] | {"plan": store, "nodes": wanted[name]} for name in wanted]
    _, *first = in_fresh_process([request("predict"), *written])
    second = in_fresh_process([replays[name] for name in reversed(replays)])
    return (
        dict(zip(replays, first, strict=True)),
        dict(zip(reversed(replays), second, strict=True)),
    )


@pytest.mark.slow
def test_replays_are_right_and_from_the_plan_file(processes: Any) -> None:
    for process in processes:
        for name, run in process.items():
            assert run["close"], name
            assert run["warnings"] == []
            for graph in run["graphs"]:
                assert (graph["source"], graph["fallback"]) == ("plan file", None)


@pytest.mark.slow
def test_one_verdict_is_enough_for_code_of_its_own(processes: Any) -> None:
    first, second = processes
    assert len({tuple(run["codes"]) for run in first.values()}) == 3
    # The backward graph of two of them is under the same schedule, and so is its code.
    assert [(run["hits"], run["misses"]) for run in first.values()] == [(0, 2), (1, 1), (0, 2)]
    for name, run in second.items():
        assert (run["hits"], run["misses"]) == (2, 0)
        assert run["codes"] == first[name]["codes"]


@pytest.mark.parametrize(
    "order", [pytest.param((0, 1, 2), marks=pytest.mark.slow), (2, 0, 1)], ids=str
)
def test_cached_code_is_of_the_verdict_that_was_asked_for(
    live: Any, device: str, order: tuple[int, ...]
) -> None:
    scale = 1.25 + order[0] / 8

    def f(x: Any) -> Any:
        doubled = x * scale
        return doubled.sum(0), (doubled + 1).sum(1)

    (graph,) = live.capture(live.UserProgram(f, (live.Make(device, torch.float32).tensor(6, 20),)))
    wanted: tuple[Mapping[str, Verdict], ...] = ({}, {"mul": "store"}, {"add": "store"})

    def compiled(i: int) -> tuple[str, int]:
        counters.clear()
        with graph.context():
            schedule = Schedule(lowering=node_choices(wanted[i]))
            code = graph.compile.compile(schedule, Applier(None))
        live.difference(code([v.clone() for v in graph.inputs]), graph.eager()[:2])
        return code.source_code, counters["inductor"]["fxgraph_cache_hit"]

    fresh = {i: compiled(i) for i in order}
    cached = {i: compiled(i) for i in reversed(order)}
    assert [hits for _, hits in fresh.values()] == [0] * 3
    assert [hits for _, hits in cached.values()] == [1] * 3
    assert {i: code for i, (code, _) in cached.items()} == {i: c for i, (c, _) in fresh.items()}
    assert len({code for code, _ in fresh.values()}) == 3


def shared(x: Any, w: Any) -> Any:
    """A value that two kernels compute, for any number of rows."""
    scaled = torch.tanh(x) * w + 1
    return scaled.sum(0) / x.shape[0], scaled.amax(1)


@pytest.fixture
def replayed(store: Path) -> Callable[..., Any]:
    """Compiles a program, then replays it under verdicts, from the plan file or from the store."""

    def replay(source: str, wanted: Mapping[str, Verdict], *inputs: Any) -> Callable[..., Any]:
        options: dict[str, Any] = {"fusewise.store": str(store), "fusewise.mode": "predict"}
        torch.compile(shared, backend="fusewise", options=options)(*inputs)
        (report,) = fusewise.reports()
        schedule = Schedule(lowering=node_choices(wanted))
        with Store.open(store) as opened:
            (row,) = opened.rows("graphs")
            assert isinstance(row, GraphRow) and row.key == report.key
            planned = PlannedGraph(
                kind=row.kind, key_parts=row.parts, device=report.device, schedule=schedule
            )
            candidate = Candidate(
                schedule=schedule, origin="lowering", groups=0, accepted=True, predicted_us=1.0
            )
            decision = opened.rows("decisions")[0]
            assert isinstance(decision, DecisionRow)
            rows: list[Row] = [
                ScheduleRow(
                    id=schedule.id,
                    graph_key=row.key,
                    schedule=schedule,
                    origin="lowering",
                    groups=0,
                    predicted_us=1.0,
                ),
                DecisionRow(
                    graph_key=row.key,
                    device_key=decision.device_key,
                    mode="predict",
                    model_id=decision.model_id,
                    schedule_id=schedule.id,
                    candidates=(CandidateSummary.of(candidate),),
                ),
            ]
            if source == "store":
                opened.append(rows)
        options["fusewise.mode"] = "replay"
        if source == "plan file":
            options["fusewise.plan"] = str(store.with_name("plan.json"))
            write_plan_file(
                options["fusewise.plan"],
                PlanFile(fusewise="1", torch=str(torch.__version__), graphs=(planned,)),
            )
        torch._dynamo.reset()
        return torch.compile(shared, backend="fusewise", options=options)

    return replay


@pytest.mark.filterwarnings("error::fusewise.compiler.notices.FusewiseWarning")
@pytest.mark.parametrize(
    ("source", "dynamic"),
    [
        pytest.param("plan file", False, id="plan file, static"),
        pytest.param("store", True, id="store, dynamic"),
        pytest.param("plan file", True, id="plan file, dynamic", marks=pytest.mark.slow),
        pytest.param("store", False, id="store, static", marks=pytest.mark.slow),
    ],
)
def test_verdicts_are_replayed(
    live: Any, device: str, replayed: Callable[..., Any], source: str, dynamic: bool
) -> None:
    make = live.Make(device, torch.float32)
    x, w = make.tensor(40, 32), make.tensor(32)
    values = [x, make.tensor(57, 32)] if dynamic else [x]
    if dynamic:
        for value in values:
            torch._dynamo.mark_dynamic(value, 0)
    (graph,) = live.capture(live.UserProgram(shared, (x, w)))
    verdict: dict[str, Verdict] = {"aten.mul.Tensor": "store", "aten.tanh.default": "inline"}
    decisions = graph.survey(lambda found, *_: found.decisions).found
    wanted = {d.node: verdict[d.operator] for d in decisions if d.operator in verdict}
    assert len(wanted) == len(verdict)
    compiled = replayed(source, wanted, x, w)
    for value in values:
        live.difference(compiled(value, w), shared(value, w))
    report = fusewise.reports()[-1]
    assert (report.source, report.fallback) == (source, None)
    assert report.chosen is not None
    assert report.chosen.schedule.lowering == node_choices(wanted)
    # One graph for all sizes, and one report for each of the two compiles.
    assert len(fusewise.reports()) == 2


def test_a_verdict_that_cannot_be_leaves_the_graph_to_inductor(
    live: Any, replayed: Callable[..., Any]
) -> None:
    make = live.Make("cpu", torch.float32)
    x, w = make.tensor(12, 32), make.tensor(32)
    compiled = replayed("plan file", {"amax": "inline"}, x, w)
    with pytest.warns(FusewiseWarning, match="node 'amax' cannot be inlined"):
        live.difference(compiled(x, w), shared(x, w))
    report = fusewise.reports()[-1]
    assert report.source == "inductor" and "always stores" in (report.fallback or "")


@pytest.fixture(scope="session")
def predictor(profiled: Path) -> Predictor:
    """The roofline on this machine's CPU."""
    home = default_store_path().parent
    profile = device_profile(torch.device("cpu"), home)
    return Predictor(load_model("roofline", profile, home), profile, {})


def repeated(*layers: Any) -> Any:
    """Layers that each need a value along both of its axes, and have another stored."""
    outputs = []
    for x in layers:
        waves = x.sin().cos()
        powers = torch.exp(x * 2)
        outputs += [waves.sum(0), waves.sum(1), powers.sum(0), powers.sum(1)]
    return outputs


def _first(live: Any, predictor: Predictor) -> tuple[Any, Survey]:
    layers = tuple(torch.randn(512, 256) for _ in range(2))
    (graph,) = live.capture(live.UserProgram(repeated, layers))
    with graph.context():
        return graph, survey(graph.compile, predictor, key="k", kind="inference")


def test_values_alike_are_offered_together_and_the_survey_tries_them(
    live: Any, predictor: Predictor
) -> None:
    graph, first = _first(live, predictor)
    offered = alternatives(first, predictor.profile)
    assert offered == alternatives(first, predictor.profile)
    assert offered and [a.gain_us for a in offered] == sorted(a.gain_us for a in offered)[::-1]
    assert max(len(a.choices) for a in offered) >= 2
    possible = {d.node: d.alternative for d in first.decisions}
    for alternative in offered:
        for choice in alternative.choices:
            assert possible[choice.name.removeprefix("node:")] == choice.value

    # A longer search takes each as a choice of its own: all values that are alike, or none.
    space = choice_space("cpu", offered)
    for alternative in offered:
        values = space.values[alternative.name]
        assert values == (space.default[alternative.name], alternative.choices[0].value)
    assert space.size == choice_space("cpu").size * 2 ** len(offered)

    def looked() -> list[Survey]:
        with graph.context():
            return survey_all(graph.compile, predictor, key="k", kind="inference", budget_s=None)

    surveys = looked()
    of_nodes = [s for s in surveys if any(choice.of_part for choice in s.choices)]
    assert of_nodes
    assert {c for s in of_nodes for c in s.choices} <= {c for a in offered for c in a.choices}
    for found in of_nodes:
        assert all(c.schedule.lowering == found.choices for c in found.candidates)
    again = looked()
    assert [(s.choices, s.candidates) for s in again] == [
        (s.choices, s.candidates) for s in surveys
    ]


@dataclass(frozen=True)
class _Look:
    choices: tuple[Choice, ...]
    best_us: float
    problem: Problem
    default_plan: Plan
    decisions: tuple[InliningDecision, ...] = ()


def test_what_gains_alone_is_put_together_while_that_gains() -> None:
    problem, plan = Problem("k", "inference", (), (), (), ()), Plan((), ())
    gains = {"a": 4.0, "b": 3.0, "c": -1.0, "d": 2.0, "e": 0.0}
    asked: list[str] = []

    def look(choices: tuple[Choice, ...]) -> _Look | None:
        names = "".join(choice.name.removeprefix("node:") for choice in choices)
        asked.append(names)
        if "e" in names:
            return None
        # Two that gain alone may lose together.
        loss = 10.0 if {"a", "b"} <= set(names) else 0.0
        us = 20.0 - sum(gains[name] for name in names) + loss
        return _Look(choices, us, problem, plan)

    first = _Look((), 20.0, problem, plan)
    offered = [Alternative((node_choice(name, "store"),), 1.0) for name in "cedba"]
    found = try_alternatives(first, offered, look)
    assert asked == ["c", "e", "d", "b", "a", "ab", "ad"]
    names = ["".join(c.name.removeprefix("node:") for c in look.choices) for look in found]
    assert names == ["c", "d", "b", "a", "ad"]
    assert together((node_choice("b", "store"),), (node_choice("a", "inline"),)) == (
        node_choice("a", "inline"),
        node_choice("b", "store"),
    )


def test_draws_are_possible_and_repeat_with_their_seed(live: Any, predictor: Predictor) -> None:
    graph, first = _first(live, predictor)
    possible = {node_choice(d.node, d.alternative) for d in first.decisions if d.alternative}
    draws = [drawn(first.decisions, random.Random(seed)) for seed in range(6)]
    assert all(draws) and {choice for draw in draws for choice in draw} <= possible
    assert len(set(draws)) > 1
    assert draws == [drawn(first.decisions, random.Random(seed)) for seed in range(6)]
    assert drawn((), random.Random(0)) == ()
    with graph.context():
        found = survey(graph.compile, predictor, key="k", kind="inference", choices=draws[0])
    verdicts_of = {d.node: d.outcome for d in found.decisions}
    assert {node_choice(n, v) for n, v in verdicts_of.items()} >= set(draws[0])


def test_time_that_is_up_ends_the_tries(live: Any, predictor: Predictor) -> None:
    graph, first = _first(live, predictor)
    with graph.context():
        surveys = survey_all(graph.compile, predictor, key="k", kind="inference", budget_s=0.0)
    assert [s.choices for s in surveys] == [first.choices]


def test_profile_rates_decide_what_is_offered(live: Any, predictor: Predictor) -> None:
    _, first = _first(live, predictor)
    profile: DeviceProfile = predictor.profile
    # Where memory costs next to nothing, storing pays; where arithmetic does, inlining.
    free_bytes = msgspec.structs.replace(profile, copy_gbs=1e9)
    free_work = msgspec.structs.replace(profile, flops_gfs=1e9, transcendental_gops=1e9)
    stored = {c.value for a in alternatives(first, free_bytes) for c in a.choices}
    inlined = {c.value for a in alternatives(first, free_work) for c in a.choices}
    assert stored == {"store"} and inlined == {"inline"}
