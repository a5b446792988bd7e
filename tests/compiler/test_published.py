"""Real problems in the short text of published datasets, and a dataset made of real graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fusewise.compiler.memory import device_row
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.settled import settled
from fusewise.datasets.columns import FEATURE_BITS
from fusewise.datasets.dataset import load
from fusewise.datasets.problem_text import problem_of, problem_text, publishable
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import GraphRow, KernelRow, MeasurementRow, ScheduleRow, encode_problem
from fusewise.datasets.store import Store
from fusewise.datasets.verify import check
from fusewise.schedule.problem import group_signature
from fusewise.schedule.schedule import Schedule

PROFILE = DeviceProfile(
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


def test_every_problem_comes_back_as_it_was(graph: Any) -> None:
    problem = graph.surveyed.problem
    assert problem_of(problem_text(problem), problem.key) == problem


def test_only_folders_and_names_are_taken_out(graph: Any) -> None:
    problem = graph.surveyed.problem
    cleaned = publishable(problem)
    assert any(node.source for node in problem.nodes)
    for node, clean in zip(problem.nodes, cleaned.nodes, strict=True):
        nameless = msgspec.structs.replace(node, modules=(), fx_names=(), sources=(), written_as=())
        assert clean == msgspec.structs.replace(nameless, source=clean.source)
        assert clean.source == "/".join(node.source.split("/")[-2:])


def test_a_dataset_of_real_graphs(live: Any, tmp_path: Path) -> None:
    families = {"layer_norm": "generated/layer_norm", "softmax": "generated/rope"}
    expected = {}
    with Store.open(tmp_path / "store.duckdb") as store:
        store.append(device_row(PROFILE))
        for name, family in families.items():
            (graph,) = live.captured(name)
            problem = msgspec.structs.replace(graph.surveyed.problem, key=name)
            schedule = Schedule(plan=graph.surveyed.default)
            featurizer = Featurizer(problem, PROFILE)
            store.append(
                [
                    GraphRow(
                        key=name,
                        parts={},
                        kind=problem.kind,
                        family=family,
                        source=f"generated:{name}",
                        nodes=len(problem.nodes),
                        problem=encode_problem(problem),
                    ),
                    ScheduleRow(
                        id=schedule.id,
                        graph_key=name,
                        schedule=schedule,
                        origin="default",
                        groups=len(graph.surveyed.default.groups),
                    ),
                    _measured("schedule", schedule.id, name),
                ]
            )
            for nodes in graph.surveyed.default.groups:
                signature = group_signature(problem, nodes)
                features = expected[signature] = featurizer.group(nodes)
                store.append(
                    [
                        KernelRow(
                            signature=signature,
                            device_key=PROFILE.key,
                            graph_key=name,
                            nodes=nodes,
                            features_version=FEATURES_VERSION,
                            features=features.tolist(),
                        ),
                        _measured("kernel", signature, name),
                    ]
                )
        store.ingest()
        dataset = load(publish(store, "real", tmp_path / "real").folder)
    check(dataset)
    kernels = dataset.kernels()
    assert set(kernels.signature) == set(expected)
    # What is published is enough to compute features without measuring again.
    for row, key in enumerate(kernels.graph_key):
        features = Featurizer(dataset.problem(key), PROFILE).group(kernels.nodes[row])
        assert np.array_equal(features, expected[kernels.signature[row]])
        assert np.array_equal(kernels.features[row], settled(features, FEATURE_BITS))
    schedules = dataset.schedules(split="test")
    assert [sample.graph_key for sample in schedules] == ["softmax"]


def _measured(subject: Any, subject_id: str, graph_key: str) -> MeasurementRow:
    return MeasurementRow(
        subject=subject,
        subject_id=subject_id,
        graph_key=graph_key,
        device_key=PROFILE.key,
        median_us=10.0,
    )
