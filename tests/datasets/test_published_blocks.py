"""Kernels that were timed with several block sizes go out with a dataset, and come back."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import duckdb
import msgspec
import pytest

from fusewise.datasets.card import card
from fusewise.datasets.columns import BLOCKS, PUBLISHED
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.manifest import file_entry, write_manifest
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import BlocksRow, encode_source
from fusewise.datasets.store import Store
from fusewise.datasets.verify import check, verify
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import DatasetError


def row(made: ModuleType, graph: str, number: int, **fields: object) -> BlocksRow:
    name = f"triton_poi_{number}"
    given = {
        "source_hash": f"{number:08x}",
        "device_key": "cpu-one-4t",
        "graph_key": graph,
        "source": encode_source(f"import triton\n\n\ndef {name}(xnumel):\n    '''µs'''\n"),
        "own": 1,
        "sizes": tuple(BlockSizes((("XBLOCK", 64 << n),), 4, 1 + n) for n in range(3)),
        "us": (5.0 + number, None, 4.5),
        "rounds": 7,
        "spread": 0.25,
        "torch_version": "2.13.0",
        "at": made.AT,
        **fields,
    }
    return BlocksRow(name=name, **given)  # type: ignore[arg-type]


@pytest.fixture
def with_blocks(made: ModuleType, filled: Store, out: Path) -> Dataset:
    """Of two families and of a program of the user's own, and one that names a folder."""
    path = encode_source("# /srv/someone/model/net.py\ndef triton_poi_9(): ...")
    filled.append([row(made, "a", 1), row(made, "b", 2), row(made, "mine", 3)])
    filled.append(row(made, "a", 9, source=path))
    filled.append(row(made, "a", 4, device_key="cuda-elsewhere"))
    filled.ingest()
    publish(filled, "tiny", out, features=made.FEATURES)
    return load(out)


def test_what_is_of_a_corpus_goes_out_and_comes_back(
    filled: Store, with_blocks: Dataset, out: Path
) -> None:
    found = with_blocks.blocks()
    assert {sample.name for sample in found} == {"triton_poi_1", "triton_poi_2"}
    ours = {sample.name: sample for sample in filled.block_samples()}
    assert set(found) == {ours["triton_poi_1"], ours["triton_poi_2"]}
    (test,) = with_blocks.blocks(split="test")
    assert (test.family, test.split, test.us) == ("generated/rope", "test", (7.0, None, 4.5))
    assert with_blocks.blocks(device_key="cpu-none") == ()
    assert check(with_blocks).rows[BLOCKS] == 2
    (device,) = with_blocks.manifest.devices
    assert device.blocks == 2


def test_they_are_on_the_card(with_blocks: Dataset, out: Path) -> None:
    text = (out / "CARD.md").read_text()
    assert text == card(with_blocks.manifest)
    section = text.split("### `blocks`\n", 1)[1].split("\n##", 1)[0]
    for column in PUBLISHED[BLOCKS]:
        assert f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |" in section
    assert "**Block sizes**" in text and "with block sizes |" in text and "$" not in text


def test_a_dataset_without_any_has_no_file_of_them(published: Dataset, out: Path) -> None:
    assert not (out / "blocks.parquet").exists()
    assert published.blocks() == () and published.records(BLOCKS) == []
    assert {len(column) for column in published.table(BLOCKS).values()} == {0}
    text = (out / "CARD.md").read_text()
    assert "`blocks`" not in text and "with block sizes" not in text
    with pytest.raises(DatasetError, match=r"it has no blocks.*--block-sizes"):
        published.file(BLOCKS)


def test_into_a_store_and_out_again(made: ModuleType, with_blocks: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "mine.duckdb"
    assert with_blocks.to_store(path)[BLOCKS] == 2
    store = Store.open(path)
    assert set(store.block_samples()) == set(with_blocks.blocks())
    assert {key for key in store.measured_signatures("cpu-one-4t") if key.startswith(BLOCKS)} == {
        "blocks 00000001",
        "blocks 00000002",
    }
    # What was measured later here stays.
    newer = row(made, "a", 1, us=(9.0, 9.5, None), at=made.AT.replace(year=2027))
    store.append(newer)
    store.ingest()
    with_blocks.to_store(path)
    kept = {sample.name: sample for sample in store.block_samples()}
    assert kept["triton_poi_1"].us == newer.us
    again = load(publish(store, "tiny", tmp_path / "again").folder)
    assert set(again.blocks()) == set(store.block_samples())


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("* REPLACE ('[]' AS sizes)", "0 block sizes and 3 times"),
        ("* REPLACE ('{}' AS sizes)", "cannot be read"),
        ("* REPLACE (9 AS own)", "block sizes and 3 times"),
        ("* REPLACE ([NULL, 1.0, 2.0]::FLOAT[] AS us)", "in no time"),
        ("* REPLACE ('other' AS name)", "has no kernel other"),
        ("* REPLACE ('none' AS graph_key)", "the graph none, which is not there"),
        ("* EXCLUDE (rounds)", "has other columns: rounds"),
    ],
)
def test_verifying_finds(with_blocks: Dataset, select: str, told: str) -> None:
    path = with_blocks.file(BLOCKS)
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT {select} FROM '{path}'")
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    files = {**with_blocks.manifest.files, path.name: file_entry(path, 2)}
    write_manifest(msgspec.structs.replace(with_blocks.manifest, files=files), path.parent)
    spoiled = load(path.parent)
    assert any(told in finding for finding in verify(spoiled).findings)
