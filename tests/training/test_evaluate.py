"""Scores against values worked out by hand, and the strata that they are told apart by."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import FEATURES, FEATURES_VERSION
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.datasets.samples import KernelSamples
from fusewise.schedule.errors import ModelError
from fusewise.schedule.plan import Step, build_plan, unfused
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, PossibleFusion, Problem
from fusewise.training.contenders import InductorEstimate, ScoreFusion, plan_score
from fusewise.training.evaluate import Judge
from fusewise.training.judged import JudgedGraph, JudgedKernels, JudgedPlan, JudgedSchedules
from fusewise.training.metrics import best_of_first, ordered_pairs, tau_b
from fusewise.training.scores import GraphScores, kernel_scores, schedule_scores
from fusewise.training.split import hold_out
from fusewise.training.strata import CLASSES, SIZES, class_of, sizes_of


def array(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float64)


def names(*values: str) -> np.ndarray:
    return np.array(values, dtype=object)


def samples(us: list[float], graph: list[str], family: list[str] | None = None) -> KernelSamples:
    n = len(us)
    return KernelSamples(
        features_version=FEATURES_VERSION,
        features=np.ones((n, len(FEATURES))),
        median_us=np.array(us),
        spread=np.zeros(n),
        low_us=np.full(n, np.nan),
        high_us=np.full(n, np.nan),
        compiler_us=np.full(n, np.nan),
        threads=np.zeros(n, dtype=np.int64),
        signature=np.array([f"k{i}" for i in range(n)], dtype=object),
        graph_key=np.array(graph, dtype=object),
        nodes=np.array([("op0",) for _ in range(n)] + [None], dtype=object)[:-1],
        family=np.array(family or [""] * n, dtype=object),
        split=np.array(["train"] * n, dtype=object),
        device_key=np.array(["cpu"] * n, dtype=object),
    )


def test_kernel_scores():
    found = kernel_scores(
        array(10.0, 40.0, 30.0, 1.0),
        array(11.0, 20.0, 30.0, 1.5),
        names("a", "a", "b", "b"),
        low_us=array(10.0, 18.0, 29.0, 1.2),
        high_us=array(12.0, 22.0, 31.0, 1.9),
        flagged=np.array([False, True, True, True]),
    )
    assert found.n_kernels == 4
    assert found.mape_5us == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert found.mape_small == pytest.approx(0.5)
    assert found.median_error_5us == pytest.approx(0.1)
    assert found.median_error_small == pytest.approx(0.5)
    assert (found.kernel_kendall_tau, found.kernel_pairwise) == (1.0, 1.0)
    assert found.coverage90 == 0.5
    assert found.flagged == 0.75
    flat = kernel_scores(array(10.0, 20.0), array(1.0, 1.0), names("a", "a"))
    assert (flat.kernel_kendall_tau, flat.kernel_pairwise) == (0.0, 0.5)
    assert flat.coverage90 is None
    # Where there is no guess, there is nothing to score.
    some = kernel_scores(array(10.0, 20.0), array(np.nan, 30.0), names("a", "a"))
    assert (some.n_kernels, some.mape_5us, some.kernel_pairwise) == (1, 0.5, None)
    assert kernel_scores(array(1.0), array(np.nan), names("a")).n_kernels == 0


def test_the_last_bit_puts_nothing_in_order():
    almost = array(1.0, np.nextafter(1.0, 2.0))
    found = kernel_scores(array(10.0, 20.0), almost, names("a", "a"))
    assert (found.kernel_pairwise, found.kernel_kendall_tau) == (0.5, 0.0)
    graph = GraphScores.of(array(10.0, 20.0), almost, times=True)
    assert (graph.order.right, graph.top[1]) == (0.5, pytest.approx(0.75))


def test_pairs_that_are_alike_do_not_count():
    assert ordered_pairs(array(1.0, 1.0), array(1.0, 2.0)) == (0.0, 0)
    assert ordered_pairs(array(1.0, 2.0, 3.0), array(1.0, 3.0, 2.0)) == (2.0, 3)
    assert ordered_pairs(array(100.0, 102.9), array(2.0, 1.0)) == (0.0, 0)
    assert ordered_pairs(array(100.0, 103.2), array(2.0, 1.0)) == (0.0, 1)
    assert ordered_pairs(array(100.0, 103.2), array(1.0, 1.0)) == (0.5, 1)
    across = kernel_scores(array(10.0, 20.0), array(2.0, 1.0), names("a", "b"))
    assert across.kernel_pairwise is None


def test_tau_is_that_of_scipy():
    rng = np.random.default_rng(0)
    measured, predicted = rng.random(20), rng.random(20)
    assert tau_b(measured, predicted) == kendalltau(measured, predicted).statistic
    right, pairs = ordered_pairs(measured, predicted, apart=0.0)
    assert 2 * right / pairs - 1 == pytest.approx(kendalltau(measured, predicted).statistic)
    assert tau_b(array(1.0, 2.0), array(5.0, 5.0)) == 0.0
    assert tau_b(array(1.0, 1.0), array(1.0, 2.0)) is None


def test_best_of_first():
    measured = array(4.0, 2.0, 3.0, 8.0)
    assert best_of_first(measured, array(1.0, 2.0, 3.0, 4.0), 1) == (0.5, 1.0)
    assert best_of_first(measured, array(1.0, 2.0, 3.0, 4.0), 2) == (1.0, 0.0)
    assert best_of_first(measured, array(1.0, 4.0, 2.0, 3.0), 2) == (2.0 / 3.0, 0.5)
    assert best_of_first(measured, array(1.0, 2.0, 3.0, 4.0), 99) == (1.0, 0.0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_equal_predictions_are_taken_in_every_order(k: int):
    measured, predicted = array(4.0, 2.0, 3.0, 8.0, 9.0), array(1.0, 2.0, 2.0, 2.0, 3.0)
    orders = [(0, *order, 4) for order in itertools.permutations((1, 2, 3))]
    found = [measured[list(order[:k])].min() for order in orders]
    top, regret = best_of_first(measured, predicted, k)
    assert top == pytest.approx(np.mean([2.0 / one for one in found]))
    assert regret == pytest.approx(np.mean([one / 2.0 - 1.0 for one in found]))


def test_schedule_scores():
    graphs = [
        GraphScores.of(
            array(10.0, 10.1, 20.0),
            array(12.0, 10.0, 15.0),
            times=True,
            low_us=array(9.0, 9.0, 9.0),
            high_us=array(15.0, 15.0, 15.0),
        ),
        GraphScores.of(array(5.0, 10.0), array(2.0, 1.0), times=True),
    ]
    found = schedule_scores(kernel_scores(array(1.0), array(1.0), names("a")), graphs)
    assert (found.n_kernels, found.n_schedules, found.n_graphs) == (1, 5, 2)
    # Two pairs of the first graph count, both right; one of the second, wrong.
    assert found.pairwise == pytest.approx(2 / 3)
    assert found.kendall_tau == pytest.approx((1.0 - 1.0) / 2)
    assert found.kendall_tau_b == pytest.approx((1 / 3 - 1.0) / 2)
    assert found.top1 == pytest.approx((10.0 / 10.1 + 0.5) / 2)
    assert found.top5 == 1.0
    assert found.regret["1"] == pytest.approx((0.01 + 1.0) / 2)
    assert found.regret["2"] == found.regret["8"] == 0.0
    assert found.schedule_mape == pytest.approx((0.2 + 0.1 / 10.1 + 0.25 + 0.6 + 0.9) / 5)
    assert found.schedule_coverage90 == pytest.approx(2 / 3)
    assert schedule_scores(found, []) is found


def node(name: str, **changes: object) -> Node:
    fields: dict[str, object] = {
        "kind": "pointwise",
        "device": "cpu",
        "numel": 64,
        "rnumel": 1,
        "ranges": ((64,), ()),
        "reduction_type": "",
        "reads": (Access("arg0", "contiguous", 64, 256, 4, 1, "i0"),),
        "writes": (Access(f"buf_{name}", "contiguous", 64, 256, 4, 1, "i0"),),
        "ops": (),
        "origins": (),
        "source": "",
        "order": 0,
        "compiler_us": 1.0,
        "flops": 0,
        "signature": name,
    }
    return Node(name=name, **{**fields, **changes})  # type: ignore[arg-type]


def problem(*nodes: Node, **changes: object) -> Problem:
    fields: dict[str, object] = {
        "key": "g",
        "kind": "inference",
        "buffers": (Buffer("arg0", 256, "float32", True, False, ()),),
        "dependencies": (),
        "possible_fusions": (),
    }
    return Problem(nodes=nodes, **{**fields, **changes})  # type: ignore[arg-type]


def reduction(name: str, kind: str = "contiguous") -> Node:
    read = Access("arg0", kind, 64, 256, 4, 1 if kind == "contiguous" else 8, "i0")  # type: ignore[arg-type]
    return node(name, kind="reduction", numel=8, rnumel=8, ranges=((8,), (8,)), reads=(read,))


def test_classes():
    strided = Access("arg0", "strided", 64, 256, 4, 8, "i0")
    gather = Access("arg0", "gather", 64, 256, 4, 1, "i0")
    atomic = Access("buf_scatter", "atomic", 64, 256, 4, 1, "i0")
    graph = problem(
        node("plain"),
        node("transposed", reads=(strided,)),
        node("gather", reads=(gather,)),
        node("scatter", writes=(atomic,)),
        reduction("row"),
        reduction("column", "strided"),
        node("scan", kind="scan"),
        node("after"),
        node("each", numel=8, ranges=((8,), ())),
        dependencies=(Dependency("after", "row", "buf_row"), Dependency("each", "row", "buf_row")),
    )
    expected = {
        ("plain",): "pointwise",
        ("plain", "transposed"): "transposed",
        ("gather", "transposed"): "gather",
        ("row", "scatter"): "scatter",
        ("row",): "row reduction",
        ("row", "each"): "row reduction",
        ("row", "column"): "column reduction",
        ("row", "after"): "multi-pass",
        ("scan", "row"): "scan or sort",
        ("nobody",): "unknown",
    }
    assert {group: class_of(graph, group) for group in expected} == expected
    assert set(expected.values()) | {"template"} == set(CLASSES)


def test_sizes():
    found = sizes_of(array(1.9, 2.0, 5.0, 20.0, 100.0, 1e3, 1e4))
    assert found == list(SIZES)


def test_what_inductor_goes_by(profile: DeviceProfile):
    nodes = [node("a", compiler_us=2e-6), node("b", compiler_us=4e-6), node("c", compiler_us=0.0)]
    pairs = (
        PossibleFusion("a", "b", (2, 1, 100, -1)),
        PossibleFusion("b", "c", (2, 0, 900, -1)),
    )
    graph = problem(*nodes, possible_fusions=pairs)
    every = ["a", "b", "c"]
    alone = unfused(every)
    first = build_plan(every, [Step("fuse", "a", "b")])
    second = build_plan(every, [Step("fuse", "b", "c")])
    assert plan_score(graph, alone) == (0, 0, 0, 0)
    assert plan_score(graph, first) == (2, 1, 100, -1)
    judged = JudgedGraph(
        "g",
        "f",
        array(9.0, 6.0, 7.0),
        tuple(JudgedPlan("g", graph, p) for p in (alone, first, second)),
    )
    # Shared bytes come after the kind of nodes, as in score_fusion.
    assert ScoreFusion().schedules(judged).us.tolist() == [2.0, 0.0, 1.0]
    rows = samples([20.0, 60.0, 30.0], ["g", "g", "other"])
    rows.nodes[1], rows.nodes[0] = ("a", "b"), ("a",)
    kernels = JudgedKernels(rows, {"g": graph})
    estimate = InductorEstimate(kernels, {"c": 5.0})
    assert estimate.factor == pytest.approx(1e7)
    guess = estimate.kernels(kernels)
    np.testing.assert_allclose(guess.us, [20.0, 60.0, np.nan])
    np.testing.assert_allclose(estimate.schedules(judged).us, [65.0] * 3)
    told = Judge(kernels, JudgedSchedules((judged,)), profile, {"c": 5.0})
    fusion = told.judge(ScoreFusion())
    assert (fusion.n_kernels, fusion.pairwise, fusion.schedule_mape) == (0, 1.0, None)
    assert fusion.by_family["f"].n_schedules == 3
    assert list(fusion.by_size) == ["5 to 20 us", "20 to 100 us"]


class Fixed:
    """A cost model that says what it was told to."""

    id = name = "fixed"
    features_version = FEATURES_VERSION

    def __init__(self, us: FloatArray) -> None:
        self.us = us

    def predict(self, features: FloatArray) -> Prediction:
        assert len(features) == len(self.us)
        sources = ("learned", *("roofline",) * (len(self.us) - 1))
        return Prediction(self.us, self.us * 0.9, self.us * 1.1, sources)  # type: ignore[arg-type]


def test_strata_add_up(profile: DeviceProfile):
    graph = problem(node("op0"), reduction("op1"))
    rows = samples([10.0, 40.0, 30.0, 1.0], ["g"] * 4, ["f", "f", "h", "h"])
    rows.nodes[3] = ("op1",)
    judge = Judge(JudgedKernels(rows, {"g": graph}), JudgedSchedules(), profile, {})
    found = judge.evaluate(Fixed(array(11.0, 20.0, 30.0, 1.5)))
    for strata in (found.model.by_family, found.model.by_size, found.model.by_class):
        assert sum(one.n_kernels for one in strata.values()) == 4
    assert found.model.by_family["f"].mape_5us == pytest.approx(0.3)
    assert found.model.by_class["row reduction"].mape_small == pytest.approx(0.5)
    assert list(found.model.by_size) == ["below 2 us", "5 to 20 us", "20 to 100 us"]
    assert found.model.flagged == 0.75
    assert found.model.top1 is None
    assert found.roofline.n_kernels == 4
    assert found.roofline.flagged == 1.0


def test_groups_never_stand_on_both_sides():
    graphs = [f"g{i % 8}" for i in range(80)]
    for families in (None, [f"f{i % 4}" for i in range(80)]):
        made = samples([1.0] * 80, graphs, families)
        split = hold_out(made, seed=0)
        assert split.by == ("graph" if families is None else "family")
        assert not set(split.labels[split.train]) & set(split.labels[split.test])
        assert len(split.train) + len(split.test) == len(split.final) == 80
    kept = hold_out(made, seed=0, families=("f1",))
    assert set(made.family[kept.test]) == {"f1"}
    assert np.array_equal(kept.final, kept.train)


def test_reserved_families_are_never_trained_on():
    families = [f"f{i % 4}" for i in range(80)] + ["graphnet/mmseg/ann"] * 60
    made = samples([1.0] * 140, [f"g{i % 20}" for i in range(140)], families)
    made.split[80:] = "test"
    split = hold_out(made, seed=0)
    assert split.by == "published split"
    assert split.test.tolist() == list(range(80, 140))
    assert split.final.tolist() == list(range(80))
    # Too few of them to judge by: others are held out, and still they are not trained on.
    made.split[80:100] = "train"
    made.split[100:] = "test"
    few = hold_out(made, seed=0)
    assert few.by == "family"
    assert not set(few.train) & set(range(100, 140))
    assert few.final.tolist() == list(range(100))
    named = hold_out(made, seed=0, families=("f1",))
    assert not set(named.final) & set(range(100, 140))
    made.split[:] = "test"
    with pytest.raises(ModelError, match="only for testing: f0, f1"):
        hold_out(made, seed=0)
