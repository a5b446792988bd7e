"""Inputs to measure on: what is kept of the caller's, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.compiler.measuring.inputs import TensorInput, build, observe, specify
from fusewise.schedule.errors import MeasureError


def remade(*values: Any, seed: int = 0) -> list[Any]:
    """What the measuring process would get in the place of ``values``."""
    names = [f"arg{i}" for i in range(len(values))]
    return build(specify(values, names, observe(values)), {}, seed)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[5, -3, 900], [7, 7, 0]]),
        torch.tensor([True, False, True, True]),
        torch.tensor([3, 250], dtype=torch.uint8),
        torch.arange(12, dtype=torch.int32).view(3, 4).t(),
        torch.tensor(41),
        torch.arange(4).expand(3, 4),
    ],
    ids=["int64", "bool", "uint8", "turned", "scalar", "expanded"],
)
def test_integers_keep_their_values(tensor: torch.Tensor) -> None:
    (made,) = remade(tensor)
    assert torch.equal(made, tensor)
    assert (made.dtype, made.stride()) == (tensor.dtype, tensor.stride())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_floating_point_keeps_range_and_spread(dtype: torch.dtype) -> None:
    tensor = (torch.rand(200, 30, generator=torch.Generator().manual_seed(1)) * 4 + 10).to(dtype)
    (made,) = remade(tensor)
    assert not torch.equal(made, tensor)
    low, high = tensor.double().min(), tensor.double().max()
    assert low <= made.double().min() and made.double().max() <= high
    assert made.double().mean() == pytest.approx(float(tensor.double().mean()), abs=0.2)
    assert made.double().std() == pytest.approx(float(tensor.double().std()), rel=0.2)


def test_probabilities_stay_probabilities() -> None:
    (made,) = remade(torch.rand(64, 64))
    assert made.min() >= 0 and made.max() <= 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((4, 4), float("nan")),
        torch.tensor([float("inf"), -float("inf"), 2.0, 2.0]),
        torch.zeros(0, 3),
        torch.zeros(3, 0, dtype=torch.int64),
        torch.zeros(5),
        torch.randn(6, dtype=torch.complex64),
    ],
    ids=["nan", "infinite", "empty", "empty integers", "constant", "complex"],
)
def test_odd_tensors_are_made_finite(tensor: torch.Tensor) -> None:
    (made,) = remade(tensor)
    assert (made.shape, made.dtype, made.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
    assert torch.isfinite(made).all()


def test_a_constant_stays_one() -> None:
    assert torch.equal(remade(torch.full((7,), 3.0))[0], torch.full((7,), 3.0))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes with strides of all kinds: turned, with gaps, expanded, overlapping."""
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank)))
    stride = tuple(draw(st.lists(st.integers(0, 9), min_size=rank, max_size=rank)))
    return shape, stride


@settings(deadline=None)
@given(layouts(), st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]))
def test_every_layout_is_kept(
    layout: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype
) -> None:
    shape, stride = layout
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if tensor.untyped_storage().size():
        torch.as_strided(tensor, (tensor.untyped_storage().size() // tensor.itemsize,), (1,)).fill_(
            1
        )
    (made,) = remade(tensor)
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert torch.equal(made, tensor) or dtype.is_floating_point


def test_equal_seeds_give_equal_values() -> None:
    values = (torch.randn(9, 9), torch.randn(4), 3, torch.randn(2, 2).bfloat16())
    first, again, other = remade(*values), remade(*values), remade(*values, seed=1)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert not torch.equal(first[0], other[0])


def test_numbers_and_none_are_passed_as_they_are() -> None:
    assert remade(3, 2.5, True, None) == [3, 2.5, True, None]


def test_what_was_seen_is_matched_by_shape_where_places_differ() -> None:
    seen = observe([torch.full((3,), 50.0), torch.full((4,), -50.0), torch.tensor([1, 2])])
    wanted = [torch.empty(4), torch.empty(3), torch.empty(5), torch.tensor([0, 0])]
    made = build(specify(wanted, ["a", "b", "c", "d"], seen), {})
    assert (made[0] == -50).all() and (made[1] == 50).all()
    assert made[2].abs().max() < 10
    assert made[3].tolist() == [1, 2]


def test_integers_that_nobody_saw_index_what_is_small() -> None:
    (made,) = build(specify([torch.zeros(40, dtype=torch.int64)], ["ids"], ()), {})
    assert set(made.tolist()) == {0, 1}


def test_saved_values_come_before_made_ones() -> None:
    wanted = [torch.empty(3), torch.empty(2)]
    inputs = specify(wanted, ["relu", "mul"], (), saved=frozenset({"relu", "mul"}))
    kept = {"relu": torch.tensor([1.0, 2.0, 3.0]), "mul": torch.zeros(5)}
    made = build(inputs, kept)
    assert made[0].tolist() == [1.0, 2.0, 3.0]
    # What has another shape is of another graph.
    assert made[1].shape == (2,) and made[1].abs().sum() > 0


def test_symbolic_sizes_become_their_hints(live: Any) -> None:
    (graph,) = live.captured("dynamic")
    names = [node.name for node in graph.compile.gm.graph.nodes if node.op == "placeholder"]
    inputs = specify(graph.compile.example_inputs, names, ())
    assert [i for i in inputs if not isinstance(i, TensorInput)] == [22]
    assert {i.shape for i in inputs if isinstance(i, TensorInput)} == {(22, 36), (36,)}


def test_inputs_that_cannot_be_made_are_named() -> None:
    with pytest.raises(MeasureError) as refused:
        specify([torch.eye(3).to_sparse()], ["weights"], ())
    assert refused.value.subject == "input weights" and "sparse" in refused.value.cause
    with pytest.raises(MeasureError, match=r"input thing.*object"):
        specify([object()], ["thing"], ())


def test_looking_at_inputs_changes_nothing() -> None:
    tensor = torch.randn(5, requires_grad=True)
    version = tensor._version
    (seen,) = observe([tensor])
    assert seen is not None and seen.values is None
    assert tensor._version == version and tensor.grad_fn is None
    assert observe([3, "a", torch.empty(2, device="meta")]) == [None] * 3
