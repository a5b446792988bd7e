"""Patterns by which a rule selects operations: by operator, module path, node name, source line.

Only text is compared; what the text stands for is not looked up anywhere.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import NamedTuple

from fusewise.schedule.problem import Node


class Operation(NamedTuple):
    """One operation of the captured graph, as rules see it. "" is what is not known."""

    #: Of its node in the captured graph, such as ``exp_3``.
    name: str
    #: Operator, such as ``aten.exp.default``.
    op: str
    #: The operator that it was a part of before that was taken apart.
    written_as: str
    #: Path of the innermost module that it is in.
    module: str
    #: ``file:line``.
    source: str
    #: The scheduler node that computes it and the buffers that this writes.
    holders: tuple[str, ...] = ()


def operations(node: Node) -> tuple[Operation, ...]:
    """The operations that a scheduler node computes; one without a name where none is known."""
    holders = (node.name, *(access.buffer for access in node.writes))
    count = len(node.origins)

    def of(values: tuple[str, ...], otherwise: str = "") -> tuple[str, ...]:
        return values if len(values) == count else (otherwise,) * count

    found = zip(
        of(node.fx_names),
        node.origins,
        of(node.written_as),
        of(node.modules),
        of(node.sources, node.source),
        strict=True,
    )
    return tuple(Operation(*fields, holders) for fields in found) or (
        Operation("", "", "", "", node.source, holders),
    )


def matches_op(patterns: Sequence[str], operation: Operation) -> bool:
    """Whether one of ``patterns`` names the operator, with or without its overload."""
    if not patterns:
        return True
    names = [
        name
        for full in (operation.op, operation.written_as)
        if full
        for name in (full, full.rpartition(".")[0])
    ]
    return matches_text(patterns, names)


def matches_text(patterns: Sequence[str], texts: Iterable[str]) -> bool:
    """Whether one of ``patterns`` is one of ``texts``; none at all is no condition."""
    if not patterns:
        return True
    texts = tuple(texts)
    return any(_glob(pattern).match(text) is not None for pattern in patterns for text in texts)


def matches_module(patterns: Sequence[str], path: str) -> bool:
    """Whether one of ``patterns`` names the module at ``path`` or one that this is in."""
    if not patterns:
        return True
    parts = path.split(".") if path else []
    return any(_begins(tuple(pattern.split(".")), tuple(parts)) for pattern in patterns)


@functools.lru_cache(maxsize=4096)
def _begins(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the first of ``parts``, however many, match ``pattern`` component by component."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_begins(pattern[1:], parts[i:]) for i in range(len(parts) + 1))
    return (
        bool(parts)
        and _glob(pattern[0]).match(parts[0]) is not None
        and _begins(pattern[1:], parts[1:])
    )


_LINES = re.compile(r"^(.*?)(?::(\d+)(?:-(\d+))?)?$", re.DOTALL)


def turned_lines(pattern: str) -> str:
    """The pattern as it would be right where its lines run backwards; "" where they do not."""
    found = _LINES.match(pattern)
    assert found is not None
    if found[3] is None or int(found[2]) <= int(found[3]):
        return ""
    return f"{found[1]}:{found[3]}-{found[2]}"


def matches_source(patterns: Sequence[str], source: str) -> bool:
    """Whether one of ``patterns`` (``file``, ``file:line``, ``file:from-to``) names the line."""
    if not patterns:
        return True
    path, _, line = source.rpartition(":")
    if not line.isdigit():
        return False
    parts = re.split(r"[/\\]", path)
    for pattern in patterns:
        found = _LINES.match(pattern)
        assert found is not None
        wanted = re.split(r"[/\\]", found[1])
        first = int(found[2] or 0)
        last = int(found[3] or found[2] or 10**9)
        tail = parts[-len(wanted) :]
        named = len(tail) == len(wanted) and all(
            _glob(one).match(part) for one, part in zip(wanted, tail, strict=True)
        )
        if named and first <= int(line) <= last:
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
