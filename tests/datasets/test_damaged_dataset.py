"""What is wrong with a published dataset is found and named."""

from __future__ import annotations

from pathlib import Path

import duckdb
import msgspec
import pytest

from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.manifest import file_entry, write_manifest
from fusewise.datasets.verify import check, verify
from fusewise.schedule.errors import DatasetError


def tamper(dataset: Dataset, table: str, select: str) -> Dataset:
    """The dataset with a file written anew by ``select`` and the manifest told of it."""
    path = dataset.folder / f"{table}.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT {select} FROM '{path}'")
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    files = {**dataset.manifest.files}
    files[path.name] = file_entry(path, files[path.name].rows)
    write_manifest(msgspec.structs.replace(dataset.manifest, files=files), dataset.folder)
    return load(dataset.folder)


def test_a_damaged_file_is_named(published: Dataset, out: Path) -> None:
    path = out / "kernels.parquet"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"is damaged: .* the manifest says") as caught:
        load(out).kernels()
    assert caught.value.subject == str(path)
    assert len(load(out).schedules()) == 8, "what is sound can be read"
    path.unlink()
    with pytest.raises(DatasetError, match="cannot be read"):
        load(out).kernels()
    with pytest.raises(DatasetError, match="cannot be read"):
        verify(load(out))
    with pytest.raises(DatasetError, match="no table 'kernel'"):
        published.table("kernel")


def test_a_manifest_that_cannot_be_used(published: Dataset, out: Path) -> None:
    path = out / "manifest.json"
    text = path.read_text()
    for old, new, told in (
        ('"schema_version": 3', '"schema_version": 99', r"schema version 99.*upgrade fusewise"),
        ('"schema_version": 3', '"schema_version": 0', r"schema version 0.*publish it again"),
        ("fusewise dataset", "holiday photos", "is of format 'holiday photos'"),
        ("kernels.parquet", "kernel.parquet", "names no kernels.parquet"),
        ('"name": "tiny"', '"name": 3', "is damaged"),
        ("{", "", "is damaged"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(DatasetError, match=told):
            load(out)


@pytest.mark.parametrize(
    ("table", "select", "told"),
    [
        ("kernels", "* REPLACE (['op9'] AS nodes)", "nodes that graph a has not"),
        ("kernels", "* REPLACE ('none' AS graph_key)", "the graph none, which is not there"),
        ("kernels", "* REPLACE ('none' AS device_key)", "the device none, which is not there"),
        ("kernels", "* REPLACE ('train' AS split)", "of another family or split"),
        ("kernels", "* REPLACE (CAST(0 AS FLOAT) AS median_us)", "in no time"),
        ("kernels", "* EXCLUDE (rounds)", "has other columns: rounds"),
        ("kernels", "* REPLACE (rounds::BIGINT AS rounds)", "has other columns: rounds"),
        ("graphs", "* REPLACE (nodes + 1 AS nodes)", "its graph says otherwise"),
        ("graphs", "* REPLACE ('generated/rope' AS family)", "family"),
        ("schedules", "* REPLACE ('0' AS id)", "has another id"),
        ("schedules", "* REPLACE ('[]' AS schedule)", "cannot be read"),
        (
            "schedules",
            "* REPLACE (graph_key || '-inline_reads=16' AS graph_key)",
            "is no plan over",
        ),
        ("schedules", "* REPLACE (NULL::VARCHAR AS graph_key)", "which is not there"),
    ],
)
def test_verifying_finds(published: Dataset, table: str, select: str, told: str) -> None:
    spoiled = tamper(published, table, select)
    assert any(told in finding for finding in verify(spoiled).findings)
    with pytest.raises(DatasetError, match="publish it again"):
        check(spoiled)


def test_a_problem_of_another_form_is_named(published: Dataset) -> None:
    spoiled = tamper(published, "graphs", "* REPLACE ('[1,2]' AS problem)")
    with pytest.raises(DatasetError, match="its problem cannot be read"):
        spoiled.problem("a")
