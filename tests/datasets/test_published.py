"""Published datasets from end to end: a store goes out, and comes back through ``load``."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fusewise.datasets
from fusewise.costmodel.settled import settled
from fusewise.datasets import dataset as dataset_module
from fusewise.datasets.card import card
from fusewise.datasets.columns import FEATURE_BITS, FILES, PUBLISHED, SPREAD_BITS
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import (
    Row,
)
from fusewise.datasets.store import Store
from fusewise.datasets.verify import check
from fusewise.schedule.errors import DatasetError, StoreError


def test_samples_come_back(filled: Store, published: Dataset) -> None:
    ours = filled.kernel_samples()
    kept = ours.family != ""
    theirs = published.kernels()
    order = np.argsort(theirs.signature.astype(str))
    for name in ("signature", "graph_key", "nodes", "family", "split", "device_key", "threads"):
        assert list(getattr(theirs, name)[order]) == list(getattr(ours, name)[kept]), name
    features = settled(ours.features[kept], FEATURE_BITS)
    np.testing.assert_array_equal(theirs.features[order], features)
    for name in ("median_us", "compiler_us"):
        np.testing.assert_allclose(getattr(theirs, name)[order], getattr(ours, name)[kept], 1e-6)
    for name in ("spread", "low_us", "high_us"):
        told = settled(getattr(ours, name)[kept], SPREAD_BITS)
        np.testing.assert_array_equal(getattr(theirs, name)[order], told)
    assert theirs.features_version == 1
    assert set(theirs.threads) == {4}


def test_splits_are_by_family(published: Dataset) -> None:
    for split, family in (("train", "generated/softmax"), ("test", "generated/rope")):
        kernels = published.kernels(split=split)  # type: ignore[arg-type]
        assert (len(kernels), set(kernels.family)) == (3, {family})
        schedules = published.schedules(split=split)  # type: ignore[arg-type]
        assert {(s.split, s.family) for s in schedules} == {(split, family)}
    assert len(published.kernels(device_key="cpu-none")) == 0


def test_schedules_come_back_with_their_problems(filled: Store, published: Dataset) -> None:
    ours, theirs = filled.schedule_samples(), published.schedules()
    assert len(theirs) == len(ours) == 8
    by_id = {(s.schedule_id, s.graph_key): s for s in ours}
    for sample in theirs:
        same = by_id[sample.schedule_id, sample.graph_key]
        assert sample.schedule == same.schedule
        assert (sample.median_us, sample.threads) == (same.median_us, 4)
        assert sample.error == pytest.approx(same.error)
        has = not any(choice.name == "inline_ops" for choice in sample.schedule.lowering)
        assert theirs.has_problem(sample) is ours.has_problem(same) is has
        if has:
            assert len(theirs.problem(sample).nodes) == (4 if sample.schedule.lowering else 3)
        else:
            with pytest.raises(StoreError, match="its problem was not kept"):
                theirs.problem(sample)


def test_problems_are_the_same_but_for_folders(made: ModuleType, published: Dataset) -> None:
    assert published.problem("a") == made.chain("a", source="model/net.py:3")
    with pytest.raises(DatasetError, match="no problem of key 'mine'"):
        published.problem("mine")


def test_what_is_of_no_corpus_or_names_a_machine_stays(published: Dataset) -> None:
    told = "\n".join(str(published.records(table)) for table in PUBLISHED)
    for word in ("mine", "someone", "torchinductor_me"):
        assert word not in told
    assert check(published).rows["kernels"] == 7


def test_what_was_left_out_is_told(filled: Store, out: Path) -> None:
    assert publish(filled, "tiny", out).left_out == {"kernels": 1}


def test_a_failure_keeps_its_reason(published: Dataset) -> None:
    (failed,) = (row for row in published.records("kernels") if row["status"] == "failed")
    assert failed["signature"] == "a3"
    assert failed["reason"] == "CppCompileError: ab/cd.cpp failed"
    assert failed["median_us"] is None
    assert failed["kernel_class"] == "pointwise"


def test_repeats_are_summed_up(published: Dataset) -> None:
    rows = {row["signature"]: row for row in published.records("kernels")}
    assert rows["a0"]["median_us"] == pytest.approx(6.12)
    assert (rows["a0"]["measurements"], rows["a0"]["rounds"]) == (2, 18)
    assert rows["a0"]["repeat_range"] == pytest.approx(0.04)
    assert rows["a1"]["repeat_range"] == pytest.approx(0.1)
    assert rows["a2"]["repeat_range"] is None
    found = published.manifest.repeatability
    assert (found.kernels, found.within_5_percent) == (2, 0.5)


def test_the_manifest_counts(made: ModuleType, published: Dataset) -> None:
    manifest = published.manifest
    (device,) = manifest.devices
    assert (device.kernels, device.kernels_failed, device.schedules, device.externs) == (6, 1, 8, 2)
    assert (manifest.graphs, manifest.problems) == (4, 4)
    assert {(c.kernel_class, c.split, c.kernels) for c in manifest.kernels} == {
        (kind, split, count)
        for split in ("train", "test")
        for kind, count in (("pointwise", 1), ("reduction", 2))
    }
    assert {name: family.split for name, family in manifest.families.items()} == {
        "generated/rope": "test",
        "generated/softmax": "train",
    }
    assert [(c.corpus, c.licence, c.graphs) for c in manifest.corpora] == [
        ("generated", "Apache-2.0", 4)
    ]
    assert manifest.created == made.AT
    assert manifest.features == tuple(made.FEATURES[1])


def test_equal_rows_give_equal_bytes(
    made: ModuleType, filled: Store, rows: list[Row], out: Path, tmp_path: Path
) -> None:
    publish(filled, "tiny", out, features=made.FEATURES)
    once = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(once) == {"manifest.json", "CARD.md", *FILES}
    publish(filled, "tiny", out, features=made.FEATURES)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == once
    random.Random(0).shuffle(rows)
    with Store.open(tmp_path / "shuffled.duckdb") as other:
        other.append(rows)
        other.ingest()
        publish(other, "tiny", tmp_path / "again", features=made.FEATURES)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == once


def test_every_column_is_on_the_card(published: Dataset, out: Path) -> None:
    text = (out / "CARD.md").read_text()
    assert text == card(published.manifest)
    for table, columns in PUBLISHED.items():
        if not published.manifest.has(table):
            continue
        section = text.split(f"### `{table}`\n", 1)[1].split("\n##", 1)[0]
        for column in columns:
            line = f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
            assert line in section
            assert column.meaning
        assert set(published.table(table)) == {column.name for column in columns}
    for word in ("`size`", "generated/rope", "Apache-2.0", "50.0%", "cpu-one-4t"):
        assert word in text
    assert "$" not in text


def test_into_a_store_and_on_from_there(
    made: ModuleType, published: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "mine" / "store.duckdb"
    published.to_store(path)
    store = Store.open(path)
    samples = store.kernel_samples()
    assert sorted(samples.signature) == sorted(published.kernels().signature)
    assert len(store.schedule_samples()) == 8
    assert store.extern_times("cpu-one-4t") == {"mma": 30.0, "mmb": 30.0}
    (device,) = store.devices()
    assert device.profile == {"cores": 4}
    store.append(made.measurement("kernel", "b0", "b", 8.0))
    store.ingest()
    before = {table: store.rows(table) for table in store.info().counts}
    published.to_store(path)
    assert {table: store.rows(table) for table in before} == before
    samples = store.kernel_samples()
    assert samples.median_us[list(samples.signature).index("b0")] == 7.0


def test_a_graph_of_ones_own_is_not_replaced(
    made: ModuleType, published: Dataset, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "own.duckdb") as store:
        store.append(made.graph_row(made.chain("a"), "generated/softmax"))
    published.to_store(tmp_path / "own.duckdb")
    kept = Store.open(tmp_path / "own.duckdb").graph("a")
    assert kept is not None
    assert kept.parts == {"graph": "a"}


def test_a_dataset_is_published_from_what_it_was_taken_into(
    made: ModuleType, published: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "second.duckdb"
    published.to_store(path)
    again = publish(Store.open(path), "tiny", tmp_path / "again", features=made.FEATURES)
    assert again.manifest.families == published.manifest.families
    assert again.manifest.kernels == published.manifest.kernels
    for table in ("graphs", "schedules", "devices"):
        assert load(again.folder).records(table) == published.records(table)
    for table in ("kernels", "externs"):
        assert [_summed_up(row) for row in load(again.folder).records(table)] == [
            pytest.approx(_summed_up(row)) for row in published.records(table)
        ]


def _summed_up(row: dict[str, Any]) -> list[float | None]:
    return [row[name] for name in ("median_us", "rounds", "measurements", "repeat_range")]


def test_names(published: Dataset, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    monkeypatch.setattr(dataset_module, "SHIPPED", out.parent)
    assert fusewise.datasets.load("tiny").manifest == published.manifest
    for wanted in ("h100", "/none/such"):
        with pytest.raises(DatasetError, match=f"no dataset '{wanted}', but: tiny"):
            fusewise.datasets.load(wanted)
    with pytest.raises(DatasetError, match="is no dataset"):
        load(out.parent)


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("pp", "pointwise"),
        ("pr", "reduction"),
        ("pg", "gather"),
        ("gr", "reduction"),
        ("rs", "scatter"),
        ("rso", "sort"),
    ],
)
def test_kernel_classes(made: ModuleType, kinds: str, found: str) -> None:
    from fusewise.datasets.kernel_class import kernel_class

    problem = made.chain("k", kinds)
    assert kernel_class(problem, [node.name for node in problem.nodes]) == found
    assert kernel_class(problem, ["op0", "gone"]) == "unknown"


def test_the_room_imports_neither_torch_nor_duckdb() -> None:
    code = "import sys, fusewise.datasets; print({'torch', 'duckdb', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_loading_needs_no_torch(published: Dataset, out: Path) -> None:
    code = (
        "import sys; from fusewise.datasets import load; "
        f"d = load({str(out)!r}); d.kernels(); d.problem('a'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
