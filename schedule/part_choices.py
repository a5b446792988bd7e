"""Choices about single parts of a graph: which of the values that there are each one has.

The name of such a choice is a prefix and the node that tells the part. What a value means is said
where its kind of choice is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from fusewise.schedule.errors import PlanError
from fusewise.schedule.schedule import Choice

_T = TypeVar("_T")


def chosen_values(
    choices: Iterable[Choice], prefix: str, allowed: Sequence[_T], remedy: str
) -> dict[str, _T]:
    """Values by node, of the choices whose names begin with ``prefix``.

    Raises:
        PlanError: a choice has a value that is not allowed, or names no node.
    """
    found: dict[str, _T] = {}
    for choice in choices:
        if not choice.name.startswith(prefix):
            continue
        node = choice.name.removeprefix(prefix)
        for value in allowed:
            if choice.value == value and node:
                found[node] = value
                break
        else:
            raise PlanError(
                f"{choice.name!r} is no choice: {choice.value!r}",
                subject="schedule",
                remedy=remedy,
            )
    return found
