"""Running a collection with stations that are made up: who gets what, and what is written down."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.collecting.run import items, run
from fusewise.compiler.collecting.work import Batch, Item, Usage
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import ItemRow
from fusewise.datasets.store import Store
from fusewise.schedule.errors import CorpusError, MeasureError, StoreError


class Made:
    """A station that is through with an item each time it is asked, or does what it is told."""

    def __init__(
        self, device_key: str = "cpu-x-1t", act: Callable[[Made, Item], Batch | None] | None = None
    ) -> None:
        self.device_key = device_key
        self.act = act or (lambda _, item: Batch(item, signatures=[item.name], finished=True))
        self.got: list[Item] = []
        self.told: list[str] = []
        self.waiting: deque[Item] = deque()
        self.gone: list[Item] = []
        self.broken: MeasureError | None = None
        self.closed = 0

    def room(self) -> int:
        return 0 if self.broken else 2 - len(self.waiting)

    def idle(self) -> bool:
        return not self.waiting

    def submit(self, items: Sequence[Item], news: Sequence[str] = ()) -> None:
        self.got += items
        self.waiting += items
        self.told += news

    def poll(self, timeout_s: float) -> list[Batch]:
        del timeout_s
        if not self.waiting:
            return []
        batch = self.act(self, self.waiting.popleft())
        return [] if batch is None else [batch]

    def lost(self) -> list[Item]:
        gone, self.gone = self.gone, []
        return gone

    def failure(self) -> MeasureError | None:
        return self.broken

    def usage(self) -> Usage:
        return Usage(elapsed=1.0)

    def close(self) -> None:
        self.closed += 1


def loses(station: Made, item: Item) -> None:
    station.gone.append(item)


def breaks(station: Made, item: Item) -> None:
    """Die with all that it has."""
    station.gone += [item, *station.waiting]
    station.waiting.clear()
    station.broken = MeasureError("is gone", subject="station", remedy="none")


@pytest.fixture
def opened(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.duckdb")


def work(acting: Any, count: int) -> list[Item]:
    return [acting.item(str(i)) for i in range(count)]


def stored(store: Store) -> dict[str, ItemRow]:
    store.ingest()
    return {row.name: row for row in store.rows("items") if isinstance(row, ItemRow)}


def test_every_item_is_done_once(acting: Any, opened: Store) -> None:
    first, second = Made(), Made("cpu-y-1t")
    tally = run([first, second], work(acting, 9), opened)
    assert (tally.items, tally.ended, len(tally.usage)) == (9, "items", 2)
    assert sorted(int(i.name) for i in first.got + second.got) == list(range(9))
    assert {row.device_key for row in stored(opened).values()} == {"cpu-x-1t", "cpu-y-1t"}
    # Each is told what the other has timed.
    assert set(first.told) <= {item.name for item in second.got} and first.told
    assert (first.closed, second.closed) == (1, 1)


def test_counts_and_failures_of_an_item_add_up(acting: Any, opened: Store) -> None:
    parts = [
        Batch(acting.item(), graphs=1, kernels=3, schedules=2),
        Batch(acting.item(), graphs=1, kernels=4, failures=["b: too large"]),
        Batch(acting.item(), failures=["a: died"], finished=True),
    ]

    class Parts(Made):
        def poll(self, timeout_s: float) -> list[Batch]:
            del timeout_s
            self.waiting.clear()
            found = parts[:]
            parts.clear()
            return found

    tally = run([Parts()], [acting.item()], opened)
    assert (tally.graphs, tally.kernels, tally.schedules, len(tally.failures)) == (2, 7, 2, 2)
    row = stored(opened)["a"]
    assert (row.status, row.graphs, row.kernels, row.schedules) == ("ok", 2, 7, 2)
    assert row.reason == "b: too large\na: died"


def test_item_of_which_nothing_came_has_failed(acting: Any, opened: Store) -> None:
    station = Made(act=lambda _, item: Batch(item, failures=["no"], finished=True))
    run([station], work(acting, 1), opened)
    assert stored(opened)["0"].status == "failed"


def test_lost_items_are_given_out_again(acting: Any, opened: Store) -> None:
    first = Made(act=breaks)
    second = Made()
    tally = run([first, second], work(acting, 6), opened)
    assert set(stored(opened)) == {str(i) for i in range(6)}
    assert all(row.status == "ok" for row in stored(opened).values())
    assert tally.dropped == [str(first.broken)]
    assert len(first.got) == 2 and set(first.got) <= set(second.got)


def test_item_that_is_lost_twice_is_given_up(acting: Any, opened: Store) -> None:
    tally = run([Made(act=loses)], work(acting, 2), opened)
    assert tally.items == 2
    assert {row.status for row in stored(opened).values()} == {"failed"}
    assert "the station that had it died" in tally.failures[0]


def test_last_station_to_fail_ends_it(acting: Any, opened: Store) -> None:
    stations = [Made(act=breaks), Made(act=breaks)]
    with pytest.raises(MeasureError, match="is gone"):
        run(stations, work(acting, 9), opened)
    assert [station.closed for station in stations] == [1, 1]


def test_time_and_interrupts_end_it(acting: Any, opened: Store) -> None:
    endless = (acting.item(str(i)) for i in itertools.count())
    tally = run([Made()], endless, opened, seconds=0.2)
    assert tally.ended == "seconds" and tally.items > 0

    def interrupt(tally: Any) -> None:
        if tally.items == 3:
            raise KeyboardInterrupt

    station = Made()
    tally = run([station], work(acting, 9), opened, on_progress=interrupt)
    assert (tally.ended, tally.items, station.closed) == ("interrupt", 3, 1)


def test_corpus_that_is_not_there_ends_it(opened: Store, tmp_path: Path) -> None:
    specs = [CorpusSpec(name="graphnet", path=str(tmp_path))]
    station = Made()
    with pytest.raises(CorpusError, match="holds no samples of GraphNet"):
        run([station], items(specs, seed=0, limit=None, rounds=1, done=()), opened)
    assert station.closed == 1


def test_items_of_several_rounds() -> None:
    specs = [CorpusSpec(name="generated"), CorpusSpec(name="generated", scale=0.5)]
    found = list(items(specs, seed=1, limit=130, rounds=3, done=()))
    programs = {(item.corpus.label, item.name) for item in found}
    assert {label for label, _ in programs} == {"generated", "generated@0.5"}
    assert Counter(item.round for item in found) == dict.fromkeys(range(3), len(programs))
    at = {item.key: i for i, item in enumerate(found)}
    # Each round of a program is some programs after the one before it.
    gaps = [at[*p, n + 1] - at[*p, n] for p in programs for n in range(2)]
    assert min(gaps) > 20
    done = [item.key for item in found[:100]]
    assert list(items(specs, seed=1, limit=130, rounds=3, done=done)) == found[100:]
    assert list(items(specs, seed=1, limit=130, rounds=3, done=at)) == []


def test_equal_seeds_give_equal_items() -> None:
    specs = [CorpusSpec(name="generated")]
    drawn = [list(items(specs, seed=s, limit=8, rounds=1, done=())) for s in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


#: A full disk is one that takes no more than so many bytes of a file.
_FULL = """
import resource, sys
from contextlib import contextmanager

sys.path.insert(0, sys.argv[2])
from fusewise.commands import collect, main
from made import Made
from fusewise.compiler.collecting.work import Batch
from fusewise.datasets.rows import ScheduleRow
from fusewise.schedule.schedule import Schedule

def act(station, item):
    rows = [
        ScheduleRow(id=f"{item.name} {i}", graph_key="x" * 100, schedule=Schedule(), origin="o",
                    groups=1)
        for i in range(100)
    ]
    return Batch(item, rows=rows, finished=True)

@contextmanager
def stations(*_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    yield [Made(act=act)]

collect._stations = stations
main.main(["collect", "--store", sys.argv[1], "--limit", "50"])
"""


def test_full_disk_is_told_and_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    Store.open(path)
    source = Path(__file__).read_text(encoding="utf-8")
    (tmp_path / "made.py").write_text(source[: source.index("def loses(")])
    done = subprocess.run(
        [sys.executable, "-P", "-c", _FULL, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "rows cannot be written" in line and "has free space" in line
    opened = Store.open(path)
    found = stored(opened)
    # Whole items, and the part of the next that fitted.
    assert 0 < len(found) < 50
    counts = opened.info().counts
    assert 100 * len(found) <= counts["schedules"] < 100 * len(found) + 100


def test_store_that_cannot_be_written_ends_it(acting: Any, opened: Store) -> None:
    def fails(rows: Any) -> int:
        raise StoreError("rows cannot be written", subject="spool", remedy="free some space")

    opened.append = fails  # type: ignore[method-assign]
    station = Made()
    with pytest.raises(StoreError):
        run([station], work(acting, 3), opened)
    assert station.closed == 1
