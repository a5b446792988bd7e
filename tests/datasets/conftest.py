"""Stores, rows of every table, and a published dataset for the tests of the datasets room."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample, scalar_loss
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.manifest import FeatureColumn
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import (
    BlocksRow,
    CandidateSummary,
    DecisionRow,
    DeviceRow,
    GraphRow,
    ItemRow,
    KernelRow,
    MeasurementRow,
    ModelRow,
    Row,
    ScheduleRow,
    encode_problem,
    encode_source,
)
from fusewise.datasets.store import Store
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.plan import Step, build_plan, unfused
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem
from fusewise.schedule.schedule import Candidate, Choice, Schedule, problem_key

PROBLEM = Problem("g", "forward", (), (), (), ())
SCHEDULE = Schedule(plan=unfused(["a", "b"]), codegen=(Choice("persistent", True),))


AT = datetime(2026, 1, 2, tzinfo=UTC)
FEATURES = {1: [FeatureColumn("size", "log2", "how large"), FeatureColumn("depth", "", "loops")]}
INLINE = (Choice("inline_reads", 16),)


def chain(key: str, kinds: str = "prp", source: str = "/srv/someone/model/net.py:3") -> Problem:
    """A chain of nodes: p(ointwise), r(eduction), s(catter), g(ather), o(rt)."""
    names = {"r": "reduction", "o": "sort"}
    access = {"s": ("contiguous", "atomic"), "g": ("gather", "contiguous")}
    nodes, buffers, edges = [], [Buffer("arg", 64, "torch.float32", True, False, ("op0",))], []
    for i, letter in enumerate(kinds):
        reads, writes = access.get(letter, ("contiguous", "contiguous"))
        nodes.append(
            Node(
                name=f"op{i}",
                kind=names.get(letter, "pointwise"),  # type: ignore[arg-type]
                device="cpu",
                numel=16,
                rnumel=1,
                ranges=((16,), ()),
                reduction_type="",
                reads=(Access(f"buf{i - 1}" if i else "arg", reads, 16, 64, 4, 1, "i0 : 16"),),  # type: ignore[arg-type]
                writes=(Access(f"buf{i}", writes, 16, 64, 4, 1, "i0 : 16"),),  # type: ignore[arg-type]
                ops=(("add", 1),),
                origins=("aten.add.Tensor",),
                source=source,
                order=i,
                compiler_us=0.25,
                flops=0,
                signature=f"{i:016x}",
            )
        )
        last = i == len(kinds) - 1
        users = () if last else (f"op{i + 1}",)
        buffers.append(Buffer(f"buf{i}", 64, "torch.float32", False, last, users))
        if i:
            edges.append(Dependency(f"op{i}", f"op{i - 1}", f"buf{i - 1}"))
    return Problem(key, "inference", tuple(nodes), tuple(buffers), tuple(edges), ())


def measurement(subject: str, subject_id: str, graph: str, us: float | None, **fields: object):
    given = {
        "spread": 0.01,
        "rounds": 9,
        "interval": None if us is None else (us * 0.99, us * 1.01),
        "device_key": "cpu-one-4t",
        "torch_version": "2.13.0",
        "at": AT,
        "id": f"{subject}/{subject_id}/{graph}/{us}",
        **fields,
    }
    return MeasurementRow(
        subject=subject,  # type: ignore[arg-type]
        subject_id=subject_id,
        graph_key=graph,
        median_us=us,
        **given,  # type: ignore[arg-type]
    )


def kernel_row(signature: str, graph: str, *nodes: str) -> KernelRow:
    return KernelRow(
        signature=signature,
        device_key="cpu-one-4t",
        graph_key=graph,
        nodes=nodes,
        features_version=1,
        features=[len(nodes) / 3, 2.0],
        compiler_us=1.5,
    )


def graph_row(problem: Problem, family: str, **fields: object) -> GraphRow:
    given = {"source": f"generated:{problem.key}", "licence": "Apache-2.0", **fields}
    return GraphRow(
        key=problem.key,
        parts={"graph": problem.key},
        kind=problem.kind,
        family=family,
        nodes=len(problem.nodes),
        problem=encode_problem(problem),
        torch_version="2.13.0",
        created=AT,
        **given,  # type: ignore[arg-type]
    )


def make_rows() -> list[Row]:
    """Two families, one of the test split; schedules under two lowerings; a failure; a repeat; and
    what must not go out.
    """
    device = DeviceRow(
        key="cpu-one-4t", kind="cpu", name="one", threads=4, profile={"cores": 4}, first_seen=AT
    )
    rows: list[Row] = [device]
    for key, family in (("a", "generated/softmax"), ("b", "generated/rope")):
        problem, inlined = chain(key), chain(problem_key(key, INLINE), "prpp")
        rows += [graph_row(problem, family), graph_row(inlined, family)]
        names = [node.name for node in problem.nodes]
        for number, nodes in enumerate((names[:1], names[1:2], names[:2])):
            rows.append(kernel_row(f"{key}{number}", key, *nodes))
            rows.append(measurement("kernel", f"{key}{number}", key, 6.0 + number))
        rows.append(measurement("extern", f"mm{key}", key, 30.0))
        plans = [unfused(names), build_plan(names, [Step("fuse", "op0", "op1")])]
        schedules = [Schedule(plan=plan) for plan in plans]
        schedules.append(Schedule(lowering=INLINE, plan=unfused([*names, "op3"])))
        schedules.append(Schedule(lowering=(Choice("inline_ops", 8),), plan=plans[0]))
        for number, schedule in enumerate(schedules):
            row = ScheduleRow(
                id=schedule.id,
                graph_key=key,
                schedule=schedule,
                origin="beam",
                groups=3 - number % 2,
                predicted_us=20.0,
            )
            rows += [row, measurement("schedule", schedule.id, key, 20.0 + number, error=1e-7)]
    # Measured twice, 4 % and 10 % apart.
    rows += [measurement("kernel", "a0", "a", 6.24), measurement("kernel", "a1", "a", 7.7)]
    rows.append(kernel_row("a3", "a", "op2"))
    reason = "CppCompileError: /tmp/torchinductor_me/ab/cd.cpp failed"
    rows.append(measurement("kernel", "a3", "a", None, status="failed", reason=reason))
    # Of a program of the user's own.
    rows += [graph_row(chain("mine"), "", source="compile"), kernel_row("m0", "mine", "op0")]
    rows.append(measurement("kernel", "m0", "mine", 4.0))
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "store.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def one_of_each() -> list[Row]:
    candidate = Candidate(schedule=SCHEDULE, origin="beam", groups=2, measured_us=4.0)
    return [
        DeviceRow(key="d", kind="cpu", name="a CPU", threads=4, profile={"bandwidth": 2.5}),
        GraphRow(
            key="g",
            parts={"graph": "1", "torch": "2"},
            kind="forward",
            family="f",
            problem=encode_problem(PROBLEM),
        ),
        KernelRow(
            signature="s",
            device_key="d",
            graph_key="g",
            nodes=("a", "b"),
            features_version=1,
            features=[1.0, 2.5],
            compiler_us=3.0,
        ),
        ScheduleRow(id=SCHEDULE.id, graph_key="g", schedule=SCHEDULE, origin="beam", groups=2),
        MeasurementRow(
            subject="kernel", subject_id="s", graph_key="g", device_key="d", median_us=5.0
        ),
        DecisionRow(
            graph_key="g",
            device_key="d",
            mode="measure",
            model_id="m",
            schedule_id=SCHEDULE.id,
            candidates=(CandidateSummary.of(candidate),),
        ),
        ModelRow(id="m", path="m.txt", device_key="d", features_version=1, manifest={"rows": 3}),
        ItemRow(device_key="d", corpus="generated", name="layer_norm/0-1", graphs=2, kernels=7),
        BlocksRow(
            source_hash="h",
            device_key="d",
            graph_key="g",
            source=encode_source("def triton_(): ..."),
            name="triton_",
            own=1,
            sizes=(
                BlockSizes((("R0_BLOCK", 64), ("XBLOCK", 128)), 4, 1),
                BlockSizes((("R0_BLOCK", 64), ("XBLOCK", 256)), 8, 2),
            ),
            us=(2.5, None),
            rounds=5,
        ),
    ]


@pytest.fixture
def tensors() -> Callable[[object], list[torch.Tensor]]:
    """All tensors in nested tuples, lists and dicts."""
    return _tensors


@pytest.fixture
def drawn() -> Callable[[Corpus, int, int], list[GraphSample]]:
    """What the first so many names of a corpus build."""
    return _drawn


@pytest.fixture
def run() -> Callable[[GraphSample], list[torch.Tensor]]:
    """Run a sample eagerly."""
    return _run


def _tensors(value: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _drawn(corpus: Corpus, seed: int, count: int) -> list[GraphSample]:
    """What the first ``count`` names build."""
    names = itertools.islice(corpus.names(seed), count)
    return [sample for name in names for sample in corpus.build(name)]


def _run(sample: GraphSample) -> list[torch.Tensor]:
    """Outputs, after a backward where the sample is trained; all must be finite."""
    with torch.set_grad_enabled(sample.training):
        outputs = sample.module(*sample.args, **sample.kwargs)
    if sample.training:
        scalar_loss(outputs).backward()
        inputs = [*_tensors([sample.args, sample.kwargs])]
        if isinstance(sample.module, torch.nn.Module):
            inputs += sample.module.parameters()
        assert any(leaf.grad is not None for leaf in inputs if leaf.requires_grad)
    found = _tensors(outputs)
    assert found
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    return found


@pytest.fixture
def rows() -> list[Row]:
    return make_rows()


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of :func:`make_rows` and what was published of it, to be copied."""
    folder = tmp_path_factory.mktemp("kept")
    with Store.open(folder / "store.duckdb") as store:
        store.append(make_rows())
        store.ingest()
        publish(store, "tiny", folder / "tiny", features=FEATURES)
    return folder


@pytest.fixture
def filled(kept: Path, path: Path) -> Iterator[Store]:
    path.parent.mkdir(parents=True)
    shutil.copy(kept / "store.duckdb", path)
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "tiny"


@pytest.fixture
def published(kept: Path, out: Path) -> Dataset:
    shutil.copytree(kept / "tiny", out)
    return load(out)


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """This module: the rows that ``filled`` holds, and how to make others."""
    return sys.modules[__name__]
