"""The benchmarks' own parts: workloads that are what they say, contestants, errors, tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fusewise.datasets.corpus import CorpusSpec

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as they import each other: from their own folder."""
    names = ("workloads", "steps", "contestants", "table", "search_scaling")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield {name: import_module(name) for name in names}
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_workloads_are_many_and_distinct(scripts) -> None:
    cases = scripts["workloads"].CASES
    assert len({case.name for case in cases}) == len(cases) >= 40
    assert len(scripts["workloads"].WORKLOADS) >= 24
    kinds = {case.workload.kind for case in cases}
    assert kinds == {"inference", "training"}
    assert len({case.workload.family for case in cases}) >= 10


def test_a_pattern_chooses_by_name_kind_or_family(scripts) -> None:
    matching = scripts["workloads"].matching
    assert {case.name for case in matching("^adam")} == {"adam_step-fp32", "adam_step-bf16"}
    assert {case.workload.family for case in matching("^loss$")} == {"loss"}
    assert {case.workload.kind for case in matching("^inference$")} == {"inference"}


@pytest.mark.parametrize("name", ["adam_step-bf16", "focal_loss-fp32", "batch_norm_step-fp32"])
def test_two_builds_take_the_same_first_step(scripts, name: str) -> None:
    (case,) = scripts["workloads"].matching(f"^{name}$")
    steps = scripts["steps"]
    first, second = (
        steps.Step(program, program.function).first()
        for program in (case.build(CPU), case.build(CPU))
    )
    assert steps.worst_error(first, second) == 0
    assert all(tensor.isfinite().all() for tensor in first)
    assert len(first) > 1


def test_programs_are_drawn_from_a_corpus(scripts) -> None:
    workloads, steps = scripts["workloads"], scripts["steps"]
    drawn = workloads.draw(CorpusSpec(name="generated"), 3, 7)
    assert drawn == workloads.draw(CorpusSpec(name="generated"), 3, 7)
    assert len({each.name for each in drawn}) == 3
    for each in drawn:
        case = each.case()
        assert case.name.startswith(each.name) and case.workload.family.startswith("generated/")
        programs = [case.build(CPU) for _ in range(2)]
        assert programs[0].backward == (case.workload.kind == "training")
        first, second = (steps.Step(program, program.function).first() for program in programs)
        assert steps.worst_error(first, second) == 0


def test_a_drawn_program_is_trained_where_it_can_be(scripts, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def made():\n"
        "    return torch.nn.Linear(4, 3), (torch.arange(8.0).view(2, 4),)\n"
    )
    spec = CorpusSpec(name="target", path=f"{tmp_path / 'mine.py'}:made")
    (drawn,) = scripts["workloads"].draw(spec, 5, 0)
    program = drawn.case().build(CPU)
    assert program.backward
    loss, *others = scripts["steps"].Step(program, program.function).first()
    assert loss.shape == ()
    # Of the sum of all outputs: a weight's gradient is what it is multiplied with, over the rows.
    (of_weights,) = (tensor for tensor in others if tensor.shape == (3, 4))
    assert of_weights.tolist() == [[4.0, 6.0, 8.0, 10.0]] * 3


def test_an_error_is_found_in_the_worst_tensor(scripts) -> None:
    worst_error = scripts["steps"].worst_error
    right = [torch.ones(4), torch.tensor([math.inf, 1.0])]
    assert worst_error([tensor.clone() for tensor in right], right) == 0
    assert worst_error([torch.full((4,), 1.5), right[1]], right) == pytest.approx(0.5)
    assert worst_error([right[0], torch.tensor([math.nan, 1.0])], right) == math.inf
    with pytest.raises(ValueError, match="1 results instead of 2"):
        worst_error(right[:1], right)


def test_contestants_by_name_and_by_settings(scripts) -> None:
    contestant = scripts["contestants"].contestant
    assert contestant("eager").backend is None
    assert contestant("predict").options == {"fusewise.mode": "predict"}
    assert contestant("max_fusion_size=8+combo_kernels=true").options == {
        "max_fusion_size": 8,
        "combo_kernels": True,
    }
    with pytest.raises(ValueError, match="no contestant 'fusewize'"):
        contestant("fusewize")


def test_the_summary_goes_between_its_marks(scripts) -> None:
    table = scripts["table"]
    speedup = {
        name: {"median": median, "low": None, "high": None}
        for name, median in {"fusewise": 2.0, "predict": 1.5, "again": 0.99}.items()
    }
    workload = {"name": "a-fp32", "kind": "training", "status": "ok", "speedup": speedup}
    machine = {"device": "a device", "kind": "cpu", "threads": 2, "torch": "2.13"}
    told = table.summary([{"machine": machine, "workloads": [workload]}])
    assert "| a device, training | 1 | **2.000** | 2.000 | 2.000 | 1.500 | ±1.0% |" in told
    readme = (ROOT / "README.md").read_text()
    once = table.between_marks(readme, told)
    assert told in once
    assert table.between_marks(once, told) == once
    with pytest.raises(ValueError, match="marks"):
        table.between_marks("no marks", told)


def test_figures_are_held_against_the_best_setting_of_each_workload(scripts) -> None:
    def run(**workloads: dict[str, float]) -> dict[str, Any]:
        told = []
        for name, medians in workloads.items():
            speedup = {n: {"median": median} for n, median in medians.items()}
            told.append({"name": name, "speedup": speedup})
        return {"workloads": told}

    own = run(a={"fusewise": 1.2, "predict": 1.1}, b={"fusewise": 1.5}, c={"predict": 1.0})
    rivals = run(
        a={"combo": 0.9, "again": 1.3}, b={"combo": 1.6, "descent": 1.7}, c={"combo": 1.1}, d={}
    )
    found = scripts["table"].best_settings(own, rivals)
    assert found == [("a", 1.2, "stock", 1.0), ("b", 1.5, "descent", 1.7)]
    assert scripts["table"]._over_settings(found) == f"{math.sqrt(1.2 * 1.5 / 1.7):.3f}"


def test_a_search_over_a_made_up_problem(scripts) -> None:
    found = scripts["search_scaling"].measured(60, 0)
    assert found["nodes"] == 60
    assert found["predicted_of_unfused"] < 1
