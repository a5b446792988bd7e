"""A collection on a real Ray cluster of this machine; and clusters that are of no use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.collecting import ray_cluster
from fusewise.compiler.collecting import ray_stations as module
from fusewise.compiler.collecting.ray_stations import ray_stations
from fusewise.compiler.collecting.run import Tally, items, run
from fusewise.compiler.collecting.work import Settings
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import DeviceRow, ItemRow
from fusewise.datasets.store import Store
from fusewise.schedule.errors import MeasureError, UnsupportedError

# A minute on two free cores. Others who time on this machine make it wait.
pytestmark = pytest.mark.timeout(280)

SETTINGS = Settings(threads=1, plans=0, lowerings=0, schedules=2, workers=1)


def settings(home: Path, **changes: Any) -> Settings:
    values = {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}
    return Settings(**{**values, "home": str(home), **changes})


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray, connected to a cluster with two cores."""
    found = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield found
        found.shutdown()


def test_one_of_two_stations_is_killed_on_the_way(
    ray: Any, home: Path, store: Path, programs: Callable[[str], CorpusSpec]
) -> None:
    specs = [programs(name) for name in ("tiny", "ending", "raising", "training")]
    opened = Store.open(store)
    with ray_stations("auto", settings(home), opened.measured_signatures, actors=2) as stations:
        assert [station.device_key for station in stations] == [stations[0].device_key] * 2
        assert re.search(r"-1t(-of-|$)", stations[0].device_key)
        killed: list[int] = []

        def kill(tally: Tally) -> None:
            # Whichever is at work: which of them that is depends on the machine.
            busy = [at for at, station in enumerate(stations) if not station.idle()]
            if not killed and busy and tally.graphs:
                killed.append(busy[0])
                ray.kill(stations[busy[0]]._actor)

        tally = run(
            stations, items(specs, seed=0, limit=None, rounds=1, done=()), opened, on_progress=kill
        )
    opened.ingest()
    (victim,) = killed
    assert (tally.items, tally.ended, tally.dropped) == (4, "items", [])
    assert tally.usage[victim].lost >= 1
    rows: Any = opened.rows("items")
    by_name: dict[str, ItemRow] = {row.name.rpartition(":")[2]: row for row in rows}
    assert len(by_name) == 4
    failed = {name for name, row in by_name.items() if row.status == "failed"}
    assert failed == {"ending", "raising"}
    # Both wrote to one store, of one device that all features are those of.
    (device,) = opened.rows("devices")
    assert isinstance(device, DeviceRow) and device.key == stations[victim].device_key
    assert (home / "devices" / f"{device.key}.json").is_file()
    assert opened.info().counts["kernels"] > 0
    done = opened.collected(device.key)
    assert list(items(specs, seed=0, limit=None, rounds=1, done=done)) == []


def test_station_that_cannot_start_says_why(ray: Any, home: Path) -> None:
    """Nothing is wrong with the actor, but with what the station in it is to do."""
    (home / "models").mkdir()
    (home / "models" / "bad.fusewise.json").write_text("no model")
    asked = settings(home, strategy="active", model="bad")
    with (
        pytest.raises(module.FusewiseError, match=r"bad\.fusewise\.json"),
        ray_stations("auto", asked, lambda _: {}, actors=1),
    ):
        pass


def test_node_without_fusewise(ray: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        """What an actor is where its module cannot be imported."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise ModuleNotFoundError("No module named 'fusewise'")

        def named(self) -> None:
            pass

    monkeypatch.setattr(ray_cluster, "StationActor", Missing)
    with (
        pytest.raises(UnsupportedError, match=r"No module named 'fusewise'.*fusewise\[ray\]"),
        ray_stations("auto", settings(home), lambda _: {}, actors=1),
    ):
        pass


def test_cluster_without_a_gpu(ray: Any, home: Path) -> None:
    with (
        pytest.raises(UnsupportedError, match="no node of the Ray cluster has a GPU"),
        ray_stations("auto", settings(home, device="cuda"), lambda _: {}),
    ):
        pass


@pytest.mark.slow
def test_cluster_that_is_busy(ray: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_START_S", 1.0)

    @ray.remote(num_cpus=2)
    class Other:
        def ready(self) -> None:
            pass

    other = Other.remote()
    ray.get(other.ready.remote())
    with (
        pytest.raises(MeasureError, match="other work holds what they need"),
        ray_stations("auto", settings(home), lambda _: {}),
    ):
        pass
    ray.kill(other)


def test_cluster_that_cannot_be_reached(ray: Any, home: Path) -> None:
    ray.shutdown()
    with (
        pytest.raises(MeasureError, match="ray start --head"),
        ray_stations("auto", settings(home), lambda _: {}),
    ):
        pass


def test_without_ray(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UnsupportedError, match=r"pip install fusewise\[ray\]"),
        ray_stations("auto", settings(home), lambda _: {}),
    ):
        pass
