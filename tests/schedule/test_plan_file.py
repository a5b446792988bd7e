"""Plan files come back as they were written, and what was edited into nonsense is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.schedule.block_sizes import BlockSizes, parse_sizes
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import blocks_choice
from fusewise.schedule.plan import Step, build_plan
from fusewise.schedule.plan_diff import diff_plans
from fusewise.schedule.plan_file import (
    SCHEMA,
    PlanFile,
    PlannedGraph,
    PlannedNode,
    check_writable,
    read_plan_file,
    write_plan_file,
)
from fusewise.schedule.schedule import Choice, Schedule

_NAMES = ("op0", "op1", "op2")
_FOUND = (Choice("blocks:op0", "R0_BLOCK=2048 XBLOCK=1 warps=16 stages=1"),)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A plan of three nodes, two of them fused."""
    graph = PlannedGraph(
        kind="inference",
        key_parts={"graph": "0"},
        device="cpu",
        device_key="cpu",
        schedule=Schedule(
            plan=build_plan(_NAMES, [Step("fuse", "op0", "op1")]),
            codegen=(blocks_choice("op0", "descent"), blocks_choice("op2", "descent")),
        ),
        blocks=_FOUND,
        nodes=tuple(PlannedNode(name=name) for name in _NAMES),
    )
    path = tmp_path / "plan.json"
    write_plan_file(
        path, PlanFile(schema=SCHEMA, fusewise="0", torch="2", program="made", graphs=(graph,))
    )
    return path


def test_a_plan_comes_back(written: Path) -> None:
    (graph,) = read_plan_file(written).graphs
    assert graph.schedule.plan == build_plan(_NAMES, [Step("fuse", "op0", "op1")])
    assert graph.blocks == graph.candidate().blocks == _FOUND
    assert '"tuned": {"blocks:op0": "R0_BLOCK=2048 XBLOCK=1 warps=16 stages=1"}' in " ".join(
        written.read_text().split()
    ).replace("{ ", "{").replace(" }", "}")


@pytest.mark.parametrize(
    ("step", "telling"),
    [
        ("fuse op0 op99", r"'fuse op0 op99' names 'op99', which is in none of its groups"),
        ("align op99 op0", r"names 'op99', which is in none of its groups"),
        ("weld op0 op1", r"'weld op0 op1' is no step"),
        ("fuse op0", r"'fuse op0' is no step"),
        ("", r"'' is no step"),
    ],
)
def test_a_step_that_says_nothing_is_named_with_its_place(
    written: Path, step: str, telling: str
) -> None:
    text = written.read_text()
    written.write_text(text.replace('"fuse op0 op1"', f'"{step}"'))
    assert written.read_text() != text
    with pytest.raises(PlanError, match=telling + r" - at `\$\.graphs\[0\]\.steps\[0\]`"):
        read_plan_file(written)


def test_block_sizes_that_differ_are_told(written: Path) -> None:
    one = read_plan_file(written)
    written.write_text(written.read_text().replace("warps=16", "warps=8"))
    (graph,) = diff_plans(one, read_plan_file(written)).graphs
    (told,) = graph.choices
    assert told.what == "blocks:op0 came to"
    assert told.first.replace("warps=16", "warps=8") == told.second


@pytest.mark.parametrize(
    ("tuned", "telling"),
    [
        ('"blocks:op0": "XBLOCK=1"', "it lacks warps or stages"),
        ('"blocks:op0": "XBLOCK=-1 warps=4 stages=1"', "'XBLOCK=-1' is no size"),
        ('"blocks:op0": "fast"', "'fast' is no size"),
        ('"blocks:op1": "XBLOCK=1 warps=4 stages=1"', "'blocks:op1' is no choice of its codegen"),
    ],
)
def test_block_sizes_that_are_none_are_named(written: Path, tuned: str, telling: str) -> None:
    text = written.read_text()
    written.write_text(re.sub(r'"blocks:op0": "R0[^"]*"', tuned, text))
    assert written.read_text() != text
    with pytest.raises(PlanError, match=telling + r".* - at `\$\.graphs\[0\]\.tuned`"):
        read_plan_file(written)


@given(
    st.dictionaries(st.sampled_from(["XBLOCK", "YBLOCK", "R0_BLOCK"]), st.integers(1, 1 << 20)),
    st.integers(1, 32),
    st.integers(1, 8),
)
def test_block_sizes_come_back_from_their_text(
    constants: dict[str, int], warps: int, stages: int
) -> None:
    sizes = BlockSizes(tuple(sorted(constants.items())), warps, stages)
    assert parse_sizes(sizes.text) == sizes


def test_a_file_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check_writable(tmp_path / "new" / "plan.json")
    for path, why in ((tmp_path, "it is a folder"), (tmp_path / "file" / "p.json", "exists")):
        with pytest.raises(PlanError, match=f"cannot be written: .*{why}"):
            check_writable(path)
        with pytest.raises(PlanError, match=f"cannot be written: .*{why}"):
            write_plan_file(path, PlanFile(fusewise="0", torch="2", graphs=()))
