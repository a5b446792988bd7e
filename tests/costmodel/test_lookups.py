"""Lookups: by indices that were loaded, which lead anywhere, and by such as loops compute."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.lookups import each_once, follows_loops
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.problem import Access, Buffer, Computed, Node, Problem

_ROWS, _COLUMNS = 4096, 4096
_OUT = _ROWS * _COLUMNS

Lookup = Callable[..., Problem]


@pytest.fixture
def lookup(make_node: Callable[..., Node]) -> Lookup:
    """An image is read at other places: those of a map that is loaded, or computed ones."""

    def make(*, loaded: bool) -> Problem:
        image = Access("image", "gather", _OUT, 4 * _OUT, 4, 0, f"{_COLUMNS}*tmp0 + tmp1 : ")
        places = Access("map", "contiguous", _OUT, 8 * _OUT, 8, 1, f"i0 : {_OUT}")
        node = make_node(
            "op0",
            _OUT,
            (image, places) if loaded else (image,),
            (Access("out", "contiguous", _OUT, 4 * _OUT, 4, 1, f"i0 : {_OUT}"),),
            (("index_expr", 2), ("indirect_indexing", 2), ("load", 1), ("store", 1)),
            device="cuda",
            ranges=((_ROWS, _COLUMNS), ()),
        )
        buffers = (
            Buffer("image", 4 * _OUT, "float32", True, False, ("op0",)),
            Buffer("map", 8 * _OUT, "int64", True, False, ("op0",)),
            Buffer("out", 4 * _OUT, "float32", False, True, ()),
        )
        return Problem("lookup", "inference", (node,), buffers, (), ())

    return make


def test_computed_places_are_near_each_other(gpu: DeviceProfile, lookup: Lookup) -> None:
    def features(loaded: bool) -> np.ndarray:
        return Featurizer(lookup(loaded=loaded), gpu).group(["op0"])

    assert features(loaded=True)[COLUMN["random_bytes"]] == np.log2(1 + 4 * _OUT)
    assert features(loaded=False)[COLUMN["random_bytes"]] == 0.0
    assert features(loaded=False)[COLUMN["line_bytes"]] > 0.0
    slow, fast = (roofline_us(features(loaded)[None])[0] for loaded in (True, False))
    assert slow > 2 * fast


def resized(node: Node, index: str, extents: tuple[int, int]) -> Problem:
    """An image of 512 planes, twice as large either way, by tables of rows and of columns."""
    rows, columns = extents
    turns, size = 512 * rows * columns, 512 * rows * columns // 4
    reads = (
        Access("image", "gather", turns, 4 * size, 4, 0, index),
        Access("rows", "broadcast", turns, 8 * rows, 8, 0, f"i0 : {rows}"),
        Access("columns", "broadcast", turns, 8 * columns, 8, 1, f"i0 : {columns}"),
    )
    node = msgspec.structs.replace(
        node,
        numel=turns,
        ranges=((512, rows, columns), ()),
        reads=reads,
        writes=(Access("out", "contiguous", turns, 4 * turns, 4, 1, f"i0 : {turns}"),),
        ops=(("indirect_indexing", 2), ("load", 3), ("store", 1)),
    )
    buffers = (
        Buffer("image", 4 * size, "float32", True, False, ("op0",)),
        Buffer("rows", 8 * rows, "int64", True, False, ("op0",)),
        Buffer("columns", 8 * columns, "int64", True, False, ("op0",)),
        Buffer("out", 4 * turns, "float32", False, True, ()),
    )
    return Problem("resized", "inference", (node,), buffers, (), ())


def test_tables_of_the_loops_lead_from_neighbour_to_neighbour(
    gpu: DeviceProfile, lookup: Lookup
) -> None:
    plane = 148 * 148
    (node,) = lookup(loaded=True).nodes
    near = Featurizer(resized(node, f"{plane}*i0 + 148*tmp0 + tmp1 : 512", (296, 296)), gpu)
    far = Featurizer(resized(node, f"i0 + {148 * 512}*tmp0 + 512*tmp1 : 512", (296, 296)), gpu)
    sectors = [f.group(["op0"])[COLUMN["sector_bytes"]] for f in (near, far)]
    turns = 512 * 296 * 296
    # What is stored, a quarter of it read, and the table of columns for each row of a block; of
    # channels that lie innermost each is on its own.
    assert 2 ** sectors[0] == pytest.approx(4 * turns * (1 + 0.25 + 0.58), rel=0.05)
    assert sectors[1] - sectors[0] > 0.8
    assert near.group(["op0"])[COLUMN["random_bytes"]] == 0.0


def test_what_is_sought_along_a_loop_moves_along_that(gpu: DeviceProfile, lookup: Lookup) -> None:
    """Each of many rows has a place of its own, where all of its columns look it up."""
    rows, columns, entries = 1 << 16, 64, 1 << 13
    turns = rows * columns
    (node,) = lookup(loaded=True).nodes
    table, places = (
        Access("table", "gather", turns, 4 * entries, 4, 0, "tmp0 : "),
        Access("places", "broadcast", turns, 8 * rows, 8, 1, f"i0 : {rows}"),
    )
    out = Access("out", "contiguous", turns, 4 * turns, 4, 1, f"i0 : {turns}")
    node = msgspec.structs.replace(
        node,
        numel=turns,
        ranges=((rows, columns), ()),
        reads=(table, places),
        writes=(out,),
        ops=(("indirect_indexing", 1), ("load", 2), ("store", 1)),
    )
    buffers = (
        Buffer("table", 4 * entries, "float32", True, False, ("op0",)),
        Buffer("places", 8 * rows, "int64", True, False, ("op0",)),
        Buffer("out", 4 * turns, "float32", False, True, ()),
    )
    problem = Problem("rows", "inference", (node,), buffers, (), ())
    lines = 2 ** Featurizer(problem, gpu).group(["op0"])[COLUMN["lines"]]
    assert lines < turns / 16


def table_lookup(
    lookup: Lookup, entries: int, indices: tuple[str, ...], places: int = 1
) -> Problem:
    """Elements of a table at ``indices``, by a map that tells so many places in each turn."""
    problem = lookup(loaded=True)
    (node,) = problem.nodes
    told = [
        msgspec.structs.replace(node.reads[1], index=f"{places}*i0 + {i} : {_OUT}", stride=places)
        for i in range(places)
    ]
    found = (Access("image", "gather", _OUT, 4 * entries, 4, 0, index) for index in indices)
    ops = (("indirect_indexing", len(indices)), ("load", 2 * len(indices)), ("store", 1))
    node = msgspec.structs.replace(node, reads=(*found, *told), ops=ops)
    image = msgspec.structs.replace(problem.buffers[0], bytes=4 * entries)
    return msgspec.structs.replace(problem, nodes=(node,), buffers=(image, *problem.buffers[1:]))


def test_what_a_small_table_gives_stays_near(gpu: DeviceProfile, lookup: Lookup) -> None:
    def amounts(entries: int) -> dict[str, float]:
        features = Featurizer(table_lookup(lookup, entries, ("tmp0 : ",)), gpu).group(["op0"])
        return {name: 2 ** features[COLUMN[name]] for name in ("lines", "sector_bytes")}

    small, large = amounts(32), amounts(1 << 22)
    # Threads of a warp that are sent to different places there take turns all the same.
    assert _OUT / 32 < small["lines"] < large["lines"] / 5
    # The map and the result: 12 bytes each.
    assert small["sector_bytes"] == pytest.approx(12 * _OUT, rel=0.05)
    assert large["sector_bytes"] > 2 * small["sector_bytes"]


@pytest.mark.parametrize("column", ["sector_bytes", "random_bytes"])
def test_components_of_a_row_are_found_together(
    gpu: DeviceProfile, lookup: Lookup, column: str
) -> None:
    def moved(*indices: str) -> float:
        def amount(found: tuple[str, ...]) -> float:
            problem = table_lookup(lookup, 1 << 22, found, places=2)
            return float(2 ** Featurizer(problem, gpu).group(["op0"])[COLUMN[column]])

        return amount(indices) - amount(())

    one = moved("4*tmp0 : ")
    assert moved("4*tmp0 : ", "4*tmp1 + 1 : ", "4*tmp2 + 3 : ") == pytest.approx(one, rel=0.01)
    # Another place in all components, and one in which fewer of them are looked up.
    two = ("4*tmp0 : ", "4*tmp1 : ", "4*tmp2 + 1 : ", "4*tmp3 + 1 : ")
    assert moved(*two) == pytest.approx(2 * one, rel=0.01)
    assert moved(*two[:3]) == pytest.approx(2 * one, rel=0.01)
    # Rows longer than a sector have components in several.
    assert moved("16*tmp0 : ", "16*tmp1 + 8 : ") == pytest.approx(2 * one, rel=0.01)


def test_a_value_that_is_written_out_again_is_looked_up_once(
    gpu: DeviceProfile, profile: DeviceProfile, lookup: Lookup
) -> None:
    """As that of an activation is, which uses it twice."""

    def features(count: int, places: int, device: DeviceProfile) -> np.ndarray:
        problem = table_lookup(lookup, 1 << 22, tuple(f"tmp{i} : " for i in range(count)), places)
        (node,) = problem.nodes
        # What else a node computes for it is no matter of its lookups.
        told = msgspec.structs.replace(node, ops=(("indirect_indexing", 1), ("load", 1)))
        return Featurizer(msgspec.structs.replace(problem, nodes=(told,)), device).group(["op0"])

    for device in (gpu, profile):
        one, two = features(1, 1, device), features(2, 2, device)
        np.testing.assert_array_equal(features(5, 1, device), one)
        np.testing.assert_array_equal(features(5, 2, device), two)
        assert not np.array_equal(one, two)


@pytest.mark.parametrize(("loaded", "left"), [(6, 4), (4, 2), (3, 1), (1, 1)])
def test_a_node_that_says_what_it_computes_looks_up_as_often(
    lookup: Lookup, loaded: int, left: int
) -> None:
    """As a resize does, whose corners are written out for each use, and loaded once."""
    indices = tuple(f"tmp{i} : " for i in range(6))
    problem = table_lookup(lookup, 1 << 22, indices, places=2)
    (node,) = problem.nodes
    node = msgspec.structs.replace(node, computed=(Computed("load", loaded, along=1, held=1.0),))
    found = [access.index for access in each_once(node, problem).reads if access.looked_up]
    # Two of the loads are of the map.
    assert found == list(indices[:left])


def test_places_of_two_indices_each_are_as_many_as_their_pairs(lookup: Lookup) -> None:
    indices = [f"512*tmp{2 * i} + tmp{2 * i + 1} : " for i in range(6)]
    problem = table_lookup(lookup, 1 << 22, tuple(indices), places=2)
    (node,) = problem.nodes
    left = [access.index for access in each_once(node, problem).reads if access.looked_up]
    # Numbers are put in order as such, not as text.
    assert left == indices[:4]


@pytest.mark.parametrize("component", [0, 1])
def test_nodes_number_the_places_that_they_share_each_anew(
    gpu: DeviceProfile, lookup: Lookup, component: int
) -> None:
    problem = table_lookup(lookup, 1 << 22, ("4*tmp0 : ", "4*tmp1 + 1 : "))
    one, two = kernel_of(problem, 1, 1).nodes
    image = two.reads[component]
    renumbered = msgspec.structs.replace(
        image, index=image.index.replace(f"tmp{component}", "tmp7")
    )
    two = msgspec.structs.replace(two, reads=(renumbered, two.reads[2]))
    shared = msgspec.structs.replace(kernel_of(problem, 1, 1), nodes=(one, two))
    # Two components and the map.
    assert loads(shared, gpu) == 3


@pytest.mark.parametrize(
    ("labels", "origins"),
    [
        pytest.param(
            [Access("labels", "broadcast", 512 * 296 * 296, 4096, 8, 1, "i0 : 512", 1)],
            (),
            id="a count of each plane",
        ),
        pytest.param(
            [Access("labels", "broadcast", 512 * 296 * 296, 296 * 296 * 8, 8, 1, "i0 : 87616", 6)],
            (),
            id="a label of each place, where an index has two",
        ),
        pytest.param(
            [
                Access("labels", "broadcast", 512 * 296 * 296, 8 * 87616, 8, 1, "i0 : 87616", 6),
                Access("labels", "contiguous", 512 * 296 * 296, 8, 8, 1, "i0 : 44859392", 7),
            ],
            ("aten._unsafe_index.Tensor", "aten.eq.Tensor"),
            id="two of them, where the compiler resizes",
        ),
    ],
)
@pytest.mark.parametrize("computed", [True, False], ids=["computed", "tables"])
def test_integers_beside_places_that_follow_the_loops_are_values(
    gpu: DeviceProfile,
    lookup: Lookup,
    labels: list[Access],
    origins: tuple[str, ...],
    computed: bool,
) -> None:
    (node,) = lookup(loaded=True).nodes
    index = f"{148 * 148}*i0 + 148*tmp0 + tmp1 : 512"
    problem = resized(node, index, (296, 296))
    (node,) = problem.nodes
    image, *tables = node.reads
    image = msgspec.structs.replace(image, along=1)
    beside = msgspec.structs.replace(image, index=index.replace("tmp1", "tmp2"))
    reads = (image, beside, *([] if computed else tables))
    ops = (("index_expr", 2), *node.ops) if computed else node.ops
    node = msgspec.structs.replace(node, reads=reads, ops=ops, origins=origins)
    more = Buffer("labels", 8 * 512 * 296 * 296, "torch.int64", True, False, ("op0",))
    buffers = (*problem.buffers, more)
    labelled = msgspec.structs.replace(node, reads=(*reads, *labels))
    assert follows_loops(node, problem)
    problem = msgspec.structs.replace(problem, nodes=(labelled,), buffers=buffers)
    assert follows_loops(labelled, problem)
    features = Featurizer(problem, gpu).group(["op0"])
    assert features[COLUMN["random_bytes"]] == 0.0


def test_integers_that_could_be_the_index_may_lead_anywhere(lookup: Lookup) -> None:
    problem = lookup(loaded=True)
    (node,) = problem.nodes
    # Words have a row each, that of their positions is masked.
    words = Access("map", "broadcast", _OUT, 8 * _ROWS, 8, 1, f"i0 : {_ROWS}", 3)
    row = Access("image", "gather", _OUT, 4 * _OUT, 4, 1, "i0 + 512*tmp0 : 512", 4)
    resizes = "aten._unsafe_index.Tensor"
    for given in ("aten.embedding.default", "aten.index.Tensor"):
        node = msgspec.structs.replace(
            node, ranges=((64, 64, 512), ()), reads=(row, words), origins=(resizes, given)
        )
        assert not follows_loops(node, problem)


def loads(problem: Problem, profile: DeviceProfile) -> float:
    """What one kernel of all nodes loads."""
    names = [node.name for node in problem.nodes]
    return float(Featurizer(problem, profile).group(names)[COLUMN["loads"]])


def kernel_of(problem: Problem, *bounds: int) -> Problem:
    """The problem with a node for each of ``bounds``, operations that keep places within."""
    (node,) = problem.nodes
    nodes = tuple(
        msgspec.structs.replace(
            node,
            name=f"op{i}",
            writes=(msgspec.structs.replace(node.writes[0], buffer=f"out{i}"),),
            ops=(*node.ops, ("maximum", count)),
        )
        for i, count in enumerate(bounds)
    )
    written = [Buffer(f"out{i}", 4 * _OUT, "float32", False, True, ()) for i in range(len(nodes))]
    return msgspec.structs.replace(problem, nodes=nodes, buffers=(*problem.buffers, *written))


@pytest.mark.parametrize(
    ("bounds", "corners"),
    [
        # The same place, found by the same operations.
        ((1, 1), 1),
        ((1, 2), 2),
        # Two bounds for either of two indices make four corners, however many nodes find them.
        ((1, 2, 3, 4, 5, 6), 4),
    ],
)
def test_corners_of_an_interpolation_are_places_of_their_own(
    gpu: DeviceProfile, lookup: Lookup, bounds: tuple[int, ...], corners: int
) -> None:
    problem = kernel_of(lookup(loaded=False), *bounds)
    assert loads(problem, gpu) == corners


def test_one_node_looks_up_as_many_places_as_it_has_lookups(
    gpu: DeviceProfile, lookup: Lookup
) -> None:
    """Cubic interpolation finds sixteen."""
    problem = lookup(loaded=False)
    (node,) = problem.nodes
    sixteen = tuple(
        msgspec.structs.replace(node.reads[0], index=f"{_COLUMNS}*tmp{2 * i} + tmp{2 * i + 1} : ")
        for i in range(16)
    )
    problem = msgspec.structs.replace(
        problem, nodes=(msgspec.structs.replace(node, reads=sixteen),)
    )
    assert loads(problem, gpu) == len(sixteen)


def test_rows_of_a_table_are_others_by_another_index(gpu: DeviceProfile, lookup: Lookup) -> None:
    problem = kernel_of(lookup(loaded=True), 1, 1)
    one, two = problem.nodes
    image, places = two.reads
    two = msgspec.structs.replace(
        two, reads=(image, msgspec.structs.replace(places, buffer="other map"))
    )
    other = Buffer("other map", 8 * _OUT, "int64", True, False, ("op1",))
    apart = msgspec.structs.replace(problem, nodes=(one, two), buffers=(*problem.buffers, other))
    # The image by either map, and the maps.
    assert loads(problem, gpu) == 2
    assert loads(apart, gpu) == 4
