from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.transformers_models.corpus import ARCHITECTURES, TransformersCorpus
from fusewise.schedule.errors import CorpusError

Run = Callable[[GraphSample], list[torch.Tensor]]
Drawn = Callable[[Corpus, int, int], list[GraphSample]]


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_architectures_run(family: str, drawn: Drawn, run: Run) -> None:
    pytest.importorskip("transformers")
    samples = drawn(TransformersCorpus(scale=0.1, families=[family]), 0, 2)
    assert samples
    for sample in samples:
        assert sample.family == f"transformers/{family}"
        run(sample)


def test_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CorpusError, match="pip install transformers"):
        next(TransformersCorpus().names(0))
    with pytest.raises(CorpusError, match="pip install transformers"):
        next(TransformersCorpus().build("bert/0-0"))
