"""Rule files: rules as TOML or JSON, to be kept with the program that they are for.

The same rules as those made in Python, predicates aside. What is wrong with a file is told by its
path, the rule and field in it, the value there, and what would be right.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from fusewise.schedule import rules as made
from fusewise.schedule.errors import RuleError
from fusewise.schedule.patterns import turned_lines
from fusewise.schedule.rules import ACTIONS, BOUNDS, FIELDS, PAIRED, Rule, RuleSet, Selector

#: Version of the form. A file of another one is refused, never guessed at.
RULE_SCHEMA: Final = 1
_KEYS: Final = ("action", *FIELDS, "with", *BOUNDS)


def read_rule_file(path: str | os.PathLike[str]) -> RuleSet:
    """Read a rule file: JSON if its name ends so, else TOML.

    Raises:
        RuleError: it is missing or no rule file; names the file, the field and the value.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RuleError(
            f"cannot be read: {error.strerror}",
            subject=f"rule file {path}",
            remedy="give the path of a TOML or JSON file of rules",
        ) from error
    as_json = Path(path).suffix.lower() == ".json"
    try:
        content = msgspec.json.decode(data) if as_json else msgspec.toml.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RuleError(
            f"it is no {'JSON' if as_json else 'TOML'}: {error}",
            subject=f"rule file {path}",
            remedy="mend it there; a file of JSON has to end in .json",
        ) from error
    return _Reader(path).rule_set(content)


class _Reader:
    """Turns what was decoded into rules, and knows where it is for what it has to say."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def rule_set(self, content: Any) -> RuleSet:
        if not isinstance(content, dict) or "rules" not in content:
            raise self._wrong("", "it has no rules", "write each as a table [[rules]]")
        self._known(content, ("schema", "rules"), "")
        schema = content.get("schema", RULE_SCHEMA)
        if schema != RULE_SCHEMA:
            raise self._wrong(
                "schema", f"{schema!r} is of another version", f"this fusewise reads {RULE_SCHEMA}"
            )
        listed = content["rules"]
        if not isinstance(listed, list):
            raise self._wrong("rules", _is(listed), "write each as a table [[rules]]")
        return RuleSet(
            tuple(self._rule(rule, f"rules[{i}]") for i, rule in enumerate(listed)),
            str(self._path),
        )

    def _rule(self, table: Any, at: str) -> Rule:
        if not isinstance(table, dict):
            raise self._wrong(at, _is(table), "write a table with an action")
        self._known(table, _KEYS, at)
        action = table.get("action")
        if action not in ACTIONS:
            told = "is missing" if action is None else f"{action!r} is no action"
            raise self._wrong(f"{at}.action", told, _nearest(action, ACTIONS))
        bounds = {name: table[name] for name in BOUNDS if name in table}
        if action != "at_most" and bounds:
            raise self._wrong(
                f"{at}.{next(iter(bounds))}", f"{action} has no bounds", "leave it out"
            )
        if action not in PAIRED and "with" in table:
            raise self._wrong(f"{at}.with", f"{action} is no rule about pairs", "leave it out")
        selector = self._selector({n: v for n, v in table.items() if n in FIELDS}, at)
        if selector is None and action != "at_most":
            raise self._wrong(at, "it selects by nothing", f"give one of {', '.join(FIELDS)}")
        if action == "at_most":
            try:
                return made.at_most(selector, **bounds)
            except RuleError as error:
                raise self._wrong(at, error.cause, error.remedy) from error
        assert selector is not None
        other = self._other(table["with"], f"{at}.with") if "with" in table else None
        return Rule(action=action, select=selector, other=other)

    def _other(self, value: Any, at: str) -> Selector:
        table = value if isinstance(value, dict) else {"op": value}
        self._known(table, FIELDS, at)
        found = self._selector(table, at)
        if found is None:
            raise self._wrong(at, "it selects by nothing", f"give one of {', '.join(FIELDS)}")
        return found

    def _selector(self, table: Mapping[str, Any], at: str) -> Selector | None:
        if not table:
            return None
        fields: dict[str, tuple[str, ...]] = dict.fromkeys(FIELDS, ())
        for name, value in table.items():
            listed = value if isinstance(value, list) else [value]
            for one in listed:
                if not isinstance(one, str) or not one:
                    raise self._wrong(
                        f"{at}.{name}", _is(one), "give a pattern in quotes, or a list of them"
                    )
                if name == "source" and (turned := turned_lines(one)):
                    cause = f"the lines of {one!r} run backwards"
                    raise self._wrong(f"{at}.{name}", cause, f"write {turned}")
            if not listed:
                raise self._wrong(f"{at}.{name}", "is empty", "give a pattern, or leave it out")
            fields[name] = tuple(listed)
        return Selector(
            op=fields["op"], module=fields["module"], node=fields["node"], source=fields["source"]
        )

    def _known(self, table: Mapping[str, Any], keys: Iterable[str], at: str) -> None:
        for name in table:
            if name not in keys:
                where = f"{at}.{name}" if at else name
                raise self._wrong(where, "there is no such field", _nearest(name, keys))

    def _wrong(self, at: str, cause: str, remedy: str) -> RuleError:
        return RuleError(
            f"{at}: {cause}" if at else cause, subject=f"rule file {self._path}", remedy=remedy
        )


def _is(value: Any) -> str:
    return f"{value!r} is a {type(value).__name__}"


def _nearest(name: Any, names: Iterable[str]) -> str:
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    return f"the nearest is {near[0]!r}" if near else f"use one of {', '.join(names)}"
