"""What matrix products are told from, and how long a GPU is said to take for them."""

from __future__ import annotations

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fusewise.datasets
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.products import (
    Product,
    library_us,
    product_of,
    template_rows,
    template_us,
)
from fusewise.schedule.problem import Access, Buffer, Node, Problem

DATA = fusewise.datasets.load("h200")
(DEVICE,) = (each for each in DATA.devices() if each.key == "cuda-NVIDIA_H200")
H200 = msgspec.convert(DEVICE.profile, DeviceProfile)
SIDES = st.integers(2, 5000)


def multiplied(
    rows: int,
    columns: int,
    inner: int,
    *,
    batch: int = 1,
    dtype: str = "torch.float32",
    operator: str = "aten.mm.default",
    bias: bool = False,
) -> tuple[Problem, Node]:
    """A problem of one product, with what it reads and writes."""
    size = 4 if dtype == "torch.float32" else 2
    read = [columns] if bias else []
    read += [batch * rows * inner, batch * inner * columns]
    numel = batch * rows * columns

    def access(buffer: str, n: int) -> Access:
        return Access(buffer, "opaque", n, size * n, 1, 0, "*")

    node = Node(
        name="op0",
        kind="extern",
        device="cuda:0",
        numel=numel,
        rnumel=1,
        ranges=((numel,), ()),
        reduction_type="",
        reads=tuple(access(f"in{i}", n) for i, n in enumerate(read)),
        writes=(access("out", numel),),
        ops=(),
        origins=("aten.permute.default", operator),
        source="",
        order=0,
        compiler_us=0.0,
        flops=2 * numel * inner,
        signature="",
    )
    out = Buffer("out", size * numel, dtype, False, True, ())
    return Problem("key", "inference", (node,), (out,), (), ()), node


@given(SIDES, SIDES, SIDES, st.integers(1, 64), st.booleans())
def test_sizes_follow_from_what_is_read_and_computed(
    rows: int, columns: int, inner: int, batch: int, bias: bool
) -> None:
    problem, node = multiplied(rows, columns, inner, batch=batch, bias=bias)
    found = product_of(problem, node)
    assert found is not None and found.numel == batch * rows * columns and found.inner == inner
    if not bias:
        assert {found.rows, found.columns} == {rows, columns} and found.batch == batch


@pytest.mark.parametrize(
    "told",
    [
        {"operator": "aten.convolution.default"},
        {"dtype": "torch.float64"},
        {"rows": 1},
        {"columns": 1},
    ],
    ids=lambda told: next(iter(told)),
)
def test_what_is_no_product_of_matrices_is_none(told: dict[str, object]) -> None:
    sizes: dict[str, object] = {"rows": 64, "columns": 48, "inner": 40}
    assert product_of(*multiplied(**{**sizes, **told})) is None  # type: ignore[arg-type]


def test_sizes_that_do_not_fit_are_none() -> None:
    problem, node = multiplied(64, 48, 40)
    for changes in ({"reads": node.reads[:1]}, {"flops": 0}, {"flops": 7}, {"origins": ()}):
        assert product_of(problem, msgspec.structs.replace(node, **changes)) is None


@given(SIDES, SIDES, SIDES, st.integers(1, 64), st.booleans())
def test_nothing_is_faster_than_the_device_moves_and_computes(
    rows: int, columns: int, inner: int, batch: int, half: bool
) -> None:
    product = Product(batch, rows, columns, inner, half)
    rate = H200.half if half else H200.flops_gfs
    bound = max(product.bytes / (H200.copy_gbs * 1e3), 2 * product.numel * inner / (rate * 1e3))
    assert library_us(product, H200) > bound and template_us(product, H200) > bound
    longer = Product(batch, rows, columns, 2 * inner, half)
    assert library_us(product, H200) <= library_us(longer, H200)


def test_a_wave_that_is_not_full_takes_as_long() -> None:
    def us(blocks: int) -> float:
        return library_us(Product(1, 128 * blocks, 4096, 1024, half=False), H200)

    # 32 blocks for each 128 rows: eight waves end at 33 of these.
    assert us(33) == us(32) < us(34)


def test_tall_blocks_are_for_long_sums_of_halves_with_work_for_all() -> None:
    assert template_rows(Product(1, 16_384, 768, 768, half=True), H200) == 128
    assert template_rows(Product(1, 16_384, 768, 768, half=False), H200) == 64
    assert template_rows(Product(1, 16_384, 768, 64, half=True), H200) == 64
    assert template_rows(Product(1, 512, 512, 768, half=True), H200) == 64


@pytest.mark.parametrize(
    ("sizes", "half", "library", "template"),
    [
        ((4096, 768, 768), False, 116, 110),
        ((4096, 3072, 768), False, 407, 450),
        ((4096, 2304, 768), False, 349, 338),
        ((20_000, 256, 256), False, 78, 69),
        ((100_000, 64, 64), False, 33, 28),
        ((16_384, 768, 768), True, 36, 36),
    ],
)
def test_times_are_near_to_what_was_measured_on_an_h200(
    sizes: tuple[int, int, int], half: bool, library: float, template: float
) -> None:
    product = Product(1, *sizes, half)
    assert library_us(product, H200) == pytest.approx(library, rel=0.15)
    assert template_us(product, H200) == pytest.approx(template, rel=0.15)


@pytest.mark.slow
def test_products_of_the_dataset_take_what_is_said() -> None:
    measured = DATA.extern_times(DEVICE.key)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for problem in map(DATA.problem, DATA.problems):
        for node in problem.nodes:
            product = product_of(problem, node)
            if product is not None and product.batch == 1 and node.signature in measured:
                error = math.log(measured.pop(node.signature) / library_us(product, H200))
                errors[product.half].append(error)
    for found in errors.values():
        assert len(found) > 400
        assert abs(statistics.median(found)) < 0.05
        assert statistics.mean(map(abs, found)) < 0.2
