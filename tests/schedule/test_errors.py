"""What is told of an error in one line."""

from __future__ import annotations

import pytest

from fusewise.schedule.errors import first_line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ValueError: "),
        ("one thing\nand more", "ValueError: one thing"),
        ("\n  indented", "ValueError: indented"),
        ("backend='x' raised:\nKeyError: 3\nmore", "ValueError: backend='x' raised: KeyError: 3"),
        ("nothing follows:", "ValueError: nothing follows:"),
        ("x" * 1000, "ValueError: " + "x" * 300),
    ],
)
def test_an_error_in_one_line(text: str, told: str) -> None:
    assert first_line(ValueError(text)) == told
