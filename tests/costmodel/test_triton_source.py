"""What the source of a Triton kernel tells: kinds, sizes, and where its addresses lie."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.costmodel.triton_facts import Access, KernelFacts
from fusewise.costmodel.triton_index import UnreadableError
from fusewise.costmodel.triton_source import facts_of, read_facts

KernelText = Callable[[str], str]


def known(source: str) -> KernelFacts:
    facts = facts_of(source)
    assert facts is not None
    return facts


def address(access: Access, dim: str, position: int) -> int:
    """Where a position along a dimension lies, by the levels."""
    found = 0
    for extent, stride in access.levels[access.dims.index(dim)]:
        found += position % extent * stride
        position //= extent
    return found


def test_a_pointwise_kernel_with_a_row_for_all(kernel_text: KernelText) -> None:
    facts = known(kernel_text("broadcast"))
    assert (facts.kind, facts.hint, facts.passes) == ("pointwise", "", 0)
    assert dict(facts.numels) == {"x": 786432} and dict(facts.size_hints) == {"x": 1048576}
    assert (facts.loads, facts.stores, facts.reductions, facts.atomic) == (2, 1, 0, False)
    assert (facts.multiprocessors, facts.most_threads, facts.registers) == (132, 2048, 65536)
    whole, row, stored = facts.accesses
    assert [a.doing for a in facts.accesses] == ["load", "load", "store"]
    assert {a.width for a in facts.accesses} == {2}
    assert whole.levels == stored.levels == (((786432, 1),),)
    assert row.levels == (((768, 1), (1024, 0)),)
    assert (row.strides, row.runs, row.eviction) == ({"x": 1}, {"x": 768}, "evict_last")
    assert not any(a.indirect or a.masked or a.looped for a in facts.accesses)


def test_a_transposed_operand_has_its_neighbours_along_the_other_dimension(
    kernel_text: KernelText,
) -> None:
    facts = known(kernel_text("transposed"))
    assert list(facts.numels) == ["y", "x"]
    straight, across, _ = facts.accesses
    assert straight.strides == {"y": 2048, "x": 1}
    assert across.strides == {"y": 1, "x": 1024}
    assert straight.masked == {"x"}


def test_a_reduction_in_a_loop_is_read_twice(kernel_text: KernelText) -> None:
    facts = known(kernel_text("softmax_looped"))
    assert (facts.kind, facts.hint, facts.passes) == ("reduction", "inner", 2)
    assert dict(facts.numels) == {"x": 512, "r0_": 50257}
    assert [a.looped for a in facts.accesses] == [{"r0_"}] * 3
    assert facts.accesses[2].strides == {"x": 50272, "r0_": 1}
    assert facts.special == 2 and facts.together == 1


def test_whole_rows_have_a_block_of_their_own(kernel_text: KernelText) -> None:
    facts = known(kernel_text("layer_norm"))
    assert facts.kind == "persistent_reduction" and dict(facts.blocks) == {"R0_BLOCK": 1024}
    assert dict(facts.numels) == {"x": 1576, "r0_": 768}
    assert facts.accesses[1].dims == ("r0_",)


def test_columns_lie_side_by_side(kernel_text: KernelText) -> None:
    facts = known(kernel_text("column_sum"))
    assert facts.hint == "outer"
    loaded, stored = facts.accesses
    assert loaded.levels == (((768, 1), (32, 98304)), ((128, 768),))
    assert stored.dims == ("x",) and not stored.looped


def test_what_is_looked_up_lies_anywhere(kernel_text: KernelText) -> None:
    index, rows, _ = known(kernel_text("embedding")).accesses
    assert (index.width, index.indirect) == (8, False)
    assert rows.indirect and rows.runs == {"x": 768}
    assert rows.levels[0][1].stride > 1000
    *_, added = known(kernel_text("scatter_add")).accesses
    assert (added.doing, added.indirect, added.width) == ("atomic", True, 4)
    assert known(kernel_text("scatter_add")).atomic


def test_parts_that_a_mask_leaves_out_are_not_loaded(kernel_text: KernelText) -> None:
    first, second, stored = known(kernel_text("concatenated")).accesses
    assert first.share == pytest.approx(100 / 130, abs=0.05)
    assert second.share == pytest.approx(30 / 130, abs=0.05)
    assert stored.share == 1.0


def test_two_dimensions_can_be_reduced(kernel_text: KernelText) -> None:
    facts = known(kernel_text("two_reduced"))
    assert list(facts.numels) == ["y", "x", "r0_", "r1_"]
    assert facts.accesses[0].strides == {"y": 399360, "x": 130, "r0_": 12480, "r1_": 1}
    assert facts.accesses[0].looped == {"r0_", "r1_"} and facts.passes == 1


def test_blocks_can_go_through_several_rows(kernel_text: KernelText) -> None:
    facts = known(kernel_text("mixed_order"))
    assert facts.each_block == 16
    assert [a.looped for a in facts.accesses] == [{"x"}] * 4 + [frozenset()]


def test_scans_and_single_results_are_read(kernel_text: KernelText) -> None:
    assert known(kernel_text("scan")).together == 1
    facts = known(kernel_text("to_one_value"))
    assert facts.numels["x"] == 1 and facts.accesses[1].dims == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: "", "0 kernels"),
        (lambda text: text[: len(text) // 2], "no Python"),
        (lambda text: text.replace(".pointwise(", ".template("), "heuristic 'template'"),
        (lambda text: text.replace("'Grid1D'", "'SplitScanGrid'"), "grid 'SplitScanGrid'"),
        (lambda text: text.replace("% 768", "% ks0"), "'ks0' is used"),
        (lambda text: text.replace("in_ptr1 +", "in_ptr0 + in_ptr1 +"), "an access to"),
        (lambda text: text.replace("'*bf16'", "'*new8'"), "points to"),
        (lambda text: text.replace("size_hints={'x': 1048576}", "size_hints=None"), "size_hints"),
        (lambda text: text.replace("    xmask =", "    while xindex:\n        pass\n    xmask ="),
         "plain statement"),
    ],
)  # fmt: skip
def test_other_kernels_are_unknown(
    kernel_text: KernelText, change: Callable[[str], str], why: str
) -> None:
    source = change(kernel_text("broadcast"))
    assert facts_of(source) is None
    with pytest.raises(UnreadableError, match=re.escape(why)):
        read_facts(source)


def test_several_kernels_in_a_launch_are_unknown(kernel_text: KernelText) -> None:
    assert facts_of(kernel_text("combo")) is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_sources_raise_nothing(data: st.DataObject, every_kernel: tuple[str, ...]) -> None:
    source = data.draw(st.sampled_from(every_kernel))
    tokens = re.split(r"(\W)", source)
    at = data.draw(st.integers(0, len(tokens) - 1))
    with_ = data.draw(
        st.sampled_from(["", "0", "xindex", "tmp0", "(", "tl.load", "None", "-1", "*"])
    )
    tokens[at] = with_
    facts_of("".join(tokens))


KERNEL = """\
@triton_heuristics.pointwise(
    size_hints={{'x': {hint}}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32'}},
        'device': DeviceProperties(multi_processor_count=132), 'constants': {{}}}},
    inductor_meta={{'grid_type': 'Grid1D', 'num_load': 1, 'num_store': 1}},
)
@triton.jit
def triton_poi(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xnumel = {numel}
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
{digits}
    tmp0 = tl.load(in_ptr0 + ({index}), xmask)
    tl.store(out_ptr0 + (xindex), tmp0, xmask)
"""


@settings(max_examples=120, deadline=None)
@given(
    extents=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    data=st.data(),
)
def test_levels_give_the_addresses_that_python_works_out(
    extents: list[int], padding: int, data: st.DataObject
) -> None:
    """A tensor whose dimensions lie in another order in memory, some of them repeated."""
    numel = math.prod(extents)
    order = data.draw(st.permutations(range(len(extents))))
    repeated = data.draw(st.sets(st.sampled_from(range(len(extents)))))
    strides, next_stride = [0] * len(extents), 1
    for at in order:
        if at not in repeated:
            strides[at] = next_stride
            next_stride = next_stride * extents[at] + padding
    below = list(itertools.accumulate(extents, lambda a, b: a * b, initial=1))
    lines = {f"x{at}": f"(xindex // {below[at]}) % {n}" for at, n in enumerate(extents)}
    index = " + ".join(f"{stride}*x{at}" for at, stride in enumerate(strides))
    source = KERNEL.format(
        hint=1 << numel.bit_length(),
        numel=numel,
        digits="\n".join(f"    {name} = {value}" for name, value in lines.items()),
        index=index,
    )
    access = known(source).accesses[0]
    for xindex in range(numel):
        digits = {name: eval(value, {"xindex": xindex}) for name, value in lines.items()}
        assert address(access, "x", xindex) == eval(index, {}, digits)


@pytest.mark.parametrize(
    ("run", "numel"), [(5000, 1_000_000), (1 << 20, 1 << 24), (70_001, 999_999)]
)
def test_long_stretches_end_where_they_do(run: int, numel: int) -> None:
    source = KERNEL.format(hint=1 << 24, numel=numel, digits="", index=f"xindex // {run} * 7 + 3")
    ((level, further),) = known(source).accesses[0].levels
    assert level == (run, 0) and further.stride == 7
