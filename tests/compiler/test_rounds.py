"""Block sizes in rounds: which are tried when a graph runs again, and when that ends.

Triton compiles for a GPU that is not there, so none is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fusewise.compiler.inductor import configurations, rounds
from fusewise.compiler.inductor.block_sizes import (
    config_of,
    load_kernel,
    nearest,
    sizes_of,
    steps_from,
    trades_from,
)
from fusewise.compiler.inductor.rounds import Coming, Rounds, offer_rounds, tuning_step
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.schedule import Choice
from tests.compiler.timed_kernel import Timed
from tests.compiler.triton_kernels import looped


class Offered:
    """A kernel with a first round of block sizes, and what was waited for and begun so far."""

    def __init__(self, path: str) -> None:
        self.kernel: Any = load_kernel(path, "triton_red")
        self.sizes = nearest(self.kernel, (), 3)
        self.waited: list[tuple[BlockSizes, ...]] = []
        self.rounds = Rounds(self._coming(self.sizes), self._coming)

    def _coming(self, sizes: Sequence[BlockSizes]) -> Coming:
        def wait() -> tuple[BlockSizes, ...]:
            self.waited.append(tuple(sizes))
            return tuple(sizes)

        return wait

    def steps(self, timed: Timed, most: int = 20, start: Any = None) -> list[BlockSizes]:
        """What the kernel is launched with in one run of its graph after the other."""
        launcher = start or timed.launcher(self.kernel.configs[0])
        launched = []
        for at in range(most):
            with tuning_step(first=at == 0):
                launcher = timed.tuned(launcher)
            launched.append(sizes_of(launcher.config))
        return launched


@pytest.fixture
def offered(written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Offered]:
    if not torch.cuda.is_available():
        # Without CUDA it raises.
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(configurations, "_clock", None)
    made = Offered(written(looped()))
    offer_rounds({made.kernel.filename: made.rounds})
    yield made
    rounds._rounds.clear()


def test_the_first_run_waits_for_nothing_and_each_later_one_for_a_round(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    own, best, *_ = offered.sizes
    launched = offered.steps(timed)
    assert launched[:3] == [own, best, best] and set(launched[1:]) == {best}
    # Neighbours of the best are looked at once, as far as they were not tried before.
    first, second = offered.waited
    assert first == tuple(offered.sizes) and second and not {*second} & {*first}
    config = config_of(best, offered.kernel.configs[0])
    around = (*steps_from(offered.kernel, config), *trades_from(offered.kernel, config))
    assert {*second} <= {*around}
    assert offered.rounds.over
    # What was found stands for whoever loads the kernel next.
    (kept,) = load_kernel(offered.kernel.filename, "triton_red").configs
    assert sizes_of(kept) == best and kept.found_by_coordesc


def test_steps_lead_on_where_each_is_faster(offered: Offered) -> None:
    own = offered.sizes[0]

    def us(one: BlockSizes) -> float:
        """The more positions in a block the better."""
        return 1e3 / (dict(one.constants)["XBLOCK"] * one.warps)

    timed = Timed(offered.kernel, us)
    configurations.tune_warm(timed.clock)
    launched = offered.steps(timed)
    times = [us(one) for one in launched]
    assert launched[0] == own and times == sorted(times, reverse=True)
    # Further than one step from where the first round ended, and it ends.
    assert times[-1] <= times[0] / 8 and offered.rounds.over
    assert 3 <= len(offered.waited) <= 1 + rounds._MOST_ROUNDS
    tried = [one for sizes in offered.waited for one in sizes]
    assert len(tried) == len(set(tried))


def test_a_block_of_another_shape_is_found_where_no_single_step_is_faster(offered: Offered) -> None:
    own = offered.sizes[0]
    (trade, *_) = trades_from(offered.kernel, offered.kernel.configs[0])
    values, others = dict(own.constants), dict(trade.constants)
    assert trade.warps == own.warps and values != others
    assert math.prod(values.values()) == math.prod(others.values())
    assert trade not in {*steps_from(offered.kernel, offered.kernel.configs[0])}
    timed = Timed(offered.kernel, lambda one: {own: 8.0, trade: 5.0}.get(one, 10.0))
    configurations.tune_warm(timed.clock)
    assert offered.steps(timed)[-1] == trade


def test_what_rounds_came_to_is_told_once_they_are_over(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    kernels = {offered.kernel.filename: ("blocks:op1", "blocks:op2"), "elsewhere": ("blocks:op3",)}
    offered.steps(timed, 2)
    assert rounds.blocks_found(kernels) == ()
    offered.steps(timed)
    text = offered.sizes[1].text
    assert rounds.blocks_found(kernels) == (Choice("blocks:op1", text), Choice("blocks:op2", text))


def test_whoever_does_not_tell_when_it_runs_again_has_one_round(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[2] else 10.0)
    configurations.tune_warm(timed.clock)
    launcher = timed.tuned()
    assert sizes_of(launcher.config) == offered.sizes[2] and launcher.config.found_by_coordesc
    assert len(offered.waited) == 1 and offered.rounds.over


def test_what_was_found_elsewhere_is_where_a_kernel_goes_on_from(offered: Offered) -> None:
    found = offered.sizes[1]
    (further, *_) = steps_from(offered.kernel, config_of(found, offered.kernel.configs[0]))
    timed = Timed(offered.kernel, lambda one: {found: 8.0, further: 4.0}.get(one, 10.0))
    configurations.tune_warm(timed.clock)
    launcher = timed.launcher(config_of(found, offered.kernel.configs[0]))
    launcher.config.found_by_coordesc = True
    loaded = SimpleNamespace(launchers=[launcher])
    rounds.go_on(loaded)
    assert launcher.config.found_by_coordesc
    with rounds.going_on(True):
        rounds.go_on(loaded)
    assert not launcher.config.found_by_coordesc
    assert offered.steps(timed, start=launcher)[-1] == further


def test_a_kernel_that_nothing_comes_for_stays_as_it_is(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    nothing = Rounds(tuple)
    offer_rounds({offered.kernel.filename: nothing})
    assert set(offered.steps(timed, 3)) == {offered.sizes[0]}
    assert timed.loaded == [] and nothing.over
    # It does not ask again at every launch.
    assert timed.tuned().config.found_by_coordesc


def test_what_cannot_be_launched_again_and_again_stays_as_it_is(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    monkeypatch.setattr(configurations, "can_be_repeated", lambda *_: False)
    assert set(offered.steps(timed, 3)) == {offered.sizes[0]}
    assert timed.loaded == [] and offered.rounds.over and offered.waited == []


def test_a_kernel_that_there_is_no_memory_to_time_stays_as_it_is(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)

    def no_room(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    offered.kernel.clone_args = no_room
    assert set(offered.steps(timed, 3)) == {offered.sizes[0]}
    assert offered.rounds.over


def test_what_one_kernel_came_to_others_of_its_source_take(offered: Offered) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    assert offered.steps(timed)[-1] == offered.sizes[1] and offered.rounds.over
    waited = len(offered.waited)
    # Loaded before anything was found, as for another device.
    other = Timed(load_kernel(offered.kernel.filename, "triton_red"), lambda _: 1.0)
    other.kernel.configs = offered.kernel.configs
    launcher = other.tuned()
    assert sizes_of(launcher.config) == offered.sizes[1] and launcher.config.found_by_coordesc
    assert other.loaded == [offered.sizes[1]] and len(offered.waited) == waited


def test_nothing_is_timed_while_a_user_captures(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(offered.kernel, lambda one: 5.0 if one == offered.sizes[1] else 10.0)
    configurations.tune_warm(timed.clock)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert set(offered.steps(timed, 3)) == {offered.sizes[0]}
    assert not offered.rounds.over
    assert offered.steps(timed, 3)[-1] == offered.sizes[1]


def test_a_graph_is_as_it_was_once_all_rounds_are_over() -> None:
    asked: list[bool] = []
    left = Rounds(tuple)

    def run(inputs: Any) -> Any:
        now = rounds._step.get()
        if now is not None:
            asked.append(now.waits_for_nothing)
            now.asked.append((SimpleNamespace(_cached_launcher=1), left))
        return inputs

    output: Any = SimpleNamespace(current_callable=run)
    rounds.tune_while_used(output)
    kept = output.current_callable
    done: list[str] = []
    rounds.when_over(output, lambda: done.append("over"))
    for _ in range(3):
        assert output.current_callable([1]) == [1]
    assert asked == [True, False, False] and output.current_callable is kept and not done
    left.stop()
    assert output.current_callable([2]) == [2] and output.current_callable is run
    assert done == ["over"]
    # What is not tuned has no rounds.
    rounds.when_over(output, lambda: done.append("again"))
    # Whoever kept the function runs the graph.
    assert kept([3]) == [3] and len(asked) == 4 and done == ["over"]
