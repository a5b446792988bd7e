"""Plan files: a program's schedules as JSON, to be read, diffed and kept with its code.

In the file a graph's plan stands group by group, each node with the operations that it came from,
and its steps are words; in memory it is a :class:`Schedule` like any other. The order is that of
the schedule, so equal schedules give equal files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from fusewise.schedule.block_sizes import parse_sizes
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, Step, StepKind, build_plan
from fusewise.schedule.schedule import SCHEMA, Candidate, Choice, Schedule

#: Arrays and objects of plain values stand on one line up to this width.
_WIDTH: Final = 110
_REORDER: Final = "reorder"


class PlannedNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of a plan, and by what it is known again in a changed graph."""

    name: str
    #: Operators of the captured graph that it computes.
    operations: tuple[str, ...] = ()
    #: Hash of what decides its code alone, names left out; "" where unknown.
    signature: str = ""


class PlannedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of one graph, and by what the graph is known again."""

    kind: str
    #: Named hashes; the graph's key is made of all of them.
    key_parts: dict[str, str]
    device: str
    schedule: Schedule
    #: What is known of the plan's nodes; those that are left out have a name only.
    nodes: tuple[PlannedNode, ...] = ()
    #: Predicted microseconds of each group of the plan; empty where unknown.
    group_us: tuple[float, ...] = ()
    #: Key of the device that times were taken on; "" where unknown.
    device_key: str = ""
    predicted_us: float | None = None
    measured_us: float | None = None
    #: Measured time of the compiler's own schedule beside it.
    default_us: float | None = None
    #: What tuning came to: the block sizes of kernels, each by the choice to have it tuned.
    blocks: tuple[Choice, ...] = ()

    def candidate(self, reason: str = "") -> Candidate:
        """The schedule as what a graph is compiled by, with the times that were written down."""
        plan = self.schedule.plan
        return Candidate(
            schedule=self.schedule,
            origin="plan file",
            groups=len(plan.groups) if plan is not None else 0,
            predicted_us=self.predicted_us,
            measured_us=self.measured_us,
            blocks=self.blocks,
            accepted=True,
            reason=reason,
        )


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """The plan file of one program."""

    schema: int = SCHEMA
    fusewise: str
    torch: str
    triton: str = ""
    #: What the plan was made for, as it was named.
    program: str = ""
    graphs: tuple[PlannedGraph, ...]


class _WrittenGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    nodes: tuple[PlannedNode, ...]
    predicted_us: float | None = None


class _WrittenGraph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str
    device: str
    device_key: str = ""
    predicted_us: float | None = None
    measured_us: float | None = None
    default_us: float | None = None
    key: dict[str, str]
    lowering: dict[str, bool | int | float | str] = {}
    codegen: dict[str, bool | int | float | str] = {}
    tuned: dict[str, str] = {}
    #: None where the compiler's own fusion is used.
    groups: tuple[_WrittenGroup, ...] | None = None
    steps: tuple[str, ...] = ()


class _WrittenFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: int
    fusewise: str
    torch: str
    triton: str = ""
    program: str = ""
    graphs: tuple[_WrittenGraph, ...]


class _Header(msgspec.Struct):
    schema: int


def read_plan_file(path: str | os.PathLike[str]) -> PlanFile:
    """Read a plan file.

    Raises:
        PlanError: it is missing, no plan file, or of another schema; names the path and the field.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(
            f"cannot be read: {error.strerror}",
            subject=f"plan file {path}",
            remedy="give the file that `fusewise search --out` wrote",
        ) from error
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema != SCHEMA:
            raise PlanError(
                f"it is of schema {schema}, this fusewise reads {SCHEMA}",
                subject=f"plan file {path}",
                remedy="search again with this fusewise",
            )
        written = msgspec.json.decode(data, type=_WrittenFile)
        return PlanFile(
            schema=schema,
            fusewise=written.fusewise,
            torch=written.torch,
            triton=written.triton,
            program=written.program,
            graphs=tuple(_read(graph, f"$.graphs[{i}]") for i, graph in enumerate(written.graphs)),
        )
    except msgspec.DecodeError as error:
        raise PlanError(
            f"it is no plan file: {error}",
            subject=f"plan file {path}",
            remedy="give the file that `fusewise search --out` wrote",
        ) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse early what would fail after everything was searched.

    Raises:
        PlanError: the path is a folder, or its folder cannot be made or written to.
    """
    target = Path(path)
    if target.is_dir():
        raise _unwritable(target, "it is a folder")
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target, str(error.strerror)) from error
    if not os.access(target.absolute().parent, os.W_OK):
        raise _unwritable(target, "its folder is not to be written to")


def _unwritable(path: Path, why: str) -> PlanError:
    return PlanError(
        f"it cannot be written: {why}", subject=f"plan file {path}", remedy="name another file"
    )


def write_plan_file(path: str | os.PathLike[str], plan: PlanFile) -> None:
    """Write a plan file in a stable form; what was there is replaced whole or not at all.

    Raises:
        PlanError: it cannot be written.
    """
    written = _WrittenFile(
        schema=plan.schema,
        fusewise=plan.fusewise,
        torch=plan.torch,
        triton=plan.triton,
        program=plan.program,
        graphs=tuple(_written(graph) for graph in plan.graphs),
    )
    target = Path(path)
    check_writable(target)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(_rendered(msgspec.to_builtins(written), "") + "\n")
        scratch.replace(target)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise _unwritable(target, str(error.strerror)) from error


def _read(graph: _WrittenGraph, path: str) -> PlannedGraph:
    plan, group_us = None, []
    if graph.groups is not None:
        groups = tuple(tuple(node.name for node in group.nodes) for group in graph.groups)
        known = {name for names in groups for name in names}
        steps = enumerate(graph.steps)
        plan = Plan(groups, tuple(_step(text, known, f"{path}.steps[{i}]") for i, text in steps))
        _check_built(plan, path)
        group_us = [g.predicted_us for g in graph.groups if g.predicted_us is not None]
    return PlannedGraph(
        kind=graph.kind,
        key_parts=graph.key,
        device=graph.device,
        device_key=graph.device_key,
        schedule=Schedule(_choices(graph.lowering), plan, _choices(graph.codegen)),
        nodes=tuple(node for group in graph.groups or () for node in group.nodes),
        group_us=tuple(group_us) if len(group_us) == len(graph.groups or ()) else (),
        predicted_us=graph.predicted_us,
        measured_us=graph.measured_us,
        default_us=graph.default_us,
        blocks=_tuned(graph, f"{path}.tuned"),
    )


def _tuned(graph: _WrittenGraph, path: str) -> tuple[Choice, ...]:
    for name, text in graph.tuned.items():
        if name not in graph.codegen:
            raise msgspec.ValidationError(f"{name!r} is no choice of its codegen - at `{path}`")
        try:
            parse_sizes(text)
        except PlanError as error:
            raise msgspec.ValidationError(f"{error.cause} - at `{path}`") from error
    return _choices(graph.tuned)


def _written(graph: PlannedGraph) -> _WrittenGraph:
    schedule = graph.schedule
    known = {node.name: node for node in graph.nodes}
    groups = None
    if schedule.plan is not None:
        us = graph.group_us or (None,) * len(schedule.plan.groups)
        groups = tuple(
            _WrittenGroup(
                nodes=tuple(known.get(name) or PlannedNode(name=name) for name in names),
                predicted_us=_rounded(predicted),
            )
            for names, predicted in zip(schedule.plan.groups, us, strict=True)
        )
    return _WrittenGraph(
        kind=graph.kind,
        device=graph.device,
        device_key=graph.device_key,
        predicted_us=_rounded(graph.predicted_us),
        measured_us=_rounded(graph.measured_us),
        default_us=_rounded(graph.default_us),
        key=graph.key_parts,
        lowering={choice.name: choice.value for choice in schedule.lowering},
        codegen={choice.name: choice.value for choice in schedule.codegen},
        tuned={choice.name: str(choice.value) for choice in graph.blocks},
        groups=groups,
        steps=tuple(map(_told, schedule.plan.steps)) if schedule.plan is not None else (),
    )


def _rounded(us: float | None) -> float | None:
    """To the nanosecond: what comes after is noise, and differs from run to run."""
    return None if us is None else round(us, 3)


def _choices(values: Mapping[str, bool | int | float | str]) -> tuple[Choice, ...]:
    return tuple(Choice(name, value) for name, value in values.items())


def _told(step: Step) -> str:
    """A step in words: ``fuse op0 op1``, with ``reorder`` where loops are reordered for it."""
    words = [step.kind, step.first, step.second]
    return " ".join([*words, _REORDER] if step.reorder else words)


def _step(text: str, known: Collection[str], path: str) -> Step:
    """A step from its words; ``known`` are the nodes of the plan's groups."""
    kind, *names = text.split() or [""]
    reorder = names[2:] == [_REORDER]
    if kind not in get_args(StepKind) or len(names) - reorder != 2:  # noqa: PLR2004
        raise msgspec.ValidationError(f"{text!r} is no step - at `{path}`")
    for name in names[:2]:
        if name not in known:
            raise msgspec.ValidationError(
                f"{text!r} names {name!r}, which is in none of its groups - at `{path}`"
            )
    return Step(kind, names[0], names[1], reorder)  # type: ignore[arg-type]


def _check_built(plan: Plan, path: str) -> None:
    """Refuse groups that are not what the steps put together: one of the two was edited."""
    names = [name for group in plan.groups for name in group]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise msgspec.ValidationError(f"{twice!r} is in two places - at `{path}.groups`")
    try:
        built = {frozenset(group) for group in build_plan(names, plan.steps).groups}
    except PlanError as error:
        raise msgspec.ValidationError(f"{error.cause} - at `{path}.steps`") from error
    for i, group in enumerate(plan.groups):
        if frozenset(group) not in built:
            raise msgspec.ValidationError(
                f"the steps do not make a group of {' '.join(group)} - at `{path}.groups[{i}]`"
            )


def _rendered(value: Any, indent: str) -> str:
    """JSON in which whatever holds plain values stands on one line where there is room."""
    if isinstance(value, dict | list | tuple):
        flat = json.dumps(value, ensure_ascii=False)
        parts = list(value.values() if isinstance(value, dict) else value)
        nested = any(isinstance(part, dict | list | tuple) for part in parts)
        leaf = nested and all(not isinstance(part, dict) for part in parts)
        if parts and (len(indent) + len(flat) > _WIDTH or (nested and not leaf)):
            inner = indent + " "
            items = [f"{inner}{_rendered(part, inner)}" for part in parts]
            if isinstance(value, dict):
                items = [
                    f"{inner}{json.dumps(name)}: {_rendered(part, inner)}"
                    for name, part in value.items()
                ]
            ends = "{}" if isinstance(value, dict) else "[]"
            return f"{ends[0]}\n" + ",\n".join(items) + f"\n{indent}{ends[1]}"
        return flat
    return json.dumps(value, ensure_ascii=False)
