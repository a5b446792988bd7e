"""What cannot be trained on or judged is named, with what to do: one line, exit code 2."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import FEATURES_VERSION
from fusewise.costmodel.model_file import FORMAT_VERSION
from fusewise.training.command import main

MakeStore = Callable[..., Path]


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert result.stdout == ""
    return line


@pytest.fixture(scope="module")
def trained_once(
    filled: Callable[..., Path], profile: DeviceProfile, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a store, and the file of a model that was trained on it."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copyfile(filled(profile, graphs=8, families=4), folder / "store.duckdb")
    arguments = ("--store", folder / "store.duckdb", "--out", folder / "mine.fusewise.json")
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of a store, and of the file of a model that was trained on it."""
    shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store.duckdb", tmp_path / "mine.fusewise.json"


def judge(store: Path, model: Path, *more: object) -> str:
    return refused("--store", store, "--evaluate-only", "--model", model, *more)


def test_too_few_rows(make_store: MakeStore):
    line = refused("--store", make_store(graphs=2))
    assert "28 kernels are left to train on" in line
    assert "at least 50 are needed; collect or compile more graphs" in line


@pytest.mark.parametrize("how", [(), ("--probe",), ("--evaluate-only",)])
def test_a_store_that_is_no_file(tmp_path: Path, how: tuple[str, ...]):
    line = refused("--store", tmp_path, *how)
    assert f"{tmp_path}: is a folder, not a regular file" in line
    assert f"such as {tmp_path}/store.duckdb" in line
    assert "/dev/null: is a device" in refused("--store", "/dev/null", *how)
    assert not any(tmp_path.iterdir())
    assert not (tmp_path.parent / "devices").exists() and not Path("/dev/devices").exists()


def test_one_family(make_store: MakeStore):
    line = refused("--store", make_store(families=1))
    assert "of one family, 'family0'" in line
    assert "collect other families beside it" in line


def test_features_of_another_version_without_problems(make_store: MakeStore):
    line = refused("--store", make_store(version=FEATURES_VERSION + 1, problems=False))
    assert f"features of another version than {FEATURES_VERSION}" in line
    assert "collect them again" in line


def test_a_model_that_was_cut_short(trained: tuple[Path, Path]):
    store, model = trained
    text = model.read_bytes()
    model.write_bytes(text[: len(text) // 2])
    line = judge(store, model)
    assert str(model) in line
    assert "cut short or no model at all" in line
    assert "train it again with train-costmodel" in line


def test_a_model_that_was_changed(trained: tuple[Path, Path]):
    store, model = trained
    model.write_bytes(model.read_bytes().replace(b"leaf_value=0", b"leaf_value=1", 1))
    assert "damaged: its checksum is" in judge(store, model)


@pytest.mark.parametrize("text", ["{}", '{"format": "onnx"}', "tree\nversion=v4\n", ""])
def test_a_file_that_is_no_model(trained: tuple[Path, Path], text: str):
    store, model = trained
    model.write_text(text)
    line = judge(store, model)
    assert str(model) in line
    assert "no model at all" in line or "not a fusewise cost model" in line


def test_a_model_of_another_features_version(trained: tuple[Path, Path]):
    store, model = trained
    file: dict[str, Any] = msgspec.json.decode(model.read_bytes())
    file["content"]["manifest"]["features_version"] = 99
    content = msgspec.json.encode(file["content"])
    file["checksum"] = hashlib.sha256(content).hexdigest()
    file["content"] = msgspec.Raw(content)
    model.write_bytes(msgspec.json.encode(file))
    line = judge(store, model)
    assert "made for features version 99" in line
    assert "train it again with train-costmodel" in line


def test_a_model_of_an_older_form(trained: tuple[Path, Path], tmp_path: Path):
    """It is named where it is asked for, and in nobody's way where it is not."""
    store, model = trained
    file: dict[str, Any] = msgspec.json.decode(model.read_bytes())
    file["format_version"] = 1
    for part in ("difficulty", "familiar"):
        del file["content"][part]
    content = msgspec.json.encode(file["content"])
    file["checksum"] = hashlib.sha256(content).hexdigest()
    file["content"] = msgspec.Raw(content)
    model.write_bytes(msgspec.json.encode(file))
    line = judge(store, model)
    assert f"file format 1, this reads format {FORMAT_VERSION}" in line
    assert "or train it again" in line
    kept = store.parent / "models" / model.name
    kept.parent.mkdir(exist_ok=True)
    model.rename(kept)
    result = CliRunner().invoke(main, ["--store", str(store), "--evaluate-only", "--json"])
    assert result.exit_code == 0, result.output


def test_a_model_of_another_device(
    trained: tuple[Path, Path], make_store: MakeStore, profile: DeviceProfile
):
    _, model = trained
    other = msgspec.structs.replace(profile, key="cpu-other-8t", threads=8)
    line = judge(make_store(name="other", device=other, graphs=4), model)
    assert "trained on cpu-test-4t, the kernels are of cpu-other-8t" in line
    assert "--base" in line


def test_a_device_that_was_not_measured(trained: tuple[Path, Path]):
    store, _ = trained
    line = refused("--store", store, "--device", "cuda-none")
    assert "no profile of device 'cuda-none', but of: cpu-test-4t" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--evaluate-only", "--base", "h200"), "--base has no meaning"),
        (("--evaluate-only", "--learning-curve"), "--learning-curve has no meaning"),
        (("--hold-back", "half", "--out", "x.fusewise.json"), "--out has no meaning"),
        (("--hold-back", "half", "--report", "x.html"), "--report has no meaning"),
        (("--hold-back", "half", "--out-of-range"), "--out-of-range has no meaning"),
        (("--probe", "--evaluate-only"), "--evaluate-only has no meaning"),
        (("--base", "h200", "--tune", "3"), "tune the base when that is trained"),
    ],
)
def test_options_that_contradict(make_store: MakeStore, options: tuple[str, ...], words: str):
    assert words in refused("--store", make_store(graphs=4), *options)


@pytest.mark.parametrize("seed", ["-1", str(2**31)])
def test_a_seed_that_not_all_generators_take(seed: str):
    result = CliRunner().invoke(main, ["--seed", seed])
    assert result.exit_code == 2
    assert f"{seed} is not in the range 0<=x<=2147483647" in result.stderr


def test_a_missing_extra_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    # Not even the store is looked for.
    line = refused("--store", tmp_path / "none.duckdb", "--report", tmp_path / "out.html")
    assert line == "error: --report: needs matplotlib; pip install 'fusewise[report]'"


def test_a_report_that_cannot_be_written(make_store: MakeStore, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    store = make_store(graphs=8, families=4)
    line = refused(
        "--store", store, "--evaluate-only", "--model", "roofline", "--report", blocked / "r.html"
    )
    assert "--report: " in line
    assert "cannot be written" in line


def test_only_one_line_of_json_or_none(make_store: MakeStore):
    """With --json an error prints no half of a result."""
    line = refused("--store", make_store(graphs=2), "--json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(line)
