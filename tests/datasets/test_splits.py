from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.datasets.splits import folds_by_family, split_by_family, split_groups, split_of
from fusewise.schedule.errors import StoreError

labels = st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40)


@settings(deadline=None, max_examples=50)
@given(labels.filter(lambda rows: len(set(rows)) > 1), st.floats(0.0, 1.0), st.integers(0, 99))
def test_no_family_stands_on_both_sides(rows: list[str], fraction: float, seed: int) -> None:
    split = split_by_family(rows, test_fraction=fraction, seed=seed)
    train, test = ({rows[i] for i in side} for side in (split.train, split.test))
    assert train and test and not train & test
    assert sorted([*split.train, *split.test]) == list(range(len(rows)))
    again = split_by_family(rows, test_fraction=fraction, seed=seed)
    assert np.array_equal(split.test, again.test)


@settings(deadline=None, max_examples=50)
@given(labels.filter(lambda rows: len(set(rows)) > 2))
def test_each_family_is_tested_in_one_fold(rows: list[str]) -> None:
    splits = folds_by_family(rows, folds=3)
    assert len(splits) == 3
    assert sorted(i for split in splits for i in split.test) == list(range(len(rows)))
    for split in splits:
        assert not {rows[i] for i in split.train} & {rows[i] for i in split.test}


def test_one_family_only_is_refused_by_name() -> None:
    with pytest.raises(StoreError, match="1 families where 2 are needed: layer_norm"):
        split_by_family(["layer_norm"] * 9)
    with pytest.raises(StoreError, match="2 families where 5 are needed: a, b"):
        folds_by_family(["a", "b", "a"], folds=5)
    with pytest.raises(StoreError, match="0 families"):
        split_by_family([])


def test_graphs_without_family_are_split_by_graph() -> None:
    assert split_groups(["f", "", ""], ["1", "2", "2"]) == ["f", "graph 2", "graph 2"]
    with pytest.raises(StoreError, match="1 families stand beside 2 graphs"):
        split_groups(["f"], ["1", "2"])


@pytest.mark.parametrize(
    ("family", "side"),
    [
        ("graphnet/transformers-auto-model/bert", "train"),
        ("graphnet/transformers-auto-model/gpt-neox", "test"),
        ("graphnet/transformers-auto-model/deberta-v2", "test"),
        ("graphnet/transformers-auto-model/barthez", "train"),
        ("graphnet/timm/resnet", "train"),
        ("graphnet/timm/swin_tiny_patch4_window7_224", "test"),
        ("graphnet/torchvision/densenet121", "test"),
        ("graphnet/torchvision/resnet", "train"),
        ("graphnet/ultralytics/resnet", "test"),
        ("graphnet/nemo", "test"),
        ("transformers/electra", "test"),
        ("transformers/bert", "train"),
        ("timm/swin_transformer", "test"),
        ("timm/swin_transformer_v2", "test"),
        ("timm/resnet", "train"),
        ("generated/rope", "test"),
        ("generated/layer_norm", "train"),
        ("target/model:make", "train"),
        ("", "train"),
    ],
)
def test_the_fixed_split(family: str, side: str) -> None:
    assert split_of(family) == side
