"""The page on inlining names every rule, and says rightly which of them may be overruled."""

from __future__ import annotations

import re
from pathlib import Path

from fusewise.schedule.inlining import OPTIONAL, RULES

PAGE = Path(__file__).resolve().parents[2] / "docs/inlining.md"


def test_every_rule_is_told_with_whether_it_is_optional() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", PAGE.read_text(), re.MULTILINE))
    assert told == {rule: "yes" if rule in OPTIONAL else "no" for rule in RULES}
