"""The sum over a plan, what it remembers, and the nodes that bring their own time."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.device import TENSOR_CORES, DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.errors import ModelError, PlanError
from fusewise.schedule.plan import Step, build_plan, unfused
from fusewise.schedule.problem import Problem


class Counting(Roofline):
    """A roofline that keeps the sizes of the batches it was asked for."""

    def __init__(self, profile: DeviceProfile) -> None:
        super().__init__(profile)
        self.batches: list[int] = []

    def predict(self, features: FloatArray) -> Prediction:
        self.batches.append(len(features))
        return super().predict(features)


def names(problem: Problem) -> list[str]:
    return [node.name for node in problem.nodes]


def test_a_plan_is_the_sum_of_its_groups_and_groups_are_asked_for_once(
    profile: DeviceProfile, softmax: Problem
):
    model = Counting(profile)
    cost = PlanCost(softmax, profile, model)
    plan = build_plan(names(softmax), [Step("fuse", "op0", "op1")])
    predicted = cost.plan(plan)
    expected = model.predict(Featurizer(softmax, profile).batch(plan.groups))
    assert predicted.us == pytest.approx(expected.us.sum())
    assert predicted.low_us == pytest.approx(expected.low_us.sum())
    assert predicted.high_us == pytest.approx(expected.high_us.sum())
    model.batches.clear()
    assert cost.plan(plan) == predicted
    assert model.batches == []
    again = cost.score([("op1", "op0"), ("op2",), ("op1",), ("op1",)])
    assert model.batches == [1]
    assert again.us[0] == expected.us[0]
    assert again.us[2] == again.us[3]
    parts = cost.breakdown(plan)
    assert [part.names for part in parts] == list(plan.groups)
    assert sum(part.us for part in parts) == pytest.approx(predicted.us)
    assert cost.plan(unfused(names(softmax))).us > cost.plan(fused(softmax)).us


def fused(problem: Problem):
    first, *rest = names(problem)
    return build_plan(names(problem), [Step("fuse", first, name) for name in rest])


def with_kind(problem: Problem, kind: str, **changes: object) -> Problem:
    """The problem with another kind of first node."""
    first = msgspec.structs.replace(problem.nodes[0], kind=kind, signature="mm", **changes)
    return msgspec.structs.replace(problem, nodes=(first, *problem.nodes[1:]))


def test_extern_nodes_cost_what_is_known_of_them(profile: DeviceProfile, softmax: Problem):
    problem = with_kind(softmax, "extern", flops=2_000_000_000)

    def score(problem: Problem, extern_us: dict[str, float] | None = None) -> Prediction:
        return PlanCost(problem, profile, Roofline(profile), extern_us).score([("op0",)])

    measured = score(problem, {"mm": 42.0})
    assert (measured.us[0], measured.low_us[0], measured.source) == (42.0, 42.0, ("measured",))
    unknown = score(problem)
    assert unknown.source == ("roofline",)
    # 2 GFLOP at 200 GFLOP/s, however few iterations the node claims to have.
    assert unknown.us[0] == pytest.approx(10_000.0, rel=0.01)


def test_products_of_halves_take_the_rate_of_halves(profile: DeviceProfile, softmax: Problem):
    halves = [msgspec.structs.replace(b, dtype="torch.bfloat16") for b in softmax.buffers]
    problem = msgspec.structs.replace(
        with_kind(softmax, "extern", flops=2_000_000_000), buffers=tuple(halves)
    )

    def us(**rates: object) -> float:
        known = msgspec.structs.replace(profile, **rates)
        return float(PlanCost(problem, known, Roofline(known)).score([("op0",)]).us[0])

    # 2 GFLOP at 200 GFLOP/s in fp32, and in halves at what was probed or a GPU has.
    assert us() == pytest.approx(10_000.0, rel=0.01)
    assert us(half_gfs=100.0) == pytest.approx(20_000.0, rel=0.01)
    assert us(half_gfs=1000.0) == pytest.approx(2_000.0, rel=0.01)
    assert us(kind="cuda") == pytest.approx(10_000.0 / TENSOR_CORES, rel=0.01)


def test_products_take_the_rate_of_their_library(profile: DeviceProfile, softmax: Problem):
    def us(library: str, **rates: object) -> Prediction:
        known = msgspec.structs.replace(profile, kind="cpu", **rates)
        problem = with_kind(softmax, "extern", flops=2_000_000_000, library=library)
        return PlanCost(problem, known, Roofline(known)).score([("op0",)])

    usual, other = us("", onednn_gfs=400.0), us("onednn", onednn_gfs=400.0)
    assert usual.us[0] == pytest.approx(10_000.0, rel=0.01)
    assert other.us[0] == pytest.approx(5_000.0, rel=0.01)
    # Both rates were probed; of what was not nothing is known but the roofline.
    assert usual.high_us[0] / usual.us[0] == other.high_us[0] / other.us[0] == 2.0
    assert us("onednn").high_us[0] / us("onednn").us[0] == 4.0


def test_what_moves_takes_its_time_too(profile: DeviceProfile, softmax: Problem):
    known = msgspec.structs.replace(profile, kind="cpu", flops_gfs=1e6)
    problem = with_kind(softmax, "extern", flops=1_000)
    moved = sum(a.bytes for a in (*problem.nodes[0].reads, *problem.nodes[0].writes))
    rate = (known.cache_gbs or known.copy_gbs) if moved <= known.cache_bytes else known.copy_gbs
    found = PlanCost(problem, known, Roofline(known)).score([("op0",)]).us[0]
    assert found == pytest.approx(known.launch_us + moved / (rate * 1e3))


def test_what_is_fused_into_a_template_adds_to_its_time(profile: DeviceProfile, softmax: Problem):
    problem = with_kind(softmax, "template")
    cost = PlanCost(problem, profile, Roofline(profile), {"mm": 42.0})
    alone, more = cost.score([("op0",), ("op0", "op1")]).us
    assert alone == 42.0
    assert more > 42.0


def test_nodes_may_touch_nothing(profile: DeviceProfile, softmax: Problem):
    # A slice of no elements that is written into a concatenation.
    first = softmax.nodes[0]
    empty = msgspec.structs.replace(first.writes[0], touched=0, bytes=0, index="i0 : 0")
    problem = with_kind(softmax, "nop", writes=(empty,))
    assert PlanCost(problem, profile, Roofline(profile)).score([("op0",)]).us[0] == 0.0


def test_nodes_that_run_nothing_are_free(profile: DeviceProfile, softmax: Problem):
    cost = PlanCost(with_kind(softmax, "nop"), profile, Roofline(profile))
    free = cost.score([("op0",)])
    assert (free.us[0], free.high_us[0], free.source) == (0.0, 0.0, ("free",))


def test_what_does_not_fit_is_refused(profile: DeviceProfile, softmax: Problem):
    cost = PlanCost(softmax, profile, Roofline(profile))
    with pytest.raises(PlanError, match="no node 'op7'"):
        cost.score([("op7",)])
    old = Roofline(profile)
    old.features_version = 0  # type: ignore[misc]
    with pytest.raises(ModelError, match="features of version 0"):
        PlanCost(softmax, profile, old)
    assert np.array_equal(cost.score([]).us, np.empty(0))
