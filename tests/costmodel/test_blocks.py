"""Blocks of Triton kernels against those that Inductor tries for the same loops."""

from __future__ import annotations

import pytest

from fusewise.costmodel.blocks import (
    Block,
    Hint,
    held_blocks,
    looped_blocks,
    pointwise_blocks,
    power,
)

pytest.importorskip("triton", reason="Inductor keeps its block sizes in Triton's terms")
heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
hints = pytest.importorskip("torch._inductor.runtime.hints")
H200 = hints.DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=132,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)
HINTS: tuple[Hint, ...] = ("inner", "outer", "outer_tiny", "default")


def meta(hint: str) -> dict[str, object]:
    return {"reduction_hint": hints.ReductionHint[hint.upper()], "num_load": 2, "num_reduction": 1}


def block(config: object, length: int = 1) -> Block:
    kwargs = config.kwargs  # type: ignore[attr-defined]
    across = tuple(kwargs[f"{d}BLOCK"] for d in "XYZ" if f"{d}BLOCK" in kwargs)
    return Block(across, kwargs.get("R0_BLOCK", length), config.num_warps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [24, 200, 768, 4096, 40000, 1 << 20])
@pytest.mark.parametrize("length", [100, 3000, 12672, 100352])
@pytest.mark.parametrize("hint", HINTS)
def test_loops_over_rows(rows: int, length: int, hint: Hint) -> None:
    sizes = {"x": power(rows), "r0_": power(length)}
    expected = heuristics._reduction_configs(
        size_hints=sizes, inductor_meta=meta(hint), triton_meta={"device": H200}
    )
    assert set(looped_blocks((rows,), length, hint, 3)) == {block(c) for c in expected}


@pytest.mark.parametrize("rows", [24, 200, 1024, 4096, 40000])
@pytest.mark.parametrize("length", [17, 64, 200, 257, 768, 1024])
@pytest.mark.parametrize("hint", HINTS)
def test_rows_that_are_held(rows: int, length: int, hint: Hint, monkeypatch: object) -> None:
    # What Inductor asks of the machine that compiles.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # type: ignore[attr-defined]
    sizes = {"x": power(rows), "r0_": power(length)}
    reduction = hints.ReductionHint[hint.upper()]
    expected = heuristics._persistent_reduction_configs(
        sizes, reduction, meta(hint), {"device": H200}
    )
    found = held_blocks((rows,), length, hint)
    assert set(found) == {block(c, power(length)) for c in expected}


@pytest.mark.parametrize("rows", [200, 4096, 40000])
@pytest.mark.parametrize("length", [3000, 12672, 32768])
@pytest.mark.parametrize("hint", ["inner", "default"])
def test_rows_that_are_read_again_may_be_taken_whole(rows: int, length: int, hint: Hint) -> None:
    sizes = {"x": power(rows), "r0_": power(length)}
    expected = heuristics._reduction_configs(
        size_hints=sizes,
        inductor_meta=meta(hint) | {"add_persistent_rblock": True},
        triton_meta={"device": H200},
    )
    found = looped_blocks((rows,), length, hint, 3, whole=True)
    assert set(found) == {block(c) for c in expected}


@pytest.mark.parametrize("extents", [(784, 128), (16, 40000), (3, 5), (4096, 2048)])
@pytest.mark.parametrize("length", [48, 100, 3000])
@pytest.mark.parametrize("shares", [(9e6, 4e6, 0.0), (8.0, 4e5, 1e4), (9.0, 0, 7)])
def test_two_dimensions_share_a_block(
    extents: tuple[int, int], length: int, shares: tuple[float, float, float]
) -> None:
    across, outer = extents
    sizes = {"y": power(outer), "x": power(across), "r0_": power(length)}
    scores = {"y": shares[1], "x": shares[0], "r0_": shares[2]}
    told = meta("default") | {"tiling_scores": scores}
    expected = heuristics._reduction_configs(
        size_hints=sizes, inductor_meta=told, triton_meta={"device": H200}
    )
    found = looped_blocks(extents, length, "default", 3, shares)
    assert set(found) == {block(c) for c in expected}
    if length <= 64:
        expected = heuristics._persistent_reduction_configs(
            sizes, hints.ReductionHint.DEFAULT, told, {"device": H200}
        )
        held = held_blocks(extents, length, "default", shares)
        assert set(held) == {block(c, power(length)) for c in expected}


@pytest.mark.parametrize(
    "extents", [(37,), (5000,), (1 << 24,), (64, 4096), (7, 90000), (64, 9, 99)]
)
@pytest.mark.parametrize("square", [True, False])
def test_kernels_without_a_reduction(extents: tuple[int, ...], square: bool) -> None:
    sizes = {d: power(n) for d, n in zip("xyz", extents, strict=False)}
    expected = heuristics.pointwise(
        # Inductor names the outer dimension first.
        dict(reversed(sizes.items())) if len(extents) == 1 else sizes,
        triton_meta={"device": H200},
        tile_hint=hints.TileHint.SQUARE if square else hints.TileHint.DEFAULT,
        inductor_meta={"autotune_pointwise": True},
        return_configs=True,
    )
    assert set(pointwise_blocks(extents, square=square)) == {block(c) for c in expected}
