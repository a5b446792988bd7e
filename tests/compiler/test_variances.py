"""Variances in two steps or in one go: what is generated, and where it could matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

import fusewise
from fusewise.compiler.inductor.choices import variants
from fusewise.compiler.survey import Predictor, survey
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.schedule import Choice, Schedule
from fusewise.search.beam import Budget

NAME = "two_step_variance"
NEVER, ALWAYS = Choice(NAME, 0), Choice(NAME, 1 << 30)
#: Versions of Inductor before that decide on it without a setting.
known = pytest.mark.skipif(
    "cpp.use_two_step_variance_threshold" not in inductor_config.get_config_copy(),
    reason="this Inductor has no setting for it",
)


def normalised(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def test_what_has_no_setting_is_not_offered() -> None:
    offered = (NEVER,) in variants("cpu")
    assert offered is ("cpp.use_two_step_variance_threshold" in inductor_config.get_config_copy())
    assert (NEVER,) not in variants("cuda")


@known
@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        (torch.float32, 48),
        (torch.bfloat16, 5000),
        pytest.param(torch.float32, 5000, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 48, marks=pytest.mark.slow),
    ],
)
def test_both_ways_are_the_same(live: Any, dtype: torch.dtype, columns: int) -> None:
    x = (torch.randn(6, columns) * 3 + 100).to(dtype)
    (graph,) = live.capture(live.UserProgram(normalised, (x,)))
    never, always = (graph.generate(Schedule(lowering=(choice,))) for choice in (NEVER, ALWAYS))
    assert "welford_combine" in never.source and "welford_combine" not in always.source
    for found in graph.run_each(never, always):
        live.difference(found, graph.eager())


@known
@pytest.mark.parametrize(
    ("function", "shape", "matters"),
    [
        (normalised, (6, 48), NEVER),
        (normalised, (6, 5000), ALWAYS),
        (lambda x: x.var(0), (5000, 6), ALWAYS),
        (lambda x: x.softmax(-1), (6, 5000), None),
    ],
    ids=["short", "long", "columns", "none"],
)
def test_it_is_looked_at_where_it_could_matter(
    live: Any, home: Path, function: Any, shape: tuple[int, int], matters: Any
) -> None:
    (graph,) = live.capture(live.UserProgram(function, (torch.randn(shape),)))
    profile = device_profile(torch.device("cpu"), home)
    with graph.context():
        found = survey(
            graph.compile,
            Predictor(Roofline(profile), profile, {}),
            key="test",
            kind="inference",
            choices=(),
            budget=Budget(seconds=1.0),
        )
    assert found.grounds is not None
    assert [c for c in (NEVER, ALWAYS) if found.grounds.matter((c,))] == [matters] * bool(matters)


@known
def test_a_contest_may_take_it(store: Path) -> None:
    x = torch.randn(512, 4096)
    options = {"fusewise.store": str(store), "fusewise.budget_s": 20}
    compiled = torch.compile(normalised, backend="fusewise", options=options)
    torch.testing.assert_close(compiled(x), normalised(x))
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert "measured" in [c.status for c in report.candidates if ALWAYS in c.schedule.lowering]
