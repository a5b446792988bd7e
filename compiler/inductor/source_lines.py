"""Lines of the user's program that scheduler nodes came from.

Reads the traces that capturing left on the operators. Never opens a source file.
"""

from __future__ import annotations

import re
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.origins import origins_of, positions
from fusewise.compiler.inductor.plans import node_name

_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
#: Code of libraries: a line in there is no line of the user's program.
_LIBRARIES = (_TORCH, sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])


def source_lines(
    nodes: Sequence[inductor_scheduler.BaseSchedulerNode],
) -> dict[str, tuple[str, ...]]:
    """``file:line`` of each operator that ended up in a node, by node, without doubles.

    What lowering adds, such as a copy into another layout, has the lines of what reads it.

    The innermost line outside of libraries; else, for a model that a library brings, outside of
    torch. In the order of the captured graph; empty where nothing is known.
    """
    position = positions()
    found = {}
    for node in nodes:
        ordered = origins_of(node.get_nodes(), position)
        lines = (_line(origin.meta.get("stack_trace") or "") for origin in ordered)
        found[node_name(node)] = tuple(dict.fromkeys(line for line in lines if line))
    return found | _of_readers(nodes, found)


def _of_readers(
    nodes: Sequence[inductor_scheduler.BaseSchedulerNode], found: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Lines of what lowering adds without an operator, such as a copy into another layout.

    Those of the nodes that read it: it was made for them.
    """
    added: dict[str, tuple[str, ...]] = {}
    if all(found.values()):
        return added
    names = [node_name(node) for node in nodes]
    users: dict[str, list[int]] = defaultdict(list)
    for at, node in enumerate(nodes):
        for buffer in node.used_buffer_names():
            users[buffer].append(at)
    # Backwards, so that a copy of a copy has lines as well.
    for at in reversed(range(len(nodes))):
        if found[names[at]]:
            continue
        readers = {user for buffer in nodes[at].get_buffer_names() for user in users[buffer]}
        ordered = (names[reader] for reader in sorted(readers - {at}))
        lines = (line for reader in ordered for line in added.get(reader, found[reader]))
        added[names[at]] = tuple(dict.fromkeys(lines))
    return added


def _line(trace: str) -> str:
    frames: list[tuple[str, str]] = _FILE_LINE.findall(trace)
    if not frames:
        return ""
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)]
    models = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return ":".join((own or models or frames)[-1])
