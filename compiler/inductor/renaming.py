"""Whether a node is the one that a signature was made of, in a graph whose inputs have other names.

A signature holds a node's reads in the order of their buffers' names. Buffers that the graph itself
writes are numbered alike in equal graphs; its inputs are not, where one way of compiling takes
parameters as inputs and another as constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from fusewise.compiler.inductor.extract import signature_with
from fusewise.schedule.problem import Access, Node, Problem

#: Orders of inputs are gone through for nodes with up to so many; lowering inlines no more.
_MOST_INPUTS = 8


def is_signed(live: Any, node: Node, problem: Problem, signature: str) -> bool:
    """Whether ``signature`` is that of a node, under some naming of the graph's inputs.

    Args:
        live: the scheduler's node.
        node: the same as part of ``problem``.
        problem: the graph that it is of.
        signature: of a node of another graph.
    """
    if node.signature == signature:
        return True
    return any(signature_with(live, node, reads) == signature for reads in _orders(node, problem))


def _orders(node: Node, problem: Problem) -> Iterator[list[Access]]:
    by_buffer: dict[str, list[Access]] = {}
    for access in node.reads:
        by_buffer.setdefault(access.buffer, []).append(access)
    inputs = [
        name
        for name in by_buffer
        if (buffer := problem.buffer_by_name.get(name)) is None or buffer.is_input
    ]
    if len(inputs) > _MOST_INPUTS:
        return
    rest = [access for name, found in by_buffer.items() if name not in inputs for access in found]
    for order in permutations(inputs):
        # Names of inputs come before those of buffers in the alphabet.
        yield [*(access for name in order for access in by_buffer[name]), *rest]
