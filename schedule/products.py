"""Matrix products by the compiler's template: which ones, and in blocks of how many rows.

A lowering choice, ``template:<name>``, by the name of the product's node in the graph that is
lowered. A library computes a product and stores it, and another kernel reads it again; a template
is generated code, and takes in what follows. Only reads and writes the choices.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fusewise.schedule.part_choices import chosen_values
from fusewise.schedule.schedule import Choice

#: Rows of a block of a product that a template computes.
TEMPLATE: Final = "template:"
#: Rows that a block may have.
ROWS: Final = (16, 32, 64, 128)
#: Bytes of a row of a block's result at the most. On an H200 products of fp32 over 128 and 256
#: values took a tenth less in blocks of 64 columns than of 128; of bf16 it was the other way round.
MOST_COLUMN_BYTES: Final = 256


def template_choice(node: str, rows: int) -> Choice:
    """The lowering choice that has a template compute the product of a node, so many rows a block.

    ``rows``: one of :data:`ROWS`.
    """
    return Choice(f"{TEMPLATE}{node}", rows)


def templates(choices: Iterable[Choice]) -> dict[str, int]:
    """Rows of a block by node, of products that a template computes.

    Raises:
        PlanError: a number is none of :data:`ROWS`, or no node is named.
    """
    return chosen_values(choices, TEMPLATE, ROWS, f"choose {', '.join(map(str, ROWS))}")
