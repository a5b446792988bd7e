from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fusewise.compiler.ablating.program import STAGE_NAMES

Invoke = Callable[..., Result]
Refused = Callable[..., None]


def _ablate(invoke: Invoke, target: str, home: Path, *more: object) -> Result:
    limits = ("--seconds", "0.3", "--top-k", 1, "--stages", "no_fusion,no_inlining")
    return invoke("ablate", target, "--store", home / "ablated.duckdb", *limits, *more)


@pytest.mark.slow
def test_json_and_plot(invoke: Invoke, targets: Path, home: Path, tmp_path: Path) -> None:
    plot = tmp_path / "stages.svg"
    result = _ablate(invoke, f"{targets}:training", home, "--json", "--plot", plot)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    names = ["everything", "no_fusion", "no_inlining"]
    assert told["training"] and told["device"] == "cpu"
    assert [graph["kind"] for graph in told["graphs"]] == ["forward", "backward"]
    for stages in (told["stages"], *(graph["stages"] for graph in told["graphs"])):
        assert [stage["name"] for stage in stages] == names
        for stage in stages:
            assert {"us", "kernels", "bytes", "peak_bytes", "nodes", "spread"} <= stage.keys()
            assert stage["us"] > 0
    total = sum(graph["stages"][1]["us"] for graph in told["graphs"])
    assert told["stages"][1]["us"] == pytest.approx(total)
    assert told["plot"] == str(plot)
    drawn = plot.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert "<svg" in drawn


@pytest.mark.slow
def test_the_table(invoke: Invoke, targets: Path, home: Path) -> None:
    result = _ablate(invoke, f"{targets}:inference", home)
    assert result.exit_code == 0, result.output
    for word in ("everything", "no_fusion", "kernels", "moved", "peak", "calls"):
        assert word in result.stdout
    # One graph is the program: it is told once.
    assert result.stdout.count("no_inlining") == 1


def test_help_names_no_stage_that_is_not_there(invoke: Invoke) -> None:
    text = invoke("ablate", "--help").stdout
    assert {"no_fusion", "no_inlining"} <= set(STAGE_NAMES)
    assert "--stages no_fusion,no_inlining" in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--stages", "no_magic"), ("no_magic", "everything")),
        (("--stages", ","), ("--stages",)),
        (("--plot", "stages.pdf"), ("stages.pdf", ".svg")),
        (("--plot", "/nowhere/at/all.png"), ("/nowhere/at", "--plot")),
        (("--mode", "fastest"), ("fastest", "max-autotune")),
        pytest.param(("--model", "nobody"), ("nobody",), marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_is_refused(
    invoke: Invoke,
    refused: Refused,
    targets: Path,
    home: Path,
    more: tuple[str, str],
    words: tuple[str, ...],
) -> None:
    refused(_ablate(invoke, f"{targets}:inference", home, *more), *words)


def test_a_target_that_raises(invoke: Invoke, refused: Refused, targets: Path, home: Path) -> None:
    refused(_ablate(invoke, f"{targets}:failing", home), "not today", "failing")
