"""Products of 16-bit values in fp32, a choice of CPU schedules: what it does and who tries it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.nn import functional

import fusewise
from fusewise.compiler import spending
from fusewise.compiler.inductor.wide_products import half_products
from fusewise.compiler.looking import survey_all
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.store import default_store_path
from fusewise.schedule.schedule import Choice, Schedule

CHOICE = Choice("wide_products", True)
WIDE = Schedule(lowering=(CHOICE,))


@pytest.fixture
def slower(tmp_path: Path, profiled: Path) -> Callable[[float], str]:
    """A store beside a profile by which 16-bit products are so many times slower; its path."""

    def written(times: float) -> str:
        profile = device_profile(torch.device("cpu"), profiled.parent)
        fast = profile.flops_gfs
        # Of two libraries that are as fast neither is tried for its own sake.
        known = msgspec.structs.replace(profile, half_gfs=fast / times, onednn_gfs=fast)
        (tmp_path / "devices").mkdir()
        (tmp_path / "devices" / f"{profile.key}.json").write_bytes(msgspec.json.encode(known))
        return str(tmp_path / "store.duckdb")

    return written


def products(x: Any, weight: Any, bias: Any, image: Any, kernel: Any) -> Any:
    """Every kind of product: with a bias, plain, in a batch, a convolution, attention."""
    hidden = torch.addmm(bias, x, weight.t()).relu()
    heads = hidden.view(2, 4, 8, 8)
    attended = functional.scaled_dot_product_attention(heads, heads, heads)
    batch = hidden.view(4, 8, 16)
    return (
        hidden @ weight,
        torch.bmm(batch, batch.transpose(1, 2)).softmax(-1),
        functional.conv2d(image, kernel, bias[:6], padding=1).sigmoid(),
        attended * 2,
    )


def arguments(make: Any) -> tuple[Any, ...]:
    shapes = ((16, 24), (32, 24), (32,), (2, 3, 9, 10), (6, 3, 3, 3))
    return tuple(make.tensor(*shape) / 4 for shape in shapes)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)
def test_results_are_as_good_and_look_the_same(live: Any, dtype: torch.dtype) -> None:
    args = arguments(live.Make("cpu", dtype))
    (graph,) = live.capture(live.UserProgram(products, args))
    assert half_products(graph.compile.gm) == 5
    program = graph.generate(WIDE)
    assert program.code_hash != graph.stock.code_hash
    exact = products(*(value.double() for value in args))
    found, stock = graph.run_each(program, graph.stock)
    for own, theirs, wanted in zip(found, stock, exact, strict=False):
        assert own.dtype == theirs.dtype == dtype
        assert own.stride() == theirs.stride()
        error, allowed = ((v.double() - wanted).norm() for v in (own, theirs))
        assert error <= 2 * allowed + torch.finfo(dtype).eps * wanted.norm()


def test_they_are_looked_at_whatever_the_time(live: Any) -> None:
    (graph,) = live.capture(live.UserProgram(products, arguments(live.Make("cpu", torch.bfloat16))))
    slow = msgspec.structs.replace(
        device_profile(torch.device("cpu"), default_store_path().parent), half_gfs=1.0
    )
    predictor = Predictor(Roofline(slow), slow, {})
    for budget_s in (0.0, None):
        with graph.context():
            surveys = survey_all(
                graph.compile, predictor, key="k", kind="inference", budget_s=budget_s
            )
        assert surveys[1].choices == (CHOICE,)
        without, with_ = (
            sorted(node.flops for node in survey.problem.nodes if node.flops)
            for survey in surveys[:2]
        )
        assert with_ == without
        if budget_s is not None:
            assert len(surveys) == 2


@pytest.mark.slow
def test_gradients_too(live: Any) -> None:
    make = live.Make("cpu", torch.bfloat16)

    def loss(x: Any, weight: Any, image: Any, kernel: Any) -> Any:
        return (x @ weight).tanh().mean() + functional.conv2d(image, kernel).sigmoid().mean()

    args = (
        make.tensor(8, 16, grad=True),
        make.tensor(16, 12, grad=True),
        make.tensor(2, 3, 6, 6, grad=True),
        make.tensor(4, 3, 3, 3, grad=True),
    )
    graphs = live.capture(live.UserProgram(loss, args, training=True))
    assert {graph.kind for graph in graphs} == {"forward", "backward"}
    for graph in graphs:
        assert half_products(graph.compile.gm)
        live.difference(graph.run(graph.generate(WIDE)), graph.eager())


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float32, 8), (torch.bfloat16, 1)], ids=["fp32", "vector"]
)
def test_other_products_stay_what_they_are(live: Any, dtype: torch.dtype, rows: int) -> None:
    make = live.Make("cpu", dtype)
    (graph,) = live.capture(
        live.UserProgram(lambda x, y: (x @ y).relu(), (make.tensor(rows, 64), make.tensor(64, 32)))
    )
    assert half_products(graph.compile.gm) == 0
    assert graph.generate(WIDE).code_hash == graph.stock.code_hash


def test_a_model_that_knows_the_device_expects_the_gain(live: Any, profiled: Path) -> None:
    profile = device_profile(torch.device("cpu"), profiled.parent)
    make = live.Make("cpu", torch.bfloat16)
    (graph,) = live.capture(
        live.UserProgram(lambda x, y: (x @ y).relu(), (make.tensor(64, 64), make.tensor(64, 32)))
    )
    problem, plan = graph.surveyed.problem, graph.surveyed.default

    def us(half_gfs: float) -> float:
        known = msgspec.structs.replace(profile, half_gfs=half_gfs)
        return PlanCost(problem, known, Roofline(known)).plan(plan).us

    fast = profile.flops_gfs
    operations = 2 * 64 * 64 * 32
    # At rates so low moving takes no time beside it.
    expected = operations / (fast / 800 * 1e3) - operations / (fast / 400 * 1e3)
    assert us(fast / 800) - us(fast / 400) == pytest.approx(expected, rel=1e-5)
    assert us(2 * fast) < us(0.0) == us(fast)


def test_measuring_tries_it(live: Any, slower: Callable[[float], str]) -> None:
    make = live.Make("cpu", torch.bfloat16)
    args = (make.tensor(96, 128), make.tensor(128, 64))

    def f(x: Any, y: Any) -> Any:
        return (x @ y).relu()

    options = {"fusewise.store": slower(50), "fusewise.budget_s": 60}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    tried = [c for c in report.candidates if CHOICE in c.schedule.lowering]
    assert any(c.status == "measured" for c in tried)


@pytest.mark.parametrize(("times", "taken"), [(50.0, True), (1.5, False)], ids=["slow", "fast"])
def test_a_prediction_is_enough_where_the_device_is_known_to_be_slow(
    live: Any, slower: Callable[[float], str], *, times: float, taken: bool
) -> None:
    make = live.Make("cpu", torch.bfloat16)
    args = (make.tensor(256, 256), make.tensor(256, 256) / 16)

    def f(x: Any, y: Any) -> Any:
        return (x @ y @ y).relu()

    options = {"fusewise.store": slower(times), "fusewise.mode": "predict"}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert (CHOICE in report.chosen.schedule.lowering) is taken


def test_what_the_rates_promise_is_timed_however_little_time_there_is(
    live: Any, slower: Callable[[float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "SHARE", 0.0)
    monkeypatch.setattr(spending, "MOST_SHARE", 0.0)
    monkeypatch.setattr(spending, "LEAST_S", {"cpu": 0.0})
    make = live.Make("cpu", torch.bfloat16)
    args = (make.tensor(256, 256), make.tensor(256, 256) / 16)

    def f(x: Any, y: Any) -> Any:
        return (x @ y @ y).sigmoid()

    options = {"fusewise.store": slower(50)}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    (timed,) = [c for c in report.candidates if c.status == "measured" and not c.baseline]
    assert CHOICE in timed.schedule.lowering
    assert report.source == "measured" and report.untried
