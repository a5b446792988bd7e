"""What a contest costs: what is started, compiled and built, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch

import fusewise
from fusewise.compiler import deciding, session, spending
from fusewise.compiler.foreseen import Foreseen
from fusewise.compiler.inductor import cpp_batch
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.measuring.client import MeasuringProcess, close_all, running_process
from fusewise.compiler.survey import default_candidate
from fusewise.schedule.schedule import Candidate

Compile = Callable[..., Any]
SEVERAL = torch.randn(64, 64), torch.randn(64, 64) / 64


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each compile of a schedule to its end, by whether another one waited."""
    told: list[str] = []
    compile_one = GraphCompile.compile

    def counted(self: GraphCompile, *args: Any) -> Any:
        told.append("waiting" if self._waiting is not None else "alone")
        return compile_one(self, *args)

    monkeypatch.setattr(GraphCompile, "compile", counted)
    return told


def functions(x: torch.Tensor) -> Any:
    y = (x.sin() * x.cos()).softmax(-1)
    return y.sum(0), (y.tanh() * x.exp()).amax(-1)


def test_a_graph_that_computes_next_to_nothing_starts_no_process(
    compile_with: Compile, live: Any
) -> None:
    def seen_otherwise(x: torch.Tensor) -> torch.Tensor:
        return x.view(8, -1).t()[1:]

    close_all()
    x = torch.randn(32, 4)
    live.difference([compile_with(seen_otherwise, "measure")(x)], [seen_otherwise(x)])
    assert running_process("cpu") is None


def test_the_favourite_is_compiled_once_if_it_wins(
    compile_with: Compile, live: Any, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deciding, "_HOPED_S", 1e9)
    # A second contest may have another winner.
    monkeypatch.setattr(deciding, "finish", lambda *_: {})
    # Kernels that are built already leave no time to compile anything meanwhile.
    x = torch.randn(64, 104)
    live.difference(
        list(compile_with(functions, "measure", top_k=1, budget_s=60)(x)), list(functions(x))
    )
    (report,) = fusewise.reports()
    assert report.chosen is not None and report.default is not None
    # The favourite is there, and with anything else the compile that waited goes on.
    assert compiles == ["waiting"]


def test_a_favourite_that_does_not_compile_ahead_is_no_failure(
    compile_with: Compile, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: GraphCompile, schedule: Any, interceptor: Any) -> Any:
        raise RuntimeError("not now")

    monkeypatch.setattr(deciding, "_HOPED_S", 1e9)
    monkeypatch.setattr(GraphCompile, "compile_ahead", fails)
    x = torch.randn(64, 96)
    live.difference(
        list(compile_with(functions, "measure", top_k=1, budget_s=60)(x)), list(functions(x))
    )
    (report,) = fusewise.reports()
    assert report.fallback is None and report.source == "measured"


def several(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Functions that mode predict has written into their kernels."""
    y = x.exp().tanh()
    z = (y @ w).tanh().exp()
    return (z @ w).exp().tanh().sum(-1)


@pytest.fixture
def foreseen(compile_with: Compile, live: Any) -> Candidate:
    """What mode predict takes of :func:`several`."""
    args = SEVERAL
    live.difference([compile_with(several, "predict")(*args)], [several(*args)])
    chosen = fusewise.reports()[-1].chosen
    assert chosen is not None and chosen.origin != "default"
    torch._dynamo.reset()
    return chosen


def test_seconds_of_the_user_are_for_what_there_was_no_time_to_measure(
    compile_with: Compile, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source(**options: Any) -> str:
        torch._dynamo.reset()
        live.difference(
            [compile_with(several, "measure", **options)(*SEVERAL)], [several(*SEVERAL)]
        )
        return fusewise.reports()[-1].source

    with monkeypatch.context() as no_time:
        no_time.setattr(spending, "MOST_SHARE", 0.0)
        no_time.setattr(spending, "LEAST_S", {"cpu": 0.0})
        assert source() == "predicted"
    assert source() == "store"
    assert source(budget_s=60) == "measured"
    assert source(budget_s=60) == "store"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for a contest, however long the machine takes."""
    monkeypatch.setattr(spending, "SHARE", 100.0)
    monkeypatch.setattr(spending, "MOST_SHARE", 100.0)


@pytest.mark.usefixtures("patient")
def test_what_is_taken_without_a_contest_is_the_first_in_one(
    compile_with: Compile, live: Any, foreseen: Candidate
) -> None:
    live.difference([compile_with(several, "measure")(*SEVERAL)], [several(*SEVERAL)])
    report = fusewise.reports()[-1]
    assert report.source == "measured"
    first = next(c for c in report.candidates if c.status == "measured" and not c.baseline)
    assert first.schedule == foreseen.schedule


@pytest.mark.usefixtures("patient")
def test_what_was_not_timed_is_taken_as_without_a_contest_where_nothing_was_faster(
    compile_with: Compile, live: Any, foreseen: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = deciding.settle

    def nothing_faster(report: Any, *rest: Any) -> None:
        settle(report, *rest)
        report.candidates = [
            msgspec.structs.replace(c, accepted=c.baseline) for c in report.candidates
        ]
        report.chosen = report.default

    monkeypatch.setattr(deciding, "settle", nothing_faster)
    monkeypatch.setattr(deciding.Asked, "beginning_with", lambda asked, _: asked)
    generate_while = deciding.generate_while

    def without(graph: Any, own: Any, asked: Sequence[Candidate], *rest: Any) -> Any:
        others = [c for c in asked if c.schedule != foreseen.schedule]
        return generate_while(graph, own, others, *rest)

    monkeypatch.setattr(deciding, "generate_while", without)
    monkeypatch.setattr(deciding.Contest, "_again", lambda *_: {})
    live.difference([compile_with(several, "measure")(*SEVERAL)], [several(*SEVERAL)])
    report = fusewise.reports()[-1]
    assert report.chosen is not None and report.chosen.schedule == foreseen.schedule
    assert report.source == "predicted"
    assert report.default is not None and report.default.measured_us is not None
    assert [c.accepted for c in report.candidates].count(True) == 1


class Bold(Foreseen):
    """Foresees another lowering or plan, whatever is predicted of it."""

    def __init__(self, report: Any, surveys: Any, predictor: Any) -> None:
        super().__init__(report, surveys, predictor)
        own = default_candidate(surveys).schedule
        every = [candidate for survey in surveys for candidate in survey.candidates]
        self.chosen = next(c for c in every if not c.schedule.same_but_kernels(own))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time for anything that is not due."""
    monkeypatch.setattr(spending, "MOST_SHARE", 0.0)
    monkeypatch.setattr(spending, "LEAST_S", {"cpu": 0.0})


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("ready", [True, False])
def test_another_lowering_or_plan_is_never_taken_untimed(
    compile_with: Compile, live: Any, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    monkeypatch.setattr(deciding, "Foreseen", Bold)
    if not ready:
        monkeypatch.setattr(MeasuringProcess, "ready", lambda *_: False)
    x = torch.randn(64, 88)
    live.difference(list(compile_with(functions, "measure")(x)), list(functions(x)))
    (report,) = fusewise.reports()
    assert report.chosen is not None and report.default is not None
    own = report.default.schedule
    others = [c for c in report.candidates if not c.schedule.same_but_kernels(own)]
    if ready:
        assert report.source == "measured"
        assert any(candidate.status == "measured" for candidate in others)
    else:
        assert report.chosen.schedule.same_but_kernels(own)
        assert "was not ready" in (report.fallback or "")


def test_kernels_of_what_is_predicted_or_known_are_built_together(
    compile_with: Compile, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    compile_some = cpp_batch._compile

    def counted(library: Any, some: Any, *rest: Any) -> bool:
        built.append(len(some))
        return compile_some(library, some, *rest)

    monkeypatch.setattr(cpp_batch, "_compile", counted)

    def unlike(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x.tanh().exp()
        z = (y @ w).exp().tanh()
        return (z @ w).tanh().exp().sum(-1)

    live.difference([compile_with(unlike, "predict")(*SEVERAL)], [unlike(*SEVERAL)])
    (report,) = fusewise.reports()
    assert report.chosen is not None and report.chosen.origin != "default"
    # One compiler for several kernels.
    assert len(built) == 1 and built[0] > 1


def test_what_may_come_of_a_program_is_seen_in_its_operators() -> None:
    def looked_at(x: torch.Tensor) -> Any:
        return torch.ops.aten.view.default(x, [-1]), torch.ops.aten.t.default(x)

    def computed(x: torch.Tensor) -> Any:
        return x.exp(), looked_at(x)[0] + 1

    assert session.operators(torch.fx.symbolic_trace(looked_at)) == 0
    assert session.operators(torch.fx.symbolic_trace(computed)) == session.LEAST_OPERATORS
