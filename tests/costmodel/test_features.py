"""What holds of features of any group of any problem, and of a few that can be done by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import COLUMN, FEATURES, Featurizer
from fusewise.costmodel.operations import CLASSES, SORTS, operation_class
from fusewise.costmodel.roofline import Roofline, roofline_us
from fusewise.schedule.errors import ModelError, PlanError
from fusewise.schedule.problem import Access, Buffer, Computed, Dependency, Node, Problem

MakeNode = Callable[..., Node]

COMMON = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _computed(ops: Mapping[str, int]) -> tuple[Computed, ...]:
    """Half of a body's operations once a row, and half of them under a mask."""
    return tuple(
        Computed(name, count, along, held)
        for (name, count), along, held in zip(ops.items(), cycle((0, 1)), cycle((1.0, 1.0, 0.1)))
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A few nodes over shared inputs and each other's buffers, with any kind of access."""
    count = draw(st.integers(1, 8))
    buffers = {f"arg{i}": draw(st.integers(1, 1 << 20)) for i in range(3)}
    written: list[str] = []
    users: dict[str, list[str]] = {}
    nodes, dependencies = [], []

    def touch(name: str, kinds: tuple[str, ...]) -> Access:
        n = draw(st.integers(1, 1 << 18))
        itemsize = draw(st.sampled_from([1, 2, 4, 8]))
        index = draw(st.sampled_from(["d0", "d1", "d0 + 1"]))
        kind = draw(st.sampled_from(kinds))
        stride = draw(st.integers(0, 1 << 12))
        return Access(name, kind, n, n * itemsize, itemsize, stride, index)  # type: ignore[arg-type]

    everything = ("contiguous", "strided", "broadcast", "gather", "atomic", "opaque")
    for i in range(count):
        reads = []
        for name in draw(st.lists(st.sampled_from([*buffers]), max_size=3)):
            read = touch(name, everything[:4])
            held = draw(st.sampled_from([1.0, 0.5, 0.002]))
            reads.append(msgspec.structs.replace(read, held=held))
            if name in written:
                users.setdefault(name, []).append(f"op{i}")
                dependencies.append(Dependency(f"op{i}", f"op{written.index(name)}", name))
        reduction = draw(st.booleans())
        numel = draw(st.integers(0, 1 << 20))
        rnumel = draw(st.integers(1, 1 << 10)) if reduction else 1
        ops = draw(
            st.dictionaries(st.sampled_from(["add", "exp", "where", "new"]), st.integers(1, 9))
        )
        nodes.append(
            Node(
                f"op{i}",
                "reduction" if reduction else "pointwise",
                "cpu",
                numel,
                rnumel,
                ((numel,), (rnumel,) if reduction else ()),
                "sum" if reduction else "",
                tuple(reads),
                (touch(f"buf{i}", everything),),
                tuple(ops.items()),
                (),
                "",
                i,
                0.0,
                0,
                f"s{i}",
                computed=draw(st.sampled_from([(), _computed(ops)])),
            )
        )
        buffers[f"buf{i}"] = draw(st.integers(1, 1 << 20))
        written.append(f"buf{i}")
    outputs = draw(st.sets(st.sampled_from(written)))
    made = tuple(
        Buffer(name, size, "float32", name[0] == "a", name in outputs, tuple(users.get(name, ())))
        for name, size in buffers.items()
    )
    return Problem("any", "inference", tuple(nodes), made, tuple(dependencies), ())


def amount(row: np.ndarray, name: str) -> float:
    return float(np.exp2(row[COLUMN[name]]) - 1)


def stored(row: np.ndarray) -> float:
    return sum(amount(row, f.name) for f in FEATURES if f.name.startswith("written_"))


@COMMON
@given(problems(), st.data())
def test_fusing_never_stores_more(profile: DeviceProfile, problem: Problem, data: st.DataObject):
    names = [node.name for node in problem.nodes]
    group = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    featurizer = Featurizer(problem, profile)
    apart = sum(stored(row) for row in featurizer.batch([[name] for name in group]))
    assert stored(featurizer.group(group)) <= apart * (1 + 1e-9) + 1e-6


@COMMON
@given(problems(), st.data())
def test_features_are_finite_and_do_not_depend_on_order_or_batch(
    profile: DeviceProfile, problem: Problem, data: st.DataObject
):
    names = [node.name for node in problem.nodes]
    groups = data.draw(
        st.lists(st.lists(st.sampled_from(names), min_size=1, unique=True), min_size=1, max_size=9)
    )
    featurizer = Featurizer(problem, profile)
    rows = featurizer.batch(groups)
    assert rows.shape == (len(groups), len(FEATURES))
    assert np.isfinite(rows).all()
    assert (rows >= 0).all()
    for i, group in enumerate(groups):
        assert np.array_equal(featurizer.group(group[::-1]), rows[i])
    model = Roofline(profile)
    whole = model.predict(rows).us
    assert np.array_equal(whole, [model.predict(row[None]).us[0] for row in rows])
    assert (whole > 0).all()
    assert profile.kind == "cpu" or (whole >= profile.launch_us).all()
    assert np.array_equal(whole, roofline_us(rows, profile))


@COMMON
@given(problems())
def test_a_node_alone_does_not_see_the_others(profile: DeviceProfile, problem: Problem):
    node = problem.nodes[0]
    own = {a.buffer for a in (*node.reads, *node.writes)}
    # Its buffers keep a reader, who is now named but absent: somebody else needs them still.
    alone = Problem(
        "alone",
        "inference",
        (node,),
        tuple(buffer for buffer in problem.buffers if buffer.name in own),
        (),
        (),
    )
    assert np.array_equal(
        Featurizer(problem, profile).group([node.name]),
        Featurizer(alone, profile).group([node.name]),
    )


@COMMON
@given(problems(), st.sampled_from([f.name for f in FEATURES if f.unit == "log2 bytes"]))
def test_the_roofline_grows_with_bytes(profile: DeviceProfile, problem: Problem, name: str):
    if name == "device_cache_bytes":
        return
    rows = Featurizer(problem, profile).batch([[node.name] for node in problem.nodes])
    more = rows.copy()
    more[:, COLUMN[name]] += 1.0
    assert (roofline_us(more) >= roofline_us(rows) * (1 - 1e-12)).all()


def test_fused_softmax_reads_once_and_stores_once(profile: DeviceProfile, softmax: Problem):
    n = 4 * 256 * 512
    featurizer = Featurizer(softmax, profile)
    row = featurizer.group(["op0", "op1", "op2", "op3"])
    assert amount(row, "read_contiguous") == pytest.approx(n)
    assert stored(row) == pytest.approx(n)
    assert amount(row, "stores_removed") == pytest.approx(n + 2 * 4 * 256)
    assert row[COLUMN["passes"]] == 3
    # x again in the second pass, buf1 and the two row statistics after the pass that made them
    assert amount(row, "reread") == pytest.approx(2 * n + 2 * 4 * 256)
    assert row[COLUMN["loop_shapes"]] == 2
    assert (row[COLUMN["inputs"]], row[COLUMN["outputs"]]) == (1, 1)
    assert row[COLUMN["intermediates"]] == 3
    assert amount(row, "transcendental") == pytest.approx(256 * 512)
    alone = featurizer.group(["op1"])
    assert stored(alone) == pytest.approx(n)
    assert amount(alone, "read_broadcast") == pytest.approx(4 * 256)
    assert alone[COLUMN["passes"]] == 1


def test_another_index_is_traffic_of_the_cache_and_aliases_are_stored(
    profile: DeviceProfile, make_node: MakeNode
):
    n = 1 << 12

    def problem(index: str, aliases: tuple[str, ...] = ()) -> Problem:
        def touch(name: str, at: str) -> Access:
            return Access(name, "contiguous", n, 4 * n, 4, 1, at)

        return Problem(
            "pair",
            "inference",
            (
                make_node("op0", n, (touch("arg0", "d0"),), (touch("buf0", "d0"),), ()),
                make_node("op1", n, (touch("buf0", index),), (touch("buf1", "d0"),), (), order=1),
            ),
            (
                Buffer("arg0", 4 * n, "float32", True, False, ("op0",)),
                Buffer("buf0", 4 * n, "float32", False, False, ("op1",), aliases),
                Buffer("buf1", 4 * n, "float32", False, True, ()),
            ),
            (Dependency("op1", "op0", "buf0"),),
            (),
        )

    same = Featurizer(problem("d0"), profile).group(["op0", "op1"])
    other = Featurizer(problem("d0 + 1"), profile).group(["op0", "op1"])
    aliased = Featurizer(problem("d0", ("arg0",)), profile).group(["op0", "op1"])
    assert (amount(same, "cached"), amount(same, "reads_removed")) == (0, pytest.approx(4 * n))
    assert (amount(other, "cached"), amount(other, "reads_removed")) == (pytest.approx(4 * n), 0)
    assert stored(same) == pytest.approx(4 * n)
    assert stored(aliased) == pytest.approx(8 * n)


def test_a_buffer_read_at_many_indices_comes_from_memory_once(
    profile: DeviceProfile, make_node: MakeNode
):
    n = 1 << 12
    reads = tuple(Access("arg0", "contiguous", n, 4 * n, 4, 1, f"d0 + {k}") for k in range(3))
    write = Access("buf0", "contiguous", n, 4 * n, 4, 1, "d0")
    node = make_node("op0", n, reads, (write,), ())
    buffers = (
        Buffer("arg0", 4 * n, "float32", True, False, ("op0",)),
        Buffer("buf0", 4 * n, "float32", False, True, ()),
    )
    row = Featurizer(Problem("p", "inference", (node,), buffers, (), ()), profile).group(["op0"])
    assert amount(row, "read_contiguous") == pytest.approx(4 * n)
    assert amount(row, "cached") == pytest.approx(8 * n)


def test_groups_that_cannot_be_are_refused(profile: DeviceProfile, softmax: Problem):
    featurizer = Featurizer(softmax, profile)
    with pytest.raises(PlanError, match="no node 'op9'"):
        featurizer.group(["op0", "op9"])
    with pytest.raises(PlanError, match="no nodes"):
        featurizer.group([])
    assert featurizer.batch([]).shape == (0, len(FEATURES))
    with pytest.raises(ModelError, match=r"shape \(2, 3\)"):
        roofline_us(np.zeros((2, 3)))


def test_operations_are_told_by_the_iterations_of_the_largest_node(
    profile: DeviceProfile, make_node: MakeNode
):
    """Three additions of 96 elements and one of 32, over 96; names that no column has are left."""
    nodes = (
        make_node("wide", 96, (), (), ops=(("add", 3), ("some_new_operation", 1))),
        make_node("short", 32, (), (), ops=(("add", 1), ("exp", 1))),
    )
    row = Featurizer(Problem("key", "inference", nodes, (), (), ()), profile).group(
        ["wide", "short"]
    )
    assert amount(row, "op_add") == pytest.approx((3 * 96 + 32) / 96)
    assert amount(row, "op_exp") == pytest.approx(32 / 96)
    assert sum(amount(row, name) for name in SORTS) == pytest.approx((3 * 96 + 2 * 32) / 96)


def test_the_table_is_consistent():
    names = [feature.name for feature in FEATURES]
    assert len(set(names)) == len(names)
    assert set(CLASSES) <= set(names)
    assert CLASSES[operation_class("libdevice_tan")] == "transcendental"
    assert CLASSES[operation_class("something new")] == "arithmetic"
    assert operation_class("load") == -1


def results_of(make_node: MakeNode, reduction_type: str, rows: int, length: int) -> Problem:
    """Both results of a reduction of rows of a matrix, "op0" and "op1"."""
    n = rows * length
    whole = Access("x", "contiguous", n, 4 * n, 4, 1, f"i0 : {n}")

    def part(i: int) -> Node:
        out = Access(f"buf{i}", "contiguous", rows, 4 * rows, 4, 1, f"i0 : {rows}")
        return make_node(
            f"op{i}",
            rows,
            (whole,),
            (out,),
            (("load", 1), ("reduction", 1), ("store_reduction", 1)),
            kind="reduction",
            device="cuda",
            rnumel=length,
            ranges=((rows,), (length,)),
            reduction_type=reduction_type,
            order=i,
        )

    made = [Buffer(f"buf{i}", 4 * rows, "float32", False, True, ()) for i in range(2)]
    x = Buffer("x", 4 * n, "float32", True, False, ("op0", "op1"))
    return Problem("p", "inference", (part(0), part(1)), (x, *made), (), ())


def test_the_first_of_several_results_alone_takes_less(
    profile: DeviceProfile, make_node: MakeNode
) -> None:
    gpu = msgspec.structs.replace(profile, key="cuda-t", kind="cuda", cores=132)
    featurizer = Featurizer(results_of(make_node, "online_softmax_reduce", 65536, 2048), gpu)
    both, first, second = featurizer.batch([("op0", "op1"), ("op0",), ("op1",)])
    at = COLUMN["online_softmax"]
    assert first[at] == 0.0
    # The sum of exponentials needs the maximum, so that both are computed for it.
    assert second[at] == both[at] > 0.0
    assert roofline_us(first[None])[0] < roofline_us(second[None])[0]


@pytest.mark.parametrize(("length", "alone"), [(256, True), (2048, False)])
def test_a_mean_is_found_alone_only_where_rows_are_held_whole(
    profile: DeviceProfile, make_node: MakeNode, length: int, alone: bool
) -> None:
    gpu = msgspec.structs.replace(profile, key="cuda-t", kind="cuda", cores=132)
    featurizer = Featurizer(results_of(make_node, "welford_reduce", 65536, length), gpu)
    both, first = featurizer.batch([("op0", "op1"), ("op0",)])
    at = COLUMN["welford"]
    assert first[at] == (0.0 if alone else both[at])
    assert bool(first[COLUMN["means"]] > 0.0) is alone


def test_a_kernel_that_starts_again_reads_again(
    profile: DeviceProfile, make_node: MakeNode
) -> None:
    gpu = msgspec.structs.replace(profile, key="cuda-t", kind="cuda", cores=132)
    # Longer than the rows that Inductor tries to take whole.
    rows, length = 320, 50176
    n = rows * length
    x = Access("x", "contiguous", n, 4 * n, 4, 1, f"i0 : {n}")

    def sums(i: int) -> Node:
        out = Access(f"buf{i}", "contiguous", rows, 4 * rows, 4, 1, f"i0 : {rows}")
        return make_node(
            f"op{i}",
            rows,
            (x,),
            (out,),
            (("load", 1), (("mul", "add")[i], 1), ("reduction", 1), ("store_reduction", 1)),
            kind="reduction",
            device="cuda",
            rnumel=length,
            ranges=((rows,), (length,)),
            reduction_type="sum",
            order=i,
            hint="inner",
        )

    after = make_node(
        "op2",
        rows,
        (Access("buf0", "contiguous", rows, 4 * rows, 4, 1, f"i0 : {rows}"),),
        (Access("buf2", "contiguous", rows, 4 * rows, 4, 1, f"i0 : {rows}"),),
        device="cuda",
        order=2,
    )
    buffers = (
        Buffer("x", 4 * n, "float32", True, False, ("op0", "op1")),
        Buffer("buf0", 4 * rows, "float32", False, False, ("op2",)),
        Buffer("buf1", 4 * rows, "float32", False, True, ()),
        Buffer("buf2", 4 * rows, "float32", False, True, ()),
    )
    needs = (Dependency("op2", "op0", "buf0"),)
    problem = Problem("p", "inference", (sums(0), sums(1), after), buffers, needs, ())
    featurizer = Featurizer(problem, gpu)
    once, twice = ("op0", "op1", "op2"), ("op0", "op2", "op1")
    one, two, unordered = featurizer.batch([once, twice, frozenset(once)])
    assert (one[COLUMN["passes"]], two[COLUMN["passes"]]) == (1, 2)
    assert two[COLUMN["reread"]] > one[COLUMN["reread"]] == 0.0
    assert two[COLUMN["rounds"]] > one[COLUMN["rounds"]]
    np.testing.assert_array_equal(unordered, one)
    assert featurizer.key(once) != featurizer.key(twice)
    assert featurizer.key(once[:2]) == frozenset(once[:2])


def test_rows_that_are_sorted_are_held_whole(gpu: DeviceProfile, make_node: MakeNode) -> None:
    def features(width: int, results: int = 1) -> np.ndarray:
        rows = 4096
        n = rows * width
        nodes = tuple(
            make_node(
                f"op{i}",
                rows,
                (Access("x", "contiguous", n, 4 * n, 4, 1, f"i0 : {n}"),),
                (Access(f"buf{i}", "contiguous", n, 4 * n, 4, 1, f"i0 : {n}"),),
                (("index_expr", 1), ("load", 1), ("sort", 1), ("store", 1)),
                device="cuda",
                kind="sort",
                rnumel=width,
                ranges=((rows,), (width,)),
                order=i,
            )
            for i in range(results)
        )
        names = tuple(node.name for node in nodes)
        buffers = (
            Buffer("x", 4 * n, "float32", True, False, names),
            *(Buffer(f"buf{i}", 4 * n, "float32", False, True, ()) for i in range(results)),
        )
        problem = Problem("sorted", "inference", nodes, buffers, (), ())
        return Featurizer(problem, gpu).group(names)

    short, long = features(64), features(256)
    assert short[COLUMN["persistent"]] == long[COLUMN["persistent"]] == 1
    # 21 and 36 steps for each of as many elements.
    steps = 2 ** long[COLUMN["combined"]] / 2 ** short[COLUMN["combined"]]
    assert steps == pytest.approx(4 * 36 / 21)
    # Rows are filled up; values and places come of one sort.
    filled = features(200)[COLUMN["combined"]]
    assert filled == features(256)[COLUMN["combined"]] == features(256, 2)[COLUMN["combined"]]
    assert roofline_us(long[None])[0] > 4 * roofline_us(short[None])[0]


def test_the_largest_and_its_place_take_more_to_find_than_a_sum(
    gpu: DeviceProfile, make_node: MakeNode
) -> None:
    def combined(kind: str) -> float:
        n = 4096 * 1536
        node = make_node(
            "op0",
            4096,
            (Access("x", "contiguous", n, 4 * n, 4, 1, f"i0 : {n}"),),
            (Access("buf0", "contiguous", 4096, 4 * 4096, 4, 1, "i0 : 4096"),),
            device="cuda",
            kind="reduction",
            rnumel=1536,
            ranges=((4096,), (1536,)),
            reduction_type=kind,
        )
        buffers = (
            Buffer("x", 4 * n, "float32", True, False, ("op0",)),
            Buffer("buf0", 4 * 4096, "float32", False, True, ()),
        )
        problem = Problem("reduced", "inference", (node,), buffers, (), ())
        return float(Featurizer(problem, gpu).group(["op0"])[COLUMN["combined"]])

    assert combined("sum") < combined("max") == combined("min") < combined("argmax")
