"""Operators that a library registers: known to the process that measures, or named by an error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.cpp_extension import load_inline

from fusewise.compiler.contest import graph_job
from fusewise.compiler.inductor.launches import generate_with_launches
from fusewise.compiler.measuring.client import MeasuringProcess
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.measuring.job import Budget, ProgramJob
from fusewise.compiler.measuring.operators import Operators, make_known, operators_of
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule

LIBRARY = """
import torch

@torch.library.custom_op("theirs::wave", mutates_args=())
def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin()

@wave.register_fake
def _(x):
    return torch.empty_like(x)

@torch.library.custom_op("theirs::count_up", mutates_args=("x",))
def count_up(x: torch.Tensor) -> None:
    x += 1

library = torch.library.Library("theirs_too", "DEF")
library.define("level(Tensor x) -> Tensor")
for key in ("CPU", "CUDA"):
    library.impl("level", lambda x: x.round(), key)
library.impl("level", lambda x: torch.empty_like(x), "Meta")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A module, imported, that registers operators by a decorator and by hand."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "their_operators.py").write_text(LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        importlib.import_module("their_operators")
        yield "their_operators"
        sys.modules.pop("their_operators")


@pytest.fixture(scope="module")
def graph(library: str, live: Any) -> Any:
    def program(x: Any) -> Any:
        return torch.ops.theirs_too.level(torch.ops.theirs.wave(x * 2).relu() * 3) + x

    (graph,) = live.capture(live.UserProgram(program, (torch.randn(16, 24),)))
    return graph


def test_what_registers_them_is_found(graph: Any, library: str) -> None:
    found = operators_of(graph.compile.gm)
    assert found.names == ("theirs::wave", "theirs_too::level")
    assert found.modules == (library,)


def test_one_that_changes_its_input_is_found_too(library: str, live: Any) -> None:
    def program(x: Any) -> Any:
        counted = x * 2
        torch.ops.theirs.count_up(counted)
        return counted.relu()

    (graph,) = live.capture(live.UserProgram(program, (torch.randn(16, 24),)))
    found = operators_of(graph.compile.gm)
    assert (found.names, found.modules) == (("theirs::count_up",), (library,))


def test_a_graph_of_torchs_own_asks_for_nothing(live: Any) -> None:
    for graph in live.captured("attention", "cpu"):
        assert operators_of(graph.compile.gm) == Operators()


@pytest.mark.slow
def test_a_process_that_was_started_afresh_measures_them(graph: Any) -> None:
    names = [node.name for node in graph.surveyed.problem.nodes]
    with graph.context():
        program, _ = generate_with_launches(graph.compile, Schedule(plan=unfused(names)))
    job = ProgramJob("own", program.source, program.constants, program.settings)
    process = MeasuringProcess("cpu", copied=False)
    try:
        process.prepare(
            graph_job(
                graph.compile,
                key="theirs",
                device="cpu",
                observed=observe(graph.inputs),
                forward_key=None,
            )
        )
        result = process.measure([job], Budget(seconds=1.0, max_rounds=12), timeout_s=120.0)
    finally:
        process.kill()
    (own,) = result.programs
    assert own.failure == "" and own.samples
    # Judged by the graph itself, whose operators that process runs one by one.
    assert result.reference == "fp64" and max(own.errors) < 1e-5


def test_one_that_stays_unknown_is_named_with_what_could_not_be_imported() -> None:
    nobodys = Operators(("nobodys::one",), ("no_such_module",), ("no_such_library.so",))
    with pytest.raises(MeasureError) as caught:
        make_known(nobodys)
    told = str(caught.value)
    assert "does not know the operator nobodys::one" in told
    assert "import no_such_module: ModuleNotFoundError" in told and "no_such_library.so" in told
    assert "register it in a module that can be imported" in told


def test_the_programs_own_file_is_not_run_again() -> None:
    @torch.library.custom_op("mains::own", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    own._init_fn.__module__ = "__main__"
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops.mains.own.default, (graph.placeholder("x"),)))
    found = operators_of(torch.fx.GraphModule({}, graph))
    assert (found.names, found.modules) == (("mains::own",), ())


@pytest.mark.slow
def test_one_in_cpp_comes_with_its_library(tmp_path: Path) -> None:
    source = """
        torch::Tensor twice(const torch::Tensor& x) { return x * 2; }
        TORCH_LIBRARY(built_here, m) { m.def("twice(Tensor x) -> Tensor", &twice); }
    """
    load_inline("built_here_ext", source, build_directory=str(tmp_path), is_python_module=False)
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops.built_here.twice.default, (graph.placeholder("x"),)))
    found = operators_of(torch.fx.GraphModule({}, graph))
    assert found.names == ("built_here::twice",)
    assert [Path(each).name for each in found.libraries] == ["built_here_ext.so"]
