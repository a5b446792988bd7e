"""Whether a kernel computes the same with other block sizes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusewise.compiler.inductor.launchers import agree


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches ask for a stream, where there may be no device."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


def kernel(*names: str, mutated: tuple[str, ...] = ()) -> Any:
    def clone_args(*args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        named = zip(names, args, strict=True)
        return [v.clone() if name in mutated else v for name, v in named], kwargs

    return SimpleNamespace(
        fn=SimpleNamespace(arg_names=list(names)), mutated_arg_names=mutated, clone_args=clone_args
    )


def launcher(compute: Callable[..., Any]) -> Any:
    def launch(*args: Any, stream: int) -> None:
        del stream
        compute(*args)

    return launch


def doubles(factor: float = 2.0) -> Any:
    return launcher(lambda x, out, _: torch.mul(x, factor, out=out))


@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [(torch.float32, 1e-5), (torch.bfloat16, 5e-3), (torch.float16, 5e-3), (torch.float64, 1e-9)],
)
def test_rounding_is_no_difference_but_another_value_is(dtype: torch.dtype, rounded: float) -> None:
    x = torch.randn(1000, 7, dtype=dtype)
    out = torch.full_like(x, torch.nan)
    one = kernel("in_ptr0", "out_ptr0", "xnumel")
    assert agree(one, doubles(), doubles(2 + rounded), (x, out, 7000), {})
    assert not agree(one, doubles(), doubles(2.2), (x, out, 7000), {})

    def some(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
        torch.mul(x, 2, out=out)
        out[3:300] = torch.nan

    assert not agree(one, doubles(), launcher(some), (x, out, 7000), {})
    # As long as both write it, what is no number is none.
    assert agree(one, launcher(some), launcher(some), (x, out, 7000), {})


def test_what_is_overwritten_starts_from_the_same() -> None:
    x = torch.randn(512)
    before = x.clone()
    adds = launcher(lambda x, _: x.add_(1))
    one = kernel("in_out_ptr0", "xnumel", mutated=("in_out_ptr0",))
    assert agree(one, adds, adds, (x, 512), {})
    assert torch.equal(x, before)
    assert not agree(one, adds, launcher(lambda x, _: x.add_(1.5)), (x, 512), {})


def test_integers_differ_where_one_was_rounded_and_nowhere_else() -> None:
    x, out = torch.randn(20_000) * 50, torch.empty(20_000, dtype=torch.int8)
    one = kernel("in_ptr0", "out_ptr0")

    def rounds(by: float, many: int) -> Any:
        def compute(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(x.round())
            out[:many] += by

        return launcher(compute)

    assert agree(one, rounds(0, 0), rounds(1, 10), (x, out), {})
    assert not agree(one, rounds(0, 0), rounds(1, 200), (x, out), {})


def test_views_into_larger_memory_are_compared_as_far_as_they_are_written() -> None:
    memory = torch.zeros(4096)
    x, out = torch.randn(30, 50), memory.as_strided((30, 50), (64, 1), 128)
    one = kernel("in_ptr0", "out_ptr0", "xnumel")
    assert agree(one, doubles(), doubles(), (x, out, 1500), {})
    assert not agree(one, doubles(), doubles(-2.0), (x, out, 1500), {})


def test_a_kernel_that_writes_nothing_is_not_launched() -> None:
    def fails(*args: Any) -> None:
        raise AssertionError

    assert agree(kernel("in_ptr0"), launcher(fails), launcher(fails), (torch.ones(3),), {})
