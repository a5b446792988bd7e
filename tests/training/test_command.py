"""The command from end to end on a real store: train, judge, save, find again, refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.registry import load_model
from fusewise.datasets.rows import ModelRow
from fusewise.datasets.store import Store
from fusewise.training.command import main

MakeStore = Callable[..., Path]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def scores(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_training_end_to_end(make_store: MakeStore, profile: DeviceProfile, tmp_path: Path):
    path = make_store()
    found = scores("--store", path, "--seed", 1)
    assert found["device"] == profile.key
    assert found["split"] == "family"
    assert found["n_kernels"] == 2 * 4 * 28
    assert found["mape_5us"] < found["roofline"]["mape_5us"] / 2
    assert found["kernel_kendall_tau"] > 0.7
    assert found["kernel_pairwise"] > 0.85
    assert 0.6 <= found["coverage90"] <= 1.0
    # Of eight graphs, four schedules each; the two others are counted, not guessed at.
    assert found["n_schedules"] == 32
    assert found["n_schedules_skipped"] == 16
    assert found["top1"] > 0.9
    assert found["top1"] <= found["top5"] == 1.0
    assert found["regret"]["1"] == pytest.approx(0.0, abs=0.1)
    assert found["regret"]["4"] == 0.0
    wanted = ["device", "split", "n_kernels", "n_schedules", "mape_5us", "kendall_tau", "pairwise"]
    wanted += ["top1", "top5", "coverage90"]
    assert set(wanted) <= set(found)
    assert set(wanted[2:]) <= set(found["roofline"])
    assert set(found["baselines"]) == {"inductor_estimate", "score_fusion"}
    for name in ("by_family", "by_size", "by_class"):
        assert sum(one["n_kernels"] for one in found[name].values()) == found["n_kernels"]
    assert set(found["by_class"]) == {"pointwise"}
    assert sum(one["n_schedules"] for one in found["by_family"].values()) == 32

    model = load_model(None, profile, tmp_path)
    assert model.id == found["model_id"]
    assert Path(found["path"]).parent == tmp_path / "models"
    with Store.open(path) as store:
        (row,) = store.rows("models")
    assert isinstance(row, ModelRow)
    assert (row.id, row.path, row.device_key) == (model.id, found["path"], profile.key)
    assert row.manifest["kernels"] == 24 * 28

    again = scores("--store", path, "--seed", 1)
    assert again["model_id"] == found["model_id"]
    assert again["mape_5us"] == found["mape_5us"]


def test_judging_an_existing_model(make_store: MakeStore, tmp_path: Path):
    path = make_store(graphs=12)
    out = tmp_path / "kept.fusewise.json"
    trained = scores("--store", path, "--out", out, "--hold-out", "family0")
    assert trained["path"] == str(out)
    assert trained["n_kernels"] == 2 * 28
    judged = scores("--store", path, "--evaluate-only", "--model", out)
    # It never saw family0, so that is what it is judged by.
    assert judged["split"] == "unseen families"
    assert judged["n_kernels"] == 2 * 28
    # Without a name it is the newest of the device, which is no other once it lies there.
    models = tmp_path / "models"
    models.mkdir(exist_ok=True)
    out.rename(models / out.name)
    newest = scores("--store", path, "--evaluate-only")
    assert newest == judged
    out = models / out.name
    roofline = scores("--store", path, "--evaluate-only", "--model", "roofline")
    assert roofline["split"] == "all"
    assert roofline["mape_5us"] == roofline["roofline"]["mape_5us"]
    assert roofline["flagged"] == 1.0


def test_tuning_and_the_table(make_store: MakeStore):
    result = call("--store", make_store(families=2, graphs=12), "--tune", 2)
    assert result.exit_code == 0, result.output
    assert "graphs held out" in result.stdout
    assert "MAPE, kernels >= 5 us" in result.stdout
    assert "tuned: n_estimators=" in result.stdout.replace("\n", " ")
    assert "saved " in result.stdout


def test_help_has_an_example():
    result = call("--help")
    assert result.exit_code == 0
    assert "train-costmodel --store runs/store.duckdb --tune 40 --json" in result.output


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert result.stdout == ""
    return lines[0]


def test_no_store(tmp_path: Path):
    missing = tmp_path / "none.duckdb"
    assert "there is no store" in refused("--store", missing)
    assert not missing.exists()


def test_a_file_that_is_no_store(tmp_path: Path):
    path = tmp_path / "text.duckdb"
    path.write_text("no database" * 1000)
    assert str(path) in refused("--store", path)


def test_an_empty_store(tmp_path: Path, profiled: Path):
    (tmp_path / "devices").symlink_to(profiled)
    path = tmp_path / "store.duckdb"
    Store.open(path).close()
    assert "no measured kernels" in refused("--store", path)


def test_one_graph_only(make_store: MakeStore):
    assert "all measured kernels are of one graph" in refused("--store", make_store(graphs=1))


def test_features_of_another_version(make_store: MakeStore):
    """Their problems were kept, so they get the features of this version."""
    assert scores("--store", make_store(version=0, graphs=12))["n_train"] > 0


def test_a_family_that_is_not_there(make_store: MakeStore):
    line = refused("--store", make_store(), "--hold-out", "bert")
    assert "no measured kernel is of family 'bert', there are: family0" in line


def test_an_unknown_model(make_store: MakeStore):
    line = refused("--store", make_store(), "--evaluate-only", "--model", "best")
    assert "no model 'best', there are: roofline" in line


def test_options_that_contradict(make_store: MakeStore, tmp_path: Path):
    path = make_store()
    assert "--evaluate-only" in refused("--store", path, "--model", "roofline")
    assert "nothing is trained" in refused("--store", path, "--evaluate-only", "--tune", 3)
    # Told before the store is opened, not once the model is there.
    gone, wrong = tmp_path / "gone.duckdb", tmp_path / "model.txt"
    assert "does not end in .fusewise.json" in refused("--store", gone, "--out", wrong)


def test_probing_this_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kept beside the store, in place of what was there; no kernels are asked for."""
    monkeypatch.setattr("fusewise.training.command.PROBE_S", 0.0)
    store = tmp_path / "none.duckdb"
    found = json.loads(call("--probe", "--store", store, "--json").stdout)
    (kept,) = (tmp_path / "devices").iterdir()
    assert kept.name == f"{found['key']}.json"
    assert msgspec.json.decode(kept.read_bytes()) == found
    assert found["strided_gbs"] > 0 and found["atomic_gops"] > 0
    assert not store.exists()
