"""Telling the user of rules that matched nothing: once, when a whole program is through."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import torch.fx

from fusewise.compiler.inductor.origins import operations
from fusewise.compiler.notices import tell_once
from fusewise.compiler.reports import RulesReport
from fusewise.schedule.errors import RuleError
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
            self._names["module"].update(dict.fromkeys(_prefixes(found.module)))

    def tell(self) -> None:
        """Warn of rules that matched nothing, unless graphs are still to come."""
        if not self._seen or self._backward_due:
            return
        left = [at for at in sorted(self._waiting) if (self._rules.id, at) not in _matched]
        for at in left:
            hint = _hint(self._rules.rules[at].selectors, self._names)
            of = f" of {self._rules.origin}" if self._rules.origin else ""
            tell_once(f"{self._rules.name(at)}{of} matched nothing{hint}")


def check_matched(
    rules: RuleSet, reports: Sequence[RulesReport | None], names: Mapping[str, Iterable[str]]
) -> None:
    """Refuse rules that matched nothing in any graph of a program.

    Args:
        rules: all that were given.
        reports: of each graph of the program; None where rules were not looked at.
        names: what there is to match, for a hint at what was meant: operators with their
            overloads as ``op``, paths of modules as ``module``, and names as ``node``.

    Raises:
        RuleError: some matched nothing; names them, and the nearest name that there is.
    """
    seen = [report for report in reports if report is not None]
    if not seen or len(seen) < len(reports):
        return
    hints = {
        "op": {name.rpartition(".")[0]: None for name in names.get("op", ())},
        "module": {part: None for path in names.get("module", ()) for part in _prefixes(path)},
        "node": dict.fromkeys(names.get("node", ())),
    }
    told = [
        f"{rules.name(at)} matched nothing{_hint(rule.selectors, hints)}"
        for at, rule in enumerate(rules.rules)
        if not any(report.rules[at].matched for report in seen)
    ]
    if told:
        raise RuleError(
            ", and ".join(told),
            subject=f"rule file {rules.origin}" if rules.origin else "rules",
            remedy="mend its patterns, or leave it out",
        )


def _prefixes(path: str) -> Iterable[str]:
    parts = path.split(".") if path else []
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _hint(selectors: Iterable[Selector], known: Mapping[str, Mapping[str, None]]) -> str:
    for selector in selectors:
        for field, names in known.items():
            for pattern in getattr(selector, field):
                near = difflib.get_close_matches(pattern, names, n=1)
                if near and near[0] != pattern:
                    return f"; the nearest {field} is {near[0]!r}"
    return ""
