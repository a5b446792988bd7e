"""Records of choosing by prediction: what passes, what does not, and what real schedules give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import (
    CAUTIONS,
    LAUNCH_SHARE,
    LEAST_LAUNCHES,
    LEAST_SHARE,
    RISK,
    SHARES,
    USUAL,
    Demand,
    Difference,
    GainKind,
    Gains,
    gains_of,
)
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.dataset import load
from fusewise.datasets.samples import ScheduleSamples
from fusewise.training.foresight import (
    ENOUGH,
    Tried,
    foresight,
    gains_from,
    record_of,
    tried_schedules,
)

LEAST = Demand(LEAST_SHARE, CAUTIONS[0])


def tried(
    graph: int,
    ratio: float,
    saved: float = 10.0,
    unsure: float = 10.0,
    kind: GainKind = "setting",
    family: str = "",
) -> Tried:
    """One of a graph of 100 us that is ``ratio`` times as fast."""
    gain = Difference(saved, unsure)
    name = f"g{graph}"
    return Tried(name, family or name, frozenset({kind}), gain, 100.0, math.log(ratio))


def many(count: int, ratio: float, start: int = 0, **told: Any) -> list[Tried]:
    return [tried(start + at, ratio, **told) for at in range(count)]


def test_of_each_graph_the_one_that_surely_saves_most_is_taken() -> None:
    some = [tried(0, 0.9, 12.0, 8.0), tried(0, 1.2, 10.0, 1.0), tried(1, 1.5, 0.5)]
    # In the second graph too little is saved.
    assert record_of(some, Demand(LEAST_SHARE)) == record_of(some[:1], Demand(LEAST_SHARE))
    careful = record_of(some, Demand(LEAST_SHARE, 0.5))
    assert (careful.taken, careful.slower) == (1, 0)
    assert careful.gain == pytest.approx(math.log(1.2))
    assert record_of(some, Demand(LEAST_SHARE, 1.0)).taken == 1
    assert record_of(some[:1], Demand(LEAST_SHARE, 2.0)).taken == 0
    assert record_of(some, Demand(0.11)).taken == 1 and record_of(some, Demand(0.13)).taken == 0
    # A percent is no loss.
    assert record_of([tried(0, 0.995)], LEAST).slower == 0


def test_a_kind_passes_with_the_demand_that_suits_it() -> None:
    good = many(3 * ENOUGH, 1.05, unsure=5.0)
    assert gains_from(good, "cpu").demands["setting"] == LEAST
    bad = many(ENOUGH, 0.8, start=1000, unsure=40.0)
    found = gains_from([*good, *bad], "cpu")
    # What is so unsure is out where a part of the intervals is held against it.
    demand = found.demands["setting"]
    assert demand is not None and demand.share == LEAST_SHARE
    assert 40.0 * demand.caution >= 10.0 and 5.0 * demand.caution < 10.0
    assert found.records["setting"].slower == 0
    # And of what saves little, where a greater part of the time is asked for.
    small = many(ENOUGH, 0.8, start=1000, saved=4.0, unsure=1.0)
    found = gains_from([*good, *small], "cpu")
    assert found.demands["setting"] == Demand(SHARES[1], CAUTIONS[0])
    # One demand of common launches: how long kernels take is no matter.
    launches = gains_from(many(ENOUGH, 1.1, kind="launches"), "cpu").demands["launches"]
    assert launches == Demand(LEAST_LAUNCHES)
    worse = gains_from([*good, *many(ENOUGH, 0.8, start=1000, unsure=5.0)], "cpu")
    assert worse.demands["setting"] is None
    assert worse.records["setting"].slower == ENOUGH


def test_of_demands_that_pass_the_one_holds_by_which_fewest_are_slower() -> None:
    good = many(3 * ENOUGH, 1.1)
    # Two that lose, and two that gain a little, are out where more of the time is asked for.
    bad = many(2, 0.97, start=1000, saved=4.0, unsure=1.0)
    more = many(2, 1.05, start=2000, saved=4.0, unsure=1.0)
    found = gains_from([*good, *bad, *more], "cpu")
    assert found.demands["setting"] == Demand(SHARES[1], CAUTIONS[0])
    assert found.records["setting"].slower == 0
    # Also where much is gained by what is out.
    found = gains_from([*good, *bad, *many(8, 1.5, start=2000, saved=4.0, unsure=1.0)], "cpu")
    assert found.demands["setting"] == Demand(SHARES[1], CAUTIONS[0])
    assert found.records["setting"].slower == 0


def test_graphs_of_one_family_are_one_piece_of_evidence() -> None:
    several = many(ENOUGH, 1.1)
    assert gains_from(several, "cpu").demands["setting"] == LEAST
    alike = [tried(at, 1.1, family="one") for at in range(10 * ENOUGH)]
    assert gains_from(alike, "cpu").demands == USUAL["cpu"].demands
    # A family of which all were slower counts as one that was, however many graphs it has.
    ruined = [tried(1000 + at, 0.9, family="one") for at in range(10 * ENOUGH)]
    record = record_of([*many(3 * ENOUGH, 1.1), *ruined], LEAST)
    assert (record.families, record.unlucky) == (3 * ENOUGH + 1, 1.0)
    assert record.slower == 10 * ENOUGH and record.passes
    assert record.gain == pytest.approx(
        (3 * ENOUGH * math.log(1.1) + math.log(0.9)) / (3 * ENOUGH + 1)
    )


def test_where_too_few_were_taken_what_is_usual_holds() -> None:
    few = many(ENOUGH - 1, 1.3)
    assert gains_from(few, "cpu").demands == USUAL["cpu"].demands
    assert gains_from([], "cuda").demands == USUAL["cuda"].demands
    ruined = gains_from(many(ENOUGH, 0.5), "cuda")
    assert ruined.demands["setting"] is None and ruined.may(["launches"])


def test_one_unlucky_pick_does_not_undo_many() -> None:
    enough = math.ceil(2 / RISK) + 1
    luck = [*many(enough - 1, 1.1), tried(-1, 0.9)]
    assert gains_from(luck, "cpu").demands["setting"] == LEAST
    assert gains_from(luck[2:], "cpu").demands["setting"] is None


def test_what_comes_of_it_over_all_graphs() -> None:
    some = [*many(2, 1.21, kind="launches"), *many(1, 0.9, start=2), *many(3, 2.0, 3, kind="plan")]
    gains = Gains(demands={"launches": LEAST, "setting": LEAST})
    found = foresight(some, gains)
    assert found is not None
    assert (found.graphs, found.taken, found.slower) == (6, 3, 1)
    assert found.worst == pytest.approx(0.9)
    assert found.gain == pytest.approx((1.21**2 * 0.9) ** (1 / 6))
    assert found.best_gain == pytest.approx((1.21**2 * 2.0**3) ** (1 / 6))
    assert found.share == pytest.approx(math.log(found.gain) / math.log(found.best_gain))
    assert foresight([], gains) is None
    nothing = foresight(many(2, 0.9), Gains(demands={}))
    assert nothing is not None and nothing.share is None and nothing.taken == 0


@pytest.fixture(scope="module")
def real() -> tuple[DeviceProfile, Sequence[Tried]]:
    """Schedules of a few families, predicted by the roofline."""
    data = load("h200")
    (device,) = (each for each in data.devices() if each.key == "cuda-NVIDIA_H200")
    profile = msgspec.convert(device.profile, DeviceProfile)
    families = {"generated/sgd", "generated/group_norm", "timm/dla"}
    samples = [s for s in data.schedules() if s.family in families]
    model = Roofline(profile)
    found = tried_schedules(
        ScheduleSamples(tuple(samples), data.problems),
        profile,
        data.extern_times(profile.key),
        lambda sample: None if sample.family == "timm/dla" else model,
    )
    return profile, found


def test_measured_schedules_are_told_apart_by_kind(
    real: tuple[DeviceProfile, Sequence[Tried]],
) -> None:
    profile, found = real
    assert {one.kinds for one in found} >= {
        frozenset({"setting"}),
        frozenset({"plan"}),
        frozenset({"launches"}),
    }
    for one in found:
        assert one.total_us > 0.0 and one.gain.unsure_us >= 0.0
        if one.kinds != {"launches"}:
            assert one.launches_us == 0.0
            continue
        launches = one.launches_us / profile.launch_us
        assert launches == pytest.approx(round(launches)) and launches >= 1
        assert one.gain.saved_us == pytest.approx(LAUNCH_SHARE * one.launches_us)


def test_common_launches_of_small_kernels_gain_what_is_foreseen(
    real: tuple[DeviceProfile, Sequence[Tried]],
) -> None:
    profile, found = real
    launches = [one for one in found if one.kinds == {"launches"}]
    told = foresight(launches, gains_of(Roofline(profile), "cuda"))
    assert told is not None and told.taken > 0
    assert told.slower == 0 and told.gain > 1.0
