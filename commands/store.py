"""``fusewise store``: what a store holds, writing it out, taking another one in."""

from __future__ import annotations

from pathlib import Path

import click

from fusewise.commands.options import (
    existing_store,
    json_option,
    new_or_existing_store,
    store_option,
)
from fusewise.commands.output import print_json, result_console

_MIB = 1 << 20


@click.group(
    epilog="""\b
Examples:
  fusewise store info
  fusewise store export timings/ --store runs/store.duckdb
  fusewise store merge gpu-machine.duckdb
"""
)
def store() -> None:
    """Tell what a store holds, export or merge it."""


@store.command(epilog="Example: fusewise store info --json")
@store_option
@json_option
def info(*, store_path: Path | None, as_json: bool) -> None:
    """Tell what a store holds."""
    import msgspec
    from rich.table import Table

    with existing_store(store_path) as opened:
        found = opened.info()
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    # Plain, as a long path must stay in one piece to be copied.
    click.echo(f"{found.path}: schema {found.schema_version}, {found.bytes / _MIB:.1f} MiB")
    click.echo(f"spool: {found.spool_files} files, {found.spool_bytes / _MIB:.1f} MiB")
    counts = Table("table", "rows")
    for name, rows in found.counts.items():
        counts.add_row(name, str(rows))
    devices = Table("device", "kind", "name", "threads")
    for device in found.devices:
        devices.add_row(device.key, device.kind, device.name, str(device.threads or ""))
    console = result_console()
    console.print(counts)
    console.print(devices)


@store.command(epilog="Example: fusewise store export timings/")
@click.argument("folder", type=click.Path(path_type=Path))
@store_option
@json_option
def export(*, folder: Path, store_path: Path | None, as_json: bool) -> None:
    """Write each table as a Parquet file into FOLDER."""
    with existing_store(store_path) as opened:
        written = opened.export(folder)
    if as_json:
        print_json({"store": str(opened.path), "files": [str(path) for path in written]})
        return
    for path in written:
        click.echo(str(path))


@store.command(epilog="Example: fusewise store merge gpu-machine.duckdb")
@click.argument("other", type=click.Path(path_type=Path))
@store_option
@json_option
def merge(*, other: Path, store_path: Path | None, as_json: bool) -> None:
    """Take all rows of the store OTHER in; OTHER stays as it is."""
    with new_or_existing_store(store_path) as opened:
        merged = opened.merge(other)
    if as_json:
        print_json({"store": str(opened.path), "other": str(other), "rows": merged})
        return
    for name, rows in merged.items():
        click.echo(f"{name}: {rows} rows")


@store.command(epilog="Example: fusewise store features")
@store_option
@json_option
def features(*, store_path: Path | None, as_json: bool) -> None:
    """Compute the features of its kernels anew, where another fusewise wrote them."""
    from fusewise.training.refeature import refeature

    with existing_store(store_path) as opened:
        changed = refeature(opened)
    if as_json:
        print_json({"store": str(opened.path), "kernels": changed})
        return
    click.echo(f"{changed} kernels have new features")
