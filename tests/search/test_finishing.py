"""What is offered beyond predictions: launches for small kernels, tuning for those that matter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.launches import MOST_IN_LAUNCH, launches_saved
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.kernel_choices import combos, tunings
from fusewise.schedule.problem import Access, Node, Problem
from fusewise.schedule.reductions import shapes, split_choice
from fusewise.schedule.schedule import Choice
from fusewise.search.finishing import Finishes
from fusewise.search.offers import on_top
from fusewise.search.reductions import uncut
from tests.search.planned import GPU, LARGE, SMALL, finishes, kernel


def test_small_kernels_of_one_depth_share_launches() -> None:
    first = [kernel(f"a{i}", SMALL) for i in range(5)]
    second = [kernel(f"b{i}", SMALL) for i in range(3)]
    found = finishes([*first, *second], ("a0", "b0"), ("a1", "b1"), ("a2", "b2"))
    offer = found.together()
    assert offer is not None
    assert combos(offer.choices) == (("a0", "a1", "a2", "a3", "a4"), ("b0", "b1", "b2"))
    assert offer.gain_us == pytest.approx(6 * GPU.launch_us)
    assert "8 small kernels in 2 launches" in offer.reason


def test_launches_hold_so_many_kernels_and_no_more() -> None:
    nodes = [kernel(f"op{i}", SMALL) for i in range(MOST_IN_LAUNCH + 3)]
    sizes = [len(combos(o.choices)[0]) for o in finishes(nodes).each_together()]
    assert sizes == [MOST_IN_LAUNCH, 3]
    (all_of_them,) = finishes(nodes).each_together(most=64)
    assert len(combos(all_of_them.choices)[0]) == len(nodes)


def test_large_kernels_extern_ones_and_other_kinds_stay_apart() -> None:
    nodes = [
        kernel("large0", LARGE),
        kernel("large1", LARGE),
        kernel("mm", SMALL, kind="extern"),
        kernel("mm2", SMALL, kind="extern"),
        kernel("alone", SMALL),
        kernel("row0", 64, 512, "reduction"),
        kernel("row1", 64, 256, "reduction"),
        kernel("long", 4, 8192, "reduction"),
    ]
    sets = [combos(offer.choices)[0] for offer in finishes(nodes).each_together()]
    assert sets == [("row0", "row1")]


def test_kernels_in_two_directions_stay_apart() -> None:
    def turned(name: str, where: str, stride: int, ranges: Sequence[int] = (64, 64)) -> Node:
        access = Access(f"buf_{name}", "strided", SMALL, 4 * SMALL, 4, stride, "d1")
        changed = {"ranges": (tuple(ranges), ()), where: (access,)}
        return msgspec.structs.replace(kernel(name, SMALL), **changed)

    nodes = [
        turned("written", "writes", 3),
        turned("read", "reads", 512),
        turned("halves", "reads", 2),
        # One direction is all there is.
        turned("column", "reads", 512, (SMALL, 1)),
        turned("scalar", "writes", 0),
        kernel("plain", SMALL),
    ]
    sets = [combos(offer.choices)[0] for offer in finishes(nodes).each_together()]
    assert sets == [("halves", "column", "scalar", "plain")]


def test_sums_of_columns_share_launches_with_their_like() -> None:
    def columns(name: str, hint: str) -> Node:
        read = Access(f"in_{name}", "strided", SMALL, 4 * SMALL, 4, 256, "d1")
        write = Access(f"buf_{name}", "contiguous", 256, 4 * 256, 4, 1, "d0")
        node = kernel(name, 256, 64, "reduction")
        return msgspec.structs.replace(
            node, hint=hint, ranges=((256,), (64,)), reads=(read,), writes=(write,)
        )

    nodes = [
        *(columns(f"sum{i}", "outer") for i in range(3)),
        *(columns(f"tiny{i}", "outer_tiny") for i in range(2)),
        # Read across, but not by what the compiler takes for columns.
        *(columns(f"rows{i}", "inner") for i in range(2)),
        *(kernel(f"op{i}", 256, 64, "reduction") for i in range(2)),
    ]
    found = finishes(nodes)
    sets = [combos(offer.choices)[0] for offer in found.each_together()]
    assert sorted(sets) == [("op0", "op1"), ("sum0", "sum1", "sum2"), ("tiny0", "tiny1")]
    alone = [combos(offer.choices)[0] for offer in found.each_together(sure=True)]
    assert alone == [("op0", "op1")]


def backward(layers: int, device: DeviceProfile = GPU) -> Finishes:
    """What backward graphs are: a chain of large kernels, a gradient computed beside each."""
    chain = [kernel(f"chain{i}", LARGE) for i in range(layers)]
    gradients = [kernel(f"gradient{i}", SMALL) for i in range(layers)]
    needs = [(f"chain{i}", f"chain{i + 1}") for i in range(layers - 1)]
    needs += [(f"chain{i}", f"gradient{i}") for i in range(layers)]
    return finishes([*chain, *gradients], *needs, device=device)


def test_what_nothing_waits_for_shares_a_launch_though_it_lies_at_all_depths() -> None:
    found = backward(4)
    (offer,) = found.each_together()
    assert combos(offer.choices) == (("gradient0", "gradient1", "gradient2", "gradient3"),)
    # That a gradient waits for others is not sure to be any better.
    assert found.each_together(sure=True) == []


def test_what_waits_for_others_stays_in_the_cache_till_then() -> None:
    three = msgspec.structs.replace(GPU, cache_bytes=3 * 4 * SMALL)
    sets = [combos(offer.choices)[0] for offer in backward(5, three).each_together()]
    assert sets == [("gradient0", "gradient1", "gradient2"), ("gradient3", "gradient4")]


def test_what_the_compiler_puts_together_tells_of_our_sets_where_it_is_like_them() -> None:
    def saved(*nodes: Node) -> int | None:
        found = finishes(nodes)
        us = [k.us for k in found.kernels]
        return launches_saved(found._problem, found._plan, us, GPU.launch_us)

    plain = [kernel(f"op{i}", SMALL) for i in range(3)]
    assert saved(*plain) == 2
    turned = msgspec.structs.replace(
        kernel("turned", SMALL),
        ranges=((64, 64), ()),
        reads=(Access("in_turned", "strided", SMALL, 4 * SMALL, 4, 512, "d1"),),
    )
    # It would put this one in, too; and a large one.
    assert saved(*plain, turned) is None
    assert saved(*plain, kernel("large", LARGE)) is None


def test_reductions_along_both_directions_and_their_readers_stay_apart() -> None:
    rows, columns = kernel("rows", 512, 64, "reduction"), kernel("columns", 64, 512, "reduction")
    nodes = [rows, columns, *(kernel(f"op{i}", 512, 64, "reduction") for i in range(2))]
    nodes += [kernel(f"after{i}", SMALL) for i in range(3)]
    needs = [("rows", "after0"), ("op0", "after1"), ("op1", "after2")]
    found = finishes(nodes, *needs, together=[("rows", "columns")])
    sets = [combos(offer.choices)[0] for offer in found.each_together()]
    assert sorted(sets) == [("after1", "after2"), ("op0", "op1")]


def test_what_cannot_count_is_not_offered() -> None:
    nodes = [kernel("mm", SMALL, kind="extern"), kernel("a", SMALL), kernel("b", SMALL)]
    found = finishes(nodes)
    assert found.total_us > 1000 and len(found.kernels) == 2
    assert found.few() == []
    assert found.each_together() != [] and found.each_tuned() != []


def test_kernels_that_take_the_time_are_tuned_each_code_once() -> None:
    nodes = [kernel("large0", LARGE), kernel("large1", LARGE), kernel("small", SMALL)]
    offer = finishes(nodes).tuned()
    assert offer is not None
    assert tunings(offer.choices) == {"large0": "descent", "large1": "descent"}
    assert "1 different kernels" in offer.reason
    quick = finishes(nodes).tuned(most_descended=0)
    assert quick is not None and set(tunings(quick.choices).values()) == {"autotune"}


def test_all_that_are_heavy_are_tuned_step_by_step_as_far_as_there_is_time() -> None:
    large = [kernel(f"large{i}", (LARGE >> 1) + (i << 20)) for i in range(5)]
    found = finishes([*large, kernel("small", SMALL)])
    first, *_ = found.few()
    assert tunings(first.choices) == {f"large{i}": "descent" for i in range(5)}
    some = found.tuned(most_descended=2)
    assert some is not None
    descended = [name for name, how in tunings(some.choices).items() if how == "descent"]
    assert descended == ["large3", "large4"] and len(tunings(some.choices)) == 5


def test_what_is_known_to_gain_nothing_is_not_tuned() -> None:
    nodes = [kernel("good", LARGE), kernel("bad", LARGE + 1), kernel("unknown", LARGE + 2)]
    found = finishes(nodes, savings={"good": 0.0, "bad": 0.4})
    offer = found.tuned()
    assert offer is not None
    # By what is expected of them, which is little where nothing is known.
    assert tunings(offer.choices) == {"bad": "descent", "unknown": "descent"}
    only = found.tuned(1)
    assert only is not None
    assert tunings(only.choices) == {"bad": "descent", "unknown": "autotune"}
    us = {k.names[0]: k.us for k in found.kernels}
    assert offer.gain_us == pytest.approx(0.4 * us["bad"] + 0.05 * us["unknown"], rel=1e-3)


def test_by_prediction_only_what_is_known_to_gain_is_tuned() -> None:
    nodes = [kernel("good", LARGE), kernel("bad", LARGE + 1), kernel("unknown", LARGE + 2)]
    nodes += [kernel("small", SMALL)]
    savings = {"good": 0.001, "bad": 0.4, "small": 0.5}
    offer = finishes(nodes, savings=savings).tuned_by_prediction(0.02)
    assert offer is not None
    assert tunings(offer.choices) == {"bad": "descent"}
    assert finishes(nodes).tuned_by_prediction(0.02) is None
    assert finishes(nodes, savings={"bad": 0.05}).tuned_by_prediction(0.02) is None
    # What takes much of the time is tried where that is wanted, whatever is known of it.
    wide = finishes(nodes, savings=savings).tuned_by_prediction(0.02, heavy=True)
    assert wide is not None
    assert tunings(wide.choices) == dict.fromkeys(("bad", "good", "unknown"), "descent")
    us = {k.names[0]: k.us for k in finishes(nodes).kernels}
    expected_us = 0.4 * us["bad"] + 0.001 * us["good"]
    assert wide.gain_us == pytest.approx(expected_us) and wide.gain_us > offer.gain_us
    little = finishes(nodes, savings={"good": 0.0}).tuned_by_prediction(0.02, heavy=True)
    assert little is not None and little.gain_us == 0.0
    assert tunings(little.choices) == tunings(wide.choices)
    assert (
        finishes(nodes[-1:], savings={"small": 0.0}).tuned_by_prediction(0.02, heavy=True) is None
    )
    # Kernels that are alike count together.
    alike = [kernel(f"k{i}", LARGE) for i in range(40)]
    offer = finishes(alike, savings={"k0": 0.03}).tuned_by_prediction(0.02)
    assert offer is not None
    assert len(tunings(offer.choices)) == len(alike)


def test_kernels_of_one_launch_are_tuned_as_one() -> None:
    nodes = [kernel(f"op{i}", SMALL) for i in range(8)]
    found = finishes([*nodes, kernel("large", LARGE)], savings={"large": 0.1})
    sets = (("op0", "op1", "op2", "op3"), ("op4", "op5"))
    both = finishes(nodes).tuned_by_prediction(0.02, heavy=True, sets=sets)
    assert both is not None and both.gain_us == 0.0
    # Of one launch the choice is about its first kernel.
    assert tunings(both.choices) == {"op0": "descent", "op4": "descent"}
    assert finishes(nodes).tuned_by_prediction(0.02, heavy=True) is None
    # Beside large ones they count for little.
    alone = found.tuned_by_prediction(0.02, heavy=True, sets=sets)
    assert alone is not None and tunings(alone.choices) == {"large": "descent"}


def test_few_are_the_best_and_it_with_the_next() -> None:
    small = [kernel(f"op{i}", SMALL) for i in range(12)]
    large = [kernel(f"large{i}", LARGE << i) for i in range(4)]
    # Twelve launches of a microsecond are nothing beside the large ones.
    (only,) = finishes([*small, *large]).few()
    assert tunings(only.choices) and not combos(only.choices)
    found = finishes([*small, kernel("medium", 1 << 23)])
    tuned, both = found.few()
    # What does little but be launched is not tuned.
    assert tunings(tuned.choices) == tunings(both.choices) == {"medium": "descent"}
    assert not combos(tuned.choices) and combos(both.choices)
    assert both.gain_us > tuned.gain_us
    # Without time for steps the order is that of what they promise.
    together, both = found.few(most_descended=0)
    assert combos(together.choices) == combos(both.choices) and not tunings(together.choices)
    assert tunings(both.choices) == {"medium": "autotune"}


def looped_softmax(rows: int, length: int, depth: str = "") -> list[Node]:
    return [
        kernel(f"max{depth}", rows, length, "reduction"),
        kernel(f"out{depth}", rows * length),
    ]


def shaped(rows: int, length: int) -> dict[str, str]:
    nodes = looped_softmax(rows, length)
    found = finishes(nodes, ("max", "out"), together=[("max", "out")])
    return {k: v for offer in found.each_shaped() for k, v in shapes(offer.choices).items()}


def test_rows_just_above_what_a_block_holds_are_held() -> None:
    assert shaped(60_000, 2048) == {"max": "persistent"}
    assert shaped(60_000, 1024) == {}
    assert shaped(60_000, 8192) == {}


def test_few_long_rows_are_shared() -> None:
    assert shaped(8, 1 << 22) == {"max": "cooperative"}
    assert shaped(8, 128) == {}
    assert shaped(200, 1 << 18) == {}


def test_what_reads_its_rows_once_gains_nothing_by_holding_them() -> None:
    found = finishes([kernel("sum", 60_000, 2048, "reduction")])
    (offer,) = found.each_shaped()
    assert offer.gain_us == 0.0 and found.shaped() is None


def reduced_twice(parts: int, length: int) -> Problem:
    """A sum of ``parts * length`` elements for each of 64 results, in two kernels."""
    first = kernel("op0", 64 * parts, length, "reduction")
    last = kernel("op1", 64, parts, "reduction")
    last = msgspec.structs.replace(
        last, reads=(msgspec.structs.replace(last.reads[0], buffer="buf_op0"),)
    )
    return Problem("key", "inference", (first, last), (), (), ())


def stored_sum(node: str = "sum_1") -> InliningDecision:
    return InliningDecision(
        node=node,
        operator="aten.sum.dim_IntList",
        kind="reduction",
        outcome="store",
        rule="own",
        buffer="buf_op1",
        inlined_into=(),
        ops=1,
        reads=1,
        bytes=256,
        read_bytes=1 << 20,
    )


def test_a_short_reduction_in_two_kernels_might_be_one() -> None:
    problem = reduced_twice(8, 2048)
    assert uncut(problem, [stored_sum()], GPU) == [((split_choice("sum_1", 1),), GPU.launch_us)]
    # A long one is cut for a reason, and on a CPU none is.
    assert uncut(reduced_twice(64, 8192), [stored_sum()], GPU) == []
    cpu = msgspec.structs.replace(GPU, kind="cpu")
    assert uncut(problem, [stored_sum()], cpu) == []
    # A value that is stored elsewhere is another one.
    other = msgspec.structs.replace(stored_sum(), buffer="buf_op0")
    assert uncut(problem, [other], GPU) == []


@pytest.mark.parametrize(
    ("rows", "length", "rest", "offered"),
    [
        pytest.param(4096, 50_257, 1, True, id="rows that end within a turn"),
        pytest.param(4096, 65_536, 1, False, id="rows that end with one"),
        pytest.param(4096, 2049, 1, False, id="two turns"),
        pytest.param(4096, 769, 1, False, id="rows held whole"),
        pytest.param(64, 50_257, 1 << 28, False, id="little beside the rest"),
    ],
)
def test_loops_that_look_for_the_end_of_rows_take_several_turns_at_once(
    rows: int, length: int, rest: int, *, offered: bool
) -> None:
    found = finishes([kernel("a", rows, length, kind="reduction"), kernel("b", rest)])
    offer = found.unrolled()
    assert (offer is not None) is offered
    choices = (Choice("unrolled_loops", True),)
    assert (choices in [each.choices for each in found.every()]) is offered
    if offer is not None:
        assert offer.choices == choices and offer.sure_us == 0.0 < offer.gain_us
        assert any(choices[0] in each.choices for each in found.few())


def test_where_there_is_time_everything_is_tried_once() -> None:
    nodes = [kernel(f"op{i}", SMALL) for i in range(12)] + [kernel("large", LARGE)]
    found = finishes(nodes)
    whole = (Choice("coordinate_descent", True),)
    offers = found.every([whole])
    assert offers[0].choices == whole and len({offer.choices for offer in offers}) == len(offers)
    sets = [combos(offer.choices) for offer in offers if combos(offer.choices)]
    assert sorted(len(names) for one in sets for names in one) == [4, 4, 8, 8, 12]
    assert {"op0", "large"} <= {name for offer in offers for name in tunings(offer.choices)}


def test_an_offer_is_added_to_what_is_chosen_already() -> None:
    offer = finishes([kernel("a", SMALL), kernel("b", SMALL)]).each_together()[0]
    own = Choice("loop_ordering", False)
    assert on_top((own,), offer) == tuple(sorted((own, *offer.choices)))
    assert on_top(offer.choices, offer) == offer.choices
