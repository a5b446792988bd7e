"""Training on the kernels of several devices: who is trained on, who is judged by, who gets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from fusewise.costmodel.borrowed import BorrowedModel
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.model_file import read_model
from fusewise.costmodel.registry import load_model
from fusewise.datasets.store import Store
from fusewise.training.command import main
from fusewise.training.companions import Companions
from fusewise.training.source import StoreSource

MakeStore = Callable[..., Path]


def train(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in (*arguments, "--json")])


@pytest.fixture
def other(profile: DeviceProfile) -> DeviceProfile:
    """A device with twice the threads, and another key."""
    return msgspec.structs.replace(profile, key="cpu-other-8t", threads=8, cores=8)


@pytest.fixture
def store(make_store: MakeStore, other: DeviceProfile) -> Path:
    """Many kernels of another device, few of the one that is trained for."""
    make_store(device=other, graphs=12, seed=1)
    return make_store(graphs=6)


def test_a_model_for_all_devices_of_a_kind(
    store: Path, profile: DeviceProfile, other: DeviceProfile
) -> None:
    alone = train("--store", store, "--device", profile.key, "--alone")
    both = train("--store", store, "--device", profile.key)
    assert (alone.exit_code, both.exit_code) == (0, 0), both.output
    found, plain = json.loads(both.stdout), json.loads(alone.stdout)
    # Judged by the same kernels, those of the device itself.
    assert found["n_kernels"] == plain["n_kernels"] > 0
    assert found["mape_5us"] < plain["mape_5us"]
    manifest = read_model(Path(found["path"])).manifest
    assert manifest.profile.key == profile.key
    assert manifest.companions == (other.key,)
    assert manifest.kernels > read_model(Path(plain["path"])).manifest.kernels
    # It is nobody's second choice on the other device, and is not widened there.
    assert load_model(None, other, store.parent).id == found["model_id"]
    stranger = msgspec.structs.replace(other, key="cpu-stranger-9t")
    assert isinstance(load_model(found["path"], stranger, store.parent), BorrowedModel)
    again = train("--store", store, "--device", profile.key)
    assert json.loads(again.stdout)["model_id"] == found["model_id"]


def test_families_to_judge_by_are_left_out_of_the_others(
    store: Path, profile: DeviceProfile
) -> None:
    with Store.open(store) as opened:
        source = StoreSource(opened)
        samples = source.kernels(profile)
        companions = Companions(source, profile)
        labels = samples.family.astype(object)
        for left_out in ((), ("family0",)):
            joined, joined_labels = companions.beside(samples, labels, left_out)
            assert len(joined) == len(joined_labels) > len(samples)
            theirs = joined.family[len(samples) :]
            assert ("family0" in set(theirs)) == (not left_out)
            assert set(joined.device_key[len(samples) :]) == {"cpu-other-8t"}
            assert np.array_equal(joined.features[: len(samples)], samples.features)


def test_a_device_without_companions(make_store: MakeStore) -> None:
    """All that there is to train on is its own."""
    path = make_store(graphs=12)
    (alone, both) = (train("--store", path, "--alone"), train("--store", path))
    assert json.loads(alone.stdout)["model_id"] == json.loads(both.stdout)["model_id"]


def test_a_base_is_of_other_devices_and_cannot_be_left_alone(store: Path) -> None:
    refused = train("--store", store, "--alone", "--base", store)
    assert refused.exit_code == 2
    assert "leave one of them out" in refused.stderr


def test_by_default_it_is_trained_for_the_device_of_the_most_kernels(
    store: Path, other: DeviceProfile
) -> None:
    assert json.loads(train("--store", store).stdout)["device"] == other.key


def test_another_device_of_the_same_data_can_be_adapted(
    store: Path, profile: DeviceProfile, other: DeviceProfile
) -> None:
    alone = json.loads(train("--store", store, "--device", profile.key).stdout)
    found = train("--store", store, "--device", profile.key, "--base", other.key)
    adapted = json.loads(found.stdout)
    assert (adapted["base"], adapted["device"]) == (other.key, profile.key)
    assert adapted["n_kernels"] == alone["n_kernels"]
    # Fitted to the base's kernels as well, and a model of this device alone.
    plain, manifest = (read_model(Path(one["path"])).manifest for one in (alone, adapted))
    assert manifest.parameters["base"] == other.key
    assert manifest.companions == () and manifest.profile.key == profile.key
    assert manifest.dataset_hash != plain.dataset_hash
