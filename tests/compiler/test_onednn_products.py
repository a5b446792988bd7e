"""Products of fp32 matrices by oneDNN, a choice of CPU schedules: what it does and who tries it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import fusewise
from fusewise.compiler.inductor.onednn_products import onednn_count
from fusewise.compiler.looking import survey_all
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.store import default_store_path
from fusewise.schedule.schedule import Choice, Schedule

CHOICE = Choice("onednn_products", True)
ONEDNN = Schedule(lowering=(CHOICE,))
WIDE = Choice("wide_products", True)

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)


@pytest.fixture
def rated(tmp_path: Path, profiled: Path) -> Callable[..., str]:
    """A store beside a profile by which rates are so many times that of the BLAS; its path."""

    def written(**times: float) -> str:
        profile = device_profile(torch.device("cpu"), profiled.parent)
        rates = {name: by * profile.flops_gfs for name, by in times.items()}
        known = msgspec.structs.replace(profile, **rates)
        (tmp_path / "devices").mkdir()
        (tmp_path / "devices" / f"{profile.key}.json").write_bytes(msgspec.json.encode(known))
        return str(tmp_path / "store.duckdb")

    return written


def multiplied(live: Any, function: Any, args: tuple[Any, ...]) -> Any:
    (graph,) = live.capture(live.UserProgram(function, args))
    return graph


def libraries(graph: Any, *choices: Choice) -> list[str]:
    """Libraries of the graph's products, as they stand in its problem."""
    profile = device_profile(torch.device("cpu"), default_store_path().parent)
    known = msgspec.structs.replace(profile, onednn_gfs=9 * profile.flops_gfs, half_gfs=1.0)
    with graph.context():
        surveys = survey_all(
            graph.compile,
            Predictor(Roofline(known), known, {}),
            key="k",
            kind="inference",
            budget_s=0.0,
        )
    (found,) = [survey for survey in surveys if set(survey.choices) == set(choices)]
    return [node.library for node in found.problem.nodes if node.kind == "extern"]


def test_results_are_as_good_and_look_the_same(live: Any) -> None:
    make = live.Make("cpu", torch.float32)

    def products(x: Any, weight: Any, bias: Any, other: Any) -> Any:
        hidden = torch.addmm(bias, x, weight.t()).relu()
        # Neither matrix transposed, the first one, both, and a part of a wider matrix.
        return (
            hidden @ weight,
            x.t() @ hidden,
            x.t() @ other.t(),
            (hidden * 2)[:, :100] @ other[:100],
        )

    args = (make.tensor(160, 192), make.tensor(320, 192), make.tensor(320), make.tensor(176, 160))
    graph = multiplied(live, products, args)
    assert onednn_count(graph.compile.gm) == 5
    program = graph.generate(ONEDNN)
    assert program.code_hash != graph.stock.code_hash
    exact = products(*(value.double() for value in args))
    for own, theirs, wanted in zip(*graph.run_each(program, graph.stock), exact, strict=False):
        assert own.dtype == theirs.dtype == torch.float32
        assert own.stride() == theirs.stride()
        error, allowed = ((v.double() - wanted).norm() for v in (own, theirs))
        assert error <= 3 * allowed + torch.finfo(torch.float32).eps * wanted.norm()
    assert libraries(graph, CHOICE) == ["onednn"] * 5


@pytest.mark.slow
def test_gradients_too(live: Any) -> None:
    make = live.Make("cpu", torch.float32)

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.linear(x, weight, bias).tanh().square().mean()

    args = (
        make.tensor(4, 48, 128, grad=True),
        make.tensor(256, 128, grad=True),
        make.tensor(256, grad=True),
    )
    graphs = live.capture(live.UserProgram(loss, args, training=True))
    assert [onednn_count(graph.compile.gm) for graph in graphs] == [1, 2]
    for graph in graphs:
        # With Inductor's own and not with eager: both overwrite what backward needs no more.
        live.difference(*graph.run_each(graph.generate(ONEDNN), graph.stock))


def _few(x: Any, y: Any) -> Any:
    return x[:32, :64] @ y[:64, :32]


def _vector(x: Any, y: Any) -> Any:
    return x.repeat(1, 12)[:1] @ y.repeat(12, 12)


def _narrow_and_turned(x: Any, y: Any) -> Any:
    return x.t() @ y[:, :48]


def _scaled(x: Any, y: Any) -> Any:
    return torch.addmm(y[0], x, y, alpha=2)


def _by_rows(x: Any, y: Any) -> Any:
    return torch.addmm(x, x, y)


def _by_one_of_few(x: Any, y: Any) -> Any:
    return torch.addmm(y[0, :1], x, y)


def _part_of_a_wider_one(x: Any, y: Any) -> Any:
    return x[:, :128] @ y[:128, 2:255]


def _spread(x: Any, y: Any) -> Any:
    return x @ y[:1].expand(256, 256)


def _in_a_batch(x: Any, y: Any) -> Any:
    return torch.bmm(x.expand(3, 256, 256), y.expand(3, 256, 256))


@pytest.mark.parametrize(
    "function",
    [
        _few,
        _vector,
        _narrow_and_turned,
        _scaled,
        _by_rows,
        _by_one_of_few,
        _part_of_a_wider_one,
        _spread,
        _in_a_batch,
    ],
    ids=lambda f: f.__name__.strip("_"),
)
def test_other_products_stay_what_they_are(live: Any, function: Any) -> None:
    make = live.Make("cpu", torch.float32)
    graph = multiplied(live, function, (make.tensor(256, 256), make.tensor(256, 256)))
    assert onednn_count(graph.compile.gm) == 0
    assert graph.generate(ONEDNN).code_hash == graph.stock.code_hash


def test_nor_where_a_user_switched_it_off(live: Any) -> None:
    make = live.Make("cpu", torch.float32)
    with torch.backends.mkldnn.flags(enabled=False):
        args = (make.tensor(256, 256), make.tensor(256, 256))
        graph = multiplied(live, lambda x, y: (x @ y).relu(), args)
        assert onednn_count(graph.compile.gm) == 0
        assert graph.generate(ONEDNN).code_hash == graph.stock.code_hash


def test_of_16_bits_only_where_they_are_widened(live: Any) -> None:
    make = live.Make("cpu", torch.bfloat16)

    def f(x: Any, y: Any) -> Any:
        return (x @ y).relu()

    graph = multiplied(live, f, (make.tensor(192, 192), make.tensor(192, 192) / 16))
    assert onednn_count(graph.compile.gm) == 0 and onednn_count(graph.compile.gm, wide=True) == 1
    assert graph.generate(ONEDNN).code_hash == graph.stock.code_hash
    both = Schedule(lowering=(CHOICE, WIDE))
    live.difference(graph.run(graph.generate(both)), graph.eager())
    assert libraries(graph, CHOICE, WIDE) == ["onednn"]


@pytest.mark.slow
def test_sizes_may_be_known_at_run_time_only(rated: Callable[..., str]) -> None:
    def f(x: Any, y: Any) -> Any:
        return (x @ y).relu()

    y = torch.randn(256, 256) / 16
    compiled = torch.compile(
        f,
        backend="fusewise",
        dynamic=True,
        options={"fusewise.store": rated(onednn_gfs=3.0), "fusewise.mode": "predict"},
    )
    for rows in (256, 3, 1, 100, 700):
        x = torch.randn(rows, 256)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    assert any(r.chosen and CHOICE in r.chosen.schedule.lowering for r in fusewise.reports())


def test_measuring_tries_it_and_others_on_top(live: Any, rated: Callable[..., str]) -> None:
    make = live.Make("cpu", torch.float32)
    args = (make.tensor(512, 512), make.tensor(512, 512) / 16)

    def f(x: Any, y: Any) -> Any:
        return (x @ y).sigmoid().softmax(-1)

    options = {"fusewise.store": rated(onednn_gfs=3.0), "fusewise.budget_s": 60}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    tried = [c.schedule for c in report.candidates if c.status == "measured"]
    assert any(CHOICE in schedule.lowering for schedule in tried)
    assert all(CHOICE in c.schedule.lowering for c in report.candidates if c.schedule.lowering)


@pytest.mark.parametrize(("times", "taken"), [(2.2, True), (1.1, False)], ids=["faster", "alike"])
def test_a_prediction_is_enough_where_the_library_is_known_to_be_faster(
    live: Any, rated: Callable[..., str], *, times: float, taken: bool
) -> None:
    make = live.Make("cpu", torch.float32)
    args = (make.tensor(512, 512), make.tensor(512, 512) / 16)

    def f(x: Any, y: Any) -> Any:
        return (x @ y @ y).relu()

    options = {"fusewise.store": rated(onednn_gfs=times), "fusewise.mode": "predict"}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert (CHOICE in report.chosen.schedule.lowering) is taken
