"""Which bytes a group writes where it read others: nobody reads those later, or they are updated.

Inductor gives a result the memory of what was read last; what the program updates is stored where
it was. Such a result takes no other room in a cache, so what is written is there already. Told from
accesses and users alone, of any device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewise.costmodel.meeting import Met
from fusewise.schedule.problem import Node, Problem, mask_of


class Overwriting:
    """Bytes written in place by groups of one problem's nodes, which are numbered as given."""

    def __init__(self, problem: Problem, nodes: Sequence[Node], rank: Mapping[str, int]) -> None:
        """``nodes`` in topological order; ``rank`` is the number of each by name."""
        self._over = [_overwritten(node, problem, rank) for node in nodes]
        self._updates = [_updated(node, problem) for node in nodes]
        self._possible = mask_of(i for i in range(len(nodes)) if self._over[i] or self._updates[i])

    def bytes(self, ids: Sequence[int], mask: int, met: Met) -> float:
        """Bytes that the group of the nodes ``ids``, ascending, writes where it read.

        ``mask`` is their bitset.
        """
        if not mask & self._possible:
            return 0.0
        later = ~(mask | ((1 << ids[0]) - 1))
        accesses = {key for _, key, *_ in met.moving}
        moving = {buffer for buffer, _ in accesses}
        found = 0.0
        for i in ids:
            for size, older, newer in self._updates[i]:
                if older in accesses and newer in accesses:
                    found += size
                    break
            for size, read, write, users in self._over[i]:
                if read in moving and write in moving and not users & later:
                    found += size
                    break
        return found


def _overwritten(
    node: Node, problem: Problem, rank: Mapping[str, int]
) -> list[tuple[int, str, str, int]]:
    """Reads that a node may write its result over (``SchedulerNode.can_inplace``).

    Of each the bytes, the buffer, that of the result, and the bitset of its readers.
    """
    if node.kind != "pointwise" or len(node.writes) != 1:
        return []
    write = node.writes[0]
    target = problem.buffer_by_name.get(write.buffer)
    if write.kind == "atomic" or target is None or target.aliases:
        return []
    found = []
    for read in node.reads:
        buffer = problem.buffer_by_name.get(read.buffer)
        if (
            read.index != write.index
            or read.itemsize != write.itemsize
            or buffer is None
            or buffer.is_input
            or buffer.is_output
            or buffer.aliases
        ):
            continue
        users = [rank.get(name) for name in buffer.users]
        if any(user is None for user in users):
            continue
        readers = mask_of(user for user in users if user is not None)
        found.append((read.bytes, read.buffer, write.buffer, readers))
    return found


def _updated(node: Node, problem: Problem) -> list[tuple[int, tuple[str, str], tuple[str, str]]]:
    """Bytes that a node stores into older buffers; the access that reads each there, and its own.

    Accesses are a buffer and an index.
    """
    found = []
    for write in node.writes:
        buffer = problem.buffer_by_name.get(write.buffer)
        if write.kind != "atomic" and buffer is not None:
            found += [
                (write.bytes, (older, write.index), (write.buffer, write.index))
                for older in buffer.aliases
            ]
    return found
