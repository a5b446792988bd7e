"""``fusewise collect``: timings of kernels for the cost model, from corpora into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
    import torch

    from fusewise.compiler.collecting import Collector
    from fusewise.datasets.corpus import Corpus, GraphSample

#: Samples where neither a number nor a time is given: two of each family of generated programs.
_DEFAULT_LIMIT = 60
_MOST_FAILURES_SHOWN = 10

_EXAMPLE = """\b
Examples:
  fusewise collect --limit 30
  fusewise collect --corpus generated --corpus transformers --seconds 20m
  fusewise collect --corpus model.py:factory --plans 8 --json

A corpus is "generated" (small random programs of many families), "transformers" (small models of
that library from random configurations) or your own program: FILE.py:FACTORY, a function without
arguments that returns (callable, args) or (callable, args, kwargs). What was collected is in the
store at once: Ctrl-C loses nothing but the sample in hand.
"""


@dataclass
class Tally:
    """What a run of collecting has come to."""

    samples: int = 0
    graphs: int = 0
    programs: int = 0
    #: Kernels timed for the first time on the device, and launches of known ones.
    kernels: int = 0
    repeats: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    #: What ended it: no more samples, the time, or the user.
    ended: Literal["samples", "seconds", "interrupt"] = "samples"

    def told(self) -> str:
        """The counts in a few words."""
        return (
            f"{self.samples} samples, {self.graphs} graphs, {self.kernels} kernels, "
            f"{len(self.failures)} failures"
        )


def gather(
    collector: Collector,
    samples: Iterable[tuple[Corpus, GraphSample]],
    device: torch.device,
    *,
    seconds: float | None = None,
    on_sample: Callable[[str, Tally], None] = lambda *_: None,
) -> Tally:
    """Collect samples until there are no more, the time is up or the user interrupts.

    Args:
        collector: where they go.
        samples: with the corpus that each is from.
        device: what they are run on.
        seconds: after which no further sample is begun.
        on_sample: told the name of a sample before it is begun, and the tally so far.

    Raises:
        CorpusError: a corpus cannot be loaded.
        StoreError: the store cannot be written.
    """
    import torch

    from fusewise.commands.corpora import on_device

    tally = Tally()
    start = time.monotonic()
    try:
        for corpus, sample in samples:
            if seconds is not None and time.monotonic() - start > seconds:
                tally.ended = "seconds"
                break
            on_sample(sample.name, tally)
            with torch.set_grad_enabled(sample.training):
                found = collector.collect(on_device(sample, device), corpus.name)
            tally.samples += 1
            tally.graphs += found.graphs
            tally.programs += found.programs
            tally.kernels += found.kernels
            tally.repeats += found.repeats
            tally.failures += found.failures
            tally.seconds = time.monotonic() - start
    except KeyboardInterrupt:
        # Rows are in the spool as soon as a program is timed, so there is nothing to save.
        tally.ended = "interrupt"
    tally.seconds = time.monotonic() - start
    return tally


@click.command(epilog=_EXAMPLE)
@click.option(
    "--corpus",
    "names",
    multiple=True,
    default=("generated",),
    show_default=True,
    metavar="NAME|TARGET",
    help="Where programs come from; can be repeated, they are taken in turn.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Samples, at most.")
@click.option(
    "--seconds",
    type=duration,
    metavar="DURATION",
    help="No further sample is begun after this time.",
)
@click.option(
    "--plans",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Random plans of each graph, beside Inductor's own and the unfused one.",
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
@json_option
def collect(
    *,
    names: tuple[str, ...],
    limit: int | None,
    seconds: float | None,
    plans: int,
    seed: int,
    store_path: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Time kernels of many programs, for train-costmodel."""
    # torch takes seconds to import, which --help is not made to wait for.
    from fusewise.commands.corpora import in_turn, named_corpus
    from fusewise.compiler.collecting import Collector

    on = usable_device(device)
    corpora = [named_corpus(name, on) for name in names]
    if limit is None and seconds is None:
        limit = _DEFAULT_LIMIT
    with new_or_existing_store(store_path) as store, progress_bar(as_json=as_json) as bar:
        # By samples where they are counted, else by time, which only moves on between samples.
        task = bar.add_task("starting", total=limit or seconds, note="")

        def show(name: str, tally: Tally) -> None:
            done = tally.samples if limit else tally.seconds
            bar.update(task, description=name, note=tally.told(), completed=done)

        tally = gather(
            Collector(store, plans=plans, seed=seed),
            in_turn(corpora, seed=seed, limit=limit),
            on,
            seconds=seconds,
            on_sample=show,
        )
        store.ingest()
        total = store.info().counts["kernels"]
    if as_json:
        print_json(_told(tally, str(store.path), total))
        return
    click.echo(f"{tally.told()} in {tally.seconds:.0f} s, ended by {tally.ended}")
    for failure in tally.failures[:_MOST_FAILURES_SHOWN]:
        click.echo(f"  failed: {shortened(failure)}")
    if len(tally.failures) > _MOST_FAILURES_SHOWN:
        click.echo(f"  and {len(tally.failures) - _MOST_FAILURES_SHOWN} more; --json has them all")
    click.echo(f"{total} kernels in {store.path}")


def _told(tally: Tally, store: str, total: int) -> dict[str, Any]:
    return {**vars(tally), "store": store, "kernels_in_store": total}
