"""Adapting a model to another device: the law, the intervals, and what it is worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import FEATURES
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import read_model
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.adapt import Adaptation, AdaptedCostModel, Law
from fusewise.training.base import open_base
from fusewise.training.command import main
from fusewise.training.source import StoreSource

MakeStore = Callable[..., Path]


@pytest.fixture
def other(profile: DeviceProfile) -> DeviceProfile:
    """A device with twice the memory rate, and another key."""
    return msgspec.structs.replace(profile, key="cpu-other-8t", copy_gbs=80.0, threads=8, cores=8)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def scores(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_law_is_found_from_many_and_left_alone_by_few():
    rng = np.random.default_rng(0)
    base, size = rng.normal(0.0, 0.5, 4000), rng.uniform(0.0, 5.0, 4000)
    classes = ["gather" if i % 4 == 0 else "pointwise" for i in range(4000)]
    apart = np.array([0.5 if one == "gather" else 0.0 for one in classes])
    true = base + 0.4 - 0.3 * base + 0.1 * (size - 2.0) + apart
    law = Law.found(base, true, size, classes)
    assert (law.slope, law.by_size) == pytest.approx((-0.3, 0.1), abs=0.02)
    assert law.by_class["gather"] - law.by_class["pointwise"] == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(law(base, size, classes), true, atol=0.05)
    # A class that the new device was not seen with has no offset of its own.
    unseen = law(base, size, ["scatter"] * 4000)
    np.testing.assert_allclose(unseen, law(base, size, classes) - apart, atol=0.6)
    one = Law.found(base[:1], true[:1], size[:1], classes[:1])
    assert abs(one.slope) < 0.05
    none = Law.found(base[:0], true[:0], size[:0], [])
    assert np.array_equal(none(base, size, classes), base)


@pytest.mark.slow
def test_intervals_come_from_the_new_device():
    """The base is all noise, the new device none: its intervals say so."""
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(8.0, 2.0, (600, len(FEATURES))))
    us = roofline_us(features)
    us[:400] *= rng.lognormal(0.0, 1.5, 400)
    labels = np.array(
        [f"\x1fbase g{i % 8}" for i in range(400)] + [f"g{i % 8}" for i in range(200)],
        dtype=object,
    )
    mixed = LearnedCostModel().fit(features, us, labels).predict_interval(features[400:])
    own = AdaptedCostModel().fit(features, us, labels).predict_interval(features[400:])
    assert np.median(own.high_us / own.low_us) < np.median(mixed.high_us / mixed.low_us) / 2
    # With none of its own, all that is left are those of the base.
    alone = AdaptedCostModel().fit(features[:400], us[:400], labels[:400])
    assert len(alone.predict(features[:400])) == 400


@pytest.mark.slow
def test_few_kernels_of_a_slower_device(
    make_store: MakeStore, other: DeviceProfile, profile: DeviceProfile
):
    """Worth more with the base than alone, and than the base as it is."""
    base = make_store(name="base")
    mine = make_store(name="mine", device=other, slower=3.0, graphs=20, seed=1)
    found = scores("--store", mine, "--base", base, "--learning-curve")
    assert (found["base"], found["device"]) == (str(base), other.key)
    points = {point["kernels"]: point for point in found["curve"]}
    assert list(points) == [0, 100, 300, found["n_train"]]
    adapted = points[100]["adapted"]
    assert adapted["mape_5us"] < points[100]["scratch"]["mape_5us"]
    assert adapted["mape_5us"] < points[0]["adapted"]["mape_5us"] / 2
    assert points[0]["scratch"]["mape_5us"] == found["roofline"]["mape_5us"]
    manifest = read_model(Path(found["path"])).manifest
    assert manifest.profile.key == other.key
    assert manifest.parameters["base"] == str(base)
    again = scores("--store", mine, "--base", base)
    assert again["model_id"] == found["model_id"]
    assert again["curve"] == []
    # A saved model cannot be a base where its kernels are not at hand.
    refused = call("--store", base, "--base", found["path"])
    assert refused.exit_code == 2
    assert "the kernels that it was trained on are not at hand" in refused.stderr


def test_base_kernels_are_told_in_terms_of_the_new_device(
    make_store: MakeStore, other: DeviceProfile, tmp_path: Path
):
    base = open_base(str(make_store(name="base")), tmp_path, other)
    with Store.open(make_store(name="mine", device=other, slower=3.0, graphs=4)) as store:
        source = StoreSource(store)
        samples, problems = source.kernels(other), source.problems()
    law = Adaptation(base, other, problems).law(samples)
    # The device is three times slower than its roofline says, in logs.
    assert law.offset + law.by_class["pointwise"] == pytest.approx(np.log(3.0), abs=0.35)
    assert base.profile.key != other.key
    assert set(base.samples.split) == {"train"}


def test_of_several_devices_the_most_alike_is_the_base(
    make_store: MakeStore, profile: DeviceProfile, tmp_path: Path
):
    far = msgspec.structs.replace(profile, key="cpu-far-64t", threads=64, cores=64)
    make_store(name="several", device=far)
    path = str(make_store(name="several"))
    for device, key in ((far, far.key), (profile, profile.key)):
        adapted = msgspec.structs.replace(device, key="cpu-new")
        base = open_base(path, tmp_path, adapted)
        assert base.profile.key == key and set(base.samples.device_key) == {key}
    gpu = msgspec.structs.replace(profile, key="cuda-new", kind="cuda")
    with pytest.raises(ModelError, match="the base of a cuda device has to be another one"):
        open_base(path, tmp_path, gpu)


def test_families_to_judge_by_are_left_out_of_the_base(
    make_store: MakeStore, profile: DeviceProfile, tmp_path: Path
):
    base = open_base(str(make_store()), tmp_path, profile)
    adaptation = Adaptation(base, base.profile, base.problems)
    seen: list[int] = []

    class Counting(AdaptedCostModel):
        def fit(self, features: Any, us: Any, groups: Any = None) -> Counting:
            assert len(features) == len(us) == len(groups)
            seen.append(sum(str(group).startswith("\x1fbase family0") for group in groups))
            return self

    for families in ((), ("family0",)):
        adaptation.fit(Counting(), base.samples, base.labels, families)
    assert seen == [4 * 28, 0]


def test_a_part_held_back(make_store: MakeStore):
    """All elements of the fixture have four bytes: the part is empty, and that is said."""
    result = call("--store", make_store(), "--hold-back", "half")
    assert result.exit_code == 2
    assert "0 kernels are of the part half, to train on" in result.stderr


def test_a_device_held_back(make_store: MakeStore, other: DeviceProfile):
    """The nearest of the others lends its model as it is, and is adapted."""
    store = make_store(families=4, graphs=8)
    make_store(families=4, graphs=8, device=other, slower=1.3)
    far = msgspec.structs.replace(other, key="cpu-far-64t", threads=64, copy_gbs=4000.0)
    make_store(families=4, graphs=4, device=far)
    found = scores("--store", store, "--hold-back", "device", "--device", other.key)
    assert (found["device"], found["held_back"]) == (other.key, "device")
    assert found["base"] == "cpu-test-4t"
    as_it_is = found["unadapted"]
    assert 0 < as_it_is["n_borrowed"] <= found["n_kernels"]
    assert as_it_is["mape_5us"] < as_it_is["roofline_mape_5us"]
    assert 0.0 <= as_it_is["coverage90"] <= 1.0
    assert as_it_is["width_needed"] is not None
    assert found["curve"][0]["kernels"] == 0
    alone = call("--store", make_store(name="one", graphs=8), "--hold-back", "device")
    assert alone.exit_code == 2
    assert "no other cpu device than cpu-test-4t" in alone.stderr


@pytest.mark.parametrize("base", ["none", "missing.duckdb"])
def test_a_base_that_is_not_there(make_store: MakeStore, base: str):
    result = call("--store", make_store(), "--base", base)
    assert result.exit_code == 2
    assert f"--base {base}: " in result.stderr
    assert "h200" in result.stderr
