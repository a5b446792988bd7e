"""Rules about fusion: never fuse, always fuse if legal, keep alone, store, inline, at most.

``torch.compile(model, backend="fusewise", options={"fusewise.rules": [rules.never(...), ...]})``.
What each means is told in ``docs/rules.md``.
"""

from __future__ import annotations

from fusewise.schedule.errors import RuleError
from fusewise.schedule.rule_file import read_rule_file as read
from fusewise.schedule.rules import (
    Rule,
    RuleSet,
    Selector,
    alone,
    always,
    at_most,
    inline,
    never,
    select,
    store,
)

__all__ = [
    "Rule",
    "RuleError",
    "RuleSet",
    "Selector",
    "alone",
    "always",
    "at_most",
    "inline",
    "never",
    "read",
    "select",
    "store",
]
