"""A real store with kernels and schedules that follow a known law."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fusewise.costmodel import learned
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import FEATURES_VERSION, Featurizer
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets.rows import (
    DeviceRow,
    GraphRow,
    KernelRow,
    MeasurementRow,
    Row,
    ScheduleRow,
    encode_problem,
)
from fusewise.datasets.store import Store
from fusewise.schedule.plan import Step, build_plan, unfused
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem
from fusewise.schedule.schedule import Choice, Schedule

_OF_A_SIMPLE_LAW = {"n_estimators": 60, "learning_rate": 0.2, "networks": 1, "epochs": 4}


@pytest.fixture(autouse=True, scope="package")
def simple_law() -> Iterator[None]:
    """What the law of these kernels takes, which is a simple one: few trees, one short network."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _OF_A_SIMPLE_LAW.items():
            patch.setitem(learned._OF_CPUS, name, value)
        yield


@pytest.fixture(scope="session")
def profile() -> DeviceProfile:
    """A CPU of no maker."""
    return DeviceProfile(
        key="cpu-test-4t",
        kind="cpu",
        name="test",
        threads=4,
        copy_gbs=40.0,
        gather_gbs=1.0,
        flops_gfs=200.0,
        transcendental_gops=3.0,
        launch_us=1.0,
        cache_bytes=1 << 20,
        cores=4,
    )


def make_chain(key: str, rng: np.random.Generator, length: int = 12) -> Problem:
    """A chain of pointwise nodes of random arithmetic over one size, with an extern node last."""
    n = int(2 ** rng.uniform(10, 21))

    def touch(name: str) -> Access:
        return Access(name, "contiguous", n, 4 * n, 4, 1, f"i0 : {n}")

    nodes, buffers, dependencies = [], [Buffer("arg0", 4 * n, "float32", True, False, ("op0",))], []
    for i in range(length):
        last = i == length - 1
        nodes.append(
            Node(
                name=f"op{i}",
                kind="extern" if last else "pointwise",
                device="cpu",
                numel=n,
                rnumel=1,
                ranges=((n,), ()),
                reduction_type="",
                reads=(touch(f"buf{i - 1}" if i else "arg0"),),
                writes=(touch(f"buf{i}"),),
                ops=(("add", int(rng.integers(1, 9))), ("exp", int(rng.integers(0, 4)))),
                origins=(),
                source="",
                order=i,
                compiler_us=0.0,
                flops=0,
                signature=f"{key}-{i}",
            )
        )
        users = () if last else (f"op{i + 1}",)
        buffers.append(Buffer(f"buf{i}", 4 * n, "float32", False, last, users))
        if i:
            dependencies.append(Dependency(f"op{i}", f"op{i - 1}", f"buf{i - 1}"))
    return Problem(key, "inference", tuple(nodes), tuple(buffers), tuple(dependencies), ())


def true_us(
    problem: Problem, profile: DeviceProfile, groups: list[tuple[str, ...]], slower: float = 1.0
) -> np.ndarray:
    """The law: small kernels are slower than the roofline says, large ones faster."""
    x = Featurizer(problem, profile).batch(groups)
    base = roofline_us(x)
    return slower * base * np.exp(1.2 - 0.25 * np.log(base))


def make_rows(
    profile: DeviceProfile,
    *,
    families: int,
    graphs: int,
    version: int = FEATURES_VERSION,
    slower: float = 1.0,
    problems: bool = True,
    seed: int = 0,
) -> Iterator[Row]:
    """Kernels of runs of nodes, and four schedules of each graph."""
    rng = np.random.default_rng(seed)
    yield DeviceRow(
        key=profile.key,
        kind=profile.kind,
        name=profile.name,
        threads=profile.threads,
        profile=msgspec.to_builtins(profile),
    )
    for g in range(graphs):
        problem = make_chain(f"graph{g}", rng)
        yield GraphRow(
            key=problem.key,
            parts={"graph": problem.key},
            kind="inference",
            family=f"family{g % families}",
            nodes=len(problem.nodes),
            problem=encode_problem(problem) if problems else None,
        )
        names = [node.name for node in problem.nodes][:-1]
        groups = [
            tuple(names[a:b])
            for a in range(len(names))
            for b in (a + 1, a + 3, a + 6, a + 10)
            if b <= 11
        ]
        features = Featurizer(problem, profile).batch(groups)
        us_of = true_us(problem, profile, groups, slower)
        for group, row, us in zip(groups, features, us_of, strict=True):
            signature = f"{problem.key} {' '.join(group)}"
            yield KernelRow(
                signature=signature,
                device_key=profile.key,
                graph_key=problem.key,
                nodes=group,
                features_version=version,
                features=row.tolist(),
            )
            yield _measured(profile, "kernel", signature, problem.key, us * rng.lognormal(0, 0.02))
        yield _measured(profile, "extern", problem.nodes[-1].signature, problem.key, 5.0)
        every = [node.name for node in problem.nodes]
        plans = [unfused(every)] + [
            build_plan(every, [Step("fuse", f"op{i}", f"op{i + 1}") for i in range(k)])
            for k in (2, 5, 9)
        ]
        schedules = [Schedule(plan=plan) for plan in plans]
        times = [true_us(problem, profile, list(p.groups[:-1]), slower).sum() + 5.0 for p in plans]
        # Two that no plan cost can tell the time of.
        schedules += [Schedule(), Schedule(lowering=(Choice("inline", 1),), plan=plans[0])]
        for schedule, us in zip(schedules, [*times, 9.0, 9.0], strict=True):
            yield ScheduleRow(
                id=schedule.id,
                graph_key=problem.key,
                schedule=schedule,
                origin="beam",
                groups=0,
            )
            yield _measured(profile, "schedule", schedule.id, problem.key, us)


def _measured(
    profile: DeviceProfile, subject: str, subject_id: str, graph: str, us: float
) -> MeasurementRow:
    return MeasurementRow(
        subject=subject,  # type: ignore[arg-type]
        subject_id=subject_id,
        graph_key=graph,
        device_key=profile.key,
        median_us=float(us),
        spread=0.01,
        rounds=9,
    )


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``filled(device, families=6, graphs=24)``: a store to copy, the same one for equal wishes."""
    folder = tmp_path_factory.mktemp("filled")
    made: dict[str, Path] = {}

    def fill(device: DeviceProfile, **wishes: Any) -> Path:
        key = repr((device, sorted(wishes.items())))
        if key not in made:
            path = folder / f"{len(made)}.duckdb"
            append(path, make_rows(device, **wishes))
            made[key] = path
        return made[key]

    return fill


def append(path: Path, rows: Iterator[Row]) -> None:
    """Put rows into a store, and out of its spool."""
    with Store.open(path) as store:
        store.append(list(rows))
    with Store.open(path):
        pass


@pytest.fixture
def make_store(
    tmp_path: Path, profile: DeviceProfile, filled: Callable[..., Path]
) -> Callable[..., Path]:
    """``make_store(families=6, graphs=24)`` fills a store, or fills it further; gives its path."""

    def make(
        *,
        families: int = 6,
        graphs: int = 24,
        name: str = "store",
        device: DeviceProfile = profile,
        **changes: Any,
    ) -> Path:
        path = tmp_path / f"{name}.duckdb"
        wishes = {"families": families, "graphs": graphs, **changes}
        if path.exists():
            append(path, make_rows(device, **wishes))
        else:
            shutil.copyfile(filled(device, **wishes), path)
        return path

    return make
