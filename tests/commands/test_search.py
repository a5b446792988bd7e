from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from fusewise.compiler import reports
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.offering import choice_space
from fusewise.compiler.offline import Standing, search_program
from fusewise.compiler.options import Options
from fusewise.compiler.searched import Effort
from fusewise.compiler.session import Session
from fusewise.compiler.visiting import visit_graphs
from fusewise.datasets.store import Store
from fusewise.datasets.target import load_target
from fusewise.schedule.errors import CorpusError
from fusewise.schedule.plan_file import read_plan_file

Invoke = Callable[..., Result]
Refused = Callable[..., None]


def _search(invoke: Invoke, target: str, store: Path, *more: object) -> Result:
    limits = ("--trials", 2, "--budget", "8s", "--top-k", 1)
    return invoke("search", target, "--store", store, *limits, *more)


def test_search_and_replay(invoke: Invoke, targets: Path, home: Path) -> None:
    store, plan = home / "searched.duckdb", home / "plan.json"
    target = f"{targets}:training"
    result = _search(invoke, target, store, "--out", plan, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["plan"] == str(plan)
    assert not told["interrupted"]
    assert [graph["kind"] for graph in told["graphs"]] == ["forward", "backward"]
    # How many trials there is time for depends on the machine.
    assert told["graphs"][0]["trials"] >= 1
    for graph in told["graphs"]:
        assert graph["trials"] <= 2
        assert graph["nodes"] > 0
        assert graph["speedup"] is None or graph["speedup"] > 0

    planned = read_plan_file(plan).graphs
    assert [graph.schedule.id for graph in planned] == [g["schedule"] for g in told["graphs"]]

    sample = load_target(target)
    options = {"fusewise.mode": "replay", "fusewise.plan": plan, "fusewise.store": store}
    reports.clear_reports()
    torch._dynamo.reset()
    output = torch.compile(sample.module, backend="fusewise", options=options)(*sample.args)
    torch.testing.assert_close(output, sample.module(*sample.args))
    output.sum().backward()
    assert [report.source for report in reports.reports()] == ["plan file", "plan file"]
    assert [report.chosen and report.chosen.schedule for report in reports.reports()] == [
        graph.schedule for graph in planned
    ]


@pytest.mark.slow
def test_the_store_and_the_study_go_on(invoke: Invoke, targets: Path, home: Path) -> None:
    store = home / "named.duckdb"
    target = f"{targets}:inference"
    first = _search(invoke, target, store, "--name", "one", "--json")
    assert first.exit_code == 0, first.output
    done = json.loads(first.stdout)["graphs"][0]["trials"]
    assert done >= 1
    assert (home / "studies.db").is_file()
    with Store.open(store, read_only=True) as opened:
        decided = len(opened.rows("decisions"))
    # All trials are known, so at most the last contest is held.
    again = _search(invoke, target, store, "--name", "one", "--trials", done, "--json")
    graph = json.loads(again.stdout)["graphs"][0]
    assert graph["trials"] == done
    assert graph["seconds"]["trials"] < 2
    with Store.open(store, read_only=True) as opened:
        assert len(opened.rows("decisions")) >= decided
        kinds = {row.kind for row in opened.rows("graphs")}  # type: ignore[union-attr]
    assert kinds == {"inference"}


@pytest.mark.slow
def test_the_table_names_each_graph(invoke: Invoke, targets: Path, home: Path) -> None:
    store = home / "shown.duckdb"
    result = invoke(
        "search", f"{targets}:inference", "--store", store, "--trials", 1, "--budget", 1
    )
    assert result.exit_code == 0, result.output
    assert "inference" in result.stdout
    assert str(store) in result.stdout


@pytest.mark.parametrize("at", ["looking at choices", "trial 1", "trial 2"])
def test_an_interrupt_keeps_what_was_found(targets: Path, home: Path, at: str) -> None:
    told: list[Standing] = []

    def interrupt(standing: Standing) -> None:
        told.append(standing)
        if sum(one.doing == at for one in told) == 1 and standing.doing == at:
            raise KeyboardInterrupt

    effort = Effort(store=home / "interrupted.duckdb", trials=3, top_k=1, budget_s=8)
    found = search_program(load_target(f"{targets}:training"), effort, interrupt)
    assert found.interrupted
    assert [graph.kind for graph in found.plan_file().graphs] == ["forward", "backward"]
    # Nothing more is tried, of the graph in hand or of the next.
    assert found.graphs[0].trials == (at == "trial 2")
    assert found.graphs[1].trials == 0
    assert found.graphs[1].report.fallback == "not measured: the search was ended"
    assert [one.graph for one in told if one.doing == "trial 1"] in ([], [1])
    assert all(0 <= one.left_s <= 8 for one in told)


def test_choices_of_each_device() -> None:
    cpu, cuda = choice_space("cpu"), choice_space("cuda")
    assert cpu.size > 1 and cuda.size > 1
    assert set(cpu.default.values()) == {"inductor"}
    only_cpu, only_cuda = cpu.values.keys() - cuda.values, cuda.values.keys() - cpu.values
    assert "parallel_grain" in only_cpu and "coordinate_descent" in only_cuda


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("missing.py:make", "missing.py"),
        ("no colon", "FILE.py:FACTORY"),
        ("{file}:other", "other"),
        ("{file}:nothing", "NoneType"),
        ("{file}:failing", "not today"),
    ],
)
def test_bad_target(
    invoke: Invoke, refused: Refused, targets: Path, home: Path, target: str, word: str
) -> None:
    result = _search(invoke, target.format(file=targets), home / "bad.duckdb")
    refused(result, word)


def test_bad_store(invoke: Invoke, refused: Refused, targets: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    path.write_bytes(b"something else" * 1000)
    refused(_search(invoke, f"{targets}:inference", path), str(path))


def test_unknown_model(invoke: Invoke, refused: Refused, targets: Path, home: Path) -> None:
    result = _search(invoke, f"{targets}:inference", home / "m.duckdb", "--model", "nobody")
    refused(result, "nobody", "roofline")


@pytest.mark.parametrize(
    "arguments",
    [("--budget", "long"), ("--trials", "0"), ("--top-k", "0"), ("--objective", "beauty")],
)
def test_bad_limits(invoke: Invoke, targets: Path, arguments: tuple[str, str]) -> None:
    result = invoke("search", f"{targets}:inference", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert arguments[0] in result.stderr


@pytest.mark.slow
def test_rules_hold_in_a_search(invoke: Invoke, targets: Path, home: Path, tmp_path: Path) -> None:
    store, plan, given = home / "ruled.duckdb", tmp_path / "plan.json", tmp_path / "rules.toml"
    given.write_text(
        '[[rules]]\naction = "alone"\nop = "aten.tanh"\n'
        '[[rules]]\naction = "never"\nmodule = "no.such"\nwith = "aten.sum"\n'
    )
    target = f"{targets}:inference"
    result = _search(invoke, target, store, "--rules", given, "--out", plan)
    # All that was found is kept, and then the rule that means nothing here is an error.
    assert result.exit_code == 2, result.output
    nothing = "rule 2: never fuse in no.such with aten.sum matched nothing"
    assert result.stderr.startswith(f"error: rule file {given}: {nothing}")
    (planned,) = read_plan_file(plan).graphs
    assert "rules" in planned.key_parts
    assert planned.schedule.plan is not None
    operations = {node.name: node.operations for node in planned.nodes}
    for group in planned.schedule.plan.groups:
        inside = [op for name in group for op in operations[name]]
        assert "aten.tanh.default" not in inside or len(inside) == 1

    sample = load_target(target)
    options = {
        "fusewise.mode": "replay",
        "fusewise.plan": plan,
        "fusewise.store": store,
        "fusewise.rules": given,
    }
    reports.clear_reports()
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(match="rule 2: .* matched nothing"):
        output = torch.compile(sample.module, backend="fusewise", options=options)(*sample.args)
    torch.testing.assert_close(output, sample.module(*sample.args))
    (report,) = reports.reports()
    assert report.source == "plan file"
    assert report.rules is not None and len(report.rules.unmatched) == 1


def test_a_rule_file_that_is_none(invoke: Invoke, refused: Refused, targets: Path) -> None:
    result = invoke("search", f"{targets}:inference", "--rules", targets)
    refused(result, f"rule file {targets}", "TOML")


def test_a_compile_that_fails_is_told_by_its_cause(targets: Path, home: Path) -> None:
    session = Session(
        options=Options(store=home / "cause.duckdb"), inductor_options={}, observed=()
    )

    def broken(graph: GraphCompile) -> object:
        raise ZeroDivisionError("the cause itself")

    with pytest.raises(CorpusError, match="ZeroDivisionError: the cause itself"):
        visit_graphs(load_target(f"{targets}:inference"), session, broken)
