from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable

import pytest
import torch

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.splits import HELD_OUT, split_of
from fusewise.datasets.transformers_models.corpus import ARCHITECTURES, TransformersCorpus
from fusewise.datasets.transformers_models.decoders import DECODERS
from fusewise.datasets.transformers_models.listed import LISTED
from fusewise.datasets.transformers_models.perception import PERCEPTION
from fusewise.datasets.transformers_models.sizes import Sizes
from fusewise.datasets.transformers_models.text import TEXT
from fusewise.schedule.errors import CorpusError

Run = Callable[[GraphSample], list[torch.Tensor]]
Tensors = Callable[[object], list[torch.Tensor]]


WRITTEN_OUT = {**TEXT, **DECODERS, **PERCEPTION}
#: One of each kind of inputs, and the one that is cut: the others differ in their configurations.
FEW = {
    *{architecture.inputs: name for name, architecture in WRITTEN_OUT.items()}.values(),
    *{architecture.inputs: name for name, architecture in LISTED.items()}.values(),
    "mobilevit",
}


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f in FEW else pytest.mark.slow) for f in ARCHITECTURES],
)
def test_architectures_run(family: str, run: Run) -> None:
    pytest.importorskip("transformers")
    samples = list(TransformersCorpus(scale=0.05).build(f"{family}/0-0"))
    if family in WRITTEN_OUT:
        assert (len(samples) > 1) == (family == "mobilevit")
    for sample in samples:
        assert sample.family == f"transformers/{family}" and sample.licence
    # Blocks of one model share its sizes and dtype.
    for sample in samples if family in WRITTEN_OUT else samples[:1]:
        run(sample)


@pytest.mark.parametrize("family", ["gpt2", "t5", "whisper"])
def test_equal_names_give_equal_models(family: str, tensors: Tensors) -> None:
    pytest.importorskip("transformers")
    before = torch.random.get_rng_state()
    (first,), (second,) = (TransformersCorpus(scale=0.05).build(f"{family}/1-0") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert isinstance(first.module, torch.nn.Module)
    assert isinstance(second.module, torch.nn.Module)
    given = tensors(first.kwargs), tensors(second.kwargs)
    assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))
    weights = first.module.parameters(), second.module.parameters()
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_names_take_the_architectures_in_turn() -> None:
    pytest.importorskip("transformers")
    names = list(itertools.islice(TransformersCorpus(families=("vit", "t5")).names(7), 3))
    assert names == ["vit/7-0", "t5/7-1", "vit/7-2"]


def test_sizes_are_realistic_and_bounded() -> None:
    drawn = [Sizes.draw(random.Random(seed), 16.0) for seed in range(500)]
    assert max(s.width for s in drawn) == max(s.heads * 128 for s in drawn) == 2048
    assert 1024 < max(s.length for s in drawn) <= 2048
    assert 32 < max(s.batch for s in drawn) <= 64
    assert max(s.batch * s.length * s.width for s in drawn) <= 2**26
    assert {s.dtype for s in drawn} == {torch.float32, torch.bfloat16, torch.float16}
    assert {s.attention for s in drawn} == {"eager", "sdpa"}
    assert max(s.width for s in (Sizes.draw(random.Random(i), 1.0) for i in range(99))) <= 256


def test_one_architecture_in_six_is_held_out() -> None:
    held = [name for name in WRITTEN_OUT if split_of(f"transformers/{name}") == "test"]
    assert len(WRITTEN_OUT) / 9 < len(held) < len(WRITTEN_OUT) / 5
    every = [name for name in ARCHITECTURES if split_of(f"transformers/{name}") == "test"]
    for name in HELD_OUT["transformers"]:
        assert any(found.startswith(name) for found in every)


def test_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CorpusError, match="pip install transformers"):
        next(TransformersCorpus().names(0))
    with pytest.raises(CorpusError, match="pip install transformers"):
        next(TransformersCorpus().build("bert/0-0"))


def test_a_version_without_the_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pytest.importorskip("transformers").GPT2LMHeadModel
    # To look up a first model puts another module in the library's place.
    monkeypatch.setattr(sys.modules["transformers"], "GPT2LMHeadModel", None)
    with pytest.raises(CorpusError, match="cannot build the gpt2 model"):
        next(TransformersCorpus().build("gpt2/0-0"))
