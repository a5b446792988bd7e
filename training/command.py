"""``train-costmodel``: the command around ``fusewise.training.fit``.

Reads options, shows progress and results, turns errors into one line and exit code 2. It computes
nothing itself.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec
import torch
from rich.console import Console
from rich.table import Table

from fusewise.costmodel.device import DeviceProfile, device_key, device_profile
from fusewise.costmodel.model_file import read_manifest
from fusewise.costmodel.registry import find_model, load_model
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.errors import FusewiseError, ModelError, OptionError, StoreError
from fusewise.training.fit import TrainingReport, evaluate, train
from fusewise.training.scores import MEASURED, Scores
from fusewise.training.source import Source, source_of

_EXAMPLE = """\b
Examples:
  train-costmodel
  train-costmodel --store runs/store.duckdb --tune 40 --json
  train-costmodel --dataset h200
  train-costmodel --evaluate-only --model roofline

Trains on the measured kernels of a store, judges by graphs held out, then fits to everything and
saves the model in models/ beside the store, where compilation finds it. Of a published dataset it
trains on the train split only and judges by the test split; equal seeds give equal files.
"""

# How each score is told; whole percentages would hide differences.
_PERCENT = "{:.1%}"
_ROWS = (
    ("kernels", "n_kernels", "{:d}"),
    ("MAPE, kernels >= 5 us", "mape_5us", _PERCENT),
    ("MAPE, below", "mape_small", _PERCENT),
    ("median error, >= 5 us", "median_error_5us", _PERCENT),
    ("median error, below", "median_error_small", _PERCENT),
    ("pairs of kernels in order", "kernel_pairwise", _PERCENT),
    ("inside the 90 % interval", "coverage90", _PERCENT),
    ("out of range", "flagged", _PERCENT),
    ("schedules", "n_schedules", "{:d}"),
    ("Kendall tau of schedules", "kendall_tau", "{:.3f}"),
    ("pairs of schedules in order", "pairwise", _PERCENT),
    ("top-1", "top1", "{:.3f}"),
    ("top-5", "top5", "{:.3f}"),
    ("MAPE of schedules", "schedule_mape", _PERCENT),
)


@click.command(epilog=_EXAMPLE)
@click.option("--store", type=click.Path(path_type=Path), help="Store to read; default: your own.")
@click.option(
    "--dataset",
    "dataset_name",
    metavar="NAME|PATH",
    help="Published dataset to train on in place of a store: its name, or its folder.",
)
@click.option(
    "--device", metavar="KEY", help="Device to train for; default: the only one, or this."
)
@click.option(
    "--hold-out",
    multiple=True,
    metavar="FAMILY",
    help="Family to judge by and never to train on; can be repeated.",
)
@click.option("--out", type=click.Path(path_type=Path), help="File for the model, *.fusewise.json.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of split and training.")
@click.option("--tune", type=click.IntRange(0), default=0, metavar="N", help="Optuna trials first.")
@click.option("--evaluate-only", is_flag=True, help="Judge the model of --model, train nothing.")
@click.option("--model", metavar="NAME", help="Name or file of a model, with --evaluate-only.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def main(
    *,
    store: Path | None,
    dataset_name: str | None,
    device: str | None,
    hold_out: tuple[str, ...],
    out: Path | None,
    seed: int,
    tune: int,
    evaluate_only: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Train the cost model on measured kernels and say how good it is."""
    try:
        _check_options(bool(out or tune or hold_out), evaluate_only, model)
        if dataset_name is not None:
            _check_dataset_options(store, hold_out)
        with ExitStack() as stack:
            data: Store | Dataset = (
                stack.enter_context(_open_store(store or default_store_path()))
                if dataset_name is None
                else load(dataset_name)
            )
            report = _work(
                data,
                device,
                hold_out=hold_out,
                out=out,
                seed=seed,
                tune=tune,
                evaluate_only=evaluate_only,
                model=model,
            )
    except FusewiseError as error:
        # One line, whatever the texts of the libraries below look like.
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise SystemExit(2) from error
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2))
    else:
        _show(report)


def report_json(report: TrainingReport) -> dict[str, Any]:
    """The report with the model's scores at the top and the roofline's under ``roofline``."""
    told: dict[str, Any] = msgspec.to_builtins(report)
    model = told.pop("model")
    roofline = told.pop("roofline")
    return {**told, **model, "roofline": roofline}


def _work(
    data: Store | Dataset,
    device: str | None,
    *,
    hold_out: tuple[str, ...],
    out: Path | None,
    seed: int,
    tune: int,
    evaluate_only: bool,
    model: str | None,
) -> TrainingReport:
    source = source_of(data)
    profile = _profile(source, device)
    # Progress goes to the error stream, so that what is printed can be piped.
    with Console(stderr=True).status("starting") as status:
        if not evaluate_only:
            return train(
                data,
                profile,
                seed=seed,
                hold_out_families=hold_out,
                tune_trials=tune,
                out=out,
                progress=status.update,
            )
        home = source.home
        loaded = load_model(model, profile, home)
        seen: tuple[str, ...] = ()
        if model is not None and model != Roofline.name:
            manifest = read_manifest(find_model(model, home))
            if manifest.profile.key != profile.key:
                raise ModelError(
                    f"trained on {manifest.profile.key}, the kernels are of {profile.key}",
                    subject=f"model {model}",
                    remedy="choose the device with --device, or another model",
                )
            seen = manifest.families
        return evaluate(data, profile, loaded, seen_families=seen, progress=status.update)


def _check_options(trains: bool, evaluate_only: bool, model: str | None) -> None:
    if model is not None and not evaluate_only:
        raise OptionError(
            "names a model to judge, but a new one would be trained",
            subject="--model",
            remedy="add --evaluate-only",
        )
    if evaluate_only and trains:
        raise OptionError(
            "nothing is trained with it, so --out, --tune and --hold-out have no meaning",
            subject="--evaluate-only",
            remedy="leave them out",
        )


def _check_dataset_options(store: Path | None, hold_out: tuple[str, ...]) -> None:
    if store is not None:
        raise OptionError(
            "is given beside --store, but samples come from one place",
            subject="--dataset",
            remedy="leave one of them out, or take the dataset into the store with to_store()",
        )
    if hold_out:
        raise OptionError(
            "has no meaning with --dataset, which says itself what it is judged by",
            subject="--hold-out",
            remedy="leave it out",
        )


def _open_store(path: Path) -> Store:
    """The store at ``path``. Opening alone would make a missing one."""
    if not path.is_file():
        raise StoreError(
            "there is no store",
            subject=str(path),
            remedy="give the path of one with --store, or compile or collect into it first",
        )
    return Store.open(path)


def _profile(source: Source, key: str | None) -> DeviceProfile:
    """Profile of the device to train for, as the source has it.

    Raises:
        ModelError: it has no such device, or several and none is asked for.
    """
    present = _present_keys()
    if key is None:
        known = source.measured_devices()
        here = [one for one in known if one in present]
        if len(known) > 1 and not here:
            raise ModelError(
                f"it has kernels of {len(known)} devices: {', '.join(known)}",
                subject=source.subject,
                remedy="choose one with --device",
            )
        # With none measured, the search for samples says so for the device at hand.
        key = (here or known or list(present))[0]
    for row in source.devices():
        if row.key == key and row.profile:
            try:
                return msgspec.convert(row.profile, DeviceProfile)
            except msgspec.ValidationError as error:
                raise ModelError(
                    f"the profile of device {key} is of another form: {error}",
                    subject=source.subject,
                    remedy="collect on the device again, which stores its profile anew",
                ) from error
    if key in present:
        return device_profile(present[key], source.home)
    raise ModelError(
        f"it has no profile of device {key!r}, "
        f"but of: {', '.join(row.key for row in source.devices()) or 'none'}",
        subject=source.subject,
        remedy="choose one of these with --device",
    )


def _present_keys() -> dict[str, torch.device]:
    """Devices of this process by key, the accelerator first."""
    devices = [torch.device("cuda")] if torch.cuda.is_available() else []
    return {device_key(device): device for device in (*devices, torch.device("cpu"))}


def _show(report: TrainingReport) -> None:
    console = Console()
    held = {
        "family": "families held out",
        "graph": "graphs held out",
        "published split": "test split",
        "unseen families": "kernels of unseen families",
        "all": "all kernels",
    }[report.split]
    contenders = [report.model, report.roofline, *report.baselines.values()]
    names = ["model", "roofline", *(name.replace("_", " ") for name in report.baselines)]
    table = Table("", *names, title=f"{report.device}, {held}")
    for title, name, form in _ROWS:
        table.add_row(title, *(_told(scores, name, form) for scores in contenders))
    for k in MEASURED:
        told = [scores.regret.get(str(k)) for scores in contenders]
        cells = ("-" if value is None else _PERCENT.format(value) for value in told)
        table.add_row(f"regret after measuring {k}", *cells)
    console.print(table)
    if report.n_schedules_skipped:
        console.print(f"{report.n_schedules_skipped} schedules cannot be predicted, left out")
    if report.tuned:
        console.print("tuned:", ", ".join(f"{k}={v}" for k, v in report.tuned.items()))
    if report.path:
        # Plain, as a long path must stay in one piece to be copied.
        click.echo(f"saved {report.path}")


def _told(scores: Scores, name: str, form: str) -> str:
    value = getattr(scores, name)
    return "-" if value is None else form.format(value)
