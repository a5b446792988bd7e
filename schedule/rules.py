"""Rules: what a user says about fusion, over the heads of the compiler and of the search.

A rule is a selector (which operations it speaks of) and an action. Rules are data like a plan:
frozen, with a canonical text and an id. What they mean for one graph is the search room's
business; nothing here looks at a graph.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from fusewise.schedule.errors import RuleError
from fusewise.schedule.patterns import (
    Operation,
    matches_module,
    matches_op,
    matches_source,
    matches_text,
    turned_lines,
)
from fusewise.schedule.problem import Node

Action = Literal["never", "always", "alone", "store", "inline", "at_most"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
#: Actions about a pair of operations; the others are about each operation by itself.
PAIRED: Final = frozenset({"never", "always"})
#: Actions that act at lowering, before there are nodes.
LOWERING: Final = frozenset({"store", "inline"})
#: What a selector can look at, a predicate aside.
FIELDS: Final = ("op", "module", "node", "source")
#: What ``at_most`` can bound.
BOUNDS: Final = ("nodes", "inputs", "bytes")

Predicate: TypeAlias = Callable[[Node], bool]


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """Which operations a rule speaks of: those that match in every field that is given.

    A field is a tuple of patterns, of which one has to match; empty is no condition. Made by
    :func:`select`.
    """

    op: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    where: Predicate | None = None

    @property
    def everything(self) -> bool:
        """Whether it has no condition at all."""
        return self.where is None and not any(getattr(self, name) for name in FIELDS)

    def matches(self, operation: Operation) -> bool:
        """Whether it speaks of an operation, its predicate left aside."""
        return (
            matches_op(self.op, operation)
            and matches_module(self.module, operation.module)
            and matches_text(self.node, (operation.name, *operation.holders))
            and matches_source(self.source, operation.source)
        )

    def describe(self) -> str:
        """It in a few words: ``aten.exp in layers.*``."""
        parts = ["|".join(self.op)] if self.op else []
        words = {"module": "in", "node": "node", "source": "at"}
        parts += [
            f"{word} {'|'.join(getattr(self, name))}"
            for name, word in words.items()
            if getattr(self, name)
        ]
        if self.where is not None:
            parts.append(f"where {self.where.__qualname__}")
        return " ".join(parts) or "everything"

    def canonical(self) -> dict[str, Any]:
        """All that decides what it matches, as plain data."""
        found: dict[str, Any] = {n: sorted(getattr(self, n)) for n in FIELDS if getattr(self, n)}
        if self.where is not None:
            found["where"] = _identity(self.where)
        return found


#: How a selector can be written: itself, or a pattern of operators.
Selected: TypeAlias = Selector | str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. Made by :func:`never` and its like, or read from a file."""

    action: Action
    select: Selector
    #: The other side of a pair; None where both sides are ``select``.
    other: Selector | None = None
    #: Bounds of ``at_most``; None is no bound.
    nodes: int | None = None
    inputs: int | None = None
    bytes: int | None = None

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Its one or two selectors."""
        return (self.select,) if self.other is None else (self.select, self.other)

    def describe(self) -> str:
        """The rule as a sentence."""
        what = self.select.describe()
        with_ = "each other" if self.other is None else self.other.describe()
        if self.action == "at_most":
            bounds = [f"{getattr(self, b)} {b}" for b in BOUNDS if getattr(self, b) is not None]
            return f"at most {', '.join(bounds)} for {what}"
        return {
            "never": f"never fuse {what} with {with_}",
            "always": f"always fuse {what} with {with_}",
            "alone": f"keep {what} alone",
            "store": f"store {what}",
            "inline": f"inline {what}",
        }[self.action]

    def canonical(self) -> dict[str, Any]:
        """All that decides what it does, as plain data."""
        found: dict[str, Any] = {"action": self.action, "select": self.select.canonical()}
        if self.other is not None:
            found["other"] = self.other.canonical()
        found |= {b: getattr(self, b) for b in BOUNDS if getattr(self, b) is not None}
        return found


class RuleSet(msgspec.Struct, frozen=True):
    """Rules in the order of their precedence, the last one the strongest."""

    rules: tuple[Rule, ...] = ()
    #: Where they were read from; "" where they were given in Python. No part of the id.
    origin: str = ""

    @property
    def id(self) -> str:
        """Stable hash of all that decides what they do."""
        text = msgspec.json.encode([rule.canonical() for rule in self.rules])
        return hashlib.sha256(text).hexdigest()[:16]

    def name(self, index: int) -> str:
        """A rule by its place, from 1, and as a sentence: ``rule 2: keep aten.exp alone``."""
        return f"rule {index + 1}: {self.rules[index].describe()}"

    def looks_at(self, field: str) -> bool:
        """Whether what some rule matches depends on ``module``, ``node`` or ``source``."""
        return any(
            bool(getattr(selector, field)) or selector.where is not None
            for rule in self.rules
            for selector in rule.selectors
        )


def select(
    *,
    op: str | Sequence[str] = (),
    module: str | Sequence[str] = (),
    node: str | Sequence[str] = (),
    source: str | Sequence[str] = (),
    where: Predicate | None = None,
) -> Selector:
    """Operations that match in every field given; of several patterns of a field one has to match.

    Args:
        op: operators, such as ``aten.exp``, ``aten.exp.default`` or ``aten.*``; what was written
            as one operator and taken apart answers to its name as well (``aten._softmax``).
        module: path of a module as in ``named_modules()``, such as ``layers.*.mlp``; what is in its
            submodules is in it. ``*`` stands for one component, ``**`` for any number.
        node: name of a node of the captured graph (``exp_3``), of a scheduler node (``op4``) or of
            its buffer (``buf4``).
        source: ``file.py:42`` or ``file.py:40-60``; folders before the file may be left out.
        where: a function of a :class:`~fusewise.schedule.problem.Node`; for rules about kernels.

    Raises:
        RuleError: nothing is given, or something that is no pattern.
    """
    given = {"op": op, "module": module, "node": node, "source": source}
    fields = {name: _patterns(name, value) for name, value in given.items()}
    if where is not None and not (inspect.isfunction(where) or inspect.ismethod(where)):
        raise RuleError(
            f"where is a {type(where).__name__}",
            subject="rules.select",
            remedy="give a function or a lambda: its code tells stored decisions apart",
        )
    selector = Selector(**fields, where=where)
    if selector.everything:
        raise RuleError(
            "it selects by nothing", subject="rules.select", remedy="give op='*' for everything"
        )
    return selector


def never(first: Selected, second: Selected | None = None) -> Rule:
    """No kernel computes an operation of ``first`` and another one of ``second``.

    With one argument, no kernel computes two operations of it.
    """
    return Rule(action="never", select=_selector(first), other=_optional(second))


def always(first: Selected, second: Selected | None = None) -> Rule:
    """Operations of ``first`` and of ``second`` share a kernel wherever that is legal.

    With one argument, operations of it share kernels with each other.
    """
    return Rule(action="always", select=_selector(first), other=_optional(second))


def alone(what: Selected) -> Rule:
    """Each node that computes an operation of ``what`` is a kernel of its own."""
    return Rule(action="alone", select=_selector(what))


def store(what: Selected) -> Rule:
    """What the operations compute is stored, never computed again in the kernels that need it."""
    return Rule(action="store", select=_at_lowering(what, "store"))


def inline(what: Selected) -> Rule:
    """What the operations compute is computed again in every kernel that needs it."""
    return Rule(action="inline", select=_at_lowering(what, "inline"))


def at_most(
    what: Selected | None = None,
    *,
    nodes: int | None = None,
    inputs: int | None = None,
    bytes: int | None = None,
) -> Rule:
    """Nothing is fused into a kernel beyond a bound, if the kernel has an operation of ``what``.

    Args:
        what: everything if None.
        nodes: scheduler nodes in the kernel.
        inputs: buffers that it reads and does not write itself.
        bytes: bytes that it reads and writes (size hints).

    Raises:
        RuleError: no bound, or one below 1.
    """
    bounds = {"nodes": nodes, "inputs": inputs, "bytes": bytes}
    for name, value in bounds.items():
        if value is not None and (type(value) is not int or value < 1):
            raise RuleError(
                f"{name} is {value!r}", subject="rule at_most", remedy="give a whole number above 0"
            )
    if all(value is None for value in bounds.values()):
        raise RuleError(
            "it has no bound", subject="rule at_most", remedy=f"give one of {', '.join(BOUNDS)}"
        )
    selector = Selector() if what is None else _selector(what)
    return Rule(action="at_most", select=selector, nodes=nodes, inputs=inputs, bytes=bytes)


def rule_set(rules: Rule | RuleSet | Iterable[Rule]) -> RuleSet:
    """``rules`` as a :class:`RuleSet`.

    Raises:
        RuleError: something among them is no rule.
    """
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Rule):
        return RuleSet((rules,))
    found = tuple(rules)
    for i, rule in enumerate(found):
        if not isinstance(rule, Rule):
            raise RuleError(
                f"entry {i + 1} is a {type(rule).__name__}",
                subject="rules",
                remedy=f"make rules with fusewise.rules: {', '.join(ACTIONS)}",
            )
    return RuleSet(found)


def _patterns(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern:
            raise RuleError(
                f"{name} has the pattern {pattern!r}",
                subject="rules.select",
                remedy="give a text, such as aten.exp, or a list of texts",
            )
        if name == "source" and (turned := turned_lines(pattern)):
            raise RuleError(
                f"the lines of {pattern!r} run backwards",
                subject="rules.select",
                remedy=f"write {turned}",
            )
    return found


def _selector(what: Selected) -> Selector:
    if isinstance(what, Selector):
        return what
    if isinstance(what, str) and what:
        return Selector(op=(what,))
    raise RuleError(
        f"it selects by {what!r}",
        subject="rule",
        remedy="give an operator such as 'aten.exp', or rules.select(module=...)",
    )


def _optional(what: Selected | None) -> Selector | None:
    return None if what is None else _selector(what)


def _at_lowering(what: Selected, action: str) -> Selector:
    selector = _selector(what)
    if selector.where is not None:
        raise RuleError(
            "it selects by a predicate, which looks at nodes",
            subject=f"rule {action}",
            remedy=f"{action} acts before there are nodes: select by {', '.join(FIELDS)}",
        )
    return selector


def _identity(predicate: Predicate) -> list[str]:
    """What tells a function from another: its name, code, defaults and what it closes over."""
    function: Any = getattr(predicate, "__func__", predicate)
    closed = [repr(cell.cell_contents) for cell in function.__closure__ or ()]
    of_self = repr(getattr(predicate, "__self__", None))
    defaults = repr((function.__defaults__, function.__kwdefaults__))
    return [function.__qualname__, _code(function.__code__), defaults, *closed, of_self]


def _code(code: CodeType) -> str:
    constants = [_code(value) if inspect.iscode(value) else repr(value) for value in code.co_consts]
    text = repr((code.co_code, code.co_names, code.co_varnames, constants))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
