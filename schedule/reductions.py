"""How a reduction is computed: in how many parts, and by what kind of kernel.

Into how many parts a reduction is cut is a lowering choice, ``split:<name>``, by the name of its
node in the graph that is lowered: each part becomes a row of a first kernel, and a second kernel
puts the rows together. What the kernel of a reduction looks like is a codegen choice,
``reduction:<node>``, by a node of the problem. Only reads and writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

from fusewise.schedule.errors import PlanError
from fusewise.schedule.part_choices import chosen_values
from fusewise.schedule.schedule import Choice

#: Into how many parts a reduction is cut; 1 for one kernel.
SPLIT: Final = "split:"
#: What the kernel of a reduction looks like.
REDUCTION: Final = "reduction:"

#: ``persistent``: a block holds all of its rows at once; ``looped``: it goes through them in
#: pieces; ``cooperative``: several blocks share a row and put their results together in the end.
Shape = Literal["persistent", "looped", "cooperative"]


def split_choice(node: str, parts: int) -> Choice:
    """The lowering choice that cuts the reduction of a node into so many parts."""
    return Choice(f"{SPLIT}{node}", parts)


def splits(choices: Iterable[Choice]) -> dict[str, int]:
    """Into how many parts reductions are cut, by node.

    Raises:
        PlanError: a number is none, or below one, or no node is named.
    """
    found: dict[str, int] = {}
    for choice in choices:
        if not choice.name.startswith(SPLIT):
            continue
        node, parts = choice.name.removeprefix(SPLIT), choice.value
        if not node or not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
            raise PlanError(
                f"{choice.name!r} is no choice: {parts!r}",
                subject="schedule",
                remedy="give a whole number from 1",
            )
        found[node] = parts
    return found


def shape_choice(node: str, shape: Shape) -> Choice:
    """The codegen choice of what the kernel of a node looks like."""
    return Choice(f"{REDUCTION}{node}", shape)


def shapes(choices: Iterable[Choice]) -> dict[str, Shape]:
    """What kernels of reductions look like, by a node of the kernel.

    Raises:
        PlanError: a choice has another value, or names no node.
    """
    remedy = f"choose {', '.join(get_args(Shape))}"
    return chosen_values(choices, REDUCTION, get_args(Shape), remedy)
