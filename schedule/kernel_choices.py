"""Codegen choices about single kernels of a plan, each kernel named by one of its nodes.

A choice about all of a graph has a plain name; one about a kernel is ``<kind>:<node>``, where the
node is that of the problem. Only reads and writes them: what they mean to the compiler is known
where they are applied, and what is worth choosing where schedules are searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

from fusewise.schedule.errors import PlanError
from fusewise.schedule.part_choices import chosen_values
from fusewise.schedule.schedule import Choice

#: Kernels that run in one launch: the first is in the name, the others in the value.
COMBO: Final = "combo:"
#: How the block sizes of a kernel are found.
BLOCKS: Final = "blocks:"

#: ``autotune``: several block sizes are compiled and the fastest is taken. ``descent``: from there
#: on one size after the other is changed as long as that is faster.
Tuning = Literal["autotune", "descent"]


def combo_choice(nodes: Sequence[str]) -> Choice:
    """The choice that runs the kernels of ``nodes``, two or more, in one launch."""
    return Choice(f"{COMBO}{nodes[0]}", " ".join(nodes[1:]))


def combos(choices: Iterable[Choice]) -> tuple[tuple[str, ...], ...]:
    """The sets of kernels that run in one launch, each kernel by one of its nodes.

    Raises:
        PlanError: a set of fewer than two, or a node that is in several or twice in one.
    """
    sets: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for choice in choices:
        if not choice.name.startswith(COMBO):
            continue
        others = choice.value.split() if isinstance(choice.value, str) else []
        nodes = (choice.name.removeprefix(COMBO), *others)
        twice = [node for at, node in enumerate(nodes) if node in seen or node in nodes[:at]]
        if not all(nodes) or not others or twice:
            why = f"names {twice[0]!r} again" if twice else "names no second kernel"
            raise PlanError(
                f"{choice.name!r} {why}",
                subject="schedule",
                remedy="give each kernel to one launch, two or more to each",
            )
        seen.update(nodes)
        sets.append(nodes)
    return tuple(sets)


def blocks_choice(node: str, tuning: Tuning) -> Choice:
    """The choice of how the block sizes of the kernel of a node are found."""
    return Choice(f"{BLOCKS}{node}", tuning)


def tunings(choices: Iterable[Choice]) -> dict[str, Tuning]:
    """How block sizes are found, by a node of the kernel.

    Raises:
        PlanError: a choice has another value, or names no node.
    """
    remedy = f"choose {' or '.join(get_args(Tuning))}"
    return chosen_values(choices, BLOCKS, get_args(Tuning), remedy)
