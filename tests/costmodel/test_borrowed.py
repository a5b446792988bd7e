"""A device that no model was trained on gets the nearest one's, and is told so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fusewise.costmodel import registry
from fusewise.costmodel.borrowed import WIDTH_A_DOUBLING, BorrowedModel, distance
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import load_model, save_model
from fusewise.costmodel.roofline import INTERVAL_FACTOR, Roofline, roofline_us
from fusewise.costmodel.trained import TrainedModel
from fusewise.schedule.errors import ModelError

MakeKernels = Callable[[int, int], Any]


@pytest.fixture
def model(kernels: MakeKernels) -> TrainedModel:
    some = kernels(900, 1)
    return (
        LearnedCostModel(n_estimators=60, networks=1, epochs=4)
        .fit(some.features, some.us, some.graph)
        .model_
    )


def on(profile: DeviceProfile, features: Any) -> Any:
    """The features as a device with other rates has them, but for what its sizes change."""
    told = features.copy()
    for name in ("copy", "cache", "flops"):
        rate = getattr(profile, {"flops": "flops_gfs"}.get(name, f"{name}_gbs"))
        told[:, COLUMN[f"device_{name}"]] = np.log2(1.0 + rate)
    return told


@pytest.fixture
def other(profile: DeviceProfile) -> DeviceProfile:
    """Four times as fast."""
    return msgspec.structs.replace(
        profile, key="cpu-other-4t", copy_gbs=160.0, cache_gbs=640.0, flops_gfs=800.0
    )


def test_what_a_kernel_takes_over_its_roofline_goes_along(
    kernels: MakeKernels, model: TrainedModel, profile: DeviceProfile, other: DeviceProfile
):
    some = kernels(400, 2)
    features = on(other, some.features)
    borrowed = BorrowedModel(model, profile, other)
    assert isinstance(borrowed, CostModel)
    found, home = borrowed.predict(features), model.predict(some.features)
    there, at_home = roofline_us(features), roofline_us(some.features)
    known = np.array(found.source) == "borrowed"
    assert known.mean() > 0.9
    assert set(np.array(found.source)[~known]) <= {"roofline"}
    # At home it asks the same trees; there it keeps the less of what they say, and is less sure.
    apart = distance(profile, other)
    kept = np.log(found.us / there)[known] / np.log(home.us / at_home)[known]
    np.testing.assert_allclose(kept, 1.0 / (1.0 + apart))
    wider = np.log(found.high_us / found.us) - np.log(home.high_us / home.us)
    np.testing.assert_allclose(wider[known], WIDTH_A_DOUBLING * apart)
    np.testing.assert_allclose(found.us / found.low_us, found.high_us / found.us)
    # Where kernels take as much over the roofline as they do at home, that is better than it alone.
    error = np.abs(np.log(found.us / there * at_home / some.us))[known]
    assert np.median(error) < 0.75 * np.median(np.abs(np.log(some.us / at_home))[known])


def test_on_the_very_device_nothing_is_taken_off(
    kernels: MakeKernels, model: TrainedModel, profile: DeviceProfile
):
    features = kernels(100, 4).features
    twin = msgspec.structs.replace(profile, key="cpu-twin-4t", name="twin")
    found, home = BorrowedModel(model, profile, twin).predict(features), model.predict(features)
    known = np.array(found.source) == "borrowed"
    assert known.any()
    np.testing.assert_allclose(found.us[known], home.us[known])
    np.testing.assert_allclose(found.high_us[known], home.high_us[known])


def test_what_the_lender_does_not_know_is_the_roofline_s(
    kernels: MakeKernels, model: TrainedModel, profile: DeviceProfile, other: DeviceProfile
):
    features = on(other, kernels(20, 3).features)
    features[:, COLUMN["iterations"]] += 20.0
    found = BorrowedModel(model, profile, other).predict(features)
    assert set(found.source) == {"roofline"}
    np.testing.assert_allclose(found.us, roofline_us(features, other))
    assert (found.high_us / found.us >= INTERVAL_FACTOR * 0.999).all()
    empty = BorrowedModel(model, profile, other).predict(features[:0])
    assert len(empty) == 0
    with pytest.raises(ModelError, match="borrowed from cpu-test-4t"):
        BorrowedModel(model, profile, other).predict(features[:, :3])


def test_devices_are_as_far_apart_as_their_rates(profile: DeviceProfile, other: DeviceProfile):
    assert distance(profile, profile) == 0.0
    assert distance(profile, other) == distance(other, profile) == pytest.approx(2 / np.sqrt(3))
    gpu = msgspec.structs.replace(profile, kind="cuda")
    assert distance(profile, gpu) == float("inf")
    # One that was not probed for the cache is taken at the rate of the memory.
    blank = msgspec.structs.replace(profile, cache_gbs=0.0)
    assert distance(profile, blank) == pytest.approx(2 / 3)


def test_the_nearest_shipped_one_of_the_kind_is_taken(
    model: TrainedModel,
    profile: DeviceProfile,
    other: DeviceProfile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(registry, "_PRETRAINED", shipped)

    def ship(name: str, **rates: Any) -> None:
        manifest = Manifest(
            name=name,
            id=model.id,
            profile=msgspec.structs.replace(profile, key=f"cpu-{name}", **rates),
        )
        path = shipped / f"{name}.fusewise.json"
        save_model(SavedModel(model.renamed(name), manifest), tmp_path, path)

    ship("slow", copy_gbs=10.0)
    ship("fast", copy_gbs=120.0, cache_gbs=640.0)
    ship("gpu", kind="cuda", copy_gbs=160.0)
    found = load_model(None, other, tmp_path)
    assert isinstance(found, BorrowedModel)
    assert found.name == "fast, borrowed from cpu-fast"
    assert found.id != load_model(None, profile, tmp_path).id
    # One of the very device is not borrowed, and one asked for by name is taken as asked.
    own = msgspec.structs.replace(other, key="cpu-fast")
    assert load_model(None, own, tmp_path).name == "fast"
    slow = load_model("slow", other, tmp_path)
    assert slow.name == "slow, borrowed from cpu-slow"
    # Nothing of a GPU is worth anything on a CPU.
    assert load_model("gpu", other, tmp_path).name == "gpu"
    for path in ("slow", "fast"):
        (shipped / f"{path}.fusewise.json").unlink()
    assert isinstance(load_model(None, other, tmp_path), Roofline)
