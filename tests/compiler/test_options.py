"""Options: whose they are, what they may be, and what a user is told otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.compiler.inductor.settings import inductor_settings, known_settings
from fusewise.compiler.options import Options, split_options
from fusewise.schedule.errors import OptionError

KNOWN = sorted(known_settings())


def split(options: dict[str, Any], mode: str | None = None) -> tuple[Options, dict[str, Any], Any]:
    return split_options(mode, options, KNOWN)


def test_nothing_given_is_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path))
    ours, theirs, mode = split({})
    assert (ours, theirs, mode) == (Options(), {}, None)
    assert (ours.mode, ours.top_k, ours.budget_s) == ("measure", 4, None)
    assert ours.store == tmp_path / "store.duckdb"
    assert ours.home == tmp_path


def test_all_options_are_taken(tmp_path: Path) -> None:
    ours, theirs, mode = split(
        {
            "fusewise.mode": "predict",
            "fusewise.top_k": 2,
            "fusewise.budget_s": 5,
            "fusewise.store": str(tmp_path / "s.duckdb"),
            "fusewise.model": "roofline",
            "fusewise.plan": tmp_path / "plan.json",
            "max-autotune": True,
            "epilogue_fusion": False,
        }
    )
    assert ours == Options(
        "predict", 2, 5.0, tmp_path / "s.duckdb", "roofline", tmp_path / "plan.json"
    )
    assert theirs == {"max_autotune": True, "epilogue_fusion": False}
    assert mode is None


@pytest.mark.parametrize("mode", ["measure", "predict", "replay"])
def test_our_modes_may_stand_in_the_mode_of_torch_compile(mode: str) -> None:
    ours, _, theirs = split({}, mode)
    assert (ours.mode, theirs) == (mode, None)


def test_a_mode_of_inductors_stays_inductors() -> None:
    ours, theirs, mode = split({"fusewise.mode": "predict"}, "max-autotune-no-cudagraphs")
    assert (ours.mode, mode) == ("predict", "max-autotune-no-cudagraphs")
    settings = inductor_settings(mode, theirs | {"max_autotune_gemm": False})
    assert settings["max_autotune"] is True and settings["max_autotune_gemm"] is False


def test_a_mode_of_nobodys_is_refused() -> None:
    with pytest.raises(OptionError, match="'fastest'") as refused:
        inductor_settings("fastest", {})
    assert "predict" in refused.value.remedy and "max-autotune" in refused.value.remedy


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("fusewise.topk", "fusewise.top_k"),
        ("fusewise.budget", "fusewise.budget_s"),
        ("fusewise.modle", "fusewise.mode"),
        ("fusewize.store", "fusewise.store"),
        ("max_autotun", "max_autotune"),
        ("epilog_fusion", "epilogue_fusion"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(OptionError) as refused:
        split({key: 1})
    assert repr(key) in refused.value.subject
    assert repr(nearest) in refused.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "fast"),
        ("mode", None),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_k", "4"),
        ("budget_s", -0.1),
        ("budget_s", math.nan),
        ("budget_s", "60"),
        ("budget_s", False),
        ("store", 3),
        ("store", None),
        ("model", 3),
        ("plan", ["a"]),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as refused:
        split({f"fusewise.{name}": value})
    assert f"fusewise.{name}" in refused.value.subject
    assert repr(value) in refused.value.cause
    assert refused.value.remedy.startswith("give ")


@given(top_k=st.integers(0), budget_s=st.floats(0, 1e9) | st.integers(0, 10**9))
def test_every_size_and_budget_is_taken(top_k: int, budget_s: float) -> None:
    ours, _, _ = split({"fusewise.top_k": top_k, "fusewise.budget_s": budget_s})
    assert (ours.top_k, ours.budget_s) == (top_k, budget_s)


@given(st.text())
def test_any_text_is_either_known_or_refused(key: str) -> None:
    name = key.replace("-", "_")
    if name in KNOWN:
        assert split({key: 1})[1] == {name: 1}
        return
    with pytest.raises(OptionError):
        split({key: 1})


def test_paths_are_made_absolute_and_the_home_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ours, _, _ = split({"fusewise.store": "~/a.duckdb", "fusewise.plan": "b.json"})
    assert (ours.store, ours.plan) == (tmp_path / "a.duckdb", tmp_path / "b.json")
