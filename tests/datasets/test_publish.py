"""Publishing: what goes out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusewise.datasets.dataset import load
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import (
    DeviceRow,
    Row,
)
from fusewise.datasets.store import Store
from fusewise.schedule.errors import DatasetError


def test_only_what_is_asked_for_is_published(made: ModuleType, filled: Store, out: Path) -> None:
    filled.append(DeviceRow(key="cuda-two", kind="cuda", name="two", threads=270336))
    filled.append(
        [
            msgspec.structs.replace(made.kernel_row("a0", "a", "op0"), device_key="cuda-two"),
            made.measurement("kernel", "a0", "a", 3.0, device_key="cuda-two", threads=270336),
        ]
    )
    filled.ingest()
    with pytest.raises(DatasetError, match=r"devices of two kinds: .*; choose with --kind"):
        publish(filled, "tiny", out)
    publish(filled, "tiny", out, kind="cuda")
    found = load(out)
    assert [(d.key, d.threads) for d in found.devices()] == [("cuda-two", 0)]
    assert list(found.kernels().threads) == [0]
    assert [row["key"] for row in found.records("graphs")] == ["a"]
    assert "CUDA" in (out / "CARD.md").read_text()
    publish(filled, "tiny", out, devices=["cpu-one-4t"])
    assert len(load(out).kernels()) == 6
    with pytest.raises(DatasetError, match="no device 'tpu', but: cpu-one-4t, cuda-two"):
        publish(filled, "tiny", out, devices=["tpu"])
    with pytest.raises(DatasetError, match="cpu-one-4t is no cuda device"):
        publish(filled, "tiny", out, devices=["cpu-one-4t"], kind="cuda")


def test_nothing_to_publish(store: Store, rows: list[Row], out: Path) -> None:
    with pytest.raises(DatasetError, match="it has no device"):
        publish(store, "tiny", out)
    store.append(rows[0])
    store.ingest()
    with pytest.raises(DatasetError, match="no kernel of a corpus was measured on cpu-one-4t"):
        publish(store, "tiny", out)
    assert not out.exists()
    assert list(out.parent.iterdir()) == []


def test_kernels_without_features_of_the_newest_version_are_not_lost(
    made: ModuleType, filled: Store, out: Path
) -> None:
    older = msgspec.structs.replace(made.kernel_row("a9", "a", "op1"), features_version=0)
    filled.append([older, made.measurement("kernel", "a9", "a", 3.0)])
    filled.ingest()
    with pytest.raises(DatasetError, match=r"1 of its 7 kernels .* no features of version 1") as no:
        publish(filled, "tiny", out)
    assert no.value.remedy == "compute them anew first, with fusewise store features"
    assert not out.exists()


def test_kernels_that_can_have_no_new_features_are_published_as_they_are(
    made: ModuleType, filled: Store, out: Path
) -> None:
    graph = next(row for row in filled.rows("graphs") if row.key == "a")  # type: ignore[union-attr]
    older = msgspec.structs.replace(made.kernel_row("a9", "gone", "op1"), features_version=0)
    filled.append([msgspec.structs.replace(graph, key="gone", problem=None)])
    filled.append([older, made.measurement("kernel", "a9", "gone", 3.0)])
    filled.ingest()
    publish(filled, "tiny", out)
    versions = {row["signature"]: row["features_version"] for row in load(out).records("kernels")}
    assert versions["a9"] == 0
    assert set(versions.values()) == {0, 1}


def test_where_it_cannot_be_published(filled: Store, out: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'Bad-Name' is no name"):
        publish(filled, "Bad-Name", out)
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(DatasetError, match="something else than a dataset"):
        publish(filled, "tiny", out)
    assert (out / "thesis.txt").read_text() == "precious"
    with pytest.raises(DatasetError, match="cannot be written"):
        publish(filled, "tiny", out / "thesis.txt" / "in")
