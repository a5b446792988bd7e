"""Choices about kernels: written and read as they are, and refused where they say nothing."""

from __future__ import annotations

import pytest

from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import blocks_choice, combo_choice, combos, tunings
from fusewise.schedule.reductions import shape_choice, shapes, split_choice, splits
from fusewise.schedule.schedule import Choice


def test_choices_are_read_as_they_were_written() -> None:
    choices = (
        combo_choice(["op1", "op4", "op7"]),
        blocks_choice("op4", "descent"),
        Choice("combo_kernels", True),
        combo_choice(["op2", "op3"]),
        blocks_choice("op2", "autotune"),
        Choice("node:op9", "store"),
    )
    assert combos(choices) == (("op1", "op4", "op7"), ("op2", "op3"))
    assert tunings(choices) == {"op4": "descent", "op2": "autotune"}
    assert [choice.of_part for choice in choices] == [True, True, False, True, True, True]


@pytest.mark.parametrize(
    "choice",
    [
        Choice("combo:op1", ""),
        Choice("combo:op1", True),
        Choice("combo:", "op2"),
        Choice("combo:op1", "op2 op1"),
        Choice("combo:op1", "op2 op2"),
    ],
)
def test_a_set_that_is_none_is_refused(choice: Choice) -> None:
    with pytest.raises(PlanError, match=r"names (no second kernel|'op\d' again)"):
        combos([choice])


def test_a_kernel_is_in_one_launch() -> None:
    with pytest.raises(PlanError, match="'combo:op3' names 'op2' again"):
        combos([combo_choice(["op1", "op2"]), combo_choice(["op3", "op2"])])


@pytest.mark.parametrize("choice", [Choice("blocks:op1", "fast"), Choice("blocks:", "descent")])
def test_another_way_to_tune_is_refused(choice: Choice) -> None:
    with pytest.raises(PlanError, match="choose autotune or descent"):
        tunings([choice])


def test_reductions_are_read_as_they_were_written() -> None:
    choices = (
        split_choice("sum_1", 4),
        shape_choice("op3", "cooperative"),
        split_choice("amax", 1),
        Choice("split_reductions", False),
        shape_choice("op1", "looped"),
    )
    assert splits(choices) == {"sum_1": 4, "amax": 1}
    assert shapes(choices) == {"op3": "cooperative", "op1": "looped"}


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "4"])
def test_parts_are_counted(value: int) -> None:
    with pytest.raises(PlanError, match="whole number from 1"):
        splits([Choice("split:sum_1", value)])


@pytest.mark.parametrize("choice", [Choice("reduction:op1", "split"), Choice("reduction:", "x")])
def test_another_shape_is_refused(choice: Choice) -> None:
    with pytest.raises(PlanError, match="choose persistent, looped, cooperative"):
        shapes([choice])
