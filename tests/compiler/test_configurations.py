"""Which of Inductor's block sizes a kernel takes: those that are best when warm, everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.utils import fresh_cache

import fusewise
from fusewise.compiler.inductor import blocks_ahead, configurations, rounds
from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.block_sizes import sizes_of, without_steps
from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.inductor.program import forget_kernels, load_module
from fusewise.compiler.inductor.triton_ahead import await_kernels, triton_kernels
from fusewise.compiler.measuring import cuda_timing
from fusewise.schedule.kernel_choices import blocks_choice, combo_choice
from fusewise.schedule.schedule import Schedule

pytestmark = pytest.mark.gpu


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that tunes as Inductor does, and does so again after the test."""
    monkeypatch.setattr(configurations, "_clock", None)
    monkeypatch.setattr(configurations, "_clock_of_ours", None)


def rows(x: Any) -> Any:
    """Rows so short that Inductor does not know how many of them a block had best have."""
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def kernels(module: Any) -> list[Any]:
    return [value for name, value in vars(module).items() if name.startswith("triton_")]


def test_what_is_fastest_by_the_given_clock_is_taken(live: Any, untuned: None) -> None:
    x = torch.randn(2048, 64, device="cuda")
    (graph,) = live.capture(live.UserProgram(rows, (x,)))
    timed: list[str] = []

    def later_is_faster(call: Callable[[], Any]) -> Callable[[], float]:
        assert cuda_timing.samples(call)() > 0
        timed.append(call.__qualname__)
        seconds = 1.0 / len(timed)
        return lambda: seconds

    configurations.tune_warm(later_is_faster)
    program = graph.stock
    module = load_module(program.source, program.constants, program.settings, in_process=True)
    (kernel,) = kernels(module)
    kernel.precompile()
    offered = [launcher.config for launcher in kernel.launchers]
    live.difference(graph._called(lambda inputs: module.call(list(inputs))), graph.eager())
    assert len(timed) == len(offered) > 1
    (left,) = kernel.launchers
    assert left.config is offered[-1]


def test_what_was_measured_is_taken_without_timing_it_again(live: Any, store: Path) -> None:
    x = torch.randn(4096, 96, device="cuda")
    options = {"fusewise.store": store, "fusewise.budget_s": 30}
    compiled = torch.compile(rows, backend="fusewise", options=options)
    counters.clear()
    live.difference([compiled(x)], [rows(x)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert any(c.status == "measured" for c in report.candidates)
    timed = {k: n for k, n in counters["inductor"].items() if k.endswith("benchmark_gpu")}
    assert timed == {}


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Launches that this process times warm, by name: each would keep its tensors alive."""
    timed: list[str] = []
    warm = cuda_timing.samples

    def samples(call: Callable[[], Any]) -> Callable[[], float]:
        timed.append(call.__qualname__)
        return warm(call)

    monkeypatch.setattr(cuda_timing, "samples", samples)
    return timed


def test_where_nothing_was_measured_they_are_timed_warm_as_well(
    live: Any, store: Path, untuned: None, times: list[str]
) -> None:
    x = torch.randn(4096, 80, device="cuda")
    options = {"fusewise.store": store, "fusewise.mode": "predict"}
    counters.clear()
    compiled = torch.compile(rows, backend="fusewise", options=options)
    live.difference([compiled(x)], [rows(x)])
    # The second step waits for what is tried.
    live.difference([compiled(x)], [rows(x)])
    cold = {k: n for k, n in counters["inductor"].items() if k.endswith("benchmark_gpu")}
    assert len(times) > 1 and cold == {}


def test_a_program_that_is_replayed_as_a_graph_is_timed_before(
    live: Any, store: Path, untuned: None, times: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests beside this one take the cores that compile.
    monkeypatch.setattr(blocks_ahead, "_STARTING_S", 60.0)
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)
    x = torch.randn(4096, 88, device="cuda")
    options: dict[str, Any] = {"fusewise.store": store, "fusewise.mode": "predict"}
    compiled = torch.compile(
        rows, backend="fusewise", options={**options, "triton.cudagraphs": True}
    )
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        live.difference([compiled(x).clone()], [rows(x)])
        x = torch.randn_like(x)
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert len(times) > 1


def test_other_programs_are_tuned_as_inductor_does(
    live: Any, untuned: None, times: list[str]
) -> None:
    configurations.tune_ours_warm(cuda_timing.samples)
    x = torch.randn(4096, 72, device="cuda")
    counters.clear()
    live.difference([torch.compile(rows)(x)], [rows(x)])
    assert any(k.endswith("benchmark_gpu") for k in counters["inductor"])
    assert times == []


def stepped(live: Any, factor: int, columns: int) -> tuple[Any, Schedule]:
    """A graph, and its default plan with all kernels tuned step by step."""
    x = torch.randn(2048, columns, device="cuda")
    (graph,) = live.capture(live.UserProgram(lambda x: torch.softmax(x * factor, -1), (x,)))
    plan = graph.surveyed.default
    names = [group[0] for group in plan.groups]
    return graph, Schedule(plan=plan, codegen=tuple(blocks_choice(n, "descent") for n in names))


@pytest.fixture
def stepwise(live: Any, untuned: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A graph with a program whose kernels are tuned step by step, and what is compiled for it."""
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)
    # As a process that measures does when it starts.
    use_pools_assembler()
    graph, chosen = stepped(live, 2, 1000)
    program = graph.generate(chosen)
    AsyncCompile.wait_pool_ready()
    with fresh_cache():
        blocks_ahead.ask_for_blocks(program.source, program.settings)
        assert await_kernels(program.source, program.settings, 60.0)
        compiled = blocks_ahead.await_blocks(program.source, 60.0)
        for asked in blocks_ahead._asked.values():
            # Compilers that were at work when time was up still write what they made.
            wait(asked.futures.values(), 60.0)
        yield graph, program, compiled
    configurations._offered.clear()


def run_alone(graph: Any, program: Any) -> tuple[list[Any], Any]:
    """What a program gives, loaded as where it is measured, and its module."""
    module = load_module(program.source, program.constants, program.settings, in_process=True)
    return graph._called(lambda inputs: module.call(list(inputs))), module


def test_all_that_is_near_is_timed_and_nothing_compiled(stepwise: Any, live: Any) -> None:
    graph, program, compiled = stepwise
    ((path, offered),) = compiled.items()
    assert len(offered) >= 8
    wanted = offered[len(offered) // 2]
    timed: list[float] = []

    def clock(call: Callable[[], Any]) -> Callable[[], float]:
        # Inductor's own come first; the one in the middle is the fastest.
        assert cuda_timing.samples(call)() > 0
        timed.append(1.0 if len(timed) == len(offered) // 2 else 2.0)
        seconds = timed[-1]
        return lambda: seconds

    configurations.tune_warm(clock)
    configurations.offer_blocks(compiled)
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    before = set(cache.rglob("*.cubin"))
    counters.clear()
    found, module = run_alone(graph, program)
    live.difference(found, graph.eager())
    assert set(cache.rglob("*.cubin")) == before
    assert counters["inductor"]["coordesc_tuning_bench"] == 0
    (kernel,) = kernels(module)
    (launcher,) = kernel.launchers
    assert kernel.filename == path
    assert launcher.config.found_by_coordesc
    if len(timed) == len(offered):
        assert sizes_of(launcher.config) == wanted
    # Whoever loads it next takes the same, untimed.
    timed.clear()
    forget_kernels()
    found, module = run_alone(graph, program)
    live.difference(found, graph.eager())
    (again,) = kernels(module)
    assert sizes_of(again.launchers[0].config) == sizes_of(launcher.config)
    assert timed == []


def test_no_kernel_is_loaded_where_its_code_is_written(
    live: Any, untuned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded then would stay in this process as it is, with nothing found for it."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    graph, chosen = stepped(live, 3, 1016)
    AsyncCompile.wait_pool_ready()
    loaded: list[str] = []
    original = CachingAutotuner.precompile

    def precompile(self: Any, *args: Any, **kwargs: Any) -> Any:
        loaded.append(self.fn.__name__)
        return original(self, *args, **kwargs)

    def visit() -> bool:
        monkeypatch.setattr(CachingAutotuner, "precompile", precompile)
        assert "coordinate_descent_tuning" in graph.compile.generate(chosen).source
        monkeypatch.undo()
        return False

    with fresh_cache(), graph.context():
        assert graph.compile.compile_after(visit, measured=True) is None
        assert loaded == []
        output = graph.compile.compile(chosen, Applier(chosen.plan))
    live.difference(graph._called(lambda inputs: output(list(inputs))), graph.eager())


def cubins() -> list[Path]:
    return sorted(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))


def test_nothing_is_compiled_anew_for_being_tuned(live: Any, untuned: None) -> None:
    graph, chosen = stepped(live, 3, 1016)
    plain = graph.generate(Schedule(plan=chosen.plan))
    AsyncCompile.wait_pool_ready()
    with fresh_cache():
        forget_kernels()
        assert await_kernels(plain.source, plain.settings, 60.0)
        compiled = cubins()
        forget_kernels()
        tuned = graph.generate(chosen)
        assert await_kernels(tuned.source, tuned.settings, 60.0)
        assert compiled and cubins() == compiled
    ((_, code, _),) = triton_kernels(plain.source)
    ((_, stepwise, _),) = triton_kernels(tuned.source)
    assert without_steps(stepwise) == code != stepwise


def compiled_for_tuning(graph: Any, chosen: Schedule) -> tuple[Any, str]:
    """A graph that is compiled, its block sizes still to come, and the path of its kernel."""
    AsyncCompile.wait_pool_ready()
    output = graph.compile.compile(chosen, Applier(chosen.plan))
    graph.compile.compile_for_tuning(chosen, output)
    return output, next(iter(blocks_ahead.rounds_to_come(output.source_code)))


def test_a_plan_from_elsewhere_is_tuned_without_compiling_step_by_step(
    live: Any, untuned: None
) -> None:
    """Where caches are empty nothing is known of kernels but that they are to be tuned."""
    configurations.tune_ours_warm(cuda_timing.samples)
    graph, chosen = stepped(live, 5, 1032)
    with fresh_cache(), graph.context():
        output, path = compiled_for_tuning(graph, chosen)
        counters.clear()
        live.difference(graph._called(lambda inputs: output(list(inputs))), graph.eager())
        # Nothing was waited for, and nothing was tuned.
        own = rounds._rounds[path]
        assert not own._tried
        tried = []
        while not own.over:
            live.difference(graph._called(lambda inputs: output(list(inputs))), graph.eager())
            tried.append(len(own._tried))
        assert 1 < tried[0] < tried[-1]
        assert counters["inductor"]["coordesc_tuning_bench"] == 0
        # Another compile finds what was found, and asks for nothing.
        forget_kernels()
        blocks_ahead._asked.clear()
        again = graph.compile.compile(chosen, Applier(chosen.plan))
        graph.compile.compile_for_tuning(chosen, again)
        assert blocks_ahead._asked
        assert not any(asked.futures for asked in blocks_ahead._asked.values())
    rounds._rounds.clear()


def test_kernels_of_one_launch_are_tuned_as_one(live: Any, untuned: None) -> None:
    configurations.tune_ours_warm(cuda_timing.samples)
    args = tuple(torch.randn(n, 256, device="cuda") for n in (512, 1024))
    (graph,) = live.capture(live.UserProgram(lambda x, y: (x.sin() * 2, y.exp() + 1), args))
    plan = graph.surveyed.default
    names = [group[0] for group in plan.groups]
    assert len(names) == 2
    together = (combo_choice(names), blocks_choice(names[0], "descent"))
    chosen = Schedule(plan=plan, codegen=tuple(sorted(together)))
    with fresh_cache(), graph.context():
        output, path = compiled_for_tuning(graph, chosen)
        own = rounds._rounds[path]
        for _ in range(7):
            live.difference(graph._called(lambda inputs: output(list(inputs))), graph.eager())
        assert own.over and len(own._tried) > 1
    rounds._rounds.clear()


def test_what_is_captured_before_block_sizes_are_there_runs_as_it_is(
    live: Any, untuned: None
) -> None:
    configurations.tune_ours_warm(cuda_timing.samples)
    graph, chosen = stepped(live, 7, 1048)
    with fresh_cache(), graph.context():
        output, path = compiled_for_tuning(graph, chosen)
        live.difference(graph._called(lambda inputs: output(list(inputs))), graph.eager())

        def captured(inputs: Any) -> Any:
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                result = output(list(inputs))
            recorded.replay()
            return result

        live.difference(graph._called(captured), graph.eager())
        assert not rounds._rounds[path]._tried
    rounds._rounds.clear()


def test_any_of_them_is_right(stepwise: Any, live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, program, compiled = stepwise
    ((path, offered),) = compiled.items()
    configurations.tune_warm(cuda_timing.samples)
    # Nothing is kept, so that each is loaded anew.
    monkeypatch.setattr(AutotuneCache, "save", lambda *_, **__: None)
    taken = []
    for sizes in offered:
        configurations.offer_blocks({path: (sizes,)})
        forget_kernels()
        found, module = run_alone(graph, program)
        live.difference(found, graph.eager())
        (kernel,) = kernels(module)
        taken.append(sizes_of(kernel.launchers[0].config))
    # What spills registers is left out.
    assert all(one in (sizes, offered[0]) for one, sizes in zip(taken, offered, strict=True))
    assert len(set(taken)) > len(offered) // 2
