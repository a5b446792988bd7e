"""Programs of random structure."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import pytest
import torch

from fusewise.datasets.corpus import GraphSample, scalar_loss
from fusewise.datasets.generated import GeneratedCorpus
from fusewise.datasets.generated.composed import COMPOSED, COUNT, sketched
from fusewise.datasets.generated.draw import Draw
from fusewise.datasets.splits import split_of

SMALL = 0.001

Run = Callable[[GraphSample], list[torch.Tensor]]


@pytest.fixture(scope="module")
def outlines() -> list[str]:
    """What every structure does."""
    return [sketched(number, Draw("0", SMALL)).outline() for number in range(COUNT)]


def test_every_structure_runs_and_about_half_are_trained(run: Run) -> None:
    corpus = GeneratedCorpus(scale=SMALL, families=["composed_*"])
    samples = [s for name in itertools.islice(corpus.names(2), COUNT) for s in corpus.build(name)]
    assert [sample.family for sample in samples] == [f"generated/{family}" for family in COMPOSED]
    for sample in samples:
        assert 1 <= len(sample.args) <= 5
        assert 1 <= len(run(sample)) <= 3
    assert 0.25 < sum(sample.training for sample in samples) / COUNT < 0.6


def test_structures_differ_and_hold_for_all_draws(outlines: list[str]) -> None:
    assert len(set(outlines)) == COUNT
    again = [sketched(number, Draw(str(number), 0.1)).outline() for number in range(0, COUNT, 7)]
    assert again == outlines[::7]


def test_operations_of_all_sorts_occur(outlines: list[str]) -> None:
    counts = {
        name: sum(f" {name} " in outline for outline in outlines)
        for name in (
            *("exp", "mul", "where", "int8", "as mask", "cube"),
            *("sum", "amax", "var", "softmax", "standard", "cumsum", "argmax"),
            *("permute", "reshape", "cat", "stack", "windows", "pad", "turn", "interleave"),
            *("select", "take", "embedding", "index_add", "scatter_add", "update"),
            *("linear", "nearest", "pool", "keep", "causal", "band", "slope", "steps", "stripes"),
        )
    }
    assert not [name for name, count in counts.items() if not count]


def test_structures_that_timings_are_kept_of_stay_what_they_are(outlines: list[str]) -> None:
    found = hashlib.sha256("\n".join(outlines).encode()).hexdigest()
    assert found.startswith("7aac492e31b044a7")


def test_sizes_vary_in_aspect() -> None:
    long = wide = 0
    for seed in range(100):
        sketch = sketched(0, Draw(str(seed), 1.0))
        sizes = [axis.size for axis in sketch.base]
        long += sizes[-1] > 4 * sizes[0]
        wide += sizes[0] > 4 * sizes[-1]
    assert long > 10 and wide > 10


def test_about_one_in_six_is_held_out() -> None:
    held = [family for family in COMPOSED if split_of(f"generated/{family}") == "test"]
    assert len(held) == COUNT // 6
    assert split_of("generated/composed") == "train"


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 34, 65, 97, 411, 412, 433, 448])
def test_compiled_by_inductor_they_give_the_same(number: int) -> None:
    # In fp32: Inductor rounds to fp16 and bf16 less often than eager code does.
    draw = next(
        draw
        for draw in (Draw(str(seed), 0.1) for seed in itertools.count())
        if draw.dtype == torch.float32 and draw.training
    )
    program = sketched(number, draw).program()
    found = []
    for run in (program.module, torch.compile(program.module)):
        args = [x.detach().clone().requires_grad_(x.requires_grad) for x in program.args]
        with torch.set_grad_enabled(program.training):
            outputs = run(*args)
        if program.training:
            scalar_loss(outputs).backward()
        found.append([*outputs, *(x.grad for x in args if x.grad is not None)])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4)
