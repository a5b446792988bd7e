"""The newest decision on each graph as a file of its own, beside the store.

A compile that finds its decision here need not open the database, which takes as long as a small
graph's code generation. Nothing is only here: what is missing, damaged or of another version is
looked up in the store. Never touches DuckDB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fusewise.datasets.rows import DecisionRow, GraphRow, Row, ScheduleRow
from fusewise.schedule.schedule import Schedule

#: Of the files; others are not read.
_VERSION: Final = 1


@dataclass(frozen=True)
class Outcome:
    """What was decided on a graph."""

    decision: DecisionRow
    #: Schedules known for the graph, by id.
    schedules: dict[str, Schedule]
    #: Nodes of the graph; 0 where it was not kept.
    nodes: int


class _File(msgspec.Struct, frozen=True):
    version: int
    outcome: Outcome


class Decided:
    """The files of one store."""

    def __init__(self, store: Path) -> None:
        """``store``: the DuckDB file; without it, decisions are forgotten as well."""
        self._store = store
        self._folder = store.with_name(store.name + ".decided")

    def find(self, graph_key: str, device_key: str, mode: str) -> Outcome | None:
        """The newest decision that was made in ``mode``; None where the store has to be asked."""
        return self._read(graph_key, device_key, mode) if self._store.exists() else None

    def _read(self, graph_key: str, device_key: str, mode: str) -> Outcome | None:
        try:
            found = msgspec.json.decode(
                self._path(graph_key, device_key, mode).read_bytes(), type=_File
            )
        except (OSError, ValueError):
            # What msgspec says of a file that is none is a ValueError, too.
            return None
        decision = found.outcome.decision
        same = (decision.graph_key, decision.device_key, decision.mode)
        if found.version != _VERSION or same != (graph_key, device_key, mode):
            return None
        return found.outcome

    def keep(self, outcome: Outcome) -> None:
        """Keep a decision; where that cannot be, an older one is not kept either."""
        decision = outcome.decision
        path = self._path(decision.graph_key, decision.device_key, decision.mode)
        named = _named(decision)
        needed = {key: value for key, value in outcome.schedules.items() if key in named}
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = _File(_VERSION, Outcome(decision, needed, outcome.nodes))
            unfinished.write_bytes(msgspec.json.encode(kept))
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def note(self, rows: Sequence[Row]) -> None:
        """Rows were left for the store, decisions maybe among them.

        Where the newest one came without its schedules none is kept, and the store has to be asked.
        """
        schedules = {row.id: row.schedule for row in rows if isinstance(row, ScheduleRow)}
        nodes = {row.key: row.nodes for row in rows if isinstance(row, GraphRow)}
        for row in rows:
            if not isinstance(row, DecisionRow):
                continue
            before = self._read(row.graph_key, row.device_key, row.mode)
            if before is not None and before.decision.at > row.at:
                continue
            if _named(row) <= schedules.keys() and row.graph_key in nodes:
                self.keep(Outcome(row, schedules, nodes[row.graph_key]))
            else:
                with contextlib.suppress(OSError):
                    self._path(row.graph_key, row.device_key, row.mode).unlink(missing_ok=True)

    def forget(self) -> None:
        """Keep nothing more: newer decisions may have come into the store."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, graph_key: str, device_key: str, mode: str) -> Path:
        named = hashlib.sha256(f"{graph_key}\n{device_key}\n{mode}".encode()).hexdigest()
        return self._folder / f"{named[:32]}.json"


def _named(decision: DecisionRow) -> set[str]:
    """Ids of the schedules that a decision tells of."""
    return {decision.schedule_id, *(c.schedule_id for c in decision.candidates)}
