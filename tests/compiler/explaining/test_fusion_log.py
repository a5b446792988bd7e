"""Nothing that Inductor's own log has is missing in an explanation, and nothing is invented."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch._logging
from torch._functorch import config as functorch_config
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor import config as inductor_config

from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.inductor.refusals import Refusal
from fusewise.datasets.corpora import on_device
from fusewise.datasets.corpus import GraphSample, scalar_loss
from tests.compiler.explaining.test_explaining import NORMS, Program, sample_of

_CANNOT = re.compile(r"cannot fuse (\S+) with (\S+): (.*)")
_FUSING = re.compile(r"^fusing (\S+) with (\S+)$")
_FOUND = re.compile(r"found (\d+) possible fusions")
_FIRST = "attempting fusion (1/10)"
#: Grounds that Inductor has no words for.
_WORDLESS = {
    Refusal.CODE_GENERATOR,
    Refusal.LOOP_SIZES,
    Refusal.TOO_MANY_NODES,
    Refusal.EXTERN,
    Refusal.TEMPLATE,
    Refusal.STREAM,
    Refusal.MIXED_REDUCTIONS,
}


def _diamond() -> Program:
    """Several ways to fuse, some of which close a cycle through a library call."""

    def call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.sin()
        b = a @ w
        c = a + b.cos()
        return c, a.sum(1), (x * 2).sum(1), c.amax(0)

    return call, (torch.randn(48, 48), torch.randn(48, 48))


def _indexed() -> Program:
    def call(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = x[i] * 2
        summed = torch.zeros_like(x).index_add_(0, i, gathered)
        joined = torch.cat([summed, x.flip(0)])
        return joined.exp(), (joined[1:] - joined[:-1]).abs().mean(), x.cumsum(0)

    return call, (torch.randn(40, 16), torch.randint(0, 40, (25,)))


def _foreach() -> Program:
    def call(parameters: list[torch.Tensor], steps: list[torch.Tensor]) -> list[torch.Tensor]:
        scaled = torch._foreach_mul(steps, 0.1)
        return torch._foreach_add(torch._foreach_mul(parameters, 0.9), scaled)

    sizes = [(16, 16), (64,), (8, 24)]
    return call, ([torch.randn(s) for s in sizes], [torch.randn(s) for s in sizes])


def _branches() -> Program:
    """Graphs within a graph, and one within these."""

    def call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def first(y: torch.Tensor) -> torch.Tensor:
            return (y.sin() + 1).softmax(-1) @ w

        def second(y: torch.Tensor) -> torch.Tensor:
            low, high = (lambda z: z.cos() * z.amax(0)), (lambda z: z.cumsum(1) - z.mean(0))
            chosen: torch.Tensor = torch.cond(y.sum() > 3, low, high, (y.exp(),))
            return chosen

        chosen: torch.Tensor = torch.cond(x.mean() > 0, first, second, (x * 2,))
        return chosen.relu(), (chosen + x).sum(1)

    return call, (torch.randn(24, 24), torch.randn(24, 24))


def _loops() -> Program:
    def call(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def going(i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (i < 3) & (y.abs().sum() < 1e6)

        def step(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, (y * 1.5).sin() + y.mean(0)

        def add(carry: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = (carry * 0.5 + y).tanh()
            return new, new.sum() + y

        count, looped = while_loop(going, step, (n, x))
        last, every = scan(add, x[0].clone(), x)
        return count, looped, last, every.exp()

    return call, (torch.randn(6, 10), torch.tensor(0))


def _regions() -> Program:
    """A region that is compiled once and run twice."""

    @torch.compiler.nested_compile_region
    def region(y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (y * scale).softmax(-1)

    def call(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        twice: torch.Tensor = region(region(x, scale).sin() + 1, scale)
        return twice

    return call, (torch.randn(8, 12), torch.ones(12))


_PROGRAMS: dict[str, Callable[[], Program]] = {
    **NORMS,
    "diamond": _diamond,
    "indexed": _indexed,
    "foreach": _foreach,
    "branches": _branches,
    "loops": _loops,
    "regions": _regions,
}
#: Those with graphs within their graphs.
_NESTED = {"branches", "loops", "regions"}
#: Those of which others have the like.
_ALIKE = {"norms-training", "diamond", "loops", "regions"}


def _sample(name: str) -> GraphSample:
    return sample_of(name, _PROGRAMS[name])


# Against the log.


@dataclass
class _Log:
    """What Inductor's log says of one graph."""

    refused: set[tuple[str, str, str]] = field(default_factory=set)
    fused: list[tuple[str, str]] = field(default_factory=list)
    found: list[int] = field(default_factory=list)


@contextmanager
def _fusion_log() -> Iterator[list[str]]:
    """The messages of ``TORCH_LOGS=fusion``."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collect = Collect()
    torch._logging.set_logs(fusion=True)
    log = logging.getLogger("torch._inductor.scheduler.__fusion")
    log.addHandler(collect)
    try:
        yield messages
    finally:
        log.removeHandler(collect)
        torch._logging.set_logs()


def _logged(sample: GraphSample) -> list[_Log]:
    """The log of Inductor by itself, graph by graph."""
    torch._dynamo.reset()
    with (
        _fusion_log() as messages,
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        torch.set_grad_enabled(sample.training),
    ):
        outputs = torch.compile(sample.module)(*sample.args, **sample.kwargs)
        if sample.training:
            scalar_loss(outputs).backward()
    torch._dynamo.reset()
    graphs: list[_Log] = []
    for message in messages:
        if _FIRST in message:
            graphs.append(_Log())
        if match := _CANNOT.search(message):
            graphs[-1].refused.add((match[1], match[2], match[3]))
        if match := _FUSING.search(message):
            graphs[-1].fused.append((match[1], match[2]))
        if match := _FOUND.search(message):
            graphs[-1].found.append(int(match[1]))
    return graphs


def _holds(sample: GraphSample, store: Path) -> None:
    """Nothing that is in the log is missing, and nothing is there that is not in it."""
    logs = _logged(sample)
    explained = explain_program(sample, Wish(store=store)).graphs
    assert len(explained) == len(logs) > 0
    assert any(graph.name for graph in explained) == (sample.name in _NESTED)
    for graph, log in zip(explained, logs, strict=True):
        fusions = graph.possible_fusions
        assert {entry for f in fusions for entry in f.logged} == log.refused
        assert sorted((f.a, f.b) for f in fusions if f.taken) == sorted(log.fused)
        assert list(graph.rounds) == log.found
        in_log = {(a, b) for a, b, _ in log.refused} | set(log.fused)
        for fusion in fusions:
            if (fusion.a, fusion.b) not in in_log and (fusion.b, fusion.a) not in in_log:
                # The log names neither what was possible and left out, nor what code generators
                # refuse.
                assert fusion.legal or Refusal(fusion.reason) in _WORDLESS, fusion
        most = sum(log.found)
        assert sum(f.legal and not f.part for f in fusions) <= most + len(log.fused)
        for refused in (f for f in fusions if not f.legal and f.logged):
            assert refused.detail in {text for _, _, text in refused.logged}


@pytest.fixture(autouse=True)
def numbers_captured() -> Iterator[None]:
    """Inductor makes a loop of a scan, over a number that it reads from a tensor."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in _ALIKE)) for n in _PROGRAMS]
)
def test_every_pair_is_in_the_log_of_inductor(name: str, store: Path) -> None:
    _holds(_sample(name), store)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _PROGRAMS)
def test_every_pair_is_in_the_log_on_a_gpu(name: str, store: Path) -> None:
    _holds(on_device(_sample(name), torch.device("cuda")), store)
