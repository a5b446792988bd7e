"""Plan files: a program's schedules as JSON, to be read, diffed and kept with its code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fusewise.schedule.errors import PlanError
from fusewise.schedule.schedule import SCHEMA, Schedule


class PlannedGraph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The schedule of one graph, and by what the graph is known again."""

    kind: str
    #: Named hashes; the graph's key is made of all of them.
    key_parts: dict[str, str]
    device: str
    schedule: Schedule
    predicted_us: float | None = None
    measured_us: float | None = None
    default_us: float | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """The plan file of one program."""

    schema: int = SCHEMA
    fusewise: str
    torch: str
    graphs: tuple[PlannedGraph, ...]


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
        return msgspec.json.decode(data, type=PlanFile)
    except msgspec.DecodeError as error:
        raise PlanError(
            f"it is no plan file: {error}",
            subject=f"plan file {path}",
            remedy="give the file that `fusewise search --out` wrote",
        ) from error


class _Header(msgspec.Struct):
    schema: int


def write_plan_file(path: str | os.PathLike[str], plan: PlanFile) -> None:
    """Write a plan file in a stable form; what was there is replaced whole or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    scratch.replace(target)
