"""Legality: Inductor's own answers, with reasons, and no trace of having been asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.scheduler import WhyNoFuse

from fusewise.compiler.inductor.hooks import refusals
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.plans import node_name
from fusewise.compiler.inductor.refusals import Refusal, classify
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.search.legality import Verdict
from fusewise.search.tree import Join, Leaf


def _ask_all(legality: InductorLegality, names: list[str]) -> dict[tuple[str, str], Verdict]:
    """Verdicts on all pairs of nodes, and on what comes of the legal ones."""
    leaves = [Leaf(name, i) for i, name in enumerate(names)]
    verdicts = {}
    for first, second in itertools.permutations(leaves, 2):
        verdict = legality.verdict(first, second)
        verdicts[first.nodes[0], second.nodes[0]] = verdict
        if verdict.legal:
            joined = Join(first, second, reorder=verdict.reorder)
            for third in leaves:
                if third not in (first, second):
                    legality.verdict(joined, third)
                    legality.verdict(third, joined)
    return verdicts


class _Asking:
    """Asks of everything, then lets Inductor go on."""

    source = ""

    def fuse(self, scheduler: Any, nodes: list[Any], stock: Callable[[list[Any]], Any]) -> Any:
        live = LiveGraph(scheduler, tuple(nodes), Plan((), ()), ())
        self.verdicts = _ask_all(InductorLegality(live), [node_name(node) for node in nodes])
        return stock(nodes)

    def module(self, graph: Any, source: str) -> None:
        assert graph.scheduler is not None
        self.source = source


def test_questions_leave_no_trace_and_every_refusal_has_a_ground(graph: Any) -> None:
    asking = _Asking()
    graph.generate_through(asking)
    assert asking.source == graph.stock.source
    count = len(graph.surveyed.problem.nodes)
    assert len(asking.verdicts) == count * (count - 1)
    known = set(Refusal) - {Refusal.OTHER}
    for pair, verdict in asking.verdicts.items():
        if verdict.legal:
            assert verdict.reason == ""
        else:
            assert Refusal(verdict.reason) in known, (pair, verdict)
            assert verdict.detail


def _verdict(graph: Any, choose: Callable[[Problem], tuple[str, str]]) -> Verdict:
    def ask(live: LiveGraph, legality: InductorLegality, problem: Problem) -> Verdict:
        first, second = choose(problem)
        index = problem.index
        return legality.verdict(Leaf(first, index[first]), Leaf(second, index[second]))

    return graph.survey(ask).found  # type: ignore[no-any-return]


def test_extern_kernel_is_refused_as_such(live: Any, device: str) -> None:
    def choose(problem: Problem) -> tuple[str, str]:
        extern = next(node.name for node in problem.nodes if node.kind == "extern")
        user = next(d.consumer for d in problem.dependencies if d.producer == extern)
        return extern, user

    verdict = _verdict(live.captured("overwrite", device)[0], choose)
    assert (verdict.legal, verdict.reason) == (False, Refusal.EXTERN)


def test_consumer_before_producer_is_refused_by_order(live: Any, device: str) -> None:
    def choose(problem: Problem) -> tuple[str, str]:
        pair = next(
            d
            for d in problem.dependencies
            if problem.node_by_name[d.consumer].fusible and problem.node_by_name[d.producer].fusible
        )
        return pair.consumer, pair.producer

    verdict = _verdict(live.captured("statistics", device)[0], choose)
    assert (verdict.legal, verdict.reason) == (False, Refusal.ORDER)


def test_strangers_of_different_sizes_are_refused(live: Any, device: str) -> None:
    make = live.Make(device, torch.float32)
    program = live.UserProgram(lambda x, y: (x.sin(), y.cos()), (make.tensor(64), make.tensor(100)))
    (graph,) = live.capture(program)
    verdict = _verdict(graph, lambda _: ("op0", "op1"))
    assert (verdict.legal, verdict.reason) == (False, Refusal.NO_SHARED_DATA)


def test_same_question_has_the_same_answer_after_others(live: Any, device: str) -> None:
    graph = live.captured("layer_norm", device)[0]

    def ask(found: LiveGraph, legality: InductorLegality, problem: Problem) -> Any:
        names = [node.name for node in problem.nodes]
        asked = _ask_all(legality, names)
        # A second one on the same graph has nothing remembered.
        return asked, _ask_all(InductorLegality(found), names)

    first, second = graph.survey(ask).found
    assert first == second and any(v.legal for v in first.values())


@pytest.mark.parametrize(
    ("text", "ground"),
    [
        (None, Refusal.CODE_GENERATOR),
        ("no shared data", Refusal.NO_SHARED_DATA),
        ("no shared data due to indexing mismatch at op1", Refusal.INDEX_MISMATCH),
        ("will create cycle", Refusal.CYCLE),
        ("a ground that only a later version has", Refusal.OTHER),
    ],
)
def test_longest_known_beginning_decides(text: str | None, ground: Refusal) -> None:
    assert classify(text) is ground


def test_reasons_are_kept_only_while_somebody_listens() -> None:
    class _Node:
        def get_name(self) -> str:
            return "op0"

    why = WhyNoFuse(_Node(), _Node())  # type: ignore[arg-type]
    with refusals() as outer:
        why("nodes numel %s", 4)
        with refusals() as inner:
            why("is extern")
    why("after")
    assert (outer, inner) == (["nodes numel 4"], ["is extern"])
