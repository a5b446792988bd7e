"""The main job with embedded defaults, on the CPU: ``python -m fusewise.commands.demo``.

Collects timings, trains a cost model, and compiles two programs with it. What it is based on is
kept in one folder; a second run finds model and decisions there and only replays.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewise.commands.main import tell
from fusewise.commands.output import progress_bar, result_console
from fusewise.schedule.errors import CorpusError, FusewiseError, MeasureError

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress, TaskID

    from fusewise.commands.demo_programs import Program
    from fusewise.compiler.collecting.run import Tally
    from fusewise.costmodel.device import DeviceProfile
    from fusewise.datasets.corpus import CorpusSpec
    from fusewise.datasets.store import Store

#: Seconds of collecting, and further ones while that gave too few kernels.
_COLLECT_S = (150.0, 60.0, 60.0, 60.0)
#: Random plans a graph: one more graph tells the model more than one more plan of the same.
_PLANS = 2
_SEED = 0
#: Fewer kernels make no model, a part of them being held out to judge it by.
_LEAST_KERNELS = 90
#: Families of generated programs that have kernels like those of the two programs.
_FAMILIES = (
    "layer_norm",
    "gated_mlp",
    "cross_entropy",
    "rms_norm",
    "softmax",
    "embedding",
    "pointwise_chain",
    "reduction",
    "attention",
    "many_users",
)
#: Relative L2 error against eager, in fp32. Sums in another order differ by some 1e-6.
_TOLERANCE = 1e-4


@click.command(epilog="Example: python -m fusewise.commands.demo --home /tmp/demo")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FUSEWISE_HOME",
    default=Path(".demo"),
    show_default=True,
    help="Folder of store, model and compiled code.",
)
def main(*, home: Path) -> None:
    """Collect timings, train a cost model, compile two programs; again: replay them."""
    home = home.expanduser().absolute()
    os.environ["FUSEWISE_HOME"] = str(home)
    # A second run is only quick if the compiled code is still there. Set before torch reads it.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "inductor"))
    start = time.monotonic()
    try:
        _run(home)
    except FusewiseError as error:
        tell(error)
        raise SystemExit(2) from error
    click.echo(f"demo: {time.monotonic() - start:.0f} s in all")


def _run(home: Path) -> None:
    # Told before minutes are spent on collecting.
    if importlib.util.find_spec("transformers") is None:
        raise CorpusError(
            "the transformers library is not installed",
            subject="demo",
            remedy="pip install transformers",
        )
    import torch

    from fusewise.commands.demo_programs import encoder, training_step
    from fusewise.costmodel.device import device_profile
    from fusewise.datasets.store import Store

    path = home / "store.duckdb"
    with Store.open(path) as store:
        profile = device_profile(torch.device("cpu"), home)
        model = _trained(store, profile)
        if model is None:
            model = _train(store, profile)
        else:
            click.echo(f"found in the store: cost model {model}")
    for program in (encoder(), training_step()):
        _compile(program)
    with Store.open(path) as store:
        counts = store.info().counts
    click.echo(f"store: {path} ({', '.join(f'{n} {table}' for table, n in counts.items())})")
    click.echo(f"model: {model}")
    click.echo(f"look at it: FUSEWISE_HOME={home} fusewise store info")
    options = f'{{"fusewise.mode": "replay", "fusewise.store": "{path}"}}'
    click.echo(f'replay: torch.compile(model, backend="fusewise", options={options})')


def _trained(store: Store, profile: DeviceProfile) -> Path | None:
    """File of the newest model that was trained for this device and that can be used."""
    from fusewise.costmodel.feature_table import FEATURES_VERSION
    from fusewise.datasets.rows import ModelRow

    rows = [
        row
        for row in store.rows("models")
        if isinstance(row, ModelRow)
        and row.device_key == profile.key
        and row.features_version == FEATURES_VERSION
        and Path(row.path).is_file()
    ]
    return Path(max(rows, key=lambda row: row.at).path) if rows else None


def _train(store: Store, profile: DeviceProfile) -> Path:
    """Collect, train, and tell how good the model is."""
    from fusewise.compiler.collecting.run import items, run
    from fusewise.compiler.collecting.station import Station
    from fusewise.compiler.collecting.work import Settings
    from fusewise.training.fit import train

    settings = Settings(home=str(store.path.parent), plans=_PLANS, schedules=0, seed=_SEED)
    for seconds in _COLLECT_S:
        click.echo(f"collecting kernel timings for {seconds:.0f} s")
        with progress_bar(as_json=False) as bar:
            task = bar.add_task("collecting", total=seconds, note="")

            def show(tally: Tally, bar: Progress = bar, task: TaskID = task) -> None:
                bar.update(task, note=tally.told(), completed=tally.seconds)

            store.ingest()
            work = items(
                _specs(), seed=_SEED, limit=None, rounds=1, done=store.collected(profile.key)
            )
            station = Station(settings, store.measured_signatures)
            tally = run([station], work, store, seconds=seconds, on_progress=show)
        if tally.ended == "interrupt":
            raise click.Abort
        click.echo(f"collected: {tally.told()} in {tally.seconds:.0f} s")
        store.ingest()
        if len(store.kernel_samples(device_key=profile.key)) >= _LEAST_KERNELS:
            break
    start = time.monotonic()
    report = train(store, profile, seed=_SEED).report
    click.echo(
        f"trained on {report.n_train} kernels in {time.monotonic() - start:.0f} s: median error "
        f"{_percent(report.model.median_error_5us)} above 5 µs, "
        f"{_percent(report.model.median_error_small)} below, on kernels held out by "
        f"{report.split}; roofline {_percent(report.roofline.median_error_5us)} and "
        f"{_percent(report.roofline.median_error_small)}"
    )
    return Path(report.path)


def _specs() -> list[CorpusSpec]:
    """Small BERTs and generated programs, in turn."""
    from fusewise.datasets.corpus import CorpusSpec

    return [
        CorpusSpec(name="transformers", families=("bert",)),
        CorpusSpec(name="generated", families=_FAMILIES),
    ]


def _compile(program: Program) -> None:
    """Compile a program, check it against eager, and show what became of each of its graphs."""
    import torch

    from fusewise.commands.report_table import candidates_table, costs, phases
    from fusewise.compiler.reports import reports

    console = result_console()
    wanted = program.run(program.module)
    before = len(reports())
    start = time.monotonic()
    # By name, as a user does; the decorated function itself would not test the entry point.
    found = program.run(torch.compile(program.module, backend="fusewise"))
    seconds = time.monotonic() - start
    worst = max(_error(a, b) for a, b in zip(found, wanted, strict=True))
    for report in reports()[before:]:
        console.print()
        console.print(candidates_table(program.name, report))
        click.echo(f"seconds: {phases(report)}")
        for line in costs(report):
            click.echo(line)
        if report.fallback is not None:
            click.echo(f"fell back: {report.fallback}")
    click.echo(
        f"{program.name}: compiled and run in {seconds:.1f} s; {len(found)} outputs and gradients, "
        f"largest relative difference from eager {worst:.1e}"
    )
    if not worst <= _TOLERANCE:
        raise MeasureError(
            f"differs from eager by {worst:.1e}, more than {_TOLERANCE:.0e}",
            subject=program.name,
            remedy="report it, with the tables above",
        )


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = (found.double() - wanted.double()).norm()
    return float(difference / wanted.double().norm().clamp_min(1e-30))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


if __name__ == "__main__":
    main()
