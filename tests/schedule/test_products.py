"""Choices of products by templates as they are written and read."""

from __future__ import annotations

from typing import Any

import pytest

from fusewise.schedule.errors import PlanError
from fusewise.schedule.products import ROWS, template_choice, templates
from fusewise.schedule.schedule import Choice


def test_they_are_read_as_they_were_written() -> None:
    wanted = {f"mm_{rows}": rows for rows in ROWS}
    choices = [template_choice(node, rows) for node, rows in wanted.items()]
    assert templates([*choices, Choice("split:sum_1", 4)]) == wanted


@pytest.mark.parametrize("value", [0, 48, 256, True, "64"])
def test_blocks_have_one_of_a_few_sizes(value: Any) -> None:
    with pytest.raises(PlanError, match=r"'template:mm' is no choice.*choose 16, 32, 64, 128"):
        templates([Choice("template:mm", value)])


def test_a_product_has_a_name() -> None:
    with pytest.raises(PlanError, match="is no choice"):
        templates([Choice("template:", 64)])
