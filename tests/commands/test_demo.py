from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from fusewise.commands import demo
from fusewise.commands.demo_programs import Program, encoder, training_step
from fusewise.commands.report_table import candidates_table, phases
from fusewise.compiler.reports import GraphReport
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.datasets.rows import ModelRow
from fusewise.datasets.store import Store
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Candidate, Choice, Schedule


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    # Put back after the test: the demo sets both for what it starts.
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    result = CliRunner().invoke(demo.main, ["--home", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: demo: the transformers library is not installed; pip install transformers"
    ]
    assert not (tmp_path / "store.duckdb").exists()


@pytest.mark.parametrize("make", [encoder, training_step])
def test_programs_run_the_same_each_time(make: type[Program]) -> None:
    if make is encoder:
        pytest.importorskip("transformers")
    first, second = make(), make()
    for a, b in zip(first.run(first.module), second.run(second.module), strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b)


def test_a_model_is_found_by_the_store(tmp_path: Path) -> None:
    profile = DeviceProfile(
        key="cpu-test-4t",
        kind="cpu",
        name="test",
        threads=4,
        copy_gbs=40.0,
        gather_gbs=1.0,
        flops_gfs=200.0,
        transcendental_gops=3.0,
        launch_us=1.0,
        cache_bytes=1 << 20,
        cores=4,
    )
    file = tmp_path / "model.fusewise.json"
    with Store.open(tmp_path / "store.duckdb") as store:
        assert demo._trained(store, profile) is None
        for id, key, path in (
            ("lost", profile.key, tmp_path / "lost.fusewise.json"),
            ("foreign", "cpu-other-4t", file),
        ):
            store.append(_row(id, key, path))
        store.ingest()
        file.write_text("{}")
        assert demo._trained(store, profile) is None
        store.append(_row("right", profile.key, file))
        store.ingest()
        assert demo._trained(store, profile) == file


def _row(id: str, key: str, path: Path) -> ModelRow:
    return ModelRow(id=id, path=str(path), device_key=key, features_version=FEATURES_VERSION)


def test_the_table_shows_every_candidate() -> None:
    plan = unfused(["op0", "op1"])
    default = Candidate(
        schedule=Schedule(plan=plan),
        origin="default",
        groups=2,
        predicted_us=12.0,
        predicted_low_us=10.0,
        predicted_high_us=15.0,
        measured_us=11.5,
        spread=0.01,
        rounds=20,
        error=1e-7,
        status="measured",
        reason="the compiler's own schedule",
    )
    chosen = Candidate(
        schedule=Schedule(lowering=(Choice("inline_ops", 8),), plan=plan),
        origin="beam",
        groups=1,
        measured_us=9.0,
        spread=0.02,
        status="measured",
        accepted=True,
        reason="0.783 of the default's time",
    )
    failed = Candidate(
        schedule=Schedule(), origin="order", groups=3, status="failed", reason="it\ncrashed"
    )
    report = GraphReport("inference", "measure", nodes=2, source="measured")
    report.candidates, report.chosen = [default, chosen, failed], chosen
    report.seconds = {"search": 1.25, "measure": 3.0}

    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(candidates_table("program", report))
    lines = capture.get().splitlines()
    text = "\n".join(lines)
    for part in ("2 nodes", "12.0 µs (10 to 15)", "11.5 µs ± 1.0%", "1.0e-07", "it crashed"):
        assert part in text
    marked = [line for line in lines if "→" in line]
    assert len(marked) == 1
    assert "beam, inline_ops=8" in marked[0]
    assert "9.00 µs ± 2.0%" in marked[0]
    assert phases(report) == "search 1.2 s, measure 3.0 s"
