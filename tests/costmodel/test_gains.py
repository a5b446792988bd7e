"""What a prediction may take: differences of schedules, kinds of choices, and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusewise.costmodel.borrowed import BorrowedModel
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import (
    KINDS,
    LEAST_SHARE,
    PROBED,
    RISK,
    SHARES,
    USUAL,
    Demand,
    Gains,
    Kernel,
    Record,
    difference,
    gains_of,
    kinds_of,
)
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel, read_model
from fusewise.costmodel.registry import save_model
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.inlining import node_choice
from fusewise.schedule.kernel_choices import blocks_choice, combo_choice
from fusewise.schedule.products import template_choice
from fusewise.schedule.reductions import split_choice
from fusewise.schedule.schedule import Choice

OWN = Gains(demands={"setting": Demand(0.02, 0.3), "launches": Demand(0.01), "plan": None})


def kernel(signature: str, us: float, factor: float = 1.5) -> Kernel:
    return Kernel(signature, us, us / factor, us * factor)


def test_what_both_have_cancels_out() -> None:
    shared = [kernel("a", 100.0), kernel("b", 10.0), kernel("b", 10.0)]
    found = difference(
        Counter([*shared, kernel("c", 6.0), kernel("b", 10.0)]),
        Counter([*shared, kernel("d", 9.0)]),
    )
    assert found.saved_us == pytest.approx(6.0 + 10.0 - 9.0)
    assert found.unsure_us == pytest.approx((6.0 + 10.0) / 3 + 9.0 / 2)
    assert found.at_least(0.0) == found.saved_us
    assert found.at_least(1.0) == pytest.approx(16.0 / 1.5 - 13.5)
    nothing = difference(Counter(shared), Counter(shared))
    assert (nothing.saved_us, nothing.unsure_us) == (0.0, 0.0)


def test_what_a_model_does_not_know_has_to_pay_at_its_worst() -> None:
    own = Counter([kernel("known", 30.0)])
    strange = Kernel("strange", 10.0, 5.0, 25.0, strange=True)
    found = difference(own, Counter([strange]))
    assert (found.saved_us, found.unsure_us, found.strange_us) == pytest.approx((20.0, 25.0, 15.0))
    assert found.at_least(0.0) == pytest.approx(20.0 - 15.0)
    assert found.at_least(0.5) == pytest.approx(20.0 - 15.0 - 5.0)
    assert Demand(0.02).surely_us(found, 100.0) == pytest.approx(5.0)
    worse = difference(own, Counter([replace(strange, high_us=31.0)]))
    assert Demand(0.02).surely_us(worse, 100.0) == 0.0


def test_choices_are_of_kinds() -> None:
    setting, split = Choice("inline_reads", 16), Choice("split_reductions", False)
    assert kinds_of([], [], own_plan=True) == frozenset()
    assert kinds_of([], [], own_plan=False) == {"plan"}
    assert kinds_of([setting], [], own_plan=True) == {"setting"}
    assert kinds_of([setting, split], [], own_plan=True) == {"setting", "split"}
    assert kinds_of([node_choice("add", "store")], [], own_plan=True) == {"value"}
    assert kinds_of([split_choice("sum_1", 4)], [], own_plan=True) == {"split"}
    assert kinds_of([], [combo_choice(["op0", "op1"])], own_plan=True) == {"launches"}
    codegen = [blocks_choice("op0", "descent"), Choice("loop_ordering", False)]
    assert kinds_of([], codegen, own_plan=False) == {"plan", "code"}


def test_the_most_doubtful_kind_decides() -> None:
    assert OWN.asked([]) == Demand(LEAST_SHARE) and OWN.asked(["launches"]) == Demand(0.01)
    assert OWN.asked(["setting", "launches"]) == Demand(0.02, 0.3)
    both = Gains(demands={"setting": Demand(0.05, 0.1), "value": Demand(0.02, 0.5)})
    assert both.asked(["setting", "value"]) == Demand(0.05, 0.5)
    assert OWN.asked(["setting", "plan"]) is None
    # Of a kind that the record knows nothing of nothing is taken.
    assert not OWN.may(["split"]) and OWN.may(["launches"])


def test_few_that_were_slower_pass_and_few_that_were_taken_do_not() -> None:
    def record(families: int, unlucky: float) -> Record:
        return Record(taken=99, slower=9, families=families, unlucky=unlucky, gain=0.1)

    enough = round(1 / RISK)
    assert record(enough, 0.0).passes
    assert not record(enough - 1, 0.0).passes
    assert not record(enough, 0.5).passes
    assert record(3 * enough, 1.0).passes


@pytest.fixture
def model(kernels: Callable[[int, int], Any]) -> Any:
    some = kernels(120, 1)
    estimator = LearnedCostModel(n_estimators=20, networks=1, epochs=4)
    return estimator.fit(some.features, some.us).model_


def test_a_record_goes_with_its_model(model: Any, profile: DeviceProfile, tmp_path: Path) -> None:
    assert model.gains is None
    known = model.with_gains(OWN)
    # What was decided by the one is no answer for the other.
    assert known.id != model.id
    saved = SavedModel(known.renamed("mine"), Manifest(name="mine", id=known.id, profile=profile))
    loaded = read_model(save_model(saved, tmp_path)).model
    assert loaded.gains == OWN and loaded.id == known.id
    unknown = SavedModel(model.renamed("old"), Manifest(name="old", id=model.id, profile=profile))
    loaded = read_model(save_model(unknown, tmp_path)).model
    assert loaded.gains is None and loaded.id == model.id


def test_without_a_record_what_is_usual_holds(model: Any, profile: DeviceProfile) -> None:
    assert gains_of(model, "cuda") == USUAL["cuda"] and gains_of(model, "cpu") == USUAL["cpu"]
    assert gains_of(model.with_gains(OWN), "cuda") == OWN
    # One for another rule says nothing about this one.
    other = model.with_gains(msgspec.structs.replace(OWN, version=0))
    assert gains_of(other, "cuda") == USUAL["cuda"]
    assert not any(USUAL["cpu"].may([kind]) for kind in KINDS)


def test_products_rest_on_what_was_probed(model: Any) -> None:
    kinds = kinds_of((Choice("wide_products", True),), (), own_plan=True)
    assert kinds == {"products"}
    for gains in (USUAL["cpu"], OWN, OWN.on_another_device()):
        assert gains.asked(kinds) == PROBED["products"]
    assert USUAL["cpu"].asked([*kinds, "plan"]) is None


def test_templates_are_taken_where_the_model_was_trained() -> None:
    kinds = kinds_of([template_choice("mm", 64)], [], own_plan=True)
    assert kinds == {"template"}
    assert OWN.asked(kinds) == PROBED["template"]
    assert OWN.on_another_device().asked(kinds) is None


def test_what_was_not_trained_on_the_device_has_to_be_surer(
    model: Any, profile: DeviceProfile
) -> None:
    here = msgspec.structs.replace(profile, key="other")
    borrowed = gains_of(BorrowedModel(model.with_gains(OWN), profile, here), "cpu")
    assert borrowed.asked(["setting"]) == Demand(LEAST_SHARE, 1.0)
    # How long a launch takes is measured on each device.
    assert borrowed.asked(["launches"]) == Demand(0.01) and not borrowed.may(["plan"])
    assert gains_of(Roofline(profile), "cuda").asked(["setting"]) == Demand(SHARES[1], 1.0)
