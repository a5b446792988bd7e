"""Mode predict: what is taken without being measured, what is not, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import fusewise
from fusewise.compiler import graph_way
from fusewise.compiler.looking import survey_all
from fusewise.compiler.notices import FusewiseWarning
from fusewise.compiler.predicting import choose_predicted
from fusewise.compiler.reports import GraphReport, RulesReport
from fusewise.compiler.survey import Predictor, Survey
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.gains import LEAST_SHARE, USUAL, Demand, Gains, gains_of
from fusewise.costmodel.launches import is_loop
from fusewise.datasets.dataset import load
from fusewise.datasets.store import default_store_path
from fusewise.schedule.inlining import node_choice
from fusewise.schedule.kernel_choices import combo_choice, combos, tunings
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.problem import group_signature
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from tests.compiler.known_costs import Known, of_family, predictor_of, seen

gpu = pytest.mark.gpu


LEAST = Demand(LEAST_SHARE)


@pytest.fixture(scope="module")
def h200() -> Any:
    return load("h200")


def test_costs_are_remembered_where_that_is_wanted(h200: Any) -> None:
    problem, _ = of_family(h200, "generated/sgd")
    forgetting = predictor_of(h200)
    assert forgetting.plans(problem) is not forgetting.plans(problem)
    remembering = replace(forgetting, costs={})
    found = remembering.plans(problem)
    assert remembering.plans(problem) is found
    assert replace(remembering, savings={"a": 0.1}).plans(problem) is found
    # Another model has other costs.
    other = Known(remembering.profile, USUAL["cuda"])
    assert replace(remembering, model=other).plans(problem).model is other


def chosen(surveys: Sequence[Survey], predictor: Predictor, **how: Any) -> GraphReport:
    report = GraphReport("inference", "predict")
    choose_predicted(report, surveys, predictor, **how)
    assert report.chosen is not None and report.source == "predicted"
    assert [c for c in report.candidates if c.accepted] == [report.chosen]
    assert report.candidates[0].baseline
    return report


def test_small_kernels_share_launches_where_that_counts(h200: Any) -> None:
    problem, plan = of_family(h200, "generated/sgd")
    predictor = predictor_of(h200)
    survey = seen(predictor, problem, plan)
    report = chosen([survey], predictor)
    assert report.chosen is not None and report.chosen.origin == "launches"
    sets = combos(report.chosen.schedule.codegen)
    assert sets and report.chosen.schedule.plan == plan
    default = report.default
    assert default is not None and default.predicted_us is not None
    saved = sum(len(names) - 1 for names in sets) * predictor.profile.launch_us
    share = gains_of(predictor.model, "cuda").launch_share
    assert report.chosen.predicted_us == pytest.approx(default.predicted_us - share * saved)
    assert "launches save" in report.chosen.reason
    # Nothing stands in but Inductor's own.
    assert report.instead is None
    # The same from the same, and nothing of it on a CPU, ahead of time, under rules, or without a
    # record.
    assert chosen([survey], predictor).candidates == report.candidates
    on_cpu = msgspec.structs.replace(predictor.profile, kind="cpu")
    never = msgspec.structs.replace(USUAL["cuda"], demands={"setting": LEAST})
    for other, how in (
        (replace(predictor, profile=on_cpu), {}),
        (predictor, {"launches": False}),
        (predictor_of(h200, never), {}),
    ):
        again = chosen([seen(other, problem, plan)], other, **how)
        assert again.chosen == again.default


def updates(params: Any, grads: Any) -> Any:
    """A step on many small parameters, each by a norm of its own."""
    found = []
    for p, g in zip(params, grads, strict=True):
        scale = torch.clamp(1.0 / (g.norm() + 1e-6), max=1.0)
        found.append(p - 0.1 * g * scale)
    return found


def lookups(ids: Any, tables: Any) -> Any:
    """Sums of rows that are looked up, each table by a column of its own."""
    return [table[ids[:, at]].sum(1) for at, table in enumerate(tables)]


@pytest.mark.parametrize("program", [updates, lookups])
def test_steps_on_many_small_tensors_share_launches(program: Any, live: Any, h200: Any) -> None:
    """As they are lowered in truth; what a GPU would take for them is predicted."""
    many = [torch.randn(64 + 8 * i, 40) for i in range(12)]
    first = torch.randint(0, 64, (32, 12)) if program is lookups else many
    (graph,) = live.capture(live.UserProgram(program, (first, many)))
    problem, plan = graph.surveyed.problem, graph.surveyed.default
    predictor = predictor_of(h200)
    report = chosen([seen(predictor, problem, plan)], predictor)
    assert report.chosen is not None and report.default is not None
    together = sum(map(len, combos(report.chosen.schedule.codegen)))
    assert together >= len(plan.groups) * 0.9
    before, after = report.default.predicted_us, report.chosen.predicted_us
    assert before is not None and after is not None and after < 0.7 * before


def test_where_launches_are_little_of_the_time_they_stay(h200: Any) -> None:
    predictor = predictor_of(h200)
    slow = msgspec.structs.replace(predictor.profile, launch_us=1e-3)
    predictor = replace(predictor, profile=slow)
    problem, plan = of_family(h200, "generated/sgd")
    report = chosen([seen(predictor, problem, plan)], predictor)
    assert report.chosen == report.default


def test_kernels_that_surely_gain_by_other_block_sizes_are_tuned(h200: Any) -> None:
    problem, plan = of_family(h200, "generated/group_norm")
    predictor = predictor_of(h200)
    survey = seen(predictor, problem, plan)
    untuned = chosen([survey], predictor).chosen
    assert untuned is not None
    costs = predictor.plans(problem).breakdown(plan)
    loops = [group for group in costs if is_loop(problem, group.names)]
    longest = max(loops, key=lambda group: group.us)
    signature = group_signature(problem, longest.names)
    savings = {signature: 0.5}
    report = chosen([survey], replace(predictor, savings=savings))
    assert report.chosen is not None and report.chosen.origin == "blocks"
    tuned = tunings(report.chosen.schedule.codegen)
    groups = [plan.groups[plan.group_of()[node]] for node in tuned]
    assert {group_signature(problem, group) for group in groups} == {signature}
    assert set(tuned.values()) == {"descent"}
    # What it is built on stands in for it.
    assert report.chosen.schedule.plan == untuned.schedule.plan
    assert set(untuned.schedule.codegen) <= set(report.chosen.schedule.codegen)
    assert report.instead == (None if untuned.baseline else untuned)
    # Not for next to nothing, and not of kernels that the plan does not have.
    for savings in ({signature: 0.001}, {"another": 0.5}):
        same = chosen([survey], replace(predictor, savings=savings))
        assert same.chosen == untuned


def test_a_setting_is_taken_where_it_plainly_gains(h200: Any) -> None:
    """Inductor stores nothing and does it all at once, instead of node by node."""
    problem, plan = of_family(h200, "generated/group_norm")
    apart = unfused([node.name for node in problem.nodes])
    predictor = predictor_of(h200)
    setting, value = Choice("inline_reads", 16), node_choice("add", "inline")

    def of(*choices: Choice, gains: Gains = USUAL["cuda"], factor: float = 1.05) -> GraphReport:
        one = predictor_of(h200, gains, factor)
        surveys = [seen(one, problem, apart), seen(one, problem, plan, *choices)]
        return chosen(surveys, one, launches=False)

    taken = of(setting).chosen
    assert taken is not None and taken.schedule.lowering == (setting,)
    assert "by prediction" in taken.reason
    # A kind that has no record is not taken, however much it is predicted to gain.
    kept = of(value)
    assert kept.chosen == kept.default
    assert any("measured" in c.reason for c in kept.candidates[1:])
    both = of(setting, value)
    assert both.chosen == both.default
    # Intervals count as the record says.
    careful = msgspec.structs.replace(USUAL["cuda"], demands={"setting": Demand(LEAST_SHARE, 1.0)})
    sure, unsure = of(setting, gains=careful), of(setting, gains=careful, factor=30.0)
    assert sure.chosen is not None and sure.chosen.schedule == taken.schedule
    assert unsure.chosen == unsure.default
    assert any("not sure enough" in c.reason for c in unsure.candidates[1:])
    # What gains next to nothing is not worth another compile.
    survey = seen(predictor, problem, plan)
    same = [survey, seen(predictor, problem, plan, setting)]
    report = chosen(same, predictor, launches=False)
    assert report.chosen == report.default
    assert any("too little" in c.reason for c in report.candidates[1:])


def test_heavy_kernels_are_tuned_where_a_pool_compiles_for_it(h200: Any) -> None:
    problem, plan = of_family(h200, "generated/group_norm")
    predictor = predictor_of(h200)
    costs = predictor.plans(problem).breakdown(plan)
    loops = [group.names for group in costs if is_loop(problem, group.names)]
    little = {group_signature(problem, names): 0.001 for names in loops}
    survey = seen(predictor, problem, plan)

    def found(survey: Survey = survey, **knowing: Any) -> Candidate:
        taken = chosen([survey], replace(predictor, **knowing), launches=False).chosen
        assert taken is not None
        return taken

    assert found(savings=little).origin == "default"
    assert found(tunes=True).origin == "default"
    tuned = found(savings=little, tunes=True)
    assert tuned.origin == "blocks" and tuned.schedule.plan == plan
    assert set(tunings(tuned.schedule.codegen).values()) == {"descent"}
    # Rules say what is to be done.
    ruled = replace(survey, rules=RulesReport())
    assert found(ruled, savings=little, tunes=True).origin == "default"


def test_a_setting_is_held_to_what_tuning_without_it_saves(h200: Any) -> None:
    problem, plan = of_family(h200, "generated/group_norm")
    apart = unfused([node.name for node in problem.nodes])
    setting, predictor = Choice("inline_reads", 16), predictor_of(h200)

    def much(plan: Plan) -> dict[str, float]:
        costs = predictor.plans(problem).breakdown(plan)
        loops = [group.names for group in costs if is_loop(problem, group.names)]
        return {group_signature(problem, names): 0.9 for names in loops}

    own = much(apart)
    other = {key: saving for key, saving in much(plan).items() if key not in own}
    knowing = replace(predictor, savings=own)
    plain = [seen(knowing, problem, apart), seen(knowing, problem, plan, setting)]
    gain_us = plain[0].best_us - plain[1].best_us
    finishes = knowing.finishes(apart, problem).tuned_by_prediction(LEAST_SHARE)
    assert finishes is not None and gain_us < finishes.gain_us

    kept = chosen(plain, knowing, launches=False).chosen
    assert kept is not None and kept.origin == "blocks" and kept.schedule.lowering == ()
    # Where its own kernels may be tuned as well, and that is known, it is taken, and they are.
    asked: list[Survey] = []

    def reading(survey: Survey) -> dict[str, float]:
        asked.append(survey)
        return other

    both = chosen(plain, knowing, launches=False, read=reading).chosen
    assert both is not None and both.schedule.lowering == (setting,)
    assert both.origin == "blocks" and tunings(both.schedule.codegen)
    assert asked == [plain[1]]


def chain(x: Any) -> Any:
    """Enough reads for thresholds to matter."""
    y = x
    for at in range(4):
        y = torch.sin(y) * (x + at).cos() + torch.roll(y, 1)
    return y, y.sum(0)


def test_what_is_never_taken_is_not_looked_at(live: Any, profiled: Path) -> None:
    home = default_store_path().parent
    profile = device_profile(torch.device("cpu"), home)
    (graph,) = live.capture(live.UserProgram(chain, (torch.randn(64, 48),)))

    def looked(demands: dict[str, Demand | None]) -> list[Survey]:
        gains = Gains(demands=demands)
        predictor = Predictor(Known(profile, gains), profile, {})
        with graph.context():
            return survey_all(
                graph.compile,
                predictor,
                key="k",
                kind="inference",
                budget_s=None,
                gains=gains,
                only=True,
            )

    (only,) = looked({})
    assert [c.origin for c in only.candidates] == ["default"]
    assert only.result.states == 0
    settings = looked({"setting": LEAST})
    assert len(settings) > 1 and all(s.result.states == 0 for s in settings)
    assert not any(choice.of_part for s in settings for choice in s.choices)
    again = looked({"setting": LEAST})
    assert [(s.choices, s.candidates) for s in again] == [
        (s.choices, s.candidates) for s in settings
    ]
    plans = looked({"plan": LEAST})
    assert len(plans) == 1 and plans[0].result.states > 0


def test_on_a_cpu_inductors_own_is_kept_where_nothing_saves_enough(store: Path, live: Any) -> None:
    torch._dynamo.reset()
    x = torch.randn(64, 48)
    options = {"fusewise.mode": "predict", "fusewise.store": store}
    known = len(fusewise.reports())
    got = torch.compile(chain, backend="fusewise", options=options)(x)
    live.difference(got, chain(x))
    (report,) = fusewise.reports()[known:]
    assert report.chosen == report.default
    others = [c for c in report.candidates if c != report.default]
    assert not any(c.accepted for c in others)


def test_what_does_not_compile_has_something_in_its_place(
    store: Path, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Common launches, which a CPU has none of, on a plan that is fine."""

    def choose(
        report: GraphReport, surveys: Sequence[Survey], predictor: Predictor, **how: Any
    ) -> None:
        choose_predicted(report, surveys, predictor, **how)
        own = report.default
        assert own is not None and own.schedule.plan is not None
        plan = unfused([node.name for node in surveys[0].problem.nodes])
        fine = msgspec.structs.replace(own, schedule=Schedule(plan=plan), origin="unfused")
        names = [group[0] for group in plan.groups[:2]]
        codegen = (combo_choice(names),)
        bad = msgspec.structs.replace(
            fine, schedule=Schedule(plan=plan, codegen=codegen), origin="launches"
        )
        report.candidates = [own, bad, fine]
        report.chosen, report.instead = bad, fine

    monkeypatch.setattr(graph_way, "choose_predicted", choose)
    torch._dynamo.reset()
    x = torch.randn(64, 48)
    options = {"fusewise.mode": "predict", "fusewise.store": store}
    known = len(fusewise.reports())
    with pytest.warns(FusewiseWarning, match="only kernels on a GPU"):
        got = torch.compile(chain, backend="fusewise", options=options)(x)
    live.difference(got, chain(x))
    (report,) = fusewise.reports()[known:]
    assert report.chosen is not None and report.chosen.origin == "unfused"
    assert [c.status for c in report.candidates] == ["predicted", "failed", "predicted"]


@gpu
def test_on_a_gpu_many_small_kernels_share_launches(store: Path, live: Any) -> None:
    torch._dynamo.reset()
    params = [torch.randn(64 + 8 * i, 40, device="cuda") for i in range(12)]
    grads = [torch.randn_like(p) for p in params]
    options = {"fusewise.mode": "predict", "fusewise.store": store}
    known = len(fusewise.reports())
    got = torch.compile(updates, backend="fusewise", options=options)(params, grads)
    live.difference(got, updates(params, grads))
    (report,) = fusewise.reports()[known:]
    assert report.fallback is None
    assert report.chosen is not None and combos(report.chosen.schedule.codegen)
    # The same again, from nothing.
    torch._dynamo.reset()
    other = {**options, "fusewise.store": store.parent / "other.duckdb"}
    torch.compile(updates, backend="fusewise", options=other)(params, grads)
    again = fusewise.reports()[-1]
    assert again.chosen == report.chosen


@gpu
def test_on_a_gpu_one_large_kernel_has_other_block_sizes_tried(store: Path, live: Any) -> None:
    torch._dynamo.reset()
    x = torch.randn(4096, 4096, device="cuda")
    options = {"fusewise.mode": "predict", "fusewise.store": store}
    got = torch.compile(lambda x: (x * 2 + 1).relu(), backend="fusewise", options=options)(x)
    live.difference([got], [(x * 2 + 1).relu()])
    report = fusewise.reports()[-1]
    assert report.chosen is not None and report.default is not None
    assert report.chosen.schedule.plan == report.default.schedule.plan
    assert {choice.name.split(":")[0] for choice in report.chosen.schedule.codegen} <= {"blocks"}
