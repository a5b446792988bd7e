"""The examples of the page on rules run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fusewise.schedule.rule_file import read_rule_file
from fusewise.schedule.rules import ACTIONS, BOUNDS, FIELDS

PAGE = Path(__file__).resolve().parents[2] / "docs/rules.md"
EXAMPLES = re.findall(r"<!-- example -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.filterwarnings("error::fusewise.compiler.notices.FusewiseWarning")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("def ")[1].split("(")[0])
def test_examples_run(example: str, tmp_path: Path) -> None:
    # Operations know the line that they are from, so there has to be a file.
    path = tmp_path / "example.py"
    path.write_text(example)
    torch._dynamo.reset()
    exec(compile(example, str(path), "exec"), {"__name__": "example"})


def test_the_file_on_the_page_can_be_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "rules.toml"
    path.write_text(text)
    assert [rule.action for rule in read_rule_file(path).rules] == ["never", "always", "at_most"]


def test_every_action_field_and_bound_is_told() -> None:
    text = PAGE.read_text()
    assert set(ACTIONS) <= set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE))
    assert {*FIELDS, "where"} <= set(re.findall(r"^\| `(\w+)=", text, re.MULTILINE))
    assert all(f"{bound}=" in text for bound in BOUNDS)
