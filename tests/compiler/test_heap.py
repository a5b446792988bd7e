"""Memory that a program frees: it is timed both where that stays and where it goes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from fusewise.compiler.measuring import heap
from fusewise.compiler.measuring.heap import keep_freed, under_both
from fusewise.compiler.measuring.runs import CpuRun

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc's allocator alone is known"
)

ROUNDS = 12
#: Seconds of the default; page faults of some MiB matter beside it.
OWN = 1e-3


def program(tensors: int, elements: int = 100_000) -> CpuRun:
    """A program that makes so many tensors, all of them there at the end."""

    def call(inputs: list[Any]) -> Any:
        return [inputs[0].new_ones(elements) for _ in range(tensors)]

    return CpuRun(call, [torch.ones(8)], [])


def judged(
    runs: Sequence[CpuRun], first: float, second: float
) -> tuple[list[list[float]], list[Sequence[CpuRun]]]:
    """Times where the last run takes so much of the default's time, and again; what was asked."""
    asked: list[Sequence[CpuRun]] = []

    def again(some: Sequence[CpuRun]) -> list[list[float]]:
        assert all(run.before_each is not None for run in some)
        asked.append(some)
        return [[2 * OWN] * ROUNDS, *([2 * OWN * second] * ROUNDS for _ in some[1:])]

    keep_freed()
    times = [[OWN] * ROUNDS, *([OWN * first] * ROUNDS for _ in runs[1:])]
    found = under_both(runs, times, [True] * len(runs), again)
    assert all(run.before_each is None for run in runs)
    return found, asked


def test_what_stores_more_counts_as_where_memory_goes_back() -> None:
    found, asked = judged([program(0), program(20)], 0.7, 1.5)
    assert len(asked) == 1
    assert found[0] == [OWN] * ROUNDS
    assert found[1] == pytest.approx([1.5 * OWN] * ROUNDS)


def test_what_is_slower_in_neither_counts_by_both() -> None:
    found, asked = judged([program(20), program(1)], 0.7, 0.5)
    assert len(asked) == 1 and found[1] == pytest.approx([0.6 * OWN] * ROUNDS)
    found, _ = judged([program(20), program(1)], 1.0, 0.9)
    assert found[1] == pytest.approx([0.95 * OWN] * ROUNDS)


@pytest.mark.parametrize(
    ("make", "first"),
    [
        pytest.param(lambda: program(0), 0.7, id="no memory"),
        # The heap keeps twice its largest tensor.
        pytest.param(lambda: program(2), 0.7, id="what stays"),
        pytest.param(lambda: program(20), 1.2, id="slower already"),
    ],
)
def test_nothing_is_timed_again_in_vain(make: Callable[[], CpuRun], first: float) -> None:
    found, asked = judged([program(0), make()], first, 1.5)
    assert asked == [] and found[1] == [first * OWN] * ROUNDS


def test_what_the_compiling_process_keeps_is_timed_as_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [program(0), program(20)]
    monkeypatch.setattr(heap, "_noted", 1 << 20)
    assert len(judged(runs, 0.7, 1.5)[1]) == 1
    # Twenty tensors of 400 kB are less than twice as much.
    monkeypatch.setattr(heap, "_noted", 1 << 23)
    found, asked = judged(runs, 0.7, 1.5)
    assert asked == [] and found[1] == [0.7 * OWN] * ROUNDS


_NOTING = """
from fusewise.compiler.measuring import heap
library = heap._glibc()
for threshold in (1 << 22, 1 << 25):
    library.mallopt(heap._M_MMAP_THRESHOLD, threshold)
    heap.note_threshold()
    print(heap._noted / threshold)
"""


def test_what_a_process_keeps_is_noted() -> None:
    library = heap._glibc()
    if library is None or not hasattr(library, "mallinfo2"):
        pytest.skip("not known of this C library")
    # A process of its own has not freed so much yet that larger blocks are there.
    told = subprocess.run([sys.executable, "-c", _NOTING], capture_output=True, check=True)
    parts = [float(line) for line in told.stdout.split()]
    # A block is a little larger than what is asked for.
    assert len(parts) == 2 and all(0.5 <= part <= 1.0 for part in parts)


_PLACING = """
import torch
from fusewise.compiler.measuring.heap import lying_elsewhere
for _ in range(8):
    with lying_elsewhere():
        tensors = [torch.empty(size) for size in (2_000, 20_000, 60_000)]
        print(*(tensor.data_ptr() for tensor in tensors))
        del tensors
"""


def test_tensors_lie_elsewhere_each_time() -> None:
    # What this process has freed leaves room in which tensors may stay where they were.
    told = subprocess.run([sys.executable, "-c", _PLACING], capture_output=True, check=True)
    places = told.stdout.splitlines()
    assert len(places) == 8 and len(set(places)) > 4
