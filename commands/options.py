"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewise.schedule.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from fusewise.datasets.store import Store

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
#: Seconds alone, or hours, minutes and seconds, in this order and each at most once.
_DURATION = re.compile(rf"{_NUMBER}|(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
#: Seconds that each number of it counts.
_UNITS = (1.0, 3600.0, 60.0, 1.0)


def duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``1.5h`` or ``1h14m30s``, for an option's ``type``.

    Raises:
        BadParameter: it is none, or not more than 0.
    """
    seconds = duration_or_none(text)
    if seconds == 0:
        raise click.BadParameter(f"{text!r} is no time at all; a duration has to be more than 0")
    return seconds


def duration_or_none(text: str) -> float:
    """As :func:`duration`, and 0 for no time at all.

    Raises:
        BadParameter: it is no duration.
    """
    written = text.strip()
    found = _DURATION.fullmatch(written)
    # The pattern has nothing that must be there.
    if not written or found is None:
        raise click.BadParameter(
            f"{text!r} is no duration; write 90, 90s, 10m, 1.5h or 1h14m30s "
            "(hours, then minutes, then seconds, each once)"
        )
    numbers = zip(found.groups(), _UNITS, strict=True)
    seconds = math.fsum(float(number) * unit for number, unit in numbers if number is not None)
    if not math.isfinite(seconds):
        raise click.BadParameter(f"a duration of {len(written)} characters has no end; write 8h")
    return seconds


store_option = click.option(
    "--store",
    "store_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Store file. Default: store.duckdb in FUSEWISE_HOME, or in your data folder.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
model_option = click.option(
    "--model", metavar="NAME", help="Name or file of the cost model; default: the newest."
)
target_device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Move the program there first; default: where the target has it.",
)
seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Of everything drawn at random."
)


def new_or_existing_store(path: Path | None) -> Store:
    """The store at ``path``, made where there is none; your own for None.

    Raises:
        StoreError: it cannot be opened or made.
    """
    from fusewise.datasets.store import Store, default_store_path

    return Store.open(path or default_store_path())


def existing_store(path: Path | None) -> Store:
    """The store at ``path``; your own for None. Opening alone would make a missing one.

    Raises:
        StoreError: there is none, or it cannot be opened.
    """
    from fusewise.datasets.location import check_existing_store
    from fusewise.datasets.store import Store, default_store_path

    path = path or default_store_path()
    check_existing_store(
        path, remedy="give the path of one with --store, or compile or collect into it first"
    )
    return Store.open(path)


def usable_device(name: str) -> torch.device:
    """The device ``cpu`` or ``cuda``.

    Raises:
        UnsupportedError: there is no such device here.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(
            "torch finds no NVIDIA GPU", subject="--device cuda", remedy="use --device cpu"
        )
    return torch.device(name)
