"""Options of the backend: which are ours, which are Inductor's, and refusing what is neither."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from fusewise.datasets.store import default_store_path
from fusewise.schedule.errors import OptionError
from fusewise.schedule.rule_file import read_rule_file
from fusewise.schedule.rules import Rule, RuleSet, rule_set

Mode = Literal["measure", "predict", "replay"]
MODES: tuple[str, ...] = get_args(Mode)
_PREFIX = "fusewise."


@dataclass(frozen=True)
class Options:
    """What a user can set, with the defaults: the single source of both."""

    #: ``measure`` times the best candidates, ``predict`` trusts the model, ``replay`` takes the
    #: stored or given plan and nothing else.
    mode: Mode = "measure"
    #: Candidates to measure beside Inductor's own.
    top_k: int = 4
    #: Seconds for search and measuring of one graph, compilation of candidates included; None for
    #: somewhat less than Inductor's own compile of it takes.
    budget_s: float | None = None
    #: The DuckDB store; models and device profiles stand beside it.
    store: Path = field(default_factory=default_store_path)
    #: Name or path of the cost model; None for the newest one that fits the device.
    model: str | None = None
    #: Plan file to take schedules from, before the store is asked.
    plan: Path | None = None
    #: Whether a plan file that is of a changed graph is followed as far as it still fits.
    partial: bool = False
    #: Rules of the user's, which hold in every mode; None for none.
    rules: RuleSet | None = None

    @property
    def home(self) -> Path:
        """Folder of the store, the models and the device profiles."""
        return self.store.parent


def split_options(
    mode: str | None, options: Mapping[str, Any] | None, inductor_names: Iterable[str]
) -> tuple[Options, dict[str, Any], str | None]:
    """Divide what ``torch.compile`` was given.

    Args:
        mode: ``torch.compile``'s mode: one of ours, or one of Inductor's.
        options: ``torch.compile``'s options; keys with ``fusewise.`` are ours.
        inductor_names: settings that Inductor knows.

    Returns:
        Our options, Inductor's, and the mode if it is Inductor's.

    Raises:
        OptionError: an unknown key or a value that cannot be; names it and the nearest valid one.
        RuleError: rules that are none; names the file and the field.
    """
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    known = set(inductor_names)
    for key, value in (options or {}).items():
        if key.startswith(_PREFIX):
            name = key.removeprefix(_PREFIX)
            ours[name] = _checked(name, value)
            if name == "rules" and ours[name] is not None and not ours[name].rules:
                ours[name] = None
        elif (name := key.replace("-", "_")) in known:
            theirs[name] = value
        else:
            raise _unknown(key, known)
    if mode in MODES:
        ours["mode"] = mode
        mode = None
    return Options(**ours), theirs, mode


def _checked(name: str, value: Any) -> Any:
    checks: dict[str, Callable[[Any], Any]] = {
        "mode": lambda v: v if v in MODES else None,
        "top_k": lambda v: v if _is_number(v, int) and v >= 0 else None,
        "budget_s": lambda v: float(v) if _is_number(v, int, float) and v >= 0 else None,
        "store": _path,
        "model": lambda v: str(v) if isinstance(v, str | Path) else None,
        "plan": _path,
        "partial": lambda v: v if isinstance(v, bool) else None,
        "rules": _rules,
    }
    wanted = {
        "mode": f"one of {', '.join(MODES)}",
        "top_k": "a whole number, 0 or more",
        "budget_s": "seconds, 0 or more, or None",
        "store": "a path that exists or can be made",
        "model": "a name or a path",
        "plan": "the path of a plan file",
        "partial": "True or False",
        "rules": "the path of a rule file, or rules made with fusewise.rules",
    }
    if name not in checks:
        raise _unknown(_PREFIX + name, ())
    if value is None and name in ("model", "plan", "rules", "budget_s"):
        return None
    checked = checks[name](value)
    if checked is None:
        raise OptionError(
            f"value {value!r} of {type(value).__name__}",
            subject=f"option {_PREFIX}{name}",
            remedy=f"give {wanted[name]}",
        )
    return checked


def _rules(value: Any) -> RuleSet | None:
    """Rules from what an option may hold.

    Raises:
        RuleError: a file that is none, or something that is no rule.
    """
    path = _path(value)
    if path is not None:
        return read_rule_file(path)
    return rule_set(value) if isinstance(value, Rule | RuleSet | list | tuple) else None


def _path(value: Any) -> Path | None:
    if not isinstance(value, str | Path):
        return None
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError:
        # A home folder of somebody who is not there.
        return None


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _unknown(key: str, known: Iterable[str]) -> OptionError:
    names = [*(_PREFIX + f.name for f in fields(Options)), *known]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"the nearest is {near[0]!r}" if near else f"ours begin with {_PREFIX!r}"
    return OptionError("there is no such option", subject=f"option {key!r}", remedy=hint)
