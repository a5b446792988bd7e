"""Timing single kernels: in earnest, on the values that reach them, and without traces."""

from __future__ import annotations

import dataclasses
import pickle
import socket
import threading
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusewise.compiler.contest import graph_job
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.cpp_kernels import definitions
from fusewise.compiler.inductor.effects import cpp_effects, triton_effects
from fusewise.compiler.inductor.launches import generate_with_launches
from fusewise.compiler.inductor.program import load_module, precompile
from fusewise.compiler.measuring import serving
from fusewise.compiler.measuring.client import MeasuringProcess
from fusewise.compiler.measuring.flags import flag_places
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.measuring.job import ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort, KernelTimer
from fusewise.compiler.measuring.sampling import is_settled, take_samples, together
from fusewise.compiler.measuring.serving import serve
from fusewise.compiler.measuring.worker import Worker
from fusewise.costmodel.cpu_accesses import unforeseen_flags
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule

QUICK = Effort(seconds=0.005, min_samples=6, max_samples=8)


def job_of(graph: Any, device: str) -> Any:
    return graph_job(
        graph.compile,
        key=graph.kind,
        device=device,
        observed=observe(graph.inputs),
        forward_key=None,
    )


def program_of(graph: Any, device: str) -> ProgramJob:
    """One function for each node of a graph."""
    names = [node.name for node in graph.surveyed.problem.nodes]
    with graph.context():
        program, _ = generate_with_launches(graph.compile, Schedule(plan=unfused(names)))
    library = build_library([(program.source, program.settings)]) if device == "cpu" else ""
    return ProgramJob("alone", program.source, program.constants, program.settings, library)


def test_each_call_is_timed_where_it_stands(live: Any, device: str) -> None:
    (graph,) = live.captured("adam_step", device)
    worker = Worker()
    worker.prepare(job_of(graph, device))
    program = program_of(graph, device)
    calls = worker.time_kernels(program, QUICK, frozenset())
    expected = program.source.count("cpp_pybinding" if device == "cpu" else "async_compile.triton")
    assert len({call.kernel for call in calls}) == expected > 1
    for call in calls:
        # Six, but for a device that others use meanwhile.
        assert call.failure == "" and 3 <= len(call.samples) <= 8
        assert 0 < min(call.samples) < 1e5
        assert call.clock == ("c loop" if device == "cpu" else "cuda graph")
    skipped = frozenset({(calls[0].kernel, 0)})
    again = worker.time_kernels(program, QUICK, skipped)
    assert [bool(call.samples) for call in again] == [i != 0 for i in range(len(calls))]


def test_program_that_is_gone_over_again_is_loaded_once(
    live: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (graph,) = live.captured("adam_step", device)
    worker = Worker()
    worker.prepare(job_of(graph, device))
    program = program_of(graph, device)
    loaded: list[str] = []

    def load(source: str, *args: Any, **kwargs: Any) -> Any:
        loaded.append(source)
        return load_module(source, *args, **kwargs)

    monkeypatch.setattr("fusewise.compiler.measuring.worker.load_module", load)
    passes = [worker.time_kernels(program, QUICK, frozenset()) for _ in range(3)]
    assert loaded == [program.source]
    assert passes[0] and all(call.samples for calls in passes for call in calls)
    other = dataclasses.replace(program, id="other")
    assert len(worker.time_kernels(other, QUICK, frozenset())) == len(passes[0])
    # Another graph is another program, whatever it is called.
    worker.prepare(job_of(graph, device))
    worker.time_kernels(program, QUICK, frozenset())
    assert len(loaded) == 3


def same_while_timed(graph: Any, device: str) -> str:
    """The source of a program that computes the same timed, and afterwards, as never timed."""
    program = program_of(graph, device)

    def results(timed: bool) -> list[Any]:
        module = load_module(program.source, program.constants, program.settings, program.library)
        if timed:
            timer = KernelTimer(module, program.source, torch.device(device), QUICK)
            found = graph._called(lambda inputs: module.call(list(inputs)))
            timer.leave()
            taken = len(timer.calls)
            found += graph._called(lambda inputs: module.call(list(inputs)))
            assert len(timer.calls) == taken > 0
            return list(found)
        return list(graph._called(lambda inputs: module.call(list(inputs))))

    for value, wanted in zip(results(True), 2 * results(False), strict=True):
        if isinstance(wanted, torch.Tensor):
            # Tuning may take another configuration the next time.
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    return program.source


@pytest.mark.parametrize(
    "name",
    [
        "embedding",
        "mutation",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("adam_step", "integers", "overwrite")
        ),
    ],
)
def test_program_computes_the_same_while_it_is_timed(live: Any, name: str, device: str) -> None:
    for graph in live.captured(name, device):
        same_while_timed(graph, device)


def test_operator_that_is_called_without_its_overload_is_timed(live: Any, device: str) -> None:
    def counted(labels: Any, weights: Any) -> Any:
        zeros = torch.zeros(7, dtype=torch.int64, device=labels.device)
        counts = zeros.index_put((labels,), torch.ones_like(labels), accumulate=True)
        return counts.float() * weights

    labels = torch.arange(40, device=device) % 7
    weights = torch.arange(7, dtype=torch.float32, device=device)
    (graph,) = live.capture(live.UserProgram(counted, (labels, weights)))
    assert "aten.index_put_(" in same_while_timed(graph, device)


def test_kernel_that_fails_is_named_and_survived(live: Any) -> None:
    def f(ids: Any, table: Any) -> Any:
        return (table[ids] * 2).sum(0)

    make = live.Make("cpu", torch.float32)
    (graph,) = live.capture(live.UserProgram(f, (torch.arange(10), make.tensor(10, 8))))
    program = program_of(graph, "cpu")
    kernel = next(iter(definitions(program.source)))
    broken = program.source.replace(
        "async_compile.wait(globals())",
        f"async_compile.wait(globals())\ndef {kernel}(*args):\n    raise RuntimeError('no memory')",
    )
    process = MeasuringProcess("cpu")
    try:
        process.prepare(job_of(graph, "cpu"))
        with pytest.raises(MeasureError, match=f"at {kernel}: RuntimeError: no memory"):
            process.time_kernels(ProgramJob("bad", broken, {}, {}), QUICK, 60)
        calls = process.time_kernels(program, QUICK, 60)
        assert process.alive and all(call.samples for call in calls)
    finally:
        process.kill()


def test_call_that_cannot_be_repeated_is_left_out(live: Any) -> None:
    (graph,) = live.captured("layer_norm")
    program = program_of(graph, "cpu")
    module = load_module(program.source, program.constants, program.settings)
    timer = KernelTimer(module, program.source, torch.device("cpu"), QUICK)
    calls: list[int] = []

    def once() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("too large to time")
        return 7

    assert timer.time("kernel", once, []) == 7
    (times,) = timer.calls
    assert (times.samples, times.failure) == ([], "timing it: MemoryError: too large to time")


def test_process_whose_device_is_lost_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "is_lost", lambda _: True)
    ours, theirs = socket.socketpair()
    near, far = Connection(ours.detach()), Connection(theirs.detach())
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(serve(far)))
    thread.start()
    near.send_bytes(pickle.dumps(("time_kernels", (None, QUICK, frozenset()))))
    succeeded, answer, last, *_ = pickle.loads(near.recv_bytes())
    thread.join(10)
    assert (succeeded, last, statuses) == (False, True, [3])
    assert answer == "RuntimeError: no graph was prepared; its process ends"


class Noting(Worker):
    """Notes which graphs were prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []

    def prepare(self, job: Any) -> None:
        self.prepared.append(job)


def test_a_graph_that_is_let_go_before_it_was_prepared_never_is() -> None:
    ours, theirs = socket.socketpair()
    near, far = Connection(ours.detach()), Connection(theirs.detach())
    asked: list[tuple[str, tuple[Any, ...]]] = [
        ("prepare", ("unwanted",)),
        ("let_go", ()),
        ("prepare", ("wanted",)),
        ("slowness", (1,)),
        ("let_go", ()),
        ("prepare", ("last",)),
    ]
    for request in asked:
        near.send_bytes(pickle.dumps(request))
    noting = Noting()
    thread = threading.Thread(target=lambda: serve(far, noting))
    thread.start()
    for _ in asked:
        succeeded, *_ = pickle.loads(near.recv_bytes())
        assert succeeded
    near.close()
    thread.join(10)
    assert not thread.is_alive()
    assert noting.prepared == ["wanted", "last"]


@pytest.mark.gpu
def test_bad_access_on_a_gpu_ends_the_process_and_no_other(live: Any) -> None:
    (graph,) = live.captured("layer_norm", "cuda")
    program = program_of(graph, "cuda")
    bad = program.source.replace(
        "async_compile.wait(globals())",
        "async_compile.wait(globals())\n"
        "class _Bad:\n"
        "    def run(self, *args, stream):\n"
        "        torch._assert_async(torch.zeros((), device='cuda'))\n"
        "triton_bad = _Bad()",
        1,
    ).replace(
        "        args.clear()\n", "        args.clear()\n        triton_bad.run(stream=0)\n", 1
    )
    process = MeasuringProcess("cuda:0")
    process.prepare(job_of(graph, "cuda:0"))
    with pytest.raises(MeasureError, match="its process ends"):
        process.time_kernels(ProgramJob("bad", bad, {}, {}), QUICK, 60)
    assert not process.alive
    other = MeasuringProcess("cuda:0")
    try:
        other.prepare(job_of(graph, "cuda:0"))
        assert other.time_kernels(program, QUICK, 60)
    finally:
        other.kill()


@pytest.mark.gpu
def test_compiled_ahead_is_found_by_another_process(
    live: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    (graph,) = live.captured("layer_norm", "cuda")
    program = program_of(graph, "cuda")
    precompile(program.source, program.constants, program.settings)
    compiled = set(tmp_path.rglob("*.cubin"))
    assert compiled
    process = MeasuringProcess("cuda:0")
    try:
        process.prepare(job_of(graph, "cuda:0"))
        assert process.time_kernels(program, QUICK, 60)
    finally:
        process.kill()
    assert set(tmp_path.rglob("*.cubin")) == compiled


def kernel_source(body: str, parameters: str = "const float* in_ptr0, float* out_ptr0") -> str:
    return f'extern "C"  void  kernel({parameters})\n{{ {body} }}'


@pytest.mark.parametrize(
    ("source", "effects"),
    [
        (kernel_source("out_ptr0[i] = in_ptr0[i];"), ["read", "write"]),
        (kernel_source("atomic_add(&out_ptr0[i], tmp0);"), ["read", "update"]),
        (kernel_source("out_ptr0[i] += tmp0;"), ["read", "update"]),
        (kernel_source("transpose_mxn<float,8,8,true>(a, 8, out_ptr0, 8);"), ["read", "update"]),
        (kernel_source("transpose_mxn<float,8,8,false>(a, 8, out_ptr0, 8);"), ["read", "write"]),
        (
            kernel_source(
                "tmp_acc0 += 1;", "float* in_out_ptr0,\n  bool* out_ptr1,\n  int64_t ks0"
            ),
            ["update", "write", "read"],
        ),
        ("nothing of the kind", None),
    ],
)
def test_effects_of_a_cpp_kernel(source: str, effects: list[str] | None) -> None:
    assert cpp_effects(source) == effects


def test_effects_of_a_triton_kernel() -> None:
    signature = {
        "in_out_ptr0": "*fp32",
        "in_ptr0": "*i64",
        "out_ptr1": "*fp32",
        "out_ptr2": "*fp32",
        "xnumel": "i32",
        "XBLOCK": "constexpr",
    }
    kernel = SimpleNamespace(
        triton_meta={"signature": signature},
        mutated_arg_names=["in_out_ptr0", "out_ptr2"],
        inductor_meta={"atomic_add_found": True},
        custom_kernel=False,
    )
    assert triton_effects(kernel) == ["update", "read", "write", "update", "read"]
    kernel.inductor_meta["atomic_add_found"] = False
    assert triton_effects(kernel) == ["update", "read", "write", "write", "read"]
    kernel.custom_kernel = True
    assert triton_effects(kernel) is None
    assert triton_effects(object()) is None


def test_generated_kernels_of_all_programs_are_understood(live: Any) -> None:
    for name in ("adam_step", "embedding", "cross_entropy", "batch_norm"):
        for graph in live.captured(name):
            for argtypes, source in definitions(graph.stock.source).values():
                effects = cpp_effects(source)
                assert effects is not None and len(effects) == len(argtypes)


def taken(values: list[tuple[float, bool]], effort: Effort) -> CallTimes:
    times, left = CallTimes("kernel"), iter(values)
    take_samples(times, effort, lambda: next(left))
    return times


def test_sampling_ends_when_the_median_is_known() -> None:
    effort = Effort(seconds=9, min_samples=9, max_samples=40)
    steady = taken([(1e-6, False)] * 40, effort)
    assert (len(steady.samples), steady.settled) == (9, True)
    noisy = taken([((1 + i % 7) * 1e-6, False) for i in range(40)], effort)
    assert (len(noisy.samples), noisy.settled, noisy.dropped) == (40, False, 0)
    assert not is_settled([1.0] * 5, 1.0) and is_settled([1.0] * 6, 0.0)


def test_disturbed_samples_are_left_out_as_long_as_there_are_others() -> None:
    effort = Effort(seconds=9, min_samples=9, max_samples=40)
    some = taken([(5e-6 if i % 2 else 1e-6, bool(i % 2)) for i in range(40)], effort)
    assert (set(some.samples), some.dropped, some.disturbed) == ({1.0}, 8, False)
    every = taken([((1 + i) * 1e-6, True) for i in range(40)], effort)
    assert every.samples == pytest.approx(range(1, 10))
    assert (every.dropped, every.disturbed) == (31, True)


def test_slow_call_gets_no_more_samples_than_there_is_time_for() -> None:
    effort = Effort(seconds=0.0, min_samples=9, max_samples=40)
    times = taken([((1 + i % 7) * 1.0, False) for i in range(40)], effort)
    assert len(times.samples) == 3 and not times.settled


def test_passes_that_called_otherwise_or_were_disturbed_are_left_out() -> None:
    def calls(first: float, *, disturbed: bool = False, names: str = "ab") -> list[CallTimes]:
        return [CallTimes(name, [first] * 8, disturbed=disturbed) for name in names]

    found = together(
        [calls(3.0), calls(2.0), calls(1.0, disturbed=True), calls(0.5, names="ba")], 0.03
    )
    assert [(call.kernel, call.samples, call.passes) for call in found] == [
        (name, [2.0] * 6, 2) for name in "ab"
    ]
    assert all(call.settled and not call.disturbed for call in found)
    (slow,) = together([calls(5.0, disturbed=True, names="a")] * 4, 0.03)
    assert (slow.samples, slow.settled, slow.disturbed) == ([5.0] * 8, True, True)
    failed = [CallTimes("a", failure="no memory"), CallTimes("a", [1.0] * 3)]
    assert together([failed[:1], failed[1:]], 0.03)[0].samples == [1.0] * 3
    assert together([failed[:1], failed[:1]], 0.03)[0].failure == "no memory"


def test_flags_that_could_be_either_are_drawn_while_it_is_timed(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gate(x: Any) -> Any:
        return torch.relu(x - 100.0)

    x = live.Make("cpu", torch.float32).tensor(64, 512).requires_grad_()
    _, graph = live.capture(live.UserProgram(gate, (x,), training=True))
    flags = unforeseen_flags(graph.surveyed.problem)
    assert len(flags) == 1
    program = program_of(graph, "cpu")
    plain = load_module(program.source, program.constants, program.settings, program.library)
    wanted = graph._called(lambda inputs: plain.call(list(inputs)))
    seen: list[float] = []

    def repeater(function: Any) -> Any:
        def repeat(calls: int, *args: Any) -> float:
            seen.extend(arg.float().mean().item() for arg in args if arg.dtype == torch.bool)
            function(*args)
            return 1e-4 * calls

        return repeat

    monkeypatch.setattr("fusewise.compiler.measuring.kernels.repeater", repeater)
    module = load_module(program.source, program.constants, program.settings, program.library)
    timer = KernelTimer(module, program.source, torch.device("cpu"), QUICK, flags=flags)
    found = graph._called(lambda inputs: module.call(list(inputs)))
    timer.leave()
    # None is let through by the real ones, which are what the program goes on with.
    assert seen and all(0.45 < share < 0.55 for share in seen)
    assert all(call.samples for call in timer.calls)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_places_of_flags_are_those_of_each_call() -> None:
    source = "cpp_a(buf0, le, buf1)\ncpp_b(le)\nif True:\n    cpp_a(le, buf0.view(3), 7)\n"
    found = flag_places(source, {"cpp_a"}, {"le", "gt"})
    assert found == {"cpp_a": [(1,), (0,)]}
    assert flag_places(source, {"cpp_a"}, set()) == {}
