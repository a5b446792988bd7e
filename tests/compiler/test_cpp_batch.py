"""Kernels compiled together: same results as alone, each once, and no failure but its own."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cpu_vec_isa

from fusewise.compiler.inductor import cpp_batch
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.cpp_kernels import cpp_kernels
from fusewise.compiler.inductor.cpp_loading import prebuilt, repeater
from fusewise.compiler.inductor.program import load_module, load_program
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule

HEAD = """
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
"""
TAIL = """
async_compile.wait(globals())
del async_compile
def call(args):
    cpp_fused_0(*args)
"""


def program(body: str, helper: str = "") -> str:
    """A program of one kernel, which changes eight floats in place."""
    return f"""{HEAD}
cpp_fused_0 = async_compile.cpp_pybinding(['float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
{helper}
extern "C"  void  kernel(float* in_out_ptr0)
{{
    for (int64_t i = 0; i < 8; ++i) {{ {body} }}
}}
''')
{TAIL}"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of Inductor."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fusewise_kernels"


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The compiler calls made."""
    made: list[Sequence[str]] = []
    run = cpp_batch._run

    def watched(command: Sequence[str], *how: Any) -> str | None:
        made.append(command)
        return run(command, *how)

    monkeypatch.setattr(cpp_batch, "_run", watched)
    return made


def ran(source: str, library: str) -> list[float]:
    values = torch.arange(8, dtype=torch.float32)
    load_program(source, {}, {}, library)([values])
    return values.tolist()


def test_programs_share_one_compile_and_compute_the_same(
    live: Any, cache: Path, compilers: list[Any]
) -> None:
    graphs = [*live.captured("softmax"), *live.captured("embedding")]
    programs = []
    for graph in graphs:
        names = [node.name for node in graph.surveyed.problem.nodes]
        alone = graph.generate(Schedule(plan=unfused(names)))
        programs += [(graph, graph.stock), (graph, alone)]
    sources = [(p.source, p.settings) for _, p in programs]
    library = build_library(sources, processes=1)
    assert len(compilers) == 1
    assert build_library(sources[:3]) == library and len(compilers) == 1
    for graph, generated in programs:
        calls = []
        for built in (library, ""):
            module = load_module(generated.source, generated.constants, generated.settings, built)
            kernels = [v for name, v in vars(module).items() if name.startswith("cpp_fused")]
            assert kernels and all((repeater(k) is not None) == bool(built) for k in kernels)
            calls.append(module.call)
        ours, stock = ([*graph._called(lambda inputs, c=c: c(list(inputs)))] for c in calls)
        for value, wanted in zip(ours, stock, strict=True):
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(wanted))
    # Later programs cost only what is new in them.
    more = program("in_out_ptr0[i] += 1;")
    build_library([*sources, (more, {})])
    assert len(compilers) == 2 and ran(more, library) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_names_in_different_kernels_do_not_meet(cache: Path, compilers: list[Any]) -> None:
    helpers = [
        f"""
struct Scale {{ float by = {n}; }};
namespace {{ inline float offset() {{ return {n}; }} }}
template <typename T> static T twice(T x) {{ return x * {n}; }}"""
        for n in (2, 3)
    ]
    body = "in_out_ptr0[i] = twice(in_out_ptr0[i]) * Scale().by + offset();"
    sources = [program(body, helper) for helper in helpers]
    library = build_library([(source, {}) for source in sources])
    assert len(compilers) == 1
    assert ran(sources[0], library)[:3] == [2, 6, 10]
    assert ran(sources[1], library)[:3] == [3, 12, 21]


def transposing(kind: str) -> list[str]:
    """Programs each of which transposes blocks of other sizes."""
    return [
        program(f"""
            {kind} a[{rows * 9}], b[{rows * 9}];
            for (int j = 0; j < {rows * 9}; ++j) a[j] = in_out_ptr0[i] + j;
            transpose_mxn<{kind},{rows},9,false>(a, 9, b, {rows});
            in_out_ptr0[i] = b[1];
        """)
        for rows in (3, 8, 12, 16)
    ]


def functions_of(cache: Path) -> str:
    """What is called by its name within the one library that was built."""
    (built,) = cache.glob("*.so")
    return subprocess.run(
        ["nm", "-C", str(built)], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("kind", ["float", "at::BFloat16", "at::Half"])
def test_kernels_that_transpose_call_nothing_for_it(
    cache: Path, compilers: list[Any], kind: str
) -> None:
    """Each is as fast as alone, where a compiler replaces the only call by what it does."""
    some = transposing(kind)
    library = build_library([(source, {}) for source in some], processes=1)
    assert len(compilers) == 1
    for source in some:
        assert ran(source, library) == [j + 9 for j in range(8)]
    functions = functions_of(cache)
    assert "kernel(float*)" in functions
    assert "transpose_" not in functions


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors of 64 bytes are those of x86")
def test_nor_do_those_of_other_processors(
    cache: Path, compilers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot run here is compiled all the same: with AVX-512 blocks have functions to fill."""
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: [cpu_vec_isa.VecAVX512()])
    build_library([(source, {}) for source in transposing("float")], processes=1)
    assert len(compilers) == 1 and any("avx512" in each for each in compilers[0])
    functions = functions_of(cache)
    assert "kernel(float*)" in functions
    assert "transpose_" not in functions


def test_kernel_with_macros_is_left_to_inductor(cache: Path, compilers: list[Any]) -> None:
    source = program("in_out_ptr0[i] = BY;", "#define BY 4")
    assert ran(source, build_library([(source, {})])) == [4.0] * 8
    assert not compilers


def test_kernel_that_does_not_compile_costs_only_itself(cache: Path, compilers: list[Any]) -> None:
    good = [program(f"in_out_ptr0[i] += {n};") for n in range(5)]
    bad = program("in_out_ptr0[i] = nothing_of_this_name;")
    library = build_library([(source, {}) for source in [*good[:2], bad, *good[2:]]])
    assert len(compilers) == 2
    for n, source in enumerate(good):
        assert ran(source, library)[0] == n
        assert repeater(load_module(source, {}, {}, library).cpp_fused_0) is not None
    with pytest.raises(Exception, match="nothing_of_this_name"):
        load_module(bad, {}, {}, library)


def test_failure_that_names_no_kernel_is_narrowed_down(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = cpp_kernels(program("in_out_ptr0[i] = 1;"), {})[0].key
    run = cpp_batch._run

    def crashes(command: Sequence[str], *how: Any) -> str | None:
        if any(poisoned in Path(word).read_text() for word in command if word.endswith(".cpp")):
            return "internal compiler error: Segmentation fault"
        return run(command, *how)

    monkeypatch.setattr(cpp_batch, "_run", crashes)
    sources = [program(f"in_out_ptr0[i] = {n};") for n in range(4)]
    library = build_library([(source, {}) for source in sources])
    found = [
        repeater(load_module(source, {}, {}, library).cpp_fused_0) is not None for source in sources
    ]
    assert found == [True, False, True, True]


def test_compiler_that_is_not_done_in_time_is_not_waited_for(
    cache: Path, compilers: list[Any]
) -> None:
    source = program("in_out_ptr0[i] += 1;")
    library = build_library([(source, {}), (program("in_out_ptr0[i] += 2;"), {})], timeout_s=0.01)
    assert len(compilers) == 1 and not list(cache.glob("*.so"))
    assert ran(source, library)[0] == 1


def test_repeated_call_is_that_many_calls(cache: Path) -> None:
    source = program("in_out_ptr0[i] += 1;")
    function = load_module(source, {}, {}, build_library([(source, {})])).cpp_fused_0
    values = torch.zeros(8)
    repeat = repeater(function)
    assert repeat is not None and repeat(1000, values) > 0
    assert values.tolist() == [1000.0] * 8
    with pytest.raises(RuntimeError, match="number of args"):
        function(values, values)
    assert repeater(print) is None


def test_program_without_cpp_kernels_has_no_library(cache: Path) -> None:
    assert build_library([("raise ValueError", {}), ("(", {}), (HEAD, {})]) == ""
    assert build_library([]) == ""


def copy_of_this(target: Callable[..., Any], sources: Sequence[str]) -> BaseProcess:
    """A process of its own, which need not import anything again, that builds ``sources``."""
    programs = [(source, {}) for source in sources]
    process = multiprocessing.get_context("fork").Process(target=target, args=(programs,))
    process.start()
    return process


def test_two_processes_build_the_same_at_once(cache: Path) -> None:
    sources = [program(f"in_out_ptr0[i] += {n};") for n in range(3)]
    builders = [copy_of_this(build_library, sources) for _ in range(2)]
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0, 0]
    assert len(list(cache.glob("*.so"))) == 1
    assert [ran(source, str(cache))[0] for source in sources] == [0, 1, 2]


def test_killed_builder_leaves_nothing_that_is_taken_for_a_library(cache: Path) -> None:
    def killed(command: Sequence[str], *how: Any) -> None:
        Path(command[command.index("-o") + 1]).write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    def half(programs: Any) -> None:
        cpp_batch._run = killed  # type: ignore[assignment]
        build_library(programs)

    source = program("in_out_ptr0[i] += 1;")
    builder = copy_of_this(half, [source])
    builder.join()
    assert builder.exitcode == -signal.SIGKILL
    left = [path for path in cache.glob("*.so") if ".tmp." not in path.name]
    assert left == []
    library = build_library([(source, {})])
    assert ran(source, library)[0] == 1
    assert repeater(load_module(source, {}, {}, library).cpp_fused_0) is not None


def test_library_that_was_removed_is_built_again(cache: Path, compilers: list[Any]) -> None:
    source = program("in_out_ptr0[i] += 1;")
    build_library([(source, {})])
    (library,) = cache.glob("*.so")
    library.unlink()
    assert ran(source, str(cache))[0] == 1
    assert ran(source, build_library([(source, {})]))[0] == 1 and len(compilers) == 2


def test_system_without_a_compiler_has_what_inductor_has(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = program("in_out_ptr0[i] += 1;")

    def missing(command: Sequence[str], *how: Any) -> str | None:
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(cpp_batch, "_run", missing)
    assert ran(source, build_library([(source, {})]))[0] == 1


def test_other_threads_and_later_programs_get_inductors_own(cache: Path) -> None:
    source = program("in_out_ptr0[i] += 1;")
    library = build_library([(source, {})])
    found: list[Any] = []
    with prebuilt(library):
        thread = threading.Thread(
            target=lambda: found.append(load_module(source, {}, {}).cpp_fused_0)
        )
        thread.start()
        thread.join()
    found.append(load_module(source, {}, {}).cpp_fused_0)
    assert [repeater(function) for function in found] == [None, None]
