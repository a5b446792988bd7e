"""A compile that waits: what is built meanwhile is what a compile of its own gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from fusewise.compiler.block_savings import read_survey
from fusewise.compiler.inductor import aside, deviceless, lowerings
from fusewise.compiler.inductor.choices import variants
from fusewise.compiler.inductor.interceptors import Applier, Program
from fusewise.compiler.inductor.worth_trying import ranked_by
from fusewise.compiler.looking import Begun, looks_begun, survey_all
from fusewise.compiler.survey import Predictor, Survey, survey
from fusewise.costmodel.block_model import blocks_of
from fusewise.costmodel.device import DeviceProfile, device_profile
from fusewise.costmodel.gains import Demand, Gains
from fusewise.costmodel.registry import load_model
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.schedule import Choice, Schedule


@pytest.fixture(scope="module")
def predictor(profiled: Path) -> Predictor:
    profile = device_profile(torch.device("cpu"), profiled.parent)
    return Predictor(Roofline(profile), profile, {})


def attending(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> Any:
    """Reductions, a concatenation, a library call and an overwritten input."""
    scores = (x @ weight).softmax(-1)
    wide = torch.cat([scores * 2, scores.exp() + x], -1)
    state.mul_(0.9).add_(wide.mean(0)[: state.numel()])
    gated = torch.sigmoid(wide) * torch.tanh(wide) + wide.sin() * wide.cos()
    return gated.sum(-1), gated / gated.norm(dim=-1, keepdim=True)


def _inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(64, 96), torch.randn(96, 96), torch.randn(96)


def _captured(live: Any) -> Any:
    (graph,) = live.capture(live.UserProgram(attending, _inputs()))
    return graph


def _apart(graph: Any) -> Plan:
    return unfused([node.name for node in graph.surveyed.problem.nodes])


def _meanwhile(graph: Any, work: Callable[[], Any]) -> tuple[Any, Program]:
    """What ``work`` gives while the compile of ``graph`` waits, and what that compile ends with."""
    found: list[Any] = []
    own: list[Program] = []

    def visit() -> bool:
        found.append(work())
        own.append(graph.compile.own_program())
        return True

    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        assert graph.compile.compile_after(visit, measured=False) is not None
    return found[0], own[0]


def _all(graph: Any, predictor: Predictor) -> tuple[list[Any], dict[str, Any]]:
    """The graph under some choices, and programs of some of its plans."""
    asked = [(), *variants("cpu"), (Choice("node:exp", "store"),)]
    surveys: list[Survey] = [
        survey(graph.compile, predictor, key="k", kind="inference", choices=choices)
        for choices in asked
    ]
    schedules = [c.schedule for s in surveys for c in s.candidates[:2]]
    schedules.append(Schedule(plan=unfused([n.name for n in surveys[0].problem.nodes])))
    programs = {schedule.id: graph.compile.generate(schedule) for schedule in schedules}
    told = [(s.choices, s.problem, s.default_plan, s.candidates, s.decisions) for s in surveys]
    return told, {name: program.source for name, program in programs.items()}


@pytest.mark.slow
def test_surveys_and_programs_are_those_of_compiles_of_their_own(
    live: Any, predictor: Predictor
) -> None:
    graph = _captured(live)
    with graph.context():
        surveys, programs = _all(graph, predictor)
        alone = graph.compile.generate(Schedule())
    (met, generated), own = _meanwhile(graph, lambda: _all(graph, predictor))
    assert met == surveys
    assert generated == programs
    assert len(set(programs.values())) > 3
    # All that went on before leaves no trace in what the compile goes on with.
    assert own.source == alone.source
    assert own.constants.keys() == alone.constants.keys()


def test_a_plan_that_is_refused_leaves_no_trace(live: Any, predictor: Predictor) -> None:
    graph = _captured(live)

    def refused() -> str:
        with pytest.raises(PlanError):
            graph.compile.generate(Schedule(plan=unfused(["op0"])))
        with pytest.raises(PlanError):
            graph.compile.generate(Schedule(lowering=(Choice("node:nowhere", "store"),)))
        return str(graph.compile.generate(Schedule()).source)

    source, own = _meanwhile(graph, refused)
    assert source == own.source


def test_a_compile_that_is_not_wanted_any_more_ends(live: Any) -> None:
    graph = _captured(live)
    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        assert graph.compile.compile_after(lambda: False, measured=False) is None
        # Nothing waits afterwards.
        assert graph.compile.generate(Schedule()).source


@pytest.mark.parametrize(
    "lowering",
    [
        (),
        pytest.param(("node:div", "store"), marks=pytest.mark.slow),
        pytest.param(("inline_reads", 2), marks=pytest.mark.slow),
    ],
)
def test_a_compile_goes_on_under_another_schedule(live: Any, lowering: tuple[Any, ...]) -> None:
    graph = _captured(live)
    apart = Schedule(
        lowering=(Choice(*lowering),) if lowering else (),
        plan=None if lowering else _apart(graph),
        codegen=(Choice("parallel_grain", 2048),),
    )

    def hits() -> int:
        return counters["inductor"]["fxgraph_cache_hit"]

    def compiled(schedule: Schedule | None) -> Any:
        before = hits()
        interceptor = None if schedule is None else Applier(schedule.plan)
        output = graph.compile.compile(schedule, interceptor)
        return output.source_code, hits() - before

    with (
        graph.context(),
        inductor_config.patch(fx_graph_cache=True),
        fresh_cache(),
    ):
        own, wanted = (graph.compile.generate(s).source for s in (Schedule(), apart))
        output = graph.compile.compile_after(lambda: apart, measured=False)
        assert output is not None
        assert _code(output.source_code) == _code(wanted) != _code(own)
        inputs = _inputs()
        assert_close(tuple(output([*map(torch.clone, inputs)])), attending(*inputs))
        # Inductor keeps it as that schedule's, and its own code is none of that.
        assert compiled(apart) == (output.source_code, 1)
        source, hit = compiled(None)
        assert (_code(source), hit) == (_code(own), 0)


def test_what_is_compiled_while_another_waits_is_found_again(live: Any) -> None:
    graph = _captured(live)
    apart = Schedule(plan=_apart(graph))

    def compiled_ahead() -> bool:
        assert graph.compile.compile_ahead(apart, Applier(apart.plan)).output is not None
        return False

    with (
        graph.context(),
        inductor_config.patch(fx_graph_cache=True),
        fresh_cache(),
    ):
        assert graph.compile.compile_after(compiled_ahead, measured=False) is None
        before = counters["inductor"]["fxgraph_cache_hit"]
        assert graph.compile.compile(apart, Applier(apart.plan)) is not None
        assert counters["inductor"]["fxgraph_cache_hit"] == before + 1


def _code(source: str) -> str:
    """A program without the comments, and the folder that stands in them."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(plan=unfused(["op0"])),
        Schedule(lowering=(Choice("node:nowhere", "store"),)),
    ],
    ids=["no plan", "no node"],
)
def test_a_compile_does_not_go_on_under_what_it_cannot_be(live: Any, schedule: Schedule) -> None:
    graph = _captured(live)
    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        own = graph.compile.generate(Schedule()).source
        assert graph.compile.compile_after(lambda: schedule, measured=False) is None
        # And nothing of it is in force afterwards.
        assert graph.compile.generate(Schedule()).source == own


def test_a_compile_does_not_go_on_with_other_strides_than_it_has_told(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = _captured(live)
    strides = iter([[("96", "1")], [("1", "64")]])
    monkeypatch.setattr(lowerings, "output_strides", lambda _: next(strides))
    other = Schedule(lowering=(Choice("inline_reads", 2),))
    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        assert graph.compile.compile_after(lambda: other, measured=False) is None
    assert next(strides, None) is None


def test_aotautograd_is_told_the_strides_of_a_compile_that_ends_early(live: Any) -> None:
    graph = _captured(live)
    told = []
    for goes_on in (True, Schedule(plan=_apart(graph)), False):
        with (
            graph.context(),
            TracingContext.report_output_strides() as strides,
            inductor_config.patch(fx_graph_cache=False),
        ):
            graph.compile.compile_after(lambda goes_on=goes_on: goes_on, measured=False)
            told.append(list(strides or ()))
    assert told[0] == told[1] == told[2]
    assert (96 + 96, 1) in told[1]


def test_choices_that_change_nothing_are_known_before(live: Any, predictor: Predictor) -> None:
    graph = _captured(live)
    with graph.context():
        first = survey(graph.compile, predictor, key="k", kind="inference")
        assert first.grounds is not None
        idle = [choices for choices in variants("cpu") if not first.grounds.matter(choices)]
        assert 0 < len(idle) < len(variants("cpu"))
        for choices in idle:
            other = survey(graph.compile, predictor, key="k", kind="inference", choices=choices)
            assert (other.problem, other.default_plan) == (first.problem, first.default_plan)
            assert other.decisions == first.decisions


def test_what_computes_a_convolution_is_asked_once() -> None:
    with deviceless.noting_convolutions(), FakeTensorMode():
        image, weight = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
        noted = deviceless._noted.get()
        for stride in (1, 1, 2):
            torch.nn.functional.conv2d(image, weight, stride=stride)
        assert noted is not None and len(noted) == 2
    assert deviceless._noted.get() is None


def convolving(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """What a copy of the process cannot ask the device for."""
    found = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    return torch.nn.functional.conv2d(found.relu(), weight).sin().mean((2, 3))


_ON_GPU = {
    "products": (attending, torch.float32, ((64, 96), (96, 96), (96,))),
    "convolutions": (convolving, torch.bfloat16, ((2, 8, 16, 16), (8, 8, 3, 3), (8,))),
}


def _captured_on_gpu(live: Any, home: Path, name: str = "products") -> tuple[Any, DeviceProfile]:
    function, dtype, shapes = _ON_GPU[name]
    inputs = tuple(torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)
    (graph,) = live.capture(live.UserProgram(function, inputs))
    return graph, device_profile(torch.device("cuda", 0), home)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _ON_GPU)
def test_on_a_gpu_copies_of_the_process_come_to_the_same(
    live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    graph, profile = _captured_on_gpu(live, tmp_path, name)
    predictor = Predictor(Roofline(profile), profile, {})
    monkeypatch.setattr(aside, "_LEAST_CORES", 1)
    asked: list[bool] = []

    def told() -> Any:
        surveys = survey_all(
            graph.compile, predictor, key="k", kind="inference", budget_s=None, most=6
        )
        schedules = [c.schedule for s in surveys for c in s.candidates[:2]]
        programs = graph.compile.generate_all(schedules)
        found = [(s.choices, s.problem, s.default_plan, s.candidates) for s in surveys]
        return found, [getattr(p, "source", str(p)) for p in programs]

    def both() -> Any:
        monkeypatch.setattr(aside._useless, "is_set", lambda: False)
        copied = told()
        asked.append(graph.compile.copies_help)
        monkeypatch.setattr(aside._useless, "is_set", lambda: True)
        return copied, told()

    (copied, here), _ = _meanwhile(graph, both)
    assert asked == [True]
    assert copied == here
    # The device works on in this process.
    assert torch.ones(8, device="cuda").sum().item() == 8


@pytest.mark.gpu
def test_looks_that_are_begun_early_come_to_the_same(
    live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, profile = _captured_on_gpu(live, tmp_path)
    model = load_model("h200", profile, tmp_path)
    predictor = Predictor(model, profile, {})
    gains = Gains(demands={"setting": Demand(0.0)})
    asked = {"key": "k", "kind": "inference", "gains": gains, "only": True, "most": 2}
    monkeypatch.setattr(aside, "_LEAST_CORES", 1)
    monkeypatch.setattr(aside._useless, "is_set", lambda: False)

    def found(begun: Begun | None) -> list[Survey]:
        return survey_all(graph.compile, predictor, budget_s=None, begun=begun, **asked)

    def told(one: Survey) -> Any:
        signatures = [node.signature for node in one.problem.nodes]
        return one.choices, signatures, one.default_plan, one.candidates

    def both() -> Any:
        with (
            ranked_by(blocks_of(model)),
            looks_begun(graph.compile, predictor, budget_s=None, **asked) as begun,
        ):
            assert begun is not None and len(begun.asked) > 2
            early, late = found(begun), found(None)
            # Products by templates were not asked for: which there are is seen here.
            began = [s for s in late[1:] if s.choices in begun.asked]
            read = [(begun.reading(s.choices), read_survey(graph.compile, s)) for s in began]
        return early, late, read

    (early, late, read), _ = _meanwhile(graph, both)
    assert len(early) > 1
    assert [told(one) for one in early] == [told(one) for one in late]
    # What was read in a copy of the process is what is read here, and so is the program, whose
    # kernels may be compiled before it is generated once more.
    assert read
    for there, here in read:
        assert there is not None and there[1] == here[1]
        assert there[0].code_hash == here[0].code_hash and there[0].settings == here[0].settings
    assert any(savings for _, (_, savings) in read)


def test_a_compile_for_the_cpu_begins_no_looks(live: Any, predictor: Predictor) -> None:
    graph = _captured(live)
    gains = Gains(demands={"setting": Demand(0.0)})
    asked = {"key": "k", "kind": "inference", "gains": gains, "only": False, "most": 4}
    with looks_begun(graph.compile, predictor, budget_s=1.0, **asked) as begun:
        assert begun is None
