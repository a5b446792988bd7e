"""A station whose workers follow a script and whose timing is made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.collecting import pool as pool_module
from fusewise.compiler.collecting import station as station_module
from fusewise.compiler.collecting.station import Station
from fusewise.compiler.collecting.work import Batch, PreparedGraph, Settings, Usage
from fusewise.schedule.errors import MeasureError, ModelError


class Timing:
    """Stands for what times."""

    lost = 0
    held_s = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.act: Callable[[PreparedGraph], Batch] = lambda graph: Batch(graph.item, graphs=1)

    def time(
        self, graph: PreparedGraph, alone: Callable[[], AbstractContextManager[None]]
    ) -> Batch:
        with alone():
            return self.act(graph)

    def look(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


Start = Callable[..., Station]


@pytest.fixture
def start(scripts: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts stations of scripted workers, which are closed at the end of the test."""
    monkeypatch.setattr(pool_module, "_WORKER", scripts.module)
    monkeypatch.setattr(station_module, "Timer", Timing)
    stations = []

    def make(*given: Any, **settings: Any) -> Station:
        scripts.give(*given)
        station = Station(Settings(home=str(home), **{"workers": 1, **settings}), lambda _: {})
        stations.append(station)
        return station

    yield make
    for station in stations:
        station.close()
    assert scripts.running() == []


def through(station: Station) -> list[Batch]:
    """All batches until the station is idle."""
    found: list[Batch] = []
    deadline = time.monotonic() + 100
    while not station.idle() and station.failure() is None:
        assert time.monotonic() < deadline
        found += station.poll(0.2)
    return found


def test_the_end_of_an_item_comes_last(start: Start, acting: Any) -> None:
    a, b = acting.item("a"), acting.item("b")
    do = [acting.RECEIVE, acting.prepared(a), acting.prepared(a), acting.finished(a)]
    more = [acting.RECEIVE, acting.finished(b, "nothing in it")]
    station = start([acting.RECEIVE, acting.READY, *do, *more, acting.FOREVER])
    assert station.idle() and station.room() == 2
    station.submit([a, b])
    assert not station.idle()
    batches = through(station)
    of_a = [batch for batch in batches if batch.item == a]
    assert [batch.finished for batch in of_a] == [False, False, True]
    assert sum(batch.graphs for batch in of_a) == 2
    (of_b,) = [batch for batch in batches if batch.item == b]
    assert of_b.finished and of_b.failures == ["nothing in it"]
    assert station.failure() is None and station.lost() == []


def test_graphs_of_a_worker_that_died_are_timed(start: Start, acting: Any) -> None:
    a = acting.item()
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, acting.prepared(a), ("exit", 1)]
    station = start(script)
    station.submit([a])
    batches = through(station)
    assert sum(batch.graphs for batch in batches) == 1
    assert ["died" in f for batch in batches for f in batch.failures] == [True]
    assert batches[-1].finished and station.usage().lost == 1


def test_error_of_a_graph_costs_the_graph(start: Start, acting: Any) -> None:
    a = acting.item()
    do = [acting.RECEIVE, acting.prepared(a), acting.finished(a)]
    station = start([acting.RECEIVE, acting.READY, *do, acting.FOREVER])

    def fails(graph: PreparedGraph) -> Batch:
        raise KeyError("a bug")

    station._lines[0].timer.act = fails  # type: ignore[attr-defined]
    station.submit([a])
    batches = through(station)
    assert [f for batch in batches for f in batch.failures] == ["a: KeyError: 'a bug'"]


def test_error_in_a_thread_is_told(
    start: Start, acting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = acting.item()
    do = [acting.RECEIVE, acting.prepared(a), acting.finished(a)]
    station = start([acting.RECEIVE, acting.READY, *do, acting.FOREVER])

    def fails(batch: Batch) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(station, "_close_part", fails)
    station.submit([a])
    through(station)
    failure = station.failure()
    assert isinstance(failure, MeasureError)
    assert "KeyError: 'a bug'" in str(failure) and "collect again" in failure.remedy


def test_workers_that_never_start_are_told(start: Start, acting: Any) -> None:
    station = start([("exit", 3)])
    station.submit([acting.item()])
    through(station)
    assert "3 compile workers died" in str(station.failure())


def test_slow_device_holds_up_workers(start: Start, acting: Any, scripts: Any) -> None:
    a = acting.item()
    graphs = [acting.prepared(a)] * 12
    do = [acting.RECEIVE, *graphs, acting.finished(a)]
    station = start([acting.RECEIVE, acting.READY, *do, acting.FOREVER], patience_s=0.5)
    gate = threading.Event()

    def waits(graph: PreparedGraph) -> Batch:
        gate.wait(20)
        return Batch(graph.item, graphs=1)

    # As beside a GPU, where the pool goes on while something is timed.
    station._shares_cores = False
    line = station._lines[0]
    line.timer.act = waits  # type: ignore[attr-defined]
    station.submit([a])
    acting.until(line.graphs.full)
    time.sleep(1.0)
    # It neither takes more nor takes the worker for silent.
    assert line.graphs.full() and station.usage().lost == 0
    gate.set()
    assert sum(batch.graphs for batch in through(station)) == len(graphs)


def test_where_the_time_went(start: Start, acting: Any) -> None:
    a = acting.item()
    do = [acting.RECEIVE, ("sleep", 0.6), acting.prepared(a), acting.finished(a)]
    station = start([acting.RECEIVE, acting.READY, *do, acting.FOREVER], workers=2)

    def takes(graph: PreparedGraph) -> Batch:
        time.sleep(0.5)
        station._lines[0].timer.held_s += 0.5
        return Batch(graph.item, graphs=1)

    station._lines[0].timer.act = takes  # type: ignore[method-assign]
    station.submit([a])
    through(station)
    usage = station.usage()
    assert usage.timing == 0.5 and usage.workers == 2
    # Standing still while the device is timed is not work.
    assert 0.5 < usage.compiling < 0.95
    assert usage.elapsed >= 1.1
    told = Usage(elapsed=10, timing=2.5, compiling=10, workers=2, lost=1).told()
    assert told == "device: timing 25%, waiting 75% of 10 s; 2 workers: busy 50%; 1 processes lost"
    twice = usage.plus(Usage(elapsed=1, timing=1, compiling=1, workers=2, lost=1))
    assert (twice.elapsed, twice.lost) == (usage.elapsed + 1, 1)


def test_closing_does_not_wait_for_work(start: Start, acting: Any, scripts: Any) -> None:
    a, b = acting.item("a"), acting.item("b")
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, acting.prepared(a), ("stop", None)]
    station = start(script, workers=2)
    station._lines[0].timer.act = lambda graph: time.sleep(1.0) or Batch(graph.item)
    station.submit([a, b])
    acting.until(lambda: scripts.started() == 2)
    begin = time.monotonic()
    station.close()
    station.close()
    assert time.monotonic() - begin < 30
    assert scripts.running() == []


def test_model_that_is_not_there_is_told_before_anything_starts(start: Start, scripts: Any) -> None:
    with pytest.raises(ModelError, match="no model 'none'"):
        start([("exit", 1)], strategy="active", model="none")
    assert scripts.started() == 0
