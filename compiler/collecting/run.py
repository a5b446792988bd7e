"""Running a collection: items are drawn, given to stations, and what comes back is written down.

One process writes the store, whatever the number of devices. Rows are in its spool as soon as
they are there, so that a collection that is killed loses what was in flight and nothing else.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fusewise.compiler.collecting.work import Batch, Item, Usage
from fusewise.datasets.corpora import in_turn
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import ItemRow
from fusewise.datasets.store import Store
from fusewise.schedule.errors import FusewiseError

log = logging.getLogger(__name__)

_POLL_S = 0.5
#: Programs between two rounds of one, so that it is timed at different moments.
_APART = 50


class Stationed(Protocol):
    """A station, in this process or elsewhere."""

    @property
    def device_key(self) -> str:
        """Key of the device that it times on; "" until that is known."""
        ...

    def failure(self) -> FusewiseError | None:
        """Why it can do nothing any more; None where it can."""
        ...

    def lost(self) -> list[Item]:
        """Items that it was given and will never be through with; each is told once."""
        ...

    def room(self) -> int:
        """How many more items it can take now."""
        ...

    def idle(self) -> bool:
        """Whether everything that was submitted is through, or lost."""
        ...

    def submit(self, items: Sequence[Item], news: Sequence[str] = ()) -> None:
        """Take items, and signatures of what was timed elsewhere meanwhile."""
        ...

    def poll(self, timeout_s: float) -> list[Batch]:
        """Batches that are ready."""
        ...

    def usage(self) -> Usage:
        """Where the time went so far."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


@dataclass
class Tally:
    """What a collection has come to."""

    items: int = 0
    graphs: int = 0
    #: Kernels and whole schedules that were timed.
    kernels: int = 0
    schedules: int = 0
    #: Kernels that were timed with several block sizes.
    blocks: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    #: What ended it: no more items, the time, or the user.
    ended: Literal["items", "seconds", "interrupt"] = "items"
    #: Of each station.
    usage: list[Usage] = field(default_factory=list)
    #: Why stations were given up.
    dropped: list[str] = field(default_factory=list)

    def told(self) -> str:
        """The counts in a few words."""
        blocks = f" ({self.blocks} with several block sizes)" if self.blocks else ""
        return (
            f"{self.items} programs, {self.graphs} graphs, {self.kernels} kernels{blocks}, "
            f"{self.schedules} schedules, {len(self.failures)} failures"
        )


def items(
    specs: Sequence[CorpusSpec],
    *,
    seed: int,
    limit: int | None,
    rounds: int,
    done: Iterable[tuple[str, str, int]],
) -> Iterator[Item]:
    """Items of the corpora in turn, ``limit`` programs at most, those that are done left out.

    Args:
        specs: corpora.
        seed: decides which programs are drawn.
        limit: programs, done ones included; None for no limit.
        rounds: how often each program is gone over, with others in between.
        done: labels, names and rounds of items that need not be done again.

    Raises:
        CorpusError: a corpus cannot be opened.
    """
    through = set(done)
    for item in _in_rounds(itertools.islice(in_turn(specs, seed), limit), rounds):
        if item.key not in through:
            yield item


def _in_rounds(programs: Iterable[tuple[CorpusSpec, str]], rounds: int) -> Iterator[Item]:
    """Each program so many times, others in between where there are any."""
    later: deque[Item] = deque()

    def again(item: Item) -> None:
        if item.round + 1 < rounds:
            later.append(Item(item.corpus, item.name, item.round + 1))

    for spec, name in programs:
        first = Item(spec, name)
        yield first
        again(first)
        while len(later) > _APART * (rounds - 1):
            item = later.popleft()
            yield item
            again(item)
    while later:
        item = later.popleft()
        yield item
        again(item)


def run(
    stations: Sequence[Stationed],
    work: Iterable[Item],
    store: Store,
    *,
    seconds: float | None = None,
    on_progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Have the stations work until there are no more items, the time is up or the user interrupts.

    Args:
        stations: at least one; they are closed at the end.
        work: items, drawn as there is room for them.
        store: where rows go.
        seconds: after which no further item is given out; what is in flight is dropped.
        on_progress: told every half second.

    Raises:
        CorpusError: a corpus cannot be drawn from.
        StoreError: the store cannot be written; what was written stays.
        FusewiseError: no station can do anything any more; what the last of them said.
    """
    collection = _Collection(stations, iter(work), store)
    start = time.monotonic()
    try:
        while not collection.through:
            collection.tally.seconds = time.monotonic() - start
            if seconds is not None and collection.tally.seconds > seconds:
                collection.tally.ended = "seconds"
                break
            collection.step()
            on_progress(collection.tally)
    except KeyboardInterrupt:
        collection.tally.ended = "interrupt"
    finally:
        collection.tally.usage = [station.usage() for station in stations]
        collection.tally.seconds = time.monotonic() - start
        for station in stations:
            station.close()
    return collection.tally


class _Collection:
    """State of one run."""

    def __init__(self, stations: Sequence[Stationed], work: Iterator[Item], store: Store) -> None:
        self._stations = stations
        self._work = work
        self._store = store
        self._exhausted = False
        self._open: dict[Item, _Open] = {}
        #: Lost by a station that died, to be given to another.
        self._again: deque[Item] = deque()
        self._tried: set[Item] = set()
        self._given_up: set[int] = set()
        #: What each station has yet to be told of the others.
        self._news: list[list[str]] = [[] for _ in stations]
        self.tally = Tally()

    @property
    def through(self) -> bool:
        """Whether everything is done."""
        return (
            self._exhausted
            and not self._again
            and all(station.idle() for station in self._stations)
        )

    def step(self) -> None:
        """Give out what there is room for, and take what is ready."""
        for i, station in enumerate(self._stations):
            given = list(self._next(station.room()))
            if given or (self._news[i] and i not in self._given_up):
                news, self._news[i] = self._news[i], []
                station.submit(given, news)
        wait = _POLL_S / len(self._stations)
        for i, station in enumerate(self._stations):
            for batch in station.poll(wait):
                self._take(i, batch)
            for item in station.lost():
                self._lose(i, item)
        self._check()

    def _next(self, count: int) -> Iterator[Item]:
        for _ in range(count):
            item = self._again.popleft() if self._again else next(self._work, None)
            if item is None:
                self._exhausted = True
                return
            yield item

    def _lose(self, number: int, item: Item) -> None:
        """Have another station try an item, once: it may be what kills them."""
        if item not in self._tried:
            self._tried.add(item)
            self._again.append(item)
            return
        reason = f"{item}: the station that had it died, and so did the one before it"
        self._take(number, Batch(item, failures=[reason], finished=True))

    def _check(self) -> None:
        """Note stations that failed.

        Raises:
            FusewiseError: there is no other.
        """
        for i, station in enumerate(self._stations):
            failure = station.failure()
            if failure is None or i in self._given_up:
                continue
            self._given_up.add(i)
            if len(self._given_up) == len(self._stations):
                raise failure
            log.warning("a station is given up: %s", failure)
            self.tally.dropped.append(str(failure))

    def _take(self, number: int, batch: Batch) -> None:
        tally = self.tally
        tally.graphs += batch.graphs
        tally.kernels += batch.kernels
        tally.schedules += batch.schedules
        tally.blocks += batch.blocks
        tally.failures += batch.failures
        for i in range(len(self._stations)):
            if i != number:
                self._news[i] += batch.signatures
        key = self._stations[number].device_key
        part = self._open.setdefault(batch.item, _Open())
        part.add(batch)
        rows = list(batch.rows)
        if batch.finished:
            tally.items += 1
            rows.append(self._open.pop(batch.item).row(key, batch.item))
        if rows:
            self._store.append(rows)


@dataclass
class _Open:
    """What came of an item so far."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        self.counts.update(graphs=batch.graphs, kernels=batch.kernels, schedules=batch.schedules)
        self.failures += batch.failures

    def row(self, device_key: str, item: Item) -> ItemRow:
        label, name, number = item.key
        return ItemRow(
            device_key=device_key,
            corpus=label,
            name=name,
            round=number,
            status="failed" if self.failures and not self.counts["graphs"] else "ok",
            reason="\n".join(self.failures),
            graphs=self.counts["graphs"],
            kernels=self.counts["kernels"],
            schedules=self.counts["schedules"],
        )
