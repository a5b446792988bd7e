"""Problems as the short JSON text of published datasets.

A model repeats its layers, and two layers differ in the numbers of their nodes and buffers only.
So a reference is written as the distance to what it refers to: equal layers become equal text,
which a compressor then finds. Nothing is lost; what is no reference stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fusewise.schedule.errors import DatasetError
from fusewise.schedule.problem import Access, Buffer, Node, Problem

#: A distance, or the name of something that the problem does not list.
_Reference = int | str

#: A folder, drive or site of the machine that something was collected on: what stands behind a
#: name is part of a path that begins there.
_FOLDERS: Final = re.compile(
    r"(?<![\w.@+-])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+(?=[^\s/\\:'\"]+)"
)
#: Components of a path that are kept: enough to tell a file, too few to tell a machine.
_KEPT: Final = 2
#: Fields of a node that only people and their rules look at; problems that are older have none.
_ORIGIN_FIELDS: Final = ("modules", "fx_names", "sources", "written_as")
#: Told where one of the nodes has it, and both where one says what it computes.
_LIBRARY: Final = ("library",)
_COMPUTED: Final = (*_LIBRARY, "computed")
_PLAIN_FIELDS: Final = tuple(
    name for name in Node.__struct_fields__ if name not in {*_ORIGIN_FIELDS, *_COMPUTED}
)
#: What may be told of a node, by how much it is.
_TOLD: Final = {
    len(fields): fields
    for fields in (
        (*_PLAIN_FIELDS, *origins, *others)
        for origins in ((), _ORIGIN_FIELDS)
        for others in ((), _LIBRARY, _COMPUTED)
    )
}


def without_machine_paths(text: str) -> str:
    """``text`` with each absolute path in it cut down to its last two components."""

    def shorten(found: re.Match[str]) -> str:
        folders = re.split(r"[/\\]", found[0].rstrip("/\\"))
        return "/".join(folders[1 - _KEPT :]) + "/"

    return _FOLDERS.sub(shorten, text)


def publishable(problem: Problem) -> Problem:
    """``problem`` with nothing in it that tells of the machine it was lowered on.

    Nor by what its operations are known to who wrote them: a cost model has no use for that, and
    it would make the text of each layer another one.
    """
    nodes = (
        msgspec.structs.replace(
            node,
            source=without_machine_paths(node.source),
            **dict.fromkeys(_ORIGIN_FIELDS, ()),
        )
        for node in problem.nodes
    )
    return msgspec.structs.replace(problem, nodes=tuple(nodes))


def problem_text(problem: Problem) -> str:
    """``problem`` without its key, which stands in a column of its own, as JSON text."""
    at = {node.name: i for i, node in enumerate(problem.nodes)}
    buffer_at = {buffer.name: i for i, buffer in enumerate(problem.buffers)}
    # Problems that know nothing of their origins' names have the text that they always had.
    told = [
        *_PLAIN_FIELDS,
        *(_ORIGIN_FIELDS if any(_known(node) for node in problem.nodes) else ()),
        *_others(problem),
    ]
    nodes: list[Any] = []
    here = 0
    for node in problem.nodes:
        before, here = here, _first_written(node, buffer_at, here)
        fields = msgspec.structs.asdict(node)
        for side in ("reads", "writes"):
            fields[side] = [
                [_distance(access.buffer, buffer_at, here), *_told(access)]
                for access in fields[side]
            ]
        nodes.append([here - before, *(fields[name] for name in told)])
    buffers: list[Any] = []
    for i, buffer in enumerate(problem.buffers):
        fields = msgspec.structs.asdict(buffer)
        fields["users"] = [_distance(name, at, i) for name in buffer.users]
        fields["aliases"] = [_distance(name, buffer_at, i) for name in buffer.aliases]
        buffers.append(list(fields.values()))
    here = 0
    dependencies: list[Any] = []
    for edge in problem.dependencies:
        step = _distance(edge.consumer, at, here)
        here = at.get(edge.consumer, here)
        producer = _distance(edge.producer, at, here)
        dependencies.append([step, producer, _distance(edge.buffer, buffer_at, here), edge.weak])
    here = 0
    fusions: list[Any] = []
    for pair in problem.possible_fusions:
        step = _distance(pair.first, at, here)
        here = at.get(pair.first, here)
        fusions.append([step, _distance(pair.second, at, here), pair.score, pair.reorder])
    parts = [problem.kind, nodes, buffers, dependencies, fusions]
    return msgspec.json.encode(parts).decode()


def problem_of(text: str, key: str) -> Problem:
    """The problem that :func:`problem_text` wrote, with its key.

    Raises:
        DatasetError: the text is of another form.
    """
    try:
        kind, nodes, buffers, dependencies, fusions = msgspec.json.decode(text)
        return _read(key, kind, nodes, buffers, dependencies, fusions)
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError, KeyError) as error:
        raise DatasetError(
            f"its problem cannot be read: {error}",
            subject=f"graph {key}",
            remedy="check the dataset with fusewise dataset verify",
        ) from error


def _read(
    key: str,
    kind: str,
    nodes: list[Any],
    buffers: list[Any],
    dependencies: list[Any],
    fusions: list[Any],
) -> Problem:
    # The names come first: what follows refers to them.
    names = [node[1] for node in nodes]
    buffer_names = [buffer[0] for buffer in buffers]
    at = {name: i for i, name in enumerate(names)}
    here = 0
    read_nodes = []
    for step, *values in nodes:
        here += step
        if len(values) not in _TOLD:
            raise ValueError(f"a node of {len(values)} fields")
        fields = dict(zip(_TOLD[len(values)], values, strict=True))
        for side in ("reads", "writes"):
            fields[side] = [
                [_name(buffer, buffer_names, here), *rest] for buffer, *rest in fields[side]
            ]
        read_nodes.append(fields)
    read_buffers = []
    for i, values in enumerate(buffers):
        fields = dict(zip(Buffer.__struct_fields__, values, strict=True))
        fields["users"] = [_name(user, names, i) for user in fields["users"]]
        fields["aliases"] = [_name(alias, buffer_names, i) for alias in fields["aliases"]]
        read_buffers.append(fields)
    here = 0
    read_dependencies = []
    for step, producer, buffer, weak in dependencies:
        consumer = _name(step, names, here)
        here = at.get(consumer, here)
        edge = [consumer, _name(producer, names, here), _name(buffer, buffer_names, here), weak]
        read_dependencies.append(edge)
    here = 0
    read_fusions = []
    for step, second, score, reorder in fusions:
        first = _name(step, names, here)
        here = at.get(first, here)
        read_fusions.append([first, _name(second, names, here), score, reorder])
    parts = {
        "key": key,
        "kind": kind,
        "nodes": read_nodes,
        "buffers": read_buffers,
        "dependencies": read_dependencies,
        "possible_fusions": read_fusions,
    }
    return msgspec.convert(parts, Problem)


def _others(problem: Problem) -> tuple[str, ...]:
    """Fields beside those that every node has, and those of its origin."""
    if any(node.computed for node in problem.nodes):
        return _COMPUTED
    return _LIBRARY if any(node.library for node in problem.nodes) else ()


def _told(access: Access) -> tuple[Any, ...]:
    """What is told of an access beside its buffer, its last field where it is not as usual."""
    told = msgspec.structs.astuple(access)[1:]
    return told if access.held < 1.0 else told[:-1]


def _known(node: Node) -> bool:
    return any(getattr(node, name) for name in _ORIGIN_FIELDS)


def _first_written(node: Node, buffer_at: Mapping[str, int], otherwise: int) -> int:
    """Where the first buffer that ``node`` writes is, from which its accesses are counted."""
    return buffer_at.get(node.writes[0].buffer, otherwise) if node.writes else otherwise


def _distance(name: str, at: Mapping[str, int], here: int) -> _Reference:
    return name if name not in at else here - at[name]


def _name(reference: _Reference, names: Sequence[str], here: int) -> str:
    if isinstance(reference, str):
        return reference
    if not 0 <= here - reference < len(names):
        raise IndexError(f"a reference leads to place {here - reference} of {len(names)}")
    return names[here - reference]
