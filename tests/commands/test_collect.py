from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result

from fusewise.commands.collect import gather
from fusewise.commands.corpora import in_turn, named_corpus, on_device
from fusewise.compiler.collecting import Collected
from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.generated.corpus import GeneratedCorpus
from fusewise.datasets.store import Store

Invoke = Callable[..., Result]
Refused = Callable[..., None]

CPU = torch.device("cpu")


def test_collect(invoke: Invoke, targets: Path, home: Path) -> None:
    store = home / "collected.duckdb"
    arguments = ("--corpus", f"{targets}:inference", "--plans", 0, "--store", store, "--json")
    result = invoke("collect", *arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["samples"] == 1
    assert told["graphs"] == 1
    assert told["kernels"] == told["kernels_in_store"] > 0
    assert told["failures"] == []
    assert told["ended"] == "samples"
    with Store.open(store) as opened:
        sources = {row.source for row in opened.rows("graphs")}  # type: ignore[union-attr]
    assert sources == {f"target:{targets}:inference"}


def test_a_failing_sample_is_told(invoke: Invoke, targets: Path, home: Path) -> None:
    result = invoke("collect", "--corpus", f"{targets}:failing", "--store", home / "none.duckdb")
    assert result.exit_code == 0, result.output
    assert "1 failures" in result.stdout
    assert "not today" in result.stdout


def test_unknown_corpus(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    result = invoke("collect", "--corpus", "generate", "--store", tmp_path / "store.duckdb")
    refused(result, "generate", "transformers")


@pytest.mark.parametrize(
    ("target", "word"),
    [("missing.py:make", "missing.py"), ("{file}:other", "other"), ("{file}:nothing", "NoneType")],
)
def test_bad_target(
    invoke: Invoke, refused: Refused, targets: Path, tmp_path: Path, target: str, word: str
) -> None:
    corpus = target.format(file=targets)
    result = invoke("collect", "--corpus", corpus, "--store", tmp_path / "store.duckdb")
    refused(result, word)


def test_without_transformers(
    invoke: Invoke, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    store = tmp_path / "store.duckdb"
    refused(
        invoke("collect", "--corpus", "transformers", "--store", store), "pip install transformers"
    )


def test_bad_store(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    path.write_bytes(b"something else" * 1000)
    refused(invoke("collect", "--store", path), str(path))


@pytest.mark.parametrize(
    "arguments", [("--seconds", "soon"), ("--seconds", "0"), ("--limit", "0"), ("--plans", "-1")]
)
def test_bad_limits(invoke: Invoke, arguments: tuple[str, str]) -> None:
    result = invoke("collect", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert arguments[0] in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(invoke: Invoke, refused: Refused) -> None:
    refused(invoke("collect", "--device", "cuda"), "GPU", "--device cpu")


class _Counting:
    """Stands for a collector; the sample of ``interrupt_at`` is interrupted."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.names: list[str] = []
        self._interrupt_at = interrupt_at

    def collect(self, sample: GraphSample, corpus: str) -> Collected:
        if len(self.names) == self._interrupt_at:
            raise KeyboardInterrupt
        self.names.append(sample.name)
        return Collected(graphs=1, kernels=2, failures=[f"{corpus} failed"])


def _samples() -> Iterator[tuple[Corpus, GraphSample]]:
    return in_turn([GeneratedCorpus(families=["softmax"])], seed=0, limit=None)


def test_gathering_ends_with_the_time() -> None:
    collector = _Counting()
    tally = gather(collector, _samples(), CPU, seconds=0.05)  # type: ignore[arg-type]
    assert tally.ended == "seconds"
    assert tally.samples == len(collector.names) > 0
    assert tally.kernels == 2 * tally.samples
    assert tally.failures == ["generated failed"] * tally.samples


def test_an_interrupt_keeps_the_tally() -> None:
    collector = _Counting(interrupt_at=2)
    tally = gather(collector, _samples(), CPU)  # type: ignore[arg-type]
    assert tally.ended == "interrupt"
    assert tally.samples == 2


def test_corpora_take_turns(targets: Path) -> None:
    corpora = [named_corpus("generated", CPU), named_corpus(f"{targets}:inference", CPU)]
    names = [corpus.name for corpus, _ in in_turn(corpora, seed=0, limit=4)]
    assert names == ["generated", "target", "generated", "generated"]


def test_equal_seeds_give_equal_samples() -> None:
    drawn = [
        [sample.name for _, sample in itertools.islice(in_turn(corpora, seed=3, limit=None), 5)]
        for corpora in ([named_corpus("generated", CPU)], [named_corpus("generated", CPU)])
    ]
    assert drawn[0] == drawn[1]


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
