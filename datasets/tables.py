"""How rows become table rows: for each table its key, and what happens when a key comes twice.

Two processes may store the same graph, and two stores may be merged, so no insertion fails on a
key that is there: each column says which value stays. This file writes SQL text and never holds a
connection longer than a call.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import duckdb
import msgspec

from fusewise.datasets.rows import (
    BlocksRow,
    DecisionRow,
    DeviceRow,
    GraphRow,
    ItemRow,
    KernelRow,
    MeasurementRow,
    ModelRow,
    Row,
    ScheduleRow,
)

#: Which value stays when a key comes again: the newest that is not NULL, the first, the smallest,
#: or the newest that is not the empty text.
Rule = Literal["last", "first", "earliest", "known"]


class Table(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A table, the struct of its rows, and how rows of equal key are merged."""

    name: str
    row: Any
    key: tuple[str, ...]
    rules: dict[str, Rule] = {}
    #: For columns without a rule.
    default: Rule = "last"
    #: A column that says which row is newer, where the order of arrival does not.
    newer_by: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns in table order, which is the order of the struct's fields."""
        fields: tuple[str, ...] = self.row.__struct_fields__
        return fields

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Row]:
        """Decoder of one row; lax, since numbers that are not finite travel as text."""
        return msgspec.json.Decoder(self.row, strict=False)

    def select(
        self, connection: duckdb.DuckDBPyConnection, where: str, parameters: list[object]
    ) -> list[Row]:
        """Rows of ``SELECT`` with the clause ``where`` (which may also order and limit)."""
        types = column_types(connection, self.name)
        records = connection.execute(
            f"SELECT {_list(self.columns)} FROM {self.name} {where}", parameters
        ).fetchall()
        return [self._row(types, record) for record in records]

    def _row(self, types: dict[str, str], record: tuple[object, ...]) -> Row:
        values: dict[str, object] = {}
        for column, value in zip(self.columns, record, strict=True):
            if types[column] == "JSON" and isinstance(value, str):
                values[column] = msgspec.json.decode(value)
            elif isinstance(value, datetime):
                values[column] = value.replace(tzinfo=UTC)
            else:
                values[column] = value
        row: Row = msgspec.convert(values, self.row, strict=False)
        return row

    def stage_json(self, connection: duckdb.DuckDBPyConnection, rows: bytes) -> None:
        """Stage a JSON array of rows, then :meth:`merge_stage` takes it in."""
        types = column_types(connection, self.name)
        shape = [{column: _json_shape(types[column]) for column in self.columns}]
        picked = ", ".join(
            f'from_base64(r."{c}") AS "{c}"' if types[c] == "BLOB" else f'r."{c}" AS "{c}"'
            for c in self.columns
        )
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE stage AS SELECT {picked}, "
            "row_number() OVER () AS arrival "
            f"FROM (SELECT unnest(from_json(?, '{msgspec.json.encode(shape).decode()}')) AS r)",
            [rows.decode()],
        )

    def stage_from(self, connection: duckdb.DuckDBPyConnection, database: str) -> None:
        """Stage the whole table of the attached ``database``."""
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE stage AS SELECT {_list(self.columns)}, "
            f"rowid AS arrival FROM {database}.{self.name}"
        )

    def merge_stage(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Take the staged rows in, merged by key; the number of distinct keys."""
        # One statement must not meet a key twice, so the stage is first merged within itself.
        newest = f'"{self.newer_by}", arrival' if self.newer_by else "arrival"
        others = [c for c in self.columns if c not in self.key]
        merged = ", ".join(f'{self._fold(c)} AS "{c}"' for c in others)
        updates = ", ".join(f'"{c}" = {self._update(c)}' for c in others)
        guard = f'WHERE excluded."{self.newer_by}" >= "{self.newer_by}"' if self.newer_by else ""
        connection.execute(
            f"INSERT INTO {self.name} ({_list((*self.key, *others))}) "
            f"SELECT {_list(self.key)}, {merged} FROM "
            f"(SELECT *, row_number() OVER (ORDER BY {newest}) AS rank FROM stage) "
            f"GROUP BY {_list(self.key)} "
            f"ON CONFLICT ({_list(self.key)}) DO UPDATE SET {updates} {guard}"
        )
        counted = connection.execute(
            f"SELECT count(*) FROM (SELECT DISTINCT {_list(self.key)} FROM stage)"
        ).fetchone()
        connection.execute("DROP TABLE stage")
        return int(counted[0]) if counted else 0

    def _rule(self, column: str) -> Rule:
        return self.rules.get(column, self.default)

    def _fold(self, column: str) -> str:
        match self._rule(column):
            case "last":
                return f'arg_max("{column}", rank)'
            case "first":
                return f'arg_min("{column}", rank)'
            case "earliest":
                return f'min("{column}")'
            case "known":
                return f"""coalesce(arg_max(nullif("{column}", ''), rank), '')"""

    def _update(self, column: str) -> str:
        match self._rule(column):
            case "last":
                return f'coalesce(excluded."{column}", "{column}")'
            case "first":
                return f'coalesce("{column}", excluded."{column}")'
            case "earliest":
                return f'least("{column}", excluded."{column}")'
            case "known":
                return f"""coalesce(nullif(excluded."{column}", ''), "{column}")"""


def _list(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def column_types(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """SQL type of each column, as the migrations made it."""
    # Of a query that finds nothing: DuckDB's catalogue views take ten times as long.
    description = connection.execute(f"SELECT * FROM {table} LIMIT 0").description or []
    return {column[0]: str(column[1]) for column in description}


def _json_shape(sql_type: str) -> object:
    """What ``from_json`` is to read for a column: bytes travel as base64 text."""
    if sql_type.endswith("[]"):
        return [_json_shape(sql_type.removesuffix("[]"))]
    return "VARCHAR" if sql_type == "BLOB" else sql_type


#: Every table that rows can be appended to, by name.
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            name="devices",
            row=DeviceRow,
            key=("key",),
            rules={"first_seen": "earliest"},
        ),
        Table(
            name="graphs",
            row=GraphRow,
            key=("key",),
            # A graph of a corpus may be met again by a plain compile, which knows no family.
            default="known",
            rules={
                "parts": "last",
                "nodes": "last",
                "problem": "last",
                "created": "earliest",
            },
        ),
        Table(
            name="kernels",
            row=KernelRow,
            key=("signature", "device_key"),
            newer_by="features_version",
        ),
        Table(
            name="schedules",
            row=ScheduleRow,
            key=("id", "graph_key"),
            rules={"origin": "first"},
        ),
        Table(name="measurements", row=MeasurementRow, key=("id",), default="first"),
        Table(
            name="decisions",
            row=DecisionRow,
            key=("graph_key", "device_key", "at", "schedule_id"),
            default="first",
        ),
        Table(name="models", row=ModelRow, key=("id",), newer_by="at"),
        Table(
            name="items",
            row=ItemRow,
            key=("device_key", "corpus", "name", "round"),
            newer_by="at",
        ),
        Table(
            name="blocks",
            row=BlocksRow,
            key=("source_hash", "device_key"),
            newer_by="at",
        ),
    )
}

TABLE_OF: dict[type, Table] = {table.row: table for table in TABLES.values()}
