from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.generated import FAMILIES, GeneratedCorpus

SMALL = 0.01
#: Families that are never trained.
UNTRAINED = {"adam", "sgd", "quantise", "dequantise", "in_place"}

Run = Callable[[GraphSample], list[torch.Tensor]]
Drawn = Callable[[Corpus, int, int], list[GraphSample]]
Tensors = Callable[[object], list[torch.Tensor]]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_run_forward_and_backward(family: str, drawn: Drawn, run: Run) -> None:
    trained = set()
    for sample in drawn(GeneratedCorpus(scale=SMALL, families=[family]), 11, 8):
        assert sample.family == f"generated/{family}" and sample.licence
        run(sample)
        trained.add(sample.training)
    assert trained == ({False} if family in UNTRAINED else {False, True})


def test_equal_names_give_equal_programs_and_leave_the_global_state(
    run: Run, tensors: Tensors
) -> None:
    before = torch.random.get_rng_state()
    names = list(itertools.islice(GeneratedCorpus().names(3), len(FAMILIES)))
    for name in names:
        (first,), (second,) = (GeneratedCorpus(scale=SMALL).build(name) for _ in range(2))
        assert first.name == second.name == name and first.training == second.training
        given = tensors(first.args), tensors(second.args)
        assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))
        if "dropout" not in first.family:
            assert all(map(torch.equal, run(first), run(second)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert next(GeneratedCorpus().names(4)) != names[0]


def test_names_are_cheap_and_without_end() -> None:
    corpus: Corpus = GeneratedCorpus(scale=1e6)
    start = time.perf_counter()
    names = list(itertools.islice(corpus.names(0), 10_000))
    assert time.perf_counter() - start < 1.0
    assert len(set(names)) == len(names)
    assert [name.split("/")[0] for name in names[: len(FAMILIES)]] == list(FAMILIES)


def test_scale_scales(drawn: Drawn, tensors: Tensors) -> None:
    def elements(scale: float) -> int:
        samples = drawn(GeneratedCorpus(scale=scale), 0, 30)
        return sum(tensor.numel() for sample in samples for tensor in tensors(sample.args))

    assert elements(0.1) > 3 * elements(SMALL)


def test_all_dtypes_occur(drawn: Drawn, tensors: Tensors) -> None:
    samples = drawn(GeneratedCorpus(scale=SMALL), 0, 60)
    dtypes = {tensor.dtype for sample in samples for tensor in tensors(sample.args)}
    assert {torch.float32, torch.bfloat16} <= dtypes
