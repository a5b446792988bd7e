"""Files of models: what is written is what is read, all else is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fusewise.costmodel import registry
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import (
    FORMAT_VERSION,
    Manifest,
    SavedModel,
    read_manifest,
    read_model,
)
from fusewise.costmodel.registry import list_models, load_model, save_model
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.trained import TrainedModel
from fusewise.schedule.errors import ModelError


@pytest.fixture
def saved(kernels: Callable[[int, int], Any], profile: DeviceProfile) -> SavedModel:
    some = kernels(120, 1)
    estimator = LearnedCostModel(n_estimators=20, networks=1, epochs=4)
    model = estimator.fit(some.features, some.us).model_
    return SavedModel(model, Manifest(name="mine", id=model.id, profile=profile))


def test_predictions_survive_saving_bit_for_bit(
    saved: SavedModel, kernels: Callable[[int, int], Any], tmp_path: Path, profile: DeviceProfile
):
    path = save_model(saved, tmp_path)
    assert path == tmp_path / "models" / "mine.fusewise.json"
    loaded = read_model(path)
    assert loaded.manifest == saved.manifest
    assert loaded.model.id == saved.model.id
    rows = kernels(300, 2).features
    before, after = saved.model.predict(rows), loaded.model.predict(rows)
    for name in ("us", "low_us", "high_us"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert before.source == after.source
    assert load_model("mine", profile, tmp_path).id == saved.model.id
    assert load_model(str(path), profile, tmp_path).id == saved.model.id


def test_the_newest_model_of_the_device_is_the_default(
    saved: SavedModel, tmp_path: Path, profile: DeviceProfile, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(registry, "_PRETRAINED", tmp_path / "shipped")
    assert isinstance(load_model(None, profile, tmp_path), Roofline)
    foreign = msgspec.structs.replace(profile, key="cpu-other-1t")

    def put(name: str, day: int, **changes: Any) -> SavedModel:
        manifest = msgspec.structs.replace(
            saved.manifest, name=name, created=datetime(2030, 1, day, tzinfo=UTC), **changes
        )
        return SavedModel(saved.model.renamed(name), manifest)

    shipped = tmp_path / "shipped" / "base.fusewise.json"
    save_model(put("base", 9), tmp_path, shipped)
    assert load_model(None, profile, tmp_path).name == "base"
    save_model(put("old", 1), tmp_path)
    save_model(put("new", 2), tmp_path)
    save_model(put("foreign", 3, profile=foreign), tmp_path)
    save_model(put("outdated", 4, features_version=0), tmp_path)
    assert load_model(None, profile, tmp_path).name == "new"
    assert load_model(None, foreign, tmp_path).name == "foreign"
    assert isinstance(load_model("roofline", profile, tmp_path), Roofline)
    entries = list_models(tmp_path)
    assert [e.name for e in entries] == ["outdated", "foreign", "new", "old", "base"]
    assert [e.usable for e in entries] == [False, True, True, True, True]
    assert [e.shipped for e in entries] == [False] * 4 + [True]
    with pytest.raises(ModelError, match="no model 'nwe', there are: roofline, base, foreign, new"):
        load_model("nwe", profile, tmp_path)


def _rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"leaf_value=", b"leaf_value=1", 1))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "cut short or no model at all"),
        (_edit, "damaged: its checksum is"),
        (lambda p: p.write_bytes(b"\x80\x04pickle"), "cut short or no model at all"),
        (lambda p: p.write_text("{}"), "not a fusewise cost model"),
        (lambda p: p.write_text("[1, 2]"), "not a fusewise cost model"),
        (lambda p: _rewrite(p, format="xgboost"), "its format is 'xgboost'"),
        (
            lambda p: _rewrite(p, format_version=FORMAT_VERSION + 1),
            f"file format {FORMAT_VERSION + 1}",
        ),
        (lambda p: p.unlink(), "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_good_are_refused(
    saved: SavedModel, tmp_path: Path, profile: DeviceProfile, spoil: Any, message: str
):
    path = save_model(saved, tmp_path, tmp_path / "m.fusewise.json")
    spoil(path)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(path), profile, tmp_path)
    assert caught.value.subject == str(path)
    assert "train" in caught.value.remedy


def test_a_model_for_other_features_is_refused_but_can_be_listed(saved: SavedModel, tmp_path: Path):
    manifest = msgspec.structs.replace(saved.manifest, features_version=99)
    path = save_model(SavedModel(saved.model, manifest), tmp_path)
    with pytest.raises(ModelError, match="made for features version 99"):
        read_model(path)
    assert read_manifest(path).features_version == 99


def test_files_that_cannot_be_written_are_refused(saved: SavedModel, tmp_path: Path):
    with pytest.raises(ModelError, match="does not end in"):
        save_model(saved, tmp_path, tmp_path / "model.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save_model(saved, tmp_path, tmp_path / "file" / "m.fusewise.json")
    assert not list(tmp_path.glob(".*"))


def test_trees_that_lightgbm_refuses_are_refused(saved: SavedModel, kernels: Any):
    good = saved.model
    model = TrainedModel("no trees", good.difficulty, good.calibration, good.familiar)
    with pytest.raises(ModelError, match="its trees cannot be read"):
        model.predict(kernels(60, 1).features)
