"""Packages by a plan: the groups that are in the code, the results, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import config as inductor_config

import fusewise
from fusewise.compiler import reports
from fusewise.compiler.aot import HOLDING_PARTS
from fusewise.compiler.inductor.choices import MATH
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.options import Options
from fusewise.compiler.plan_files import new_plan_file, planned_graph
from fusewise.compiler.session import Session, device_of
from fusewise.compiler.survey import survey
from fusewise.datasets.store import default_store_path
from fusewise.schedule.errors import OptionError, PlanError
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.schedule import Choice, Schedule

#: Makes a schedule's plan of the nodes' names and Inductor's own plan.
Choose = Callable[[Sequence[str], Plan], Plan]


class Block(nn.Module):
    """Parameters, a buffer, a library's product, and reductions that fuse."""

    def __init__(self, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(48, device=device)
        self.linear = nn.Linear(48, 32, device=device)
        self.register_buffer("table", torch.randn(32, device=device))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.norm(x + y).tanh()
        return (self.linear(z) * self.table).softmax(-1), z.sum(-1)


def _inputs(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(24, 48, generator=generator).to(device) for _ in range(2))
    return x, y


def _alone(names: Sequence[str], default: Plan) -> Plan:
    return unfused(names)


def _plan(
    store: Path,
    module: nn.Module,
    args: tuple[Any, ...],
    choose: Choose,
    codegen: tuple[Choice, ...] = (),
) -> PlanFile:
    """A plan file of the graph that ``torch.compile`` gets, as a search would write it."""
    session = Session(Options(store=store), {}, ())
    found: list[PlannedGraph] = []

    def visit(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        graph = GraphCompile(gm, inputs, kwargs)
        device = device_of(gm, inputs)
        predictor = session.predictor(device)
        key = graph_key(gm, inputs, kwargs, predictor.profile.key, predictor.model.id)
        seen = survey(graph, predictor, key=key.key, kind=graph.kind)
        plan = choose([node.name for node in seen.problem.nodes], seen.default_plan)
        schedule = Schedule(plan=plan, codegen=codegen)
        found.append(planned_graph(graph, key, schedule, predictor, device=str(device)))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
        torch.compile(module, backend=lambda gm, inputs: compile_whole(gm, inputs, visit, {}))(
            *args
        )
    session.store.close()
    return new_plan_file("block", found)


@pytest.fixture(scope="module")
def store() -> Path:
    """A store of these tests, beside the device profile of all."""
    return default_store_path().with_name("aot.duckdb")


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    """The program of these tests, on the CPU."""
    return torch.export.export(Block("cpu").eval(), _inputs("cpu"))


@pytest.fixture(scope="module")
def plan(store: Path) -> PlanFile:
    """A plan that leaves every node alone."""
    return _plan(store, Block("cpu").eval(), _inputs("cpu"), _alone)


def _code(package: str, ending: str) -> str:
    """All sources in a package whose names end so."""
    with zipfile.ZipFile(package) as opened:
        names = [name for name in opened.namelist() if name.endswith(ending)]
        return "\n".join(opened.read(name).decode() for name in names)


def _launches(package: str) -> int:
    """Launches of Triton kernels in a package."""
    launch = r"^\s*(?:call_|launchKernel\(kernels\.)triton_"
    return len(re.findall(launch, _code(package, ".wrapper.cpp"), re.MULTILINE))


def _loop_nests(package: str) -> int:
    """Outermost loops of the C++ kernels in a package."""
    code = _code(package, ".kernel.cpp")
    return len(re.findall(r"(?m)^ *for\(int64_t x0=", code))


def _same_results(package: str) -> None:
    loaded = torch._inductor.aoti_load_package(package)
    with torch.no_grad():
        wanted = Block("cpu").eval()(*_inputs("cpu"))
        for value, expected in zip(loaded(*_inputs("cpu")), wanted, strict=True):
            torch.testing.assert_close(value, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_the_plan_is_in_the_package(
    exported: torch.export.ExportedProgram, plan: PlanFile, store: Path, tmp_path: Path
) -> None:
    written = tmp_path / "plan.json"
    write_plan_file(written, plan)
    package = fusewise.aoti_compile_and_package(
        exported,
        plan=written,
        package_path=tmp_path / "alone.pt2",
        store=store,
    )
    assert package == str(tmp_path / "alone.pt2")
    (planned,) = plan.graphs
    assert planned.schedule.plan is not None
    generated = [node for node in planned.nodes if "aten.addmm.default" not in node.operations]
    # One node is the library's product; every other one is a loop nest of its own.
    assert len(planned.schedule.plan.groups) == len(planned.nodes) == len(generated) + 1
    assert _loop_nests(package) == len(generated)
    _same_results(package)
    (report,) = reports.reports()
    assert (report.source, report.mode) == ("plan file", "replay")
    assert report.chosen is not None and report.chosen.schedule == planned.schedule


@pytest.mark.slow
def test_functions_written_out_in_several_kernels(
    exported: torch.export.ExportedProgram, store: Path, tmp_path: Path
) -> None:
    """All kernels of a package are in one file, which defines what they call once."""
    written = (Choice(MATH, True),)
    plan = _plan(store, Block("cpu").eval(), _inputs("cpu"), _alone, written)
    path = tmp_path / "written.pt2"
    package = fusewise.aoti_compile_and_package(exported, plan=plan, package_path=path, store=store)
    code = _code(package, ".kernel.cpp")
    assert {"vector_math::tanh(", "vector_math::exp("} <= set(
        re.findall(r"vector_math::\w+\(", code)
    )
    _same_results(package)


@pytest.mark.slow
def test_without_a_plan_it_is_predicted(
    exported: torch.export.ExportedProgram, store: Path, tmp_path: Path
) -> None:
    package = fusewise.aoti_compile_and_package(
        exported,
        package_path=tmp_path / "predicted.pt2",
        store=store,
    )
    _same_results(package)
    (report,) = reports.reports()
    assert (report.source, report.mode) == ("predicted", "predict")
    assert report.chosen is not None and report.chosen.schedule.plan is not None
    # One node is the library's product; of the others some are fused.
    assert 0 < _loop_nests(package) < report.nodes - 1


def test_what_holds_ahead_of_time(store: Path, plan: PlanFile) -> None:
    """The parts of the key that are compared are the same there, and others are not."""
    keys: list[dict[str, str]] = []
    exported = torch.export.export(Block("cpu").eval(), _inputs("cpu"))
    from fusewise.compiler import aot

    session = Session(Options(mode="predict", store=store), {}, ())
    # How a package is written has no say in what its graph is.
    packaging = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    compiler = aot._Compiler(session, plan, "plan", aot.outside_settings(packaging))

    def look(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        graph = GraphCompile(gm, inputs, kwargs)
        keys.append(dict(compiler._key(graph, session.predictor(torch.device("cpu"))).parts))
        raise PlanError("seen enough", subject="test", remedy="none")

    with pytest.raises(PlanError, match="seen enough"):
        aot.compile_and_package(exported, look, None, {})
    session.store.close()
    (planned,) = plan.graphs
    differs = {p for p in keys[0] if keys[0][p] != planned.key_parts[p]}
    assert differs == {"graph", "inputs", "compile"}
    assert not differs & set(HOLDING_PARTS)


def test_another_program_is_refused(
    exported: torch.export.ExportedProgram, plan: PlanFile, store: Path, tmp_path: Path
) -> None:
    class Other(Block):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = self.norm(x - y).tanh()
            return (self.linear(z) * self.table).softmax(-1), z.sum(-1)

    other = torch.export.export(Other("cpu").eval(), _inputs("cpu"))
    path = tmp_path / "other.pt2"
    with pytest.raises(PlanError, match="computes something else in the plan"):
        fusewise.aoti_compile_and_package(other, plan=plan, package_path=path, store=store)
    assert not path.exists()
    # Inductor's entry is its own again.
    assert torch._inductor.compile_fx.compile_fx_aot.__module__ == "torch._inductor.compile_fx"


class Few(nn.Module):
    """Parameters and a buffer of few elements, and a constant, whose values Inductor writes out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(48, 3)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("table", torch.randn(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.tensor([1.0, 2.0, 4.0])
        out: torch.Tensor = (self.linear(x.tanh()) * self.scale + self.table).softmax(-1) * steps
        return out


@pytest.mark.slow
def test_parameters_of_few_elements_are_read_as_planned(store: Path, tmp_path: Path) -> None:
    module, (x, _) = Few().eval(), _inputs("cpu")
    plan = _plan(store, module, (x,), _alone)
    few = torch.export.export(module, (x,))
    path = tmp_path / "few.pt2"
    package = fusewise.aoti_compile_and_package(few, plan=plan, package_path=path, store=store)
    with torch.no_grad():
        torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), module(x))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "forward"}, "for a forward graph"),
        ({"nodes": ()}, "does not say what its nodes compute"),
        ({"key_parts": {"versions": "old"}}, "versions"),
    ],
)
def test_a_plan_of_something_else_is_refused(
    exported: torch.export.ExportedProgram,
    plan: PlanFile,
    store: Path,
    change: dict[str, Any],
    words: str,
) -> None:
    (planned,) = plan.graphs
    if "key_parts" in change:
        change = {"key_parts": {**planned.key_parts, **change["key_parts"]}}
    changed = msgspec.structs.replace(plan, graphs=(msgspec.structs.replace(planned, **change),))
    with pytest.raises(PlanError, match=words):
        fusewise.aoti_compile_and_package(exported, plan=changed, store=store)


def test_other_settings_are_refused(
    exported: torch.export.ExportedProgram, plan: PlanFile, store: Path
) -> None:
    name, value = "realize_opcount_threshold", 1
    assert inductor_config.get_config_copy()[name] != value
    with pytest.raises(PlanError, match="settings"):
        fusewise.aoti_compile_and_package(
            exported, plan=plan, inductor_configs={name: value}, store=store
        )


def test_bad_arguments(
    exported: torch.export.ExportedProgram, plan: PlanFile, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"\.pt2"):
        fusewise.aoti_compile_and_package(exported, plan=plan, package_path=tmp_path / "a.so")
    with pytest.raises(OptionError, match="max_autotune"):
        fusewise.aoti_compile_and_package(exported, inductor_configs={"max_autotun": True})
    with pytest.raises(PlanError, match=r"missing\.json"):
        fusewise.aoti_compile_and_package(exported, plan=tmp_path / "missing.json")


#: Loads a package and compares what it gives.
_LOAD = """
import sys, torch, torch._inductor
package, data = sys.argv[1:]
inputs, wanted = torch.load(data)
found = torch._inductor.aoti_load_package(package)(*inputs)
torch.testing.assert_close(list(found), list(wanted), rtol=2e-5, atol=2e-5)
"""


def _loaded_alone(package: str, data: Path) -> subprocess.CompletedProcess[str]:
    """A process that loads a package: a loader that crashes takes only that along."""
    return subprocess.run(
        [sys.executable, "-c", _LOAD, package, str(data)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.gpu
def test_the_plan_is_in_the_package_on_a_gpu(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    inputs = _inputs("cuda")
    plan = _plan(store, Block("cuda").eval(), inputs, _alone)
    exported = torch.export.export(Block("cuda").eval(), inputs)
    package = fusewise.aoti_compile_and_package(
        exported, plan=plan, package_path=tmp_path / "alone.pt2", store=store
    )
    fused = fusewise.aoti_compile_and_package(
        exported, package_path=tmp_path / "fused.pt2", store=store
    )
    assert _launches(package) > _launches(fused)
    data = tmp_path / "data.pt"
    with torch.no_grad():
        torch.save((inputs, Block("cuda").eval()(*inputs)), data)
    own = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "own.pt2"))
    if _loaded_alone(own, data).returncode < 0:
        pytest.skip("PyTorch's loader crashes on PyTorch's own package of the program")
    done = _loaded_alone(package, data)
    assert done.returncode == 0, done.stderr
