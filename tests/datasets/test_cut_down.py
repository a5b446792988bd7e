"""Configurations of the transformers library are cut down and go on fitting."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.datasets.transformers_models.cut_down import (
    cut_down,
    heads_of,
    most_length,
    parts,
    width_of,
)
from fusewise.datasets.transformers_models.sizes import VOCABULARY

transformers = pytest.importorskip("transformers")

layers = st.integers(2, 4)
widths = st.integers(1, 4096)
divisible_by = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=25, deadline=None)
@given(layers, widths, divisible_by)
def test_few_layers_and_tokens_and_widths_by_one_power_of_two(
    layers: int, width: int, divisible_by: int
) -> None:
    whole = transformers.LlamaConfig()
    config = transformers.LlamaConfig()
    cut_down(config, layers=layers, width=width, divisible_by=divisible_by)
    assert config.num_hidden_layers == layers
    assert config.vocab_size == VOCABULARY
    by = whole.hidden_size // config.hidden_size
    assert by <= divisible_by and math.log2(by).is_integer()
    assert whole.intermediate_size == config.intermediate_size * by
    assert whole.head_dim == config.head_dim * by
    assert heads_of(config) == heads_of(whole)
    # As wide as wanted, unless it may not be narrower.
    assert width_of(config) <= max(256, min(1024, width)) or by == divisible_by


def test_configurations_within_are_cut_down_too() -> None:
    config = transformers.CLIPConfig()
    cut_down(config, layers=2, width=64, divisible_by=1)
    assert len(list(parts(config))) == 3
    assert {config.text_config.num_hidden_layers, config.vision_config.num_hidden_layers} == {2}
    assert config.text_config.max_position_embeddings > most_length(config) > 0


def test_one_layer_of_each_kind_is_kept() -> None:
    config = transformers.Gemma2Config(num_hidden_layers=6)
    kinds: list[Any] = config.layer_types
    cut_down(config, layers=2, width=256, divisible_by=1)
    assert len(set(kinds)) == 2
    assert sorted(config.layer_types) == sorted(set(kinds))


def test_experts_are_few_and_are_kept_beside_a_layer_without() -> None:
    config = transformers.DeepseekV3Config()
    cut_down(config, layers=2, width=512, divisible_by=8)
    assert config.n_routed_experts == 16
    assert config.first_k_dense_replace == 1


def test_types_of_tokens_are_not_tokens() -> None:
    config = transformers.BertConfig(type_vocab_size=5000)
    cut_down(config, layers=2, width=256, divisible_by=1)
    assert config.type_vocab_size == 5000
