"""``train-costmodel``: the command around the training room.

Reads options, shows progress and results, turns errors into one line and exit code 2. It computes
nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import torch
from rich.console import Console

from fusewise.costmodel.borrowed import BorrowedModel
from fusewise.costmodel.device import DeviceProfile, device_key, renew_profile
from fusewise.costmodel.model_file import check_name, read_manifest
from fusewise.costmodel.registry import find_model, list_models, load_model
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.location import check_existing_store, check_store_path
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.errors import FusewiseError, ModelError, OptionError
from fusewise.training.devices import choose_profile
from fusewise.training.fit import Trained, train
from fusewise.training.held_back import PARTS, held_back_curve
from fusewise.training.judging import evaluate
from fusewise.training.report import check_extra, write_report
from fusewise.training.show import report_json, show, show_held_back
from fusewise.training.source import Source, source_of

_EXAMPLE: Final = """\b
Examples:
  train-costmodel
  train-costmodel --store runs/store.duckdb --tune 40 --json
  train-costmodel --dataset h200 --report h200.html
  train-costmodel --store mine.duckdb --base h200 --learning-curve
  train-costmodel --dataset h200 --hold-back half
  train-costmodel --probe
  train-costmodel --evaluate-only --model roofline

Trains on the measured kernels of a store or dataset, judges by families that are never trained on
(where there are none: by others held out), then fits to everything that may be trained on and saves
the model in models/ beside the store, where compilation finds it. Equal data and seeds give equal
files. All of it is explained in docs/training.md.
"""

#: Seconds that ``--probe`` takes.
PROBE_S: Final = 60.0
#: Seeds that all generators take, LightGBM's of 32 bits among them.
_SEEDS: Final = click.IntRange(0, 2**31 - 1)
#: What ``--probe`` can be given beside.
_WITH_PROBE: Final = ("probe", "store", "seed")


@click.command(epilog=_EXAMPLE)
@click.option("--store", type=click.Path(path_type=Path), help="Store to read; default: your own.")
@click.option(
    "--dataset",
    metavar="NAME|PATH",
    help="Published dataset to train on in place of a store: its name, or its folder.",
)
@click.option(
    "--device", metavar="KEY", help="Device to train for; default: this, or that of most kernels."
)
@click.option(
    "--base",
    metavar="NAME|PATH|KEY",
    help="Adapt the model of this dataset (h200), of the store or model in this file, or one of "
    "this other device of the same data.",
)
@click.option(
    "--alone", is_flag=True, help="Train on no kernels of other devices of the same kind."
)
@click.option(
    "--hold-out",
    multiple=True,
    metavar="FAMILY",
    help="Family to judge by and never to train on; can be repeated.",
)
@click.option("--out", type=click.Path(path_type=Path), help="File for the model, *.fusewise.json.")
@click.option("--seed", type=_SEEDS, default=0, show_default=True, help="Of split and training.")
@click.option("--tune", type=click.IntRange(0), default=0, metavar="N", help="Optuna trials first.")
@click.option(
    "--learning-curve", is_flag=True, help="Judge models of 100, 300, 1000, 3000 kernels, too."
)
@click.option(
    "--out-of-range", is_flag=True, help="Leave classes and sizes of kernels out: is it noticed?"
)
@click.option(
    "--hold-back",
    type=click.Choice(PARTS),
    help="Only judge by a part of the data, or a device, as if nothing of it had been known.",
)
@click.option(
    "--probe", is_flag=True, help="Only measure this device for a minute, and keep its rates."
)
@click.option("--report", type=click.Path(path_type=Path), help="Write a report, one HTML file.")
@click.option("--evaluate-only", is_flag=True, help="Judge the model of --model, train nothing.")
@click.option("--model", metavar="NAME", help="Name or file of a model, with --evaluate-only.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def main(*, as_json: bool, **options: Any) -> None:
    """Train the cost model on measured kernels and say how good it is."""
    try:
        wanted = msgspec.convert(options, _Options)
        _check(wanted)
        if wanted.probe:
            _probe(wanted, as_json=as_json)
            return
        with ExitStack() as stack:
            data: Store | Dataset = (
                stack.enter_context(_open_store(wanted.store or default_store_path()))
                if wanted.dataset is None
                else load(wanted.dataset)
            )
            # Progress goes to the error stream, so that what is printed can be piped.
            with Console(stderr=True).status("starting") as status:
                told, tell = _work(data, wanted, status.update)
    except FusewiseError as error:
        # One line, whatever the texts of the libraries below look like.
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise SystemExit(2) from error
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        tell()
        if wanted.report is not None:
            click.echo(f"report {wanted.report}")


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    store: Path | None
    dataset: str | None
    device: str | None
    base: str | None
    alone: bool
    hold_out: tuple[str, ...]
    out: Path | None
    seed: int
    tune: int
    learning_curve: bool
    out_of_range: bool
    probe: bool
    hold_back: str | None
    report: Path | None
    evaluate_only: bool
    model: str | None

    def given(self, *names: str) -> list[str]:
        """Which of these options were given, as they are written."""
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


def _work(
    data: Store | Dataset, wanted: _Options, progress: Callable[[str], None]
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Do what is wanted: the result for machines, and what shows it to people."""
    source = source_of(data)
    profile = choose_profile(source, wanted.device)
    if wanted.hold_back is not None:
        part = held_back_curve(data, profile, wanted.hold_back, seed=wanted.seed, progress=progress)
        return msgspec.to_builtins(part), lambda: show_held_back(part)
    if wanted.evaluate_only:
        trained = _evaluate(data, source, profile, wanted, progress)
    else:
        trained = train(
            data,
            profile,
            seed=wanted.seed,
            hold_out_families=wanted.hold_out,
            tune_trials=wanted.tune,
            out=wanted.out,
            base=wanted.base,
            curve=wanted.learning_curve or wanted.report is not None,
            strange=wanted.out_of_range or wanted.report is not None,
            together=not wanted.alone,
            progress=progress,
        )
    if wanted.report is not None:
        progress("writing the report")
        write_report(trained, source.programs(), wanted.report)
    return report_json(trained.report), lambda: show(trained.report)


def _evaluate(
    data: Store | Dataset,
    source: Source,
    profile: DeviceProfile,
    wanted: _Options,
    progress: Callable[[str], None],
) -> Trained:
    model = wanted.model
    loaded = load_model(model, profile, source.home)
    seen: tuple[str, ...] = ()
    if model is None:
        own = loaded.model if isinstance(loaded, BorrowedModel) else loaded
        entries = [entry for entry in list_models(source.home) if entry.manifest.id == own.id]
        seen = entries[0].manifest.families if entries else ()
    elif model != Roofline.name:
        manifest = read_manifest(find_model(model, source.home))
        if profile.key not in (manifest.profile.key, *manifest.companions):
            raise ModelError(
                f"trained on {manifest.profile.key}, the kernels are of {profile.key}",
                subject=f"model {model}",
                remedy="choose the device with --device, another model, or adapt it with --base",
            )
        seen = manifest.families
    strange = wanted.out_of_range or wanted.report is not None
    return evaluate(data, profile, loaded, seen_families=seen, strange=strange, progress=progress)


def _probe(wanted: _Options, *, as_json: bool) -> None:
    """Measure the accelerator that there is, else the CPU, and show what was found."""
    store = wanted.store or default_store_path()
    check_store_path(store)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with Console(stderr=True).status(f"measuring {device_key(device)}, a minute"):
        profile = renew_profile(device, store.parent, seconds=PROBE_S)
    rates = msgspec.to_builtins(profile)
    if as_json:
        click.echo(json.dumps(rates, indent=2))
        return
    for name, value in rates.items():
        click.echo(f"{name}: {value}")


def _check(wanted: _Options) -> None:
    """Refuse options that contradict each other, and what could only fail once all is done.

    Raises:
        OptionError: names them.
        ModelError: no model is written to such a file.
    """
    if wanted.probe:
        names = [name for name in _Options.__struct_fields__ if name not in _WITH_PROBE]
        others = wanted.given(*names)
        if others:
            cause = f"only measures this device, so {', '.join(others)} has no meaning"
            _refuse("--probe", cause, "leave one of them out")
    trains = wanted.given("out", "tune", "hold_out", "base", "alone", "learning_curve", "hold_back")
    if wanted.model is not None and not wanted.evaluate_only:
        _refuse(
            "--model", "names a model to judge, but one would be trained", "add --evaluate-only"
        )
    if wanted.evaluate_only and trains:
        cause = f"nothing is trained with it, so {', '.join(trains)} has no meaning"
        _refuse("--evaluate-only", cause, "leave one of them out")
    others = wanted.given(
        "out", "tune", "hold_out", "base", "alone", "learning_curve", "out_of_range", "report"
    )
    if wanted.hold_back is not None and others:
        cause = f"only shows a learning curve, so {', '.join(others)} has no meaning"
        _refuse("--hold-back", cause, "leave one of them out")
    if wanted.base is not None and wanted.tune:
        cause = "searches parameters for kernels alone, a base brings its own"
        _refuse("--tune", cause, "leave it out, or tune the base when that is trained")
    if wanted.base is not None and wanted.alone:
        cause = "leaves kernels of other devices out, which --base brings"
        _refuse("--alone", cause, "leave one of them out")
    if wanted.dataset is not None and wanted.store is not None:
        _refuse(
            "--dataset",
            "is given beside --store, but samples come from one place",
            "leave one of them out, or take the dataset into the store with to_store()",
        )
    if wanted.dataset is not None and wanted.hold_out:
        cause = "has no meaning with --dataset, which says itself what it is judged by"
        _refuse("--hold-out", cause, "leave it out")
    if wanted.report is not None:
        check_extra()
    if wanted.out is not None:
        check_name(wanted.out)


def _refuse(option: str, cause: str, remedy: str) -> None:
    raise OptionError(cause, subject=option, remedy=remedy)


def _open_store(path: Path) -> Store:
    """The store at ``path``. Opening alone would make a missing one."""
    check_existing_store(
        path, remedy="give the path of one with --store, or compile or collect into it first"
    )
    return Store.open(path)
