"""``fusewise dataset``: publishing what a store measured, and telling what was published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewise.commands.options import existing_store, json_option, store_option
from fusewise.commands.output import print_json, result_console

if TYPE_CHECKING:
    from fusewise.datasets.rows import DeviceKind

_MIB = 1 << 20

_dataset = click.argument("name", metavar="NAME|PATH")


@click.group(
    epilog="""\b
Examples:
  fusewise dataset info
  fusewise dataset card h200
  fusewise dataset publish a100 --store runs/store.duckdb --out a100/ --kind cuda
  fusewise dataset verify a100/
"""
)
def dataset() -> None:
    """Publish measured kernels and schedules, and tell what a dataset holds."""


@dataset.command(epilog="Example: fusewise dataset publish a100 --out a100/ --kind cuda")
@click.argument("name")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to write, made anew."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="KEY",
    help="Device to take; can be repeated. Default: all of the kind.",
)
@click.option(
    "--kind",
    type=click.Choice(["cpu", "cuda"]),
    help="Kind of the devices. Default: the only one that the store has.",
)
@store_option
@json_option
def publish(
    *,
    name: str,
    out: Path,
    devices: tuple[str, ...],
    kind: DeviceKind | None,
    store_path: Path | None,
    as_json: bool,
) -> None:
    """Write what a store measured on a device as the dataset NAME.

    Only graphs of a corpus go out; what is of your own programs stays in the store.
    """
    import msgspec

    from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
    from fusewise.datasets.manifest import FeatureColumn
    from fusewise.datasets.publish import publish as write

    features = {FEATURES_VERSION: [FeatureColumn(*feature) for feature in FEATURES]}
    with existing_store(store_path) as store:
        done = write(store, name, out, devices=devices, kind=kind, features=features)
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    for file, entry in done.manifest.files.items():
        click.echo(f"{file}: {entry.rows} rows, {entry.bytes} bytes")
    for table, count in done.left_out.items():
        click.echo(f"left out: {count} {table} of graphs of no corpus")
    click.echo(done.folder)


@dataset.command(epilog="Example: fusewise dataset info h200 --json")
@click.argument("name", metavar="[NAME|PATH]", required=False)
@json_option
def info(*, name: str | None, as_json: bool) -> None:
    """Tell what a dataset holds; without NAME, which ones come with the package."""
    import msgspec
    from rich.table import Table

    from fusewise.datasets.dataset import load, shipped_names

    if name is None:
        names = shipped_names()
        if as_json:
            print_json({"datasets": names})
        else:
            click.echo("\n".join(names) or "no dataset comes with this package")
        return
    loaded = load(name)
    manifest = loaded.manifest
    if as_json:
        print_json({"folder": str(loaded.folder), **msgspec.to_builtins(manifest)})
        return
    size = sum(file.bytes for file in manifest.files.values()) / _MIB
    # Plain, as a long path must stay in one piece to be copied.
    click.echo(f"{loaded.folder}: {manifest.name}, {size:.1f} MiB")
    click.echo(
        f"{manifest.problems} problems of {len(manifest.families)} families, "
        f"features of version {manifest.features_version}, "
        f"measured until {manifest.created:%Y-%m-%d} with torch "
        f"{', '.join(manifest.torch_versions)}"
    )
    counts = Table("device", "class", "split", "kernels")
    for count in manifest.kernels:
        counts.add_row(count.device_key, count.kernel_class, count.split, str(count.kernels))
    heads = ("kernels", "schedules", "extern calls", "failed", "with block sizes")
    devices = Table("device", "name", *heads)
    for device in manifest.devices:
        failed = device.kernels_failed + device.schedules_failed
        shown = (device.kernels, device.schedules, device.externs, failed, device.blocks)
        devices.add_row(device.key, device.name, *map(str, shown))
    console = result_console()
    console.print(devices)
    console.print(counts)


@dataset.command(epilog="Example: fusewise dataset card h200")
@_dataset
@click.option("--write", is_flag=True, help="Write it into the dataset's folder as CARD.md.")
def card(*, name: str, write: bool) -> None:
    """Print the card of a dataset: what is in it, how it was measured, each column."""
    from fusewise.datasets.card import card as text_of
    from fusewise.datasets.dataset import load
    from fusewise.datasets.manifest import CARD
    from fusewise.schedule.errors import DatasetError

    loaded = load(name)
    text = text_of(loaded.manifest)
    if not write:
        click.echo(text, nl=False)
        return
    path = loaded.folder / CARD
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DatasetError(
            f"cannot be written: {error.strerror or error}",
            subject=str(path),
            remedy="leave out --write to print it",
        ) from error
    click.echo(str(path))


@dataset.command(epilog="Example: fusewise dataset verify h200")
@_dataset
@json_option
def verify(*, name: str, as_json: bool) -> None:
    """Check every file, reference, problem and plan of a dataset."""
    import msgspec

    from fusewise.datasets.dataset import load
    from fusewise.datasets.verify import check

    verified = check(load(name))
    if as_json:
        print_json(msgspec.to_builtins(verified))
        return
    told = ", ".join(f"{rows} {table}" for table, rows in verified.rows.items())
    click.echo(f"{verified.name} is sound: {told}")
