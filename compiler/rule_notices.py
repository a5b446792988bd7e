"""Telling the user of rules that matched nothing: once, when a whole program was compiled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import torch.fx

from fusewise.compiler.inductor.origins import operations
from fusewise.compiler.notices import tell_once
from fusewise.compiler.reports import RulesReport
from fusewise.schedule.rules import RuleSet, Selector

#: Rules that matched in some program of this process, by the id of their set and their place.
_matched: set[tuple[str, int]] = set()


class RuleWatch:
    """Which rules matched in the graphs of one program."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._waiting = set(range(len(rules.rules)))
        #: Kinds of graphs that were seen, and of which more is to come.
        self._seen = False
        self._backward_due = False
        #: What there is to match, for a hint at what was meant.
        self._names: dict[str, dict[str, None]] = {"op": {}, "module": {}, "node": {}}

    def saw(self, kind: str, gm: torch.fx.GraphModule, report: RulesReport | None) -> None:
        """Take note of one graph; ``report`` None where rules were not looked at."""
        self._backward_due = kind == "forward"
        if report is None:
            return
        self._seen = True
        for at, rule in enumerate(report.rules):
            if rule.matched:
                self._waiting.discard(at)
                _matched.add((self._rules.id, at))
        for found in operations(gm):
            self._names["op"][found.op.rpartition(".")[0]] = None
            self._names["node"][found.name] = None
            parts = found.module.split(".") if found.module else []
            for end in range(1, len(parts) + 1):
                self._names["module"][".".join(parts[:end])] = None

    def tell(self) -> None:
        """Warn of rules that matched nothing, unless graphs are still to come."""
        if not self._seen or self._backward_due:
            return
        left = [at for at in sorted(self._waiting) if (self._rules.id, at) not in _matched]
        for at in left:
            hint = self._hint(self._rules.rules[at].selectors)
            of = f" of {self._rules.origin}" if self._rules.origin else ""
            tell_once(f"{self._rules.name(at)}{of} matched nothing{hint}")

    def _hint(self, selectors: Iterable[Selector]) -> str:
        for selector in selectors:
            for field, names in self._names.items():
                for pattern in getattr(selector, field):
                    near = difflib.get_close_matches(pattern, names, n=1)
                    if near and near[0] != pattern:
                        return f"; the nearest {field} is {near[0]!r}"
        return ""
