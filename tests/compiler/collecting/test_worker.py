"""Which pieces of a program a compile worker takes, and which kernels of them it wants timed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusewise.compiler.collecting.work import Finished, Item, PreparedGraph, Settings
from fusewise.compiler.collecting.worker import Worker
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets import corpora
from fusewise.datasets.corpus import CorpusSpec, GraphSample

PIECES = 6
ALL = {f"piece {number}" for number in range(PIECES)}


class _Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1)


class _Cut:
    """Programs of six pieces, alike in all; of views, so that nothing is to be compiled."""

    name = "cut"
    licence = ""

    def names(self, seed: int) -> Iterator[str]:
        yield f"program/{seed}"

    def build(self, name: str) -> Iterator[GraphSample]:
        for number in range(PIECES):
            yield GraphSample(
                name=f"{name}#{number}",
                family="cut/program",
                module=_Flat(),
                args=(torch.ones(2, number + 2),),
                fingerprint=f"piece {number}",
            )


@pytest.fixture
def worker(
    request: pytest.FixtureRequest, profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Worker:
    """One in this process; the parameter is how many pieces it takes."""
    monkeypatch.setitem(corpora.CORPORA, "cut", lambda _: _Cut())
    (tmp_path / "devices").symlink_to(profiled)
    return Worker(Settings(threads=1, home=str(tmp_path), pieces=request.param), {})


def taken(worker: Worker, name: str, number: int = 0) -> set[str]:
    """Fingerprints of the pieces of a program that the worker takes."""
    (end,) = worker.work(Item(CorpusSpec(name="cut"), name, number))
    assert isinstance(end, Finished) and not end.failures
    assert len(set(end.fingerprints)) == len(end.fingerprints)
    return set(end.fingerprints)


@pytest.mark.parametrize("worker", [0], indirect=True)
def test_all_pieces_are_taken_that_are_new(worker: Worker) -> None:
    assert taken(worker, "a/0") == ALL
    assert taken(worker, "b/0") == set()
    assert taken(worker, "a/0", number=1) == ALL


@pytest.mark.parametrize("worker", [2], indirect=True)
def test_so_many_pieces_are_taken_and_others_of_the_next_program(worker: Worker) -> None:
    met = [taken(worker, name) for name in ("a/0", "b/0", "c/0", "d/0")]
    assert [len(each) for each in met] == [2, 2, 2, 0]
    assert set().union(*met) == ALL


@pytest.mark.parametrize("worker", [2], indirect=True)
def test_which_pieces_are_taken_is_by_chance_and_the_same_for_the_same_name(
    worker: Worker,
) -> None:
    drawn = [frozenset(taken(worker, f"program/{seed}", number=1)) for seed in range(12)]
    assert len(set(drawn)) > 4
    assert drawn == [taken(worker, f"program/{seed}", number=1) for seed in range(12)]


class _Uneven(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), y.sin()


class _OfTwoSizes:
    """A program of a large kernel and a small one."""

    name = "uneven"
    licence = ""

    def names(self, seed: int) -> Iterator[str]:
        yield f"uneven/{seed}"

    def build(self, name: str) -> Iterator[GraphSample]:
        yield GraphSample(
            name=name,
            family="uneven/program",
            module=_Uneven(),
            args=(torch.ones(1 << 20), torch.ones(48)),
        )


def wanted(profiled: Path, home: Path, least_us: float) -> list[float]:
    """Times by the roofline of the kernels that are to be timed, in microseconds."""
    home.mkdir()
    (home / "devices").symlink_to(profiled)
    settings = Settings(threads=1, home=str(home), plans=0, lowerings=0, least_us=least_us)
    *graphs, end = Worker(settings, {}).work(Item(CorpusSpec(name="uneven"), "uneven/0"))
    assert isinstance(end, Finished) and not end.failures
    calls = [
        call
        for graph in graphs
        if isinstance(graph, PreparedGraph)
        for run in graph.runs
        for call in run.calls
        if call.wanted
    ]
    return [float(us) for us in roofline_us(np.array([call.features for call in calls]))]


def test_kernels_that_take_too_little_are_left_out(
    profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(corpora.CORPORA, "uneven", lambda _: _OfTwoSizes())
    small, large = sorted(wanted(profiled, tmp_path / "all", 0.0))
    assert wanted(profiled, tmp_path / "some", (small + large) / 2) == [large]
