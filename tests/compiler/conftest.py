"""Real programs, the graphs that Inductor gets of them, and what tests do with those graphs.

A graph is captured once a session, together with the values that reached it, and can then be
surveyed, generated and run as often as a test wants without compiling the program again.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext, tracing
from torch.nn import functional

from fusewise.compiler import notices, reports
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.hooks import Interceptor
from fusewise.compiler.inductor.interceptors import Applier, LiveGraph, Program, StopAtProgram
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.plans import members, owners
from fusewise.compiler.inductor.program import load_program
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule

_SCRIPT = Path(__file__).with_name("fresh_process.py")
#: Relative error (L2) that rounding alone explains, by dtype of an output.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}


@dataclass(frozen=True)
class Make:
    """Makes the tensors of one program; the same each time."""

    device: str
    dtype: torch.dtype

    def tensor(self, *shape: int, grad: bool = False) -> torch.Tensor:
        generator = torch.Generator().manual_seed(len(shape) + sum(shape))
        value = torch.randn(shape, generator=generator).to(self.device, self.dtype)
        return value.requires_grad_(grad)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(high)
        return torch.randint(0, high, shape, generator=generator).to(self.device)


@dataclass(frozen=True)
class UserProgram:
    """A function with its arguments; a training one gives something to differentiate."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    training: bool = False


def layer_norm(make: Make) -> UserProgram:
    def f(x: Any, residual: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x + residual, (48,), w, b)

    return UserProgram(f, (make.tensor(24, 48),) * 2 + (make.tensor(48),) * 2)


def rms_norm(make: Make) -> UserProgram:
    def f(x: Any, w: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    return UserProgram(f, (make.tensor(16, 64, grad=True), make.tensor(64, grad=True)), True)


def softmax(make: Make) -> UserProgram:
    def f(x: Any, mask: Any) -> Any:
        return torch.softmax(torch.where(mask > 3, x, -1e4), -1), torch.log_softmax(x, -1)

    return UserProgram(f, (make.tensor(20, 40), make.integers(9, 20, 40)))


def attention(make: Make) -> UserProgram:
    """With capped scores, which Inductor has no kernel of its own for."""

    def f(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax((q @ k.transpose(-1, -2) * 0.25).tanh() * 5, -1)
        return (weights @ v).transpose(1, 2).reshape(2, 12, 32)

    return UserProgram(f, tuple(make.tensor(2, 2, 12, 16, grad=True) for _ in range(3)), True)


def gated_mlp(make: Make) -> UserProgram:
    def f(x: Any, up: Any, gate: Any, down: Any) -> Any:
        return x + (functional.silu(x @ gate) * (x @ up)) @ down

    tensors = [(16, 32), (32, 64), (32, 64), (64, 32)]
    return UserProgram(f, tuple(make.tensor(*t, grad=True) for t in tensors), True)


def cross_entropy(make: Make) -> UserProgram:
    def f(logits: Any, target: Any) -> Any:
        return functional.cross_entropy(logits.float(), target, label_smoothing=0.1)

    return UserProgram(f, (make.tensor(32, 50, grad=True), make.integers(50, 32)), True)


def adam_step(make: Make) -> UserProgram:
    def f(params: Any, grads: Any, firsts: Any, seconds: Any) -> None:
        for p, g, m, v in zip(params, grads, firsts, seconds, strict=True):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            p.sub_(m / (v.sqrt() + 1e-3) * 0.1)

    shapes = [(8, 16), (16,)]
    tensors = [[make.tensor(*shape).abs() for shape in shapes] for _ in range(4)]
    return UserProgram(f, tuple(tensors))


def embedding(make: Make) -> UserProgram:
    def f(ids: Any, table: Any, sums: Any) -> Any:
        rows = functional.embedding(ids, table) * 2
        return rows.relu(), sums.index_add(0, ids, rows.float())

    sums = torch.zeros(20, 16, device=make.device)
    return UserProgram(f, (make.integers(20, 30), make.tensor(20, 16), sums))


def batch_norm(make: Make) -> UserProgram:
    def f(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return functional.relu(functional.batch_norm(x, mean, var, w, b, training=True))

    grown = (make.tensor(4, 6, 5, 5, grad=True), *(make.tensor(6, grad=True) for _ in range(2)))
    running = (torch.zeros(6, device=make.device), torch.ones(6, device=make.device))
    return UserProgram(f, (*grown, *running), True)


def layouts(make: Make) -> UserProgram:
    def f(x: Any, y: Any) -> Any:
        turned = (x.t() * 2).contiguous()
        joined = torch.cat([turned[:, :10], y[:, 2:].relu()], 1)
        return joined.view(2, -1).flip(1), joined.sum(0), torch.roll(y, 1, 0) + y

    return UserProgram(f, (make.tensor(18, 24), make.tensor(24, 18)))


def statistics(make: Make) -> UserProgram:
    def f(x: Any) -> Any:
        var, mean = torch.var_mean(x, 1)
        return var, mean, x.amax(0), x.abs().sum(), x.argmax(1)

    return UserProgram(f, (make.tensor(30, 44),))


def dropout(make: Make) -> UserProgram:
    def f(x: Any, y: Any) -> Any:
        return functional.gelu(functional.dropout(x, 0.3) + y)

    return UserProgram(f, (make.tensor(12, 32, grad=True), make.tensor(12, 32, grad=True)), True)


def integers(make: Make) -> UserProgram:
    def f(ids: Any, other: Any) -> Any:
        mixed = (ids ^ other) + (ids << 1)
        return mixed % 7, mixed.cumsum(1), (mixed > 9).sum(1), mixed.max(0).values.to(torch.int32)

    return UserProgram(f, (make.integers(30, 10, 16), make.integers(17, 10, 16)))


def mutation(make: Make) -> UserProgram:
    def f(x: Any, y: Any, w: Any) -> Any:
        before = x.sin()
        x.mul_(2).add_(y)
        y[:, :4] = 0
        y.copy_(y + x @ w)
        return before + x

    return UserProgram(f, (make.tensor(16, 16), make.tensor(16, 16) * 2, make.tensor(16, 16)))


def overwrite(make: Make) -> UserProgram:
    """The product reads what is overwritten afterwards: order without data."""

    def f(x: Any, w: Any) -> Any:
        product = x @ w
        x.add_(1)
        return product.relu(), x.sum(1)

    return UserProgram(f, (make.tensor(16, 16), make.tensor(16, 16)))


def dynamic(make: Make) -> UserProgram:
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(x * w, -1).sum(0) / x.shape[0]

    x = make.tensor(22, 36)
    torch._dynamo.mark_dynamic(x, 0)
    return UserProgram(f, (x, make.tensor(36)))


PROGRAMS = (
    layer_norm,
    rms_norm,
    softmax,
    attention,
    gated_mlp,
    cross_entropy,
    adam_step,
    embedding,
    batch_norm,
    layouts,
    statistics,
    dropout,
    integers,
    mutation,
    overwrite,
    dynamic,
)
_BY_NAME = {program.__name__: program for program in PROGRAMS}


@dataclass(frozen=True)
class Surveyed:
    """What a survey of a graph gives."""

    problem: Problem
    default: Plan
    #: What was asked of the live graph beside it.
    found: Any


class Captured:
    """One graph of a program as Inductor gets it, and the inputs that it was called with."""

    def __init__(self, compile: GraphCompile) -> None:
        self.compile = compile
        self.inputs: list[Any] = []
        self._context = TracingContext.try_get()

    @property
    def kind(self) -> str:
        return self.compile.kind

    def context(self) -> AbstractContextManager[Any]:
        """What Inductor expects round the compile of this graph."""
        return tracing(self._context)

    def survey(
        self, ask: Callable[[LiveGraph, InductorLegality, Problem], Any] = lambda *_: None
    ) -> Surveyed:
        """The problem and Inductor's plan, and what ``ask`` makes of the live graph."""
        result: list[Surveyed] = []

        def visit(live: LiveGraph) -> None:
            legality = InductorLegality(live)
            problem = extract_problem(
                live.scheduler,
                live.nodes,
                key="test",
                kind=self.compile.kind,
                possible_fusions=legality.possible_fusions(),
            )
            found = ask(live, legality, problem)
            result.append(Surveyed(problem, live.default_plan, found))

        with self.context():
            self.compile.survey((), visit)
        return result[0]

    @functools.cached_property
    def surveyed(self) -> Surveyed:
        return self.survey()

    @functools.cached_property
    def stock(self) -> Program:
        return self.generate(Schedule())

    def generate(self, schedule: Schedule) -> Program:
        with self.context():
            return self.compile.generate(schedule)

    def generate_through(self, interceptor: Interceptor) -> None:
        with self.context():
            self.compile.generate_through(Schedule(), StopAtProgram(interceptor))

    def groups(self, plan: Plan) -> tuple[Program, set[frozenset[str]]]:
        """Program of a plan, and the groups that the scheduler generated code from."""
        watcher = Watcher(plan)
        self.generate_through(watcher)
        assert watcher.program is not None
        return watcher.program, watcher.groups

    def run(self, program: Program) -> list[Any]:
        """Outputs of a program, then its inputs as it left them."""
        call = load_program(program.source, program.constants, program.settings)
        return self._called(lambda inputs: call(list(inputs)))

    def eager(self) -> list[Any]:
        """Outputs of the graph, operator by operator, then its inputs as it left them."""
        return self._called(lambda inputs: self.compile.gm(*inputs))

    def _called(self, call: Callable[[list[Any]], Any]) -> list[Any]:
        inputs = [v.clone() if isinstance(v, torch.Tensor) else v for v in self.inputs]
        torch.manual_seed(0)
        with torch.no_grad():
            return [*call(inputs), *inputs]


class Watcher(Applier):
    """An applier that looks at the scheduler again when the code is complete."""

    groups: set[frozenset[str]]

    def fuse(self, scheduler: Any, nodes: list[Any], stock: Any) -> list[Any]:
        self._owner = owners(nodes)
        return super().fuse(scheduler, nodes, stock)

    def module(self, graph: Any, source: str) -> None:
        super().module(graph, source)
        self.groups = {frozenset(members(node, self._owner)) for node in graph.scheduler.nodes}


def capture(program: UserProgram) -> list[Captured]:
    """The graphs of a program, forward before backward."""
    graphs: list[Captured] = []

    def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        graph = Captured(GraphCompile(gm, inputs, kwargs))
        graphs.append(graph)
        eager = make_boxed_func(gm.forward)

        def call(values: list[Any]) -> Any:
            graph.inputs = [
                v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values
            ]
            return eager(values)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_whole(gm, inputs, compile_graph, {})

    torch._dynamo.reset()
    output = torch.compile(program.function, backend=backend)(*program.args)
    if program.training:
        output.float().sum().backward()
    torch._dynamo.reset()
    return graphs


@functools.cache
def captured(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Captured]:
    """The graphs of one of :data:`PROGRAMS`."""
    return capture(_BY_NAME[name](Make(device, dtype)))


def difference(values: Sequence[Any], expected: Sequence[Any]) -> None:
    """Fail where values are not equal within the tolerance of their dtype."""
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        if not isinstance(wanted, torch.Tensor) or not wanted.dtype.is_floating_point:
            torch.testing.assert_close(value, wanted, rtol=0, atol=0)
            continue
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        scale = max(float(wanted.double().norm()), 1e-6)
        error = float((value.double() - wanted.double()).norm()) / scale
        assert error <= TOLERANCE[wanted.dtype]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``graph_id`` every graph of every program on every device."""
    if "graph_id" not in metafunc.fixturenames:
        return
    values = []
    for program in PROGRAMS:
        training = program(Make("cpu", torch.float32)).training
        for kind in ("forward", "backward") if training else ("inference",):
            for device in ("cpu", "cuda"):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                name = f"{program.__name__}-{kind}-{device}"
                values.append(pytest.param((program.__name__, kind, device), id=name, marks=marks))
    metafunc.parametrize("graph_id", values)


@pytest.fixture
def graph(graph_id: tuple[str, str, str]) -> Captured:
    """One graph of one program."""
    name, kind, device = graph_id
    return next(g for g in captured(name, device) if g.kind == kind)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a program runs."""
    return str(request.param)


@pytest.fixture(scope="session")
def live() -> ModuleType:
    """This module: its programs, and how to capture more."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def in_fresh_process() -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Runs requests one after the other in a process of their own: what it tells of each."""

    def run(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ran = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT), json.dumps(requests)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )
        return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def home(tmp_path: Path, profiled: Path) -> Path:
    """A folder for a store of its own, with the devices known."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "devices").symlink_to(profiled)
    return folder


@pytest.fixture
def store(home: Path) -> Path:
    """Where the store of a test is to be."""
    return home / "store.duckdb"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled, reported or told before."""
    torch._dynamo.reset()
    reports.clear_reports()
    notices._told.clear()
    yield
    torch._dynamo.reset()
