"""Leaving classes and sizes out, and whether that is noticed: counted, shown, in the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fusewise.training.command import main

MakeStore = Callable[..., Path]


def call(*arguments: object) -> Any:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_it_is_told_with_the_training_and_with_a_judgement(make_store: MakeStore, tmp_path: Path):
    store, model = make_store(families=14, graphs=28), tmp_path / "m.fusewise.json"
    options = ("--hold-out", "family0", "--out-of-range", "--json")
    trained = json.loads(call("--store", store, "--out", model, *options).stdout)
    found = trained["out_of_range"]
    assert 0.0 <= found["false_alarms"] <= 0.2
    told = {(one["kind"], one["name"]): one for one in found["left_out"]}
    # Every kernel is pointwise and adds; what is left without either is nothing to train on.
    assert {name for kind, name in told if kind != "size"} == {"transcendental"}
    assert told["operation class", "transcendental"]["flagged"] == 1.0
    sizes = [one for (kind, _), one in told.items() if kind == "size"]
    assert len(sizes) >= 3
    for one in sizes:
        assert one["n_kernels"] >= 5 and one["n_train"] >= 50
        assert one["flagged"] > 0.9
    judged = call("--store", store, "--evaluate-only", "--model", model, "--out-of-range")
    assert "operation class: transcendental" in judged.stdout
    assert "families left out, taken for strange" in judged.stdout
    assert "out of range" in judged.stdout
    options = ("--evaluate-only", "--model", model, "--json")
    plain = json.loads(call("--store", store, *options).stdout)
    assert plain["out_of_range"] is None
    # A stratum says how much of it was flagged: what is asked of a model trained without it.
    assert all("flagged" in one for one in plain["by_class"].values())


def test_too_little_to_leave_anything_out(make_store: MakeStore):
    found = json.loads(
        call("--store", make_store(families=2, graphs=4), "--out-of-range", "--json").stdout
    )
    assert found["out_of_range"] is None
