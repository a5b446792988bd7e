"""``fusewise explain`` in the terminal and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

import fusewise
from fusewise.commands import output
from fusewise.commands.explain_tables import operator_name
from fusewise.costmodel.device import DeviceProfile, device_profile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import save_model
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.errors import FusewiseError
from fusewise.schedule.problem import Access, Buffer, Node, Problem

Invoke = Callable[..., Result]
Refused = Callable[..., None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, profiled: Path) -> Path:
    """A store beside which the devices are known."""
    folder = tmp_path_factory.mktemp("explain")
    (folder / "devices").symlink_to(profiled)
    return folder / "store.duckdb"


@pytest.fixture
def explain(invoke: Invoke, targets: Path, store: Path) -> Callable[..., Result]:
    """``explain("inference", ...)``: the target of that name explained."""
    return lambda target, *more: invoke("explain", f"{targets}:{target}", "--store", store, *more)


def test_json_has_the_whole_flow(explain: Invoke, targets: Path) -> None:
    result = explain("training", "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    assert [graph["kind"] for graph in told["graphs"]] == ["forward", "backward"]
    for graph in told["graphs"]:
        assert graph["nodes"] and graph["rewrites"] and graph["inlining"]
        wanted = {"a", "b", "inductor_score", "predicted_gain_us", "legal", "reason", "taken"}
        assert graph["possible_fusions"]
        assert all(wanted <= set(fusion) for fusion in graph["possible_fusions"])
        wanted = {"nodes", "predicted_us", "measured_us", "kernel", "source"}
        assert all(wanted <= set(group) for group in graph["groups"])
        named = {name for group in graph["groups"] for name in group["nodes"]}
        assert named == {node["name"] for node in graph["nodes"]}
    sources = [group["source"] for group in told["graphs"][0]["groups"]]
    assert any(f"{targets}:" in source for source in sources)


def test_the_terminal_answers_in_one_screen(explain: Invoke) -> None:
    result = explain("inference")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) < 50
    text = result.stdout
    for word in ("kernels", "possible fusions", "taken", "bound by", "targets.py:", "Inductor's"):
        assert word in text
    assert "\x1b" not in text


def test_nothing_that_can_be_looked_up_is_cut_off_in_a_narrow_terminal(
    explain: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(explain("inference", "--json").stdout)["graphs"][0]
    monkeypatch.setattr(output, "_PIPED_WIDTH", 80)
    text = explain("inference", "--only", "refused", "--rows", "1000").stdout
    tables = [line for line in text.splitlines() if line[0] in "┃│┏┡└"]
    assert tables and {len(line) for line in tables} == {80}
    fusions = [line.split("│")[1:-1] for line in text.partition("possible fusions")[2].splitlines()]
    scores, reasons = ([cells[at].strip() for cells in fusions if cells] for at in (2, 4))
    assert not [cell for cell in scores if "…" in cell]
    refused = {f["reason"] for f in told["possible_fusions"] if not f["legal"]}
    assert refused and refused <= set(reasons)


def test_counts_and_marks_are_the_outcomes_of_the_json(explain: Invoke) -> None:
    (graph,) = json.loads(explain("inference", "--json").stdout)["graphs"]
    of = Counter(f["outcome"] for f in graph["possible_fusions"])
    assert of["taken"] == sum(f["taken"] for f in graph["possible_fusions"]) > 0
    assert of["refused"] == sum(not f["legal"] for f in graph["possible_fusions"]) > 0
    text = explain("inference", "--rows", "1000").stdout
    assert f"{of['taken']} taken, {of['missed']} missed, {of['refused']} refused" in text
    for only in ("taken", "missed", "refused"):
        shown = explain("inference", "--only", only, "--rows", "1000").stdout
        rows = shown.partition("possible fusions")[2].splitlines()
        marks = [line.split("│")[1].strip() for line in rows if line.startswith("│")]
        assert [mark for mark in marks if mark] == [only] * of[only]


def test_tables_can_be_filtered(explain: Invoke) -> None:
    refused = explain("inference", "--only", "refused").stdout
    assert "refused" in refused and "│ taken" not in refused and "bound by" not in refused
    node = explain("inference", "--node", "op1").stdout
    nodes = re.findall(r"^│ (op\d+) +│ (?:pointwise|reduction)", node, re.MULTILINE)
    assert nodes == ["op1"]


def test_a_fusion_with_the_features_that_drive_it(
    invoke: Invoke, targets: Path, store: Path
) -> None:
    _save_model(store.parent)
    told = invoke("explain", f"{targets}:inference", "--store", store, "--model", "made", "--json")
    fusion = next(f for f in json.loads(told.stdout)["graphs"][0]["possible_fusions"] if f["taken"])
    why = f"{fusion['a']},{fusion['b']}"
    more = ("--model", "made", "--why", why)
    result = invoke("explain", f"{targets}:inference", "--store", store, *more)
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "in one kernel" in text and "removed" in text
    assert "too uncertain to count: value, and factor on the time" in " ".join(text.split())
    assert "before" in text and "after" in text
    result = invoke("explain", f"{targets}:inference", "--store", store, *more, "--json")
    (graph,) = json.loads(result.stdout)["graphs"]
    assert graph["model"] != "roofline"
    sides = (*graph["why"]["before"], *graph["why"]["after"])
    for side in sides:
        assert side["attribution"]["contributions"]
    assert ("what drives" in text) == any(side["predicted_by"] != "roofline" for side in sides)
    assert ("too uncertain" in text) == all(side["predicted_by"] == "roofline" for side in sides)


def test_what_does_not_exist_is_one_clear_error(explain: Invoke, refused: Refused) -> None:
    refused(explain("inference", "--why", "op0,op77"), "op77", "inference")
    refused(explain("inference", "--why", "op0"), "--why", "op2,op5")
    refused(explain("inference", "--node", "op77"), "op77")
    refused(explain("inference", "--graph", "backward"), "no backward graph")
    refused(explain("inference", "--plan", "nowhere.json"), "nowhere.json")
    refused(explain("nowhere"), "nowhere")


def test_a_target_that_raises_is_one_clear_error(explain: Invoke, refused: Refused) -> None:
    refused(explain("failing"), "does not run", "failing")
    refused(explain("nothing"), "returned")


def test_a_page_to_look_at(explain: Invoke, refused: Refused, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "report.html"
    result = explain("inference", "--html", page)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"report {page}\n"
    data = page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0]
    (graph,) = json.loads(data)["graphs"]
    # What is predicted to be best is searched for, so there are others to compare with.
    assert len(graph["candidates"]) > 1
    assert [c["default"] for c in graph["candidates"]].index(True) == 0
    assert sum(c["chosen"] for c in graph["candidates"]) == 1
    told = json.loads(explain("inference", "--html", page, "--json").stdout)
    assert (
        json.loads(page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0])[
            "graphs"
        ]
        == told["graphs"]
    )
    refused(explain("inference", "--html", tmp_path / "nowhere" / "a.html"), "no folder", "nowhere")
    refused(explain("inference", "--html", tmp_path), "is a folder")


@pytest.mark.gpu
def test_a_page_of_a_program_on_a_gpu(explain: Invoke, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = explain("training", "--device", "cuda", "--measure", "--html", page, "--json")
    assert result.exit_code == 0, result.output
    graphs = json.loads(result.stdout)["graphs"]
    assert [graph["kind"] for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        assert graph["device"].startswith("cuda") and graph["not_measured"] == ""
        assert graph["candidates"][0]["default"] and graph["default_groups"]
        assert any(group["measured_us"] for group in graph["groups"])
        assert graph["key"] in page.read_text("utf-8")


def test_explain_from_python(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(store.parent))

    def call(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum(0)

    explained = fusewise.explain(call, torch.randn(8, 8), predicted=True)
    (graph,) = explained.graphs
    assert graph.key in explained.html()
    assert graph.candidates and graph.candidates[0].default
    assert graph.kind == "inference"
    assert [len(group.nodes) for group in graph.groups] == [len(graph.nodes)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"why": "op0"}, "'op0' does not name two sides"),
        ({"why": ("op0", 1)}, "does not name two sides"),
        ({"plan": 3}, "the path of a plan file"),
        ({"rules": "nowhere.toml"}, "nowhere.toml"),
        ({"rules": 3}, "rules made with fusewise.rules"),
        ({"measure": 3}, "argument measure of explain: value 3 of int; give True or False"),
        ({"measure": None}, "argument measure of explain: value None"),
        ({"predicted": "no"}, "argument predicted of explain: value 'no' of str"),
    ],
)
def test_what_python_gives_wrong_is_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(FusewiseError, match=re.escape(told)):
        fusewise.explain(torch.sin, torch.randn(4), **wrong)


def test_operators_are_named_as_people_say_them() -> None:
    told = {"aten.add.Tensor": "add", "prims.iota.default": "iota", "mine.add.default": "mine.add"}
    assert {name: operator_name(name) for name in told} == told


def _save_model(home: Path) -> None:
    """A model of made-up kernels on this device: by size alone."""
    profile = device_profile(torch.device("cpu"), home)
    x = _features(profile)
    law = 0.1 * x[:, COLUMN["iterations"]]
    estimator = LearnedCostModel(n_estimators=20, networks=1, epochs=4)
    model = estimator.fit(x, roofline_us(x) * np.exp(law)).model_
    save_model(SavedModel(model, Manifest(name="made", id=model.id, profile=profile)), home)


def _features(profile: DeviceProfile) -> Any:
    nodes, buffers = [], []
    for i in range(200):
        n = 2 ** (6 + i % 12) + i
        read, written = (
            Access(f"{name}{i}", "contiguous", n, 4 * n, 4, 1, "i0") for name in ("in", "out")
        )
        nodes.append(
            Node(
                name=f"op{i}",
                kind="pointwise",
                device="cpu",
                numel=n,
                rnumel=1,
                ranges=((n,), ()),
                reduction_type="",
                reads=(read,),
                writes=(written,),
                ops=(("add", 1 + i % 3),),
                origins=(),
                source="",
                order=i,
                compiler_us=0.0,
                flops=0,
                signature=str(i),
            )
        )
        buffers.append(Buffer(f"out{i}", 4 * n, "float32", False, True, ()))
    problem = Problem("made", "inference", tuple(nodes), tuple(buffers), (), ())
    return Featurizer(problem, profile).batch([(node.name,) for node in nodes])


def test_what_rules_forbid_is_counted_and_marked(explain: Invoke, tmp_path: Path) -> None:
    given = tmp_path / "rules.toml"
    given.write_text('[[rules]]\naction = "at_most"\nnodes = 1\n')
    told = json.loads(explain("inference", "--rules", given, "--json").stdout)
    pairs = told["graphs"][0]["possible_fusions"]
    ruled = sum(f["reason"] == "rule" for f in pairs)
    assert ruled == sum(f["outcome"] == "rule" for f in pairs) > 0
    text = explain("inference", "--rules", given, "--rows", "1000").stdout
    assert f"{len(pairs)} pairs in" in text and f", {ruled} forbidden by rules" in text
    marks = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert "rule" in marks and "together" not in marks
    # A table without rows is no table.
    missed = explain("inference", "--rules", given, "--only", "missed").stdout
    assert "0 missed" in missed and "│" not in missed


def test_a_rule_that_names_nothing(explain: Invoke, tmp_path: Path) -> None:
    given = tmp_path / "rules.toml"
    given.write_text(
        '[[rules]]\naction = "never"\nop = "aten.tanhh"\nwith = "aten.sum"\n'
        '[[rules]]\naction = "alone"\nop = "aten.sum"\n'
    )
    result = explain("inference", "--rules", given)
    # All is told all the same, as the other rule wants it.
    assert result.exit_code == 2, result.output
    assert "possible fusions" in result.stdout
    nothing = "rule 1: never fuse aten.tanhh with aten.sum matched nothing"
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: rule file {given}: {nothing}; the nearest op is 'aten.tanh'; ")
    given.write_text('[[rules]]\naction = "alone"\nop = "aten.sum"\n')
    assert explain("inference", "--rules", given, "--json").exit_code == 0
