"""``fusewise plan``: files shown and compared, replayed, and carried over to changed programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import Result

from fusewise.compiler import reports
from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.options import Options
from fusewise.compiler.plan_files import new_plan_file, planned_graph
from fusewise.compiler.session import Session, device_of
from fusewise.compiler.visiting import visit_graphs
from fusewise.datasets.target import load_target
from fusewise.schedule.plan import build_plan
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, read_plan_file, write_plan_file
from fusewise.schedule.schedule import Choice

Invoke = Callable[..., Result]
Refused = Callable[..., None]

_CHANGED = """
import torch


def inputs():
    torch.manual_seed(0)
    return torch.randn(32, 64), torch.randn(32, 64)


def first():
    def call(x, y):
        h = (x + y).softmax(-1)
        return (h * y).sum(0), h.mean(0)

    return call, inputs()


def grown():
    # The same with a reduction in front, so that every node has another name.
    def call(x, y):
        z = (y * y).amax(0)
        h = (x + y).softmax(-1)
        return z, (h * y).sum(0), h.mean(0)

    return call, inputs()


def smaller():
    call, (x, y) = first()
    return call, (x[:, :32].contiguous(), y[:, :32].contiguous())
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, profiled: Path) -> Path:
    """A store beside which the devices are known."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "devices").symlink_to(profiled)
    return folder / "store.duckdb"


@pytest.fixture(scope="module")
def programs(store: Path) -> Path:
    """A file with a program and changed forms of it."""
    path = store.with_name("programs.py")
    path.write_text(_CHANGED)
    return path


@pytest.fixture(scope="module")
def plan(programs: Path, store: Path) -> Path:
    """A plan of the first program in which Inductor's last fusion is left out."""
    return _write(f"{programs}:first", store, store.with_name("plan.json"))


def _write(target: str, store: Path, path: Path, choices: tuple[Choice, ...] = ()) -> Path:
    session = Session(options=Options(store=store), inductor_options={}, observed=())
    planned: list[PlannedGraph] = []

    def visit(graph: GraphCompile) -> Any:
        device = device_of(graph.gm, graph.example_inputs)
        predictor = session.predictor(device)
        with graph.settings(None):
            key = graph_key(
                graph.gm,
                graph.example_inputs,
                graph.kwargs,
                predictor.profile.key,
                predictor.model.id,
            )
        plans = []

        def look(live: LiveGraph) -> None:
            names = [node.get_first_name() for node in live.nodes]
            plans.append(build_plan(names, live.default_plan.steps[:-1]))

        graph.survey(choices, look)
        schedule = schedule_of(choices, plans[0])
        planned.append(planned_graph(graph, key, schedule, predictor, device=str(device)))
        return graph.compile(None, None)

    visit_graphs(load_target(target), session, visit)
    write_plan_file(path, new_plan_file("first", planned))
    return path


def test_a_file_comes_back_as_it_was(plan: Path, tmp_path: Path) -> None:
    found = read_plan_file(plan)
    (graph,) = found.graphs
    assert graph.schedule.plan is not None and graph.schedule.plan.steps
    names = {name for group in graph.schedule.plan.groups for name in group}
    assert {node.name for node in graph.nodes if node.operations and node.signature} == names
    again = tmp_path / "again.json"
    write_plan_file(again, found)
    assert again.read_bytes() == plan.read_bytes()
    choices = msgspec.structs.replace(
        graph.schedule, lowering=(Choice("inline_reads", 16),), codegen=(Choice("loop", False),)
    )
    changed = msgspec.structs.replace(graph, schedule=choices)
    write_plan_file(again, msgspec.structs.replace(found, graphs=(changed,)))
    assert read_plan_file(again).graphs == (changed,)


def test_show(invoke: Invoke, plan: Path) -> None:
    shown = invoke("plan", "show", plan)
    assert shown.exit_code == 0, shown.output
    for word in ("inference graph", "predicted", "op0", "aten.add.Tensor", "torch"):
        assert word in shown.stdout
    told = json.loads(invoke("plan", "show", plan, "--json").stdout)
    assert told == json.loads(plan.read_text())


def test_explain_a_plan_with_a_lowering_of_its_own(
    invoke: Invoke, programs: Path, store: Path, tmp_path: Path
) -> None:
    target, path = f"{programs}:first", tmp_path / "lowered.json"
    _write(target, store, path, (Choice("inline_ops", 1), Choice("inline_reads", 1)))
    result = invoke("explain", target, "--store", store, "--plan", path, "--json")
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["plan"]["origin"] == "plan file" and "inline_ops=1" in graph["plan"]["choices"]
    named = {name for group in graph["groups"] for name in group["nodes"]}
    assert named == {node["name"] for node in graph["chosen_nodes"]}
    assert {f["together_chosen"] for f in graph["possible_fusions"]} == {None}
    (planned,) = read_plan_file(path).graphs
    assert planned.schedule.plan is not None
    assert [tuple(g["nodes"]) for g in graph["groups"]] == list(planned.schedule.plan.groups)


def test_diff(invoke: Invoke, plan: Path, tmp_path: Path) -> None:
    assert invoke("plan", "diff", plan, plan).exit_code == 0
    found = read_plan_file(plan)
    (graph,) = found.graphs
    old = graph.schedule.plan
    assert old is not None
    names = [name for group in old.groups for name in group]
    apart = msgspec.structs.replace(
        graph.schedule,
        plan=build_plan(sorted(names), old.steps[:-1]),
        lowering=(Choice("inline_reads", 16),),
    )
    changed = msgspec.structs.replace(graph, schedule=apart, group_us=())
    other = tmp_path / "other.json"
    write_plan_file(other, PlanFile(fusewise="0", torch=found.torch, graphs=(changed,)))
    result = invoke("plan", "diff", plan, other, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert not told["same"]
    assert [entry["what"] for entry in told["environment"]] == ["fusewise"]
    (difference,) = told["graphs"]
    assert difference["key"] == [] and difference["nodes"] == []
    assert difference["choices"] == [{"what": "inline_reads", "first": "", "second": "16"}]
    moved = {entry["node"]: entry for entry in difference["moved"]}
    last = old.steps[-1]
    assert last.second in moved[last.first]["first"]
    assert last.second not in moved[last.first]["second"]
    shown = invoke("plan", "diff", plan, other)
    assert shown.exit_code == 1 and last.second in shown.stdout and "inline_reads" in shown.stdout


def test_check_names_what_differs(invoke: Invoke, plan: Path, programs: Path, store: Path) -> None:
    same = invoke("plan", "check", plan, f"{programs}:first", "--store", store, "--json")
    assert same.exit_code == 0, same.output
    assert json.loads(same.stdout)["replays"]
    other = invoke("plan", "check", plan, f"{programs}:smaller", "--store", store, "--json")
    assert other.exit_code == 1
    (graph,) = json.loads(other.stdout)["graphs"]
    assert not graph["replays"]
    assert [part for part, same in graph["parts"].items() if not same] == ["inputs"]
    shown = invoke("plan", "check", plan, f"{programs}:grown", "--store", store)
    assert shown.exit_code == 1 and "differs in graph" in shown.stdout


@pytest.fixture
def illegal(plan: Path, tmp_path: Path) -> Path:
    """The plan with all its groups joined, the last of them first."""
    content = json.loads(plan.read_text())
    graph = content["graphs"][0]
    apart = [group["nodes"] for group in graph["groups"]]
    graph["groups"] = [{"nodes": [node for nodes in apart for node in nodes]}]
    first, *others = (nodes[0]["name"] for nodes in reversed(apart))
    graph["steps"] += [f"fuse {first} {other}" for other in others]
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(content))
    return edited


def test_a_plan_that_was_edited_into_something_illegal(
    invoke: Invoke, refused: Refused, illegal: Path, programs: Path, store: Path
) -> None:
    asked = (illegal, f"{programs}:first", "--store", store)
    result = invoke("plan", "check", *asked)
    assert result.exit_code == 1
    assert "is illegal" in result.stdout.splitlines()[0]
    assert "--partial" in result.stdout
    refused(invoke("plan", "apply", *asked), "error: plan: group", "is illegal")
    result = invoke("plan", "apply", *asked, "--partial", "--json")
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["differs"] == []
    (lost,) = graph["lost"]
    assert lost["reason"]


def test_a_choice_of_another_version_is_left_out_of_what_is_carried_over(
    invoke: Invoke, refused: Refused, plan: Path, programs: Path, store: Path, tmp_path: Path
) -> None:
    content = json.loads(plan.read_text())
    content["graphs"][0]["codegen"] = {"tile_twice": True}
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(content))
    asked = (edited, f"{programs}:first", "--store", store)
    refused(invoke("plan", "apply", *asked), "unknown choice 'tile_twice'")
    result = invoke("plan", "apply", *asked, "--partial", "--json")
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    assert (graph["lost_choices"], graph["lost"]) == (["tile_twice"], [])


def test_a_program_without_graphs(
    invoke: Invoke, refused: Refused, plan: Path, programs: Path, store: Path
) -> None:
    programs.with_name("plain.py").write_text("def plain():\n    return lambda: 3, ()\n")
    asked = (plan, f"{programs.with_name('plain.py')}:plain", "--store", store)
    result = invoke("plan", "check", *asked)
    assert result.exit_code == 1
    assert result.stdout == "inference graph: the program has no inference graph\n"
    refused(invoke("plan", "apply", *asked), f"plan file {plan}", "nothing of it was applied")


def test_apply_replays_exactly(
    invoke: Invoke, plan: Path, programs: Path, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    more = ("--store", store, "--out", out, "--json")
    result = invoke("plan", "apply", plan, f"{programs}:first", *more)
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["outcome"] == "replayed"
    assert read_plan_file(out).graphs == read_plan_file(plan).graphs


def test_apply_carries_over_what_still_matches(
    invoke: Invoke, refused: Refused, plan: Path, programs: Path, store: Path, tmp_path: Path
) -> None:
    target = f"{programs}:grown"
    refused(invoke("plan", "apply", plan, target, "--store", store), "differs in graph", "partial")
    out = tmp_path / "carried.json"
    more = ("--store", store, "--partial", "--out", out)
    result = invoke("plan", "apply", plan, target, *more, "--json")
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["outcome"] == "partial" and graph["differs"] == ["graph"]
    assert graph["lost"] == []
    # As many groups as the plan has, of the same operations, under other names.
    (old,), (new,) = read_plan_file(plan).graphs, read_plan_file(out).graphs
    before, after = _signatures(old), _signatures(new)
    assert [group for group in before if len(group) > 1]
    assert all(group in after for group in before)
    assert len(graph["carried"]) == sum(len(group) > 1 for group in before)
    assert graph["new_nodes"]
    # What comes out is a plan of the changed program.
    checked = invoke("plan", "check", out, target, "--store", store)
    assert checked.exit_code == 0, checked.output
    shown = invoke("plan", "apply", plan, target, *more)
    assert "carried over" in shown.stdout


def test_a_changed_program_compiles_by_what_still_matches(
    plan: Path, programs: Path, store: Path
) -> None:
    sample = load_target(f"{programs}:grown")
    options = {"fusewise.mode": "replay", "fusewise.plan": plan, "fusewise.store": store}
    reports.clear_reports()
    torch._dynamo.reset()
    compiled = torch.compile(
        sample.module, backend="fusewise", options=options | {"fusewise.partial": True}
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*sample.args), sample.module(*sample.args))
    (report,) = reports.reports()
    assert (report.source, report.mismatch, report.fallback) == ("plan file", ("graph",), None)
    assert report.chosen is not None and "carried over, 0 lost" in report.chosen.reason
    torch._dynamo.reset()


def _signatures(graph: PlannedGraph) -> list[list[str]]:
    known = {node.name: node.signature for node in graph.nodes}
    assert graph.schedule.plan is not None
    return [[known[name] for name in group] for group in graph.schedule.plan.groups]


def test_bad_files_are_one_clear_error(
    invoke: Invoke, refused: Refused, plan: Path, programs: Path, store: Path, tmp_path: Path
) -> None:
    refused(invoke("plan", "show", tmp_path / "nowhere.json"), "nowhere.json")
    content = json.loads(plan.read_text())
    older = tmp_path / "older.json"
    older.write_text(json.dumps(content | {"schema": 1}))
    for words in (("show", older), ("diff", older, plan), ("check", older, f"{programs}:first")):
        more = () if words[0] in ("show", "diff") else ("--store", store)
        refused(invoke("plan", *words, *more), "schema 1", "older.json")
    content["graphs"][0]["steps"][0] = "melt op0 op1"
    older.write_text(json.dumps(content))
    refused(invoke("plan", "show", older), "melt op0 op1", "graphs[0].steps[0]")
    content = json.loads(plan.read_text())
    first, *_, last = content["graphs"][0]["groups"]
    first["nodes"].append(last["nodes"].pop())
    older.write_text(json.dumps(content))
    refused(invoke("plan", "show", older), "older.json", "do not make a group of", "groups[0]")
    first["nodes"].append(first["nodes"][0])
    older.write_text(json.dumps(content))
    refused(invoke("plan", "show", older), "older.json", "'op0' is in two places")
    refused(invoke("plan", "apply", plan, f"{programs}:none", "--store", store), "none")
