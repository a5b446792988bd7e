from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from fusewise.datasets import corpora
from fusewise.datasets.corpora import CORPORA, in_turn, on_device, open_corpus
from fusewise.datasets.corpus import Corpus, CorpusSpec, GraphSample, scalar_loss
from fusewise.schedule.errors import CorpusError

GENERATED = CorpusSpec(name="generated", scale=0.01)


@pytest.mark.parametrize("name", ["generated", "transformers", "target"])
def test_corpora_are_opened_by_name(name: str) -> None:
    assert open_corpus(CorpusSpec(name=name)).name == name


def test_settings_reach_the_corpus() -> None:
    spec = CorpusSpec(name="generated", scale=2.0, families=("softmax",))
    corpus = open_corpus(spec)
    assert next(corpus.names(3)) == "softmax/3-0"
    assert corpus.scale == 2.0  # type: ignore[attr-defined]


def test_families_may_be_named_by_pattern() -> None:
    corpus = open_corpus(CorpusSpec(name="generated", families=("softmax", "composed_00*")))
    names = list(itertools.islice(corpus.names(3), 12))
    assert names[:3] == ["softmax/3-0", "composed_000/3-1", "composed_001/3-2"]
    assert names[11] == "softmax/3-11"
    with pytest.raises(CorpusError, match=r"no family 'compose_\*'"):
        open_corpus(CorpusSpec(name="generated", families=("compose_*",)))


def test_unknown_corpora_are_refused_with_the_nearest() -> None:
    with pytest.raises(CorpusError, match="nearest is 'generated'"):
        open_corpus(CorpusSpec(name="generate"))
    with pytest.raises(CorpusError, match="use one of generated, transformers"):
        open_corpus(CorpusSpec(name="xyz"))


@pytest.mark.parametrize("name", ["generated", "transformers"])
def test_unknown_families_are_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(CorpusError, match="no family 'layer_form'"):
        open_corpus(CorpusSpec(name=name, families=("layer_form",)))
    corpus = open_corpus(CorpusSpec(name=name))
    for bad in ("softmaks/0-1", "softmax", "", "/"):
        with pytest.raises(CorpusError):
            next(corpus.build(bad))


def test_importing_and_opening_imports_no_model_library() -> None:
    code = (
        "import sys\n"
        "from fusewise.datasets.corpora import CORPORA, open_corpus\n"
        "from fusewise.datasets.corpus import CorpusSpec\n"
        "next(open_corpus(CorpusSpec(name='transformers')).names(0))\n"
        "assert not {'transformers', 'timm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class _Two:
    """A corpus that ends."""

    name, licence = "two", ""

    def names(self, seed: int) -> Iterator[str]:
        yield from (f"{seed}-0", f"{seed}-1")

    def build(self, name: str) -> Iterator[GraphSample]:
        raise NotImplementedError


def test_corpora_take_turns_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(spec: CorpusSpec) -> Corpus:
        return _Two()

    monkeypatch.setitem(CORPORA, "two", two)
    specs = [GENERATED, CorpusSpec(name="two")]
    taken = list(itertools.islice(in_turn(specs, 5), 6))
    assert [spec.name for spec, _ in taken] == ["generated", "two"] * 2 + ["generated"] * 2
    assert [name for spec, name in taken if spec.name == "two"] == ["5-0", "5-1"]
    assert taken == list(itertools.islice(in_turn(specs, 5), 6))
    assert list(in_turn([], 0)) == []
    assert list(corpora.in_turn([specs[1]], 0)) == [(specs[1], "0-0"), (specs[1], "0-1")]


def test_moving_a_sample_keeps_what_is_trained() -> None:
    module = torch.nn.Linear(3, 3)
    trained = torch.ones(3, requires_grad=True)
    sample = GraphSample("a", "b", module, (trained, 2), {"mask": torch.ones(3)})
    moved = on_device(sample, torch.device("meta"))
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    first, number = moved.args
    assert first.device.type == moved.kwargs["mask"].device.type == "meta"
    assert first.is_leaf
    assert first.requires_grad
    assert not moved.kwargs["mask"].requires_grad
    assert number == 2


def test_a_loss_of_nothing_differentiable_is_refused() -> None:
    with pytest.raises(CorpusError, match="requires a gradient"):
        scalar_loss({"a": [torch.ones(2)], "b": None})
