"""``fusewise collect``: timings of kernels and schedules, from corpora into the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fusewise.commands.options import (
    duration,
    json_option,
    new_or_existing_store,
    seed_option,
    store_option,
    usable_device,
)
from fusewise.commands.output import print_json, progress_bar, shortened

if TYPE_CHECKING:
    from fusewise.compiler.collecting.run import Stationed, Tally
    from fusewise.compiler.collecting.work import Settings
    from fusewise.datasets.store import Store

#: Programs where neither a number nor a time is given.
_DEFAULT_LIMIT = 60
_MOST_FAILURES_SHOWN = 10

_EXAMPLE = """\b
Examples:
  fusewise collect --limit 30
  fusewise collect --corpus generated --corpus transformers --seconds 20m
  fusewise collect --graphnet ~/GraphNet --device cuda --seconds 8h --repeat 2
  fusewise collect --strategy active --model mine --seconds 1h
  fusewise collect --corpus model.py:factory --plans 8 --json
  fusewise collect --device cuda --block-sizes 12 --seconds 1h
  fusewise collect --device cuda --ray auto --graphnet ~/GraphNet

A corpus is "generated" (random programs of many families), "transformers" or "timm" (models of
those libraries from random configurations), of each all families or those after a colon
("generated:softmax,columns"); a checkout of GraphNet; or your own program: FILE.py:FACTORY, a
function without arguments that returns (callable, args) or (callable, args, kwargs). What was
collected is in the store at once: Ctrl-C loses what was in flight and nothing else, and the same
command goes on from there.
"""


@click.command(epilog=_EXAMPLE)
@click.option(
    "--corpus",
    "names",
    multiple=True,
    metavar="NAME|TARGET",
    help="Where programs come from; can be repeated, they are taken in turn. "
    "Default: generated, unless --graphnet is given.",
)
@click.option(
    "--graphnet",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A checkout of GraphNet to take programs from.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Factor on the sizes of programs. Default: 1 on a CPU, 16 on a GPU.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"Programs, at most, those in the store included. Default: {_DEFAULT_LIMIT} without "
    "--seconds.",
)
@click.option(
    "--seconds",
    type=duration,
    metavar="DURATION",
    help="Stop after this time; what is in flight is dropped.",
)
@click.option(
    "--pieces",
    type=click.IntRange(1),
    metavar="N",
    help="Pieces of each program, at most, drawn at random: kernels of more programs in the same "
    "time. Default: all of them.",
)
@click.option(
    "--plans",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Random plans of each graph, beside Inductor's own and the unfused one.",
)
@click.option(
    "--lowerings",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Other lowerings of each graph.",
)
@click.option(
    "--schedules",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Whole schedules of each graph that are timed against each other, at most.",
)
@click.option(
    "--schedule-share",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of the graphs of which whole schedules are timed.",
)
@click.option(
    "--block-sizes",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Time each distinct Triton kernel with N more block sizes than Inductor's own. For a GPU.",
)
@click.option(
    "--at-least",
    type=click.FloatRange(0),
    default=0.0,
    metavar="US",
    help="Leave out kernels that take fewer microseconds by the roofline, as all small ones are "
    "much alike. Default: none.",
)
@click.option(
    "--strategy",
    type=click.Choice(["random", "active"]),
    default="random",
    show_default=True,
    help="Which plans: by chance, or those that a cost model finds fast or is unsure of.",
)
@click.option("--model", default="", metavar="NAME|PATH", help="The model for --strategy active.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Time each kernel this often, at different moments.",
)
@seed_option
@store_option
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="What the programs run on.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    metavar="N",
    help="CPU threads of the kernels. Default: torch's own number.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Processes that compile. Default: one a core, less three beside a GPU.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Collect on every GPU (or CPU node) of a Ray cluster; 'auto' finds a running one, "
    "'local' starts one here.",
)
@json_option
def collect(
    *,
    names: tuple[str, ...],
    graphnet: Path | None,
    scale: float | None,
    limit: int | None,
    seconds: float | None,
    pieces: int | None,
    plans: int,
    lowerings: int,
    schedules: int,
    schedule_share: float,
    block_sizes: int,
    at_least: float,
    strategy: Literal["random", "active"],
    model: str,
    repeat: int,
    seed: int,
    store_path: Path | None,
    device: str,
    threads: int | None,
    workers: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """Time kernels and schedules of many programs, for train-costmodel."""
    # torch takes seconds to import, which --help is not made to wait for.
    import msgspec

    from fusewise.commands.corpora import corpora_specs
    from fusewise.compiler.collecting.run import items, run
    from fusewise.compiler.collecting.work import Settings
    from fusewise.schedule.errors import OptionError

    if block_sizes and device == "cpu":
        raise OptionError(
            "a CPU's kernels have no block sizes",
            subject=f"--block-sizes {block_sizes}",
            remedy="leave it out, or give --device cuda",
        )
    if ray is None:
        usable_device(device)
    if not names and graphnet is None:
        names = ("generated",)
    specs = corpora_specs(names, graphnet, device)
    if scale is not None:
        specs = [msgspec.structs.replace(spec, scale=scale) for spec in specs]
    if limit is None and seconds is None:
        limit = _DEFAULT_LIMIT
    with new_or_existing_store(store_path) as store, progress_bar(as_json=as_json) as bar:
        settings = Settings(
            device=device,
            threads=threads or 0,
            home=str(store.path.parent),
            pieces=pieces or 0,
            plans=plans,
            lowerings=lowerings,
            schedules=schedules,
            schedule_share=schedule_share,
            block_sizes=block_sizes,
            least_us=at_least,
            strategy=strategy,
            model=model,
            seed=seed,
            workers=workers or 0,
        )
        store.ingest()
        # By programs where they are counted, else by time.
        task = bar.add_task("collecting", total=(limit or 0) * repeat or seconds, note="")

        def show(tally: Tally) -> None:
            done = tally.items if limit else tally.seconds
            bar.update(task, note=tally.told(), completed=done)

        with _stations(settings, store, ray) as stations:
            keys = {station.device_key for station in stations}
            done = set().union(*map(store.collected, keys))
            work = items(specs, seed=seed, limit=limit, rounds=repeat, done=done)
            tally = run(stations, work, store, seconds=seconds, on_progress=show)
        store.ingest()
        total = store.info().counts["kernels"]
    if as_json:
        print_json(_told(tally, str(store.path), total))
        return
    click.echo(f"{tally.told()} in {tally.seconds:.0f} s, ended by {tally.ended}")
    for usage in tally.usage:
        click.echo(f"  {usage.told()}")
    for reason in tally.dropped:
        click.echo(f"  station given up: {shortened(reason)}")
    for failure in tally.failures[:_MOST_FAILURES_SHOWN]:
        click.echo(f"  failed: {shortened(failure)}")
    if len(tally.failures) > _MOST_FAILURES_SHOWN:
        click.echo(f"  and {len(tally.failures) - _MOST_FAILURES_SHOWN} more; --json has them all")
    click.echo(f"{total} kernels in {store.path}")


@contextmanager
def _stations(settings: Settings, store: Store, ray: str | None) -> Iterator[list[Stationed]]:
    """The station of this machine's device, or those of a Ray cluster."""
    from fusewise.compiler.collecting.claim import claim
    from fusewise.compiler.collecting.station import Station

    if ray is not None:
        from fusewise.compiler.collecting.ray_stations import ray_stations

        with ray_stations(ray, settings, store.measured_signatures) as stations:
            yield list(stations)
        return
    with claim(settings.device):
        station = Station(settings, store.measured_signatures)
        try:
            yield [station]
        finally:
            station.close()


def _told(tally: Tally, store: str, total: int) -> dict[str, Any]:
    usage = [vars(one) for one in tally.usage]
    return {**vars(tally), "usage": usage, "store": store, "kernels_in_store": total}
