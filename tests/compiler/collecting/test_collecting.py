"""Collecting from small programs with real workers and real timings: what is in the store then."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch

from fusewise.compiler.collecting.run import Tally, items, run
from fusewise.compiler.collecting.station import Station
from fusewise.compiler.collecting.work import Settings
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import (
    GraphRow,
    ItemRow,
    KernelRow,
    MeasurementRow,
    ScheduleRow,
    decode_problem,
)
from fusewise.datasets.store import Store
from fusewise.schedule.problem import Problem, group_signature
from fusewise.schedule.schedule import problem_key

ROUNDS = 2
#: With everything that a collection can vary, and little of it.
SETTINGS = Settings(threads=1, plans=1, lowerings=1, schedules=4, workers=1)


@dataclass
class Collected:
    """A store and what is in it."""

    store: Store
    tally: Tally
    specs: list[CorpusSpec]
    problems: dict[str, Problem]
    graphs: list[GraphRow]
    kernels: list[KernelRow]
    schedules: list[ScheduleRow]
    measurements: list[MeasurementRow]
    items: list[ItemRow]

    @property
    def on_gpu(self) -> bool:
        """Whether it was collected on one."""
        return self.items[0].device_key.startswith("cuda")

    def of(self, subject: str) -> list[MeasurementRow]:
        """Measurements of kernels, extern calls or schedules."""
        return [row for row in self.measurements if row.subject == subject]


def collect(
    home: Path, profiled: Path, specs: list[CorpusSpec], settings: Settings, rounds: int = 1
) -> tuple[Store, Tally]:
    """A store in ``home`` with what came of all programs of ``specs``."""
    (home / "devices").symlink_to(profiled)
    store = Store.open(home / "store.duckdb")
    settings = msgspec.structs.replace(settings, home=str(home))
    station = Station(settings, store.measured_signatures)
    work = items(specs, seed=0, limit=None, rounds=rounds, done=())
    tally = run([station], work, store)
    store.ingest()
    return store, tally


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def collected(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    profiled: Path,
    programs: Callable[[str], CorpusSpec],
) -> Collected:
    """Two rounds of a training step with a matrix product, an inference, views, and a failure."""
    specs = [programs(name) for name in ("training", "inference", "raising", "viewing")]
    home = tmp_path_factory.mktemp("collected")
    settings = msgspec.structs.replace(SETTINGS, device=request.param)
    store, tally = collect(home, profiled, specs, settings, ROUNDS)
    tables: Any = {
        name: store.rows(name)
        for name in ("graphs", "kernels", "schedules", "measurements", "items")
    }
    problems = {row.key: decode_problem(row.problem) for row in tables["graphs"]}
    return Collected(store, tally, specs, problems, **tables)


def test_tally_is_what_is_stored(collected: Collected) -> None:
    tally = collected.tally
    assert (tally.ended, tally.items, tally.dropped) == ("items", 4 * ROUNDS, [])
    assert tally.graphs == 3 * ROUNDS
    assert tally.kernels == sum(row.kernels for row in collected.items)
    assert tally.kernels == len([row for row in collected.of("kernel") if row.status == "ok"])
    assert tally.schedules == len([row for row in collected.of("schedule") if row.status == "ok"])
    (usage,) = tally.usage
    assert 0 < usage.timing < usage.elapsed <= tally.seconds + 1
    assert 0 < usage.compiling < usage.elapsed * usage.workers and usage.lost == 0


def test_graphs_are_forward_backward_and_inference(collected: Collected) -> None:
    assert {row.kind for row in collected.graphs} == {"forward", "backward", "inference"}
    for row in collected.graphs:
        assert row.source.startswith("target:") and row.family.startswith("target/programs:")
        assert len(collected.problems[row.key].nodes) == row.nodes > 0


def test_features_are_those_of_the_stored_problem(collected: Collected) -> None:
    device = torch.device("cuda" if collected.on_gpu else "cpu")
    profile = device_profile(device, collected.store.path.parent)
    kinds = set()
    for row in collected.kernels:
        problem = collected.problems[row.graph_key]
        kinds.add(problem.kind)
        assert set(row.nodes) <= problem.node_by_name.keys()
        assert row.signature == group_signature(problem, row.nodes)
        assert row.features_version == FEATURES_VERSION
        wanted = Featurizer(problem, profile).group(row.nodes)
        assert np.array_equal(np.array(row.features), wanted)
        assert row.device_key == profile.key
    assert kinds == {"forward", "backward", "inference"}
    assert len({row.signature for row in collected.kernels}) == len(collected.kernels)
    # Fused and unfused ones.
    assert {len(row.nodes) > 1 for row in collected.kernels} == {True, False}


def test_every_kernel_was_timed_in_each_round(collected: Collected) -> None:
    counts = Counter(row.subject_id for row in collected.of("kernel"))
    assert counts.keys() == {row.signature for row in collected.kernels}
    # A kernel that two graphs have which are prepared at one time is timed for each of them.
    assert min(counts.values()) == ROUNDS
    assert Counter(counts.values()).most_common(1)[0][0] == ROUNDS
    for row in collected.of("kernel") + collected.of("extern"):
        assert row.status == "ok" and row.median_us is not None and row.median_us > 0
        assert row.rounds > 2 and row.spread is not None
        # Fewer samples say nothing of where the median lies; a busy machine may get no more.
        assert row.interval is not None or row.rounds < 6
        if row.interval is not None:
            assert row.interval[0] <= row.median_us <= row.interval[1]
        assert row.clock["cache"] == "warm"
        assert row.graph_key in collected.problems
        assert row.threads == (0 if collected.on_gpu else SETTINGS.threads)


def test_extern_calls_were_timed(collected: Collected) -> None:
    nodes = [node for problem in collected.problems.values() for node in problem.nodes]
    externs = {node.signature for node in nodes if node.kind == "extern"}
    assert {row.subject_id for row in collected.of("extern")} == externs != set()


def test_schedules_are_of_all_kinds_and_the_default_is_one(collected: Collected) -> None:
    by_graph = defaultdict(list)
    for row in collected.schedules:
        by_graph[row.graph_key].append(row)
    assert len(by_graph) == 3
    timed = {row.subject_id for row in collected.of("schedule") if row.status == "ok"}
    for rows in by_graph.values():
        (default,) = [row for row in rows if row.origin == "default"]
        assert default.id in timed
        assert not default.schedule.lowering and not default.schedule.codegen
        assert 1 < len(rows) <= SETTINGS.schedules
    made = [row.schedule for row in collected.schedules]
    # On a CPU there is nothing to choose after the lowering but the plan.
    assert any(schedule.codegen for schedule in made) == collected.on_gpu
    assert any(schedule.lowering for schedule in made)
    for row in collected.of("schedule"):
        if row.status == "ok":
            assert row.interval is not None or row.rounds < 6
            assert row.error is not None and row.code_hash
        else:
            assert row.reason


def test_each_lowering_is_a_problem_of_its_own(collected: Collected) -> None:
    lowerings = {
        problem_key(row.graph_key, row.schedule.lowering)
        for row in collected.schedules
        if row.schedule.lowering
    }
    assert lowerings and lowerings <= collected.problems.keys()
    bases = {row.graph_key for row in collected.schedules}
    assert not lowerings & bases and bases <= collected.problems.keys()
    # Their kernels were timed too.
    assert lowerings & {row.graph_key for row in collected.kernels}


def test_program_that_raises_says_why(collected: Collected) -> None:
    failed = [row for row in collected.items if row.status == "failed"]
    assert {row.name for row in failed} == {collected.specs[2].path}
    assert [row.round for row in failed] == list(range(ROUNDS))
    assert all("LookupError: no such weights" in row.reason for row in failed)
    assert len(collected.tally.failures) == ROUNDS


def test_nothing_is_left_to_do(collected: Collected) -> None:
    (key,) = {row.device_key for row in collected.items}
    done = collected.store.collected(key)
    assert list(items(collected.specs, seed=0, limit=None, rounds=ROUNDS, done=done)) == []
    left = [" ".join(_command(child)) for child in psutil.Process().children(True)]
    assert not any("fusewise.compiler.collecting" in command for command in left)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_programs_that_end_hang_or_cannot_be_read(
    tmp_path: Path, profiled: Path, programs: Callable[[str], CorpusSpec]
) -> None:
    sample = tmp_path / "GraphNet" / "samples" / "timm" / "broken"
    sample.mkdir(parents=True)
    (sample / "graph_net.json").write_text(json.dumps({}))
    (sample / "model.py").write_text("class GraphModule(: no Python at all")
    checkout = CorpusSpec(name="graphnet", path=str(tmp_path / "GraphNet"))
    home = tmp_path / "home"
    home.mkdir()
    settings = Settings(threads=1, workers=2, patience_s=5)
    specs = [programs("hanging"), programs("ending"), checkout]
    store, tally = collect(home, profiled, specs, settings)
    assert (tally.items, tally.graphs, tally.usage[0].lost) == (3, 0, 2)
    rows: Any = store.rows("items")
    reasons = {row.name.rpartition(":")[2]: row.reason for row in rows}
    assert all(row.status == "failed" for row in rows) and len(rows) == 3
    assert "said nothing for 5 s" in reasons["hanging"]
    assert "the compile worker died (exit status 7)" in reasons["ending"]
    (unreadable,) = [reason for name, reason in reasons.items() if name.startswith("timm/broken")]
    assert "GraphNet sample 'timm/broken'" in unreadable
