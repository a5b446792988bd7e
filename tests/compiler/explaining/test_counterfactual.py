"""One fusion and its opposite, in a plan of a file that has everything apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.explaining.report import ExplainedGraph, Side, Why
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import build_plan
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.schedule import Schedule


def _call(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    stored = (x + y).exp()
    return stored, stored.sum(-1).tanh(), stored @ w, y[:8].cos()


def _explained(wish: Wish) -> ExplainedGraph:
    torch.manual_seed(0)
    args = torch.randn(32, 64), torch.randn(32, 64), torch.randn(64, 16)
    sample = GraphSample(
        name="call", family="call", module=_call, args=args, kwargs={}, training=False
    )
    (graph,) = explain_program(sample, wish).graphs
    return graph


@pytest.fixture(scope="module")
def wish(tmp_path_factory: pytest.TempPathFactory) -> Wish:
    """Asks for the program by a plan file in which each node has a kernel of its own."""
    folder = tmp_path_factory.mktemp("home")
    store, path = folder / "store.duckdb", folder / "plan.json"
    graph = _explained(Wish(store=store))
    assert any(fusion.taken for fusion in graph.possible_fusions)
    plan = build_plan([node.name for node in graph.nodes], ())
    planned = PlannedGraph(
        kind="inference",
        key_parts=graph.key_parts,
        device="cpu",
        schedule=Schedule(plan=plan),
        measured_us=77.0,
    )
    write_plan_file(path, PlanFile(fusewise="1", torch="2", graphs=(planned,)))
    return Wish(store=store, plan=path)


@pytest.fixture(scope="module")
def apart(wish: Wish) -> ExplainedGraph:
    """The program explained by that plan."""
    return _explained(wish)


def _why(wish: Wish, a: str, b: str) -> Why:
    why = _explained(replace(wish, why=Question(a, b))).why
    assert why is not None
    return why


def _taken_us(sides: Sequence[Side]) -> float:
    return sum(side.predicted_us + side.around_us for side in sides)


def _nodes(graph: ExplainedGraph) -> dict[str, str]:
    """Names of the nodes by the operator that comes last in each."""
    return {node.operators[-1].split(".")[1]: node.name for node in graph.nodes}


def test_the_plan_of_the_file_is_explained(apart: ExplainedGraph) -> None:
    assert apart.plan.origin == "plan file"
    assert all(len(group.nodes) == 1 for group in apart.groups)
    own, planned = apart.candidates
    assert own.default and planned.chosen and planned.origin == "plan file"
    assert planned.measured_us == 77.0
    assert planned.predicted_us == pytest.approx(apart.plan.predicted_us)
    taken = [fusion for fusion in apart.possible_fusions if fusion.taken]
    assert taken and all(f.together and f.together_chosen is False for f in taken)


@pytest.mark.parametrize("turned", [False, True])
def test_a_fusion_added(wish: Wish, apart: ExplainedGraph, turned: bool) -> None:
    nodes = _nodes(apart)
    sides = nodes["sum"], nodes["tanh"]
    why = _why(wish, *(reversed(sides) if turned else sides))
    assert (why.change, why.legal, why.plan) == ("added", True, "plan file")
    assert sorted(side.nodes for side in why.before) == sorted((name,) for name in sides)
    assert [side.nodes for side in why.after] == [sides]
    gain = _taken_us(why.before) - _taken_us(why.after)
    assert why.before[0].around_us > 0.0
    assert why.predicted_gain_us == pytest.approx(gain)
    assert why.predicted_us - why.predicted_changed_us == pytest.approx(gain)
    assert why.predicted_us == pytest.approx(apart.plan.predicted_us)


def test_a_fusion_that_cannot_be_added(wish: Wish, apart: ExplainedGraph) -> None:
    nodes = _nodes(apart)
    why = _why(wish, nodes["exp"], nodes["sum"])
    (fusion,) = [f for f in apart.possible_fusions if (f.a, f.b) == (nodes["exp"], nodes["sum"])]
    assert why.change == "added" and not why.legal
    assert why.reason == fusion.reason == "loop_sizes"
    assert why.predicted_changed_us == pytest.approx(why.predicted_us - why.predicted_gain_us)


def test_a_side_is_named_by_its_buffer(wish: Wish, apart: ExplainedGraph) -> None:
    nodes = _nodes(apart)
    written = {node.name: node.writes[0] for node in apart.nodes}
    why = _why(wish, written[nodes["sum"]], written[nodes["tanh"]])
    assert (why.a_nodes, why.b_nodes) == ((nodes["sum"],), (nodes["tanh"],))


@pytest.mark.parametrize(
    ("a", "b", "telling"),
    [
        ("sum", "cos", "they use no buffer in common"),
        ("exp", "mm", "is of kind extern"),
    ],
)
def test_why_inductor_never_looks_at_a_pair(
    wish: Wish, apart: ExplainedGraph, a: str, b: str, telling: str
) -> None:
    nodes = _nodes(apart)
    with pytest.raises(PlanError, match=telling):
        _why(wish, nodes[a], nodes[b])


def _normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (64,), weight, bias).softmax(-1)


def test_a_fusion_removed_from_the_middle_of_a_group(wish: Wish) -> None:
    """What joined the group later goes with the side that it can go with, each part by itself."""
    args = torch.randn(128, 64), torch.randn(64), torch.randn(64)
    sample = GraphSample(
        name="normed", family="normed", module=_normed, args=args, kwargs={}, training=False
    )
    own = Wish(store=wish.store)
    (graph,) = explain_program(sample, own).graphs
    nodes = _nodes(graph)
    sides = nodes["amax"], nodes["exp"]
    (graph,) = explain_program(sample, replace(own, why=Question(*sides))).graphs
    why = graph.why
    assert why is not None and (why.change, why.legal) == ("removed", True), why
    (whole,) = why.before
    first, second = (side.nodes for side in why.after)
    assert sorted(first + second) == sorted(whole.nodes)
    assert [name in first for name in sides] in ([True, False], [False, True])
    # The statistics are needed before the one side, the division after the other.
    assert (nodes["var_mean"] in first) == (sides[0] in first)
    assert (nodes["div"] in first) == (sides[1] in first)
