"""Which loop over its reductions each node of a kernel runs in, as the compiler generates them.

The rules are those of ``SIMDScheduling.generate_node_schedule`` in torch/_inductor/codegen/simd.py.
Only for kernels that loop; one that holds whole rows has no loops to start again.
"""

from __future__ import annotations

from collections.abc import Sequence


def loops_in(
    order: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    reduces: Sequence[bool],
    producers: Sequence[Sequence[tuple[int, int]]],
) -> dict[int, int]:
    """The loop of each node of a kernel, counted from 0.

    A node that needs what a reduction gives ends the loop that it is in, and so does one of the
    results' own shape, whatever it needs.

    Args:
        order: numbers of the kernel's nodes, as they are generated.
        shapes: results and length of each node.
        reduces: whether it is a reduction.
        producers: numbers of the nodes that it needs, first of each pair.
    """
    rows = max(shapes[i][0] for i in order if reduces[i])
    level: dict[int, int] = {}
    above: dict[int, int] = {}
    loop = waiting = 0
    started = False
    for i in order:
        before = 0
        for producer, _ in producers[i]:
            before |= above.get(producer, 0) | 1 << producer
        above[i] = before
        if shapes[i] == (rows, 1):
            loop += started
            started, waiting = False, 0
            level[i] = max(loop - 1, 0)
            continue
        if waiting & before:
            loop += 1
            waiting = 0
        started = True
        level[i] = loop
        if reduces[i]:
            waiting |= 1 << i
    return level
