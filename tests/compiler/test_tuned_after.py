"""What a contest chose, with the kernels tuned that it had no time for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusewise.compiler.memory import recall, recall_at_once, remember, remember_blocks
from fusewise.compiler.reports import GraphReport, RulesReport
from fusewise.compiler.survey import Survey
from fusewise.compiler.tuned_after import tune_after
from fusewise.costmodel.gains import LEAST_SHARE
from fusewise.datasets.dataset import load
from fusewise.datasets.store import Store
from fusewise.schedule.kernel_choices import blocks_choice, tunings
from fusewise.schedule.schedule import Candidate, Choice
from tests.compiler.known_costs import of_family, predictor_of, seen

SETTING = Choice("inline_reads", 16)


@pytest.fixture(scope="module")
def surveyed() -> Any:
    """A graph as Inductor lowers it and under a setting, and what predicts."""
    problem, plan = of_family(load("h200"), "generated/group_norm")
    predictor = replace(predictor_of(load("h200")), tunes=True)
    return [seen(predictor, problem, plan), seen(predictor, problem, plan, SETTING)], predictor


def timed(candidate: Candidate, *codegen: Choice, **told: Any) -> Candidate:
    """A candidate as a contest leaves it, with choices about single kernels on top."""
    schedule = msgspec.structs.replace(candidate.schedule, codegen=tuple(sorted(codegen)))
    return msgspec.structs.replace(
        candidate, schedule=schedule, status="measured", measured_us=9.0, reason="timed", **told
    )


def after(surveyed: Any, chosen: Candidate, others: Sequence[Candidate] = ()) -> GraphReport:
    surveys, predictor = surveyed
    report = GraphReport("inference", "measure", source="measured")
    report.candidates, report.chosen = [*others, chosen], chosen
    tune_after(report, surveys, predictor)
    assert [c for c in report.candidates if c.accepted] == [report.chosen]
    return report


def heavy(surveyed: Any) -> tuple[Choice, ...]:
    surveys, predictor = surveyed
    plan = surveys[0].default_plan
    offer = predictor.finishes(plan, surveys[0].problem).tuned_by_prediction(
        LEAST_SHARE, heavy=True
    )
    assert offer is not None and offer.choices
    return tuple(offer.choices)


def test_heavy_kernels_of_what_won_are_tuned_when_they_run(surveyed: Any) -> None:
    (_, under), _ = surveyed
    won = timed(under.candidates[0], accepted=True)
    report = after(surveyed, won)
    chosen = report.chosen
    assert chosen is not None and chosen.origin == "blocks"
    assert (chosen.schedule.plan, chosen.schedule.lowering) == (won.schedule.plan, (SETTING,))
    assert chosen.schedule.codegen == heavy(surveyed)
    assert chosen.measured_us is None and chosen.reason.startswith("timed; ")
    # What was measured is told, and stands in.
    assert report.source == "measured" and report.instead is not None
    assert report.instead.schedule == won.schedule and report.instead.measured_us == 9.0
    assert report.instead in report.candidates


def test_what_is_tuned_already_is_left_as_it_is(surveyed: Any) -> None:
    (own, under), _ = surveyed
    every = heavy(surveyed)
    won = timed(under.candidates[0], *every, accepted=True)
    assert after(surveyed, won).chosen is won
    # What the contest tuned stays so, and the others are tuned with it.
    first = blocks_choice(next(iter(tunings(every))), "autotune")
    report = after(surveyed, timed(under.candidates[0], first, accepted=True))
    assert report.chosen is not None
    assert first in report.chosen.schedule.codegen
    assert set(tunings(report.chosen.schedule.codegen)) == set(tunings(every))
    # The default is tuned as well, if a contest found too little in it.
    kept = timed(own.candidates[0], accepted=True)
    report = after(surveyed, kept, [timed(own.candidates[0], *every)])
    assert report.chosen is not None and report.chosen.schedule.codegen == every


def test_nothing_is_tuned_where_nothing_can_compile_it_or_rules_say_what_is_done(
    surveyed: Any,
) -> None:
    surveys, predictor = surveyed
    won = timed(surveys[0].candidates[0], accepted=True)
    assert after((surveys, replace(predictor, tunes=False)), won).chosen is won
    ruled = [replace(survey, rules=RulesReport()) for survey in surveys]
    assert after((ruled, predictor), won).chosen is won
    unknown: list[Survey] = []
    assert after((unknown, predictor), won).chosen is won


def test_what_tuning_comes_to_is_remembered_with_the_decision(
    surveyed: Any, tmp_path: Path
) -> None:
    surveys, predictor = surveyed
    report = after(surveyed, timed(surveys[1].candidates[0], accepted=True))
    report.key = "graph"
    path, asked = tmp_path / "store.duckdb", ("graph", predictor.profile.key, "measure")
    first, *others = tunings(heavy(surveyed))
    sizes = "XBLOCK=64 warps=4 stages=1"
    with Store.open(path) as store:
        told = remember(
            store,
            report,
            parts={},
            surveys=surveys,
            profile=predictor.profile,
            model_id="model",
            conditions={},
        )
        before = recall(store, *asked)
        assert before is not None and before.chosen == report.chosen
        for name in (first, *others[:1], first):
            remember_blocks(store, told, [Choice(f"blocks:{name}", sizes)])
        remember_blocks(store, told, [])
        found = recall(store, *asked)
        assert found is not None
        assert found.chosen.schedule == before.chosen.schedule
        assert found.chosen.blocks == (Choice(f"blocks:{first}", sizes),)
        others_before = [c for c in before.candidates if c != before.chosen]
        assert [c for c in found.candidates if c != found.chosen] == others_before
        # Another compile need not open the store.
        assert recall_at_once(path, *asked) == found
    # Where nothing can be written the program goes on.
    with Store.open(path, read_only=True) as closed:
        remember_blocks(closed, told, [Choice(f"blocks:{first}", sizes)])
