"""Problems: what is extracted of graphs small enough to check by hand, and of all others."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import metrics

from fusewise.datasets.rows import decode_problem, encode_problem
from fusewise.schedule.problem import Problem, bits


def _problem(live: Any, function: Any, *args: Any, device: str = "cpu") -> Problem:
    """Problem of the one graph of an inference program."""
    (graph,) = live.capture(live.UserProgram(function, args))
    return graph.surveyed.problem  # type: ignore[no-any-return]


def _named(problem: Problem, origin: str) -> Any:
    """The node that the operator ``origin`` ended up in last."""
    return next(n for n in reversed(problem.nodes) if any(origin in o for o in n.origins))


def test_chain_has_its_nodes_buffers_and_dependencies(live: Any, device: str) -> None:
    def chain(x: Any, y: Any) -> Any:
        stored = x.exp()
        return stored.sum(1), (stored * y).sum(0)

    make = live.Make(device, torch.float32)
    problem = _problem(live, chain, make.tensor(8, 16), make.tensor(8, 16))
    total = problem.nodes[1] if device == "cpu" else problem.nodes[0]
    assert (total.kind, total.reduction_type) == ("reduction", "sum")
    assert (total.numel, total.rnumel, total.ranges) == (8, 16, ((8,), (16,)))
    assert dict(total.ops)["reduction"] == 1
    assert total.writes[0].bytes == 8 * 4
    assert total.source.startswith(__file__)
    if device == "cpu":
        # What takes an exponential is stored there where two use it.
        exp, *others = problem.nodes
        assert (exp.kind, exp.numel, exp.rnumel, exp.flops) == ("pointwise", 128, 1, 0)
        (stored,) = (access.buffer for access in exp.writes)
        described = problem.buffer_by_name[stored]
        assert (described.bytes, described.dtype) == (512, "torch.float32")
        assert not described.is_input and not described.is_output
        assert set(described.users) == {node.name for node in others}
        found = {(d.consumer, d.producer, d.buffer, d.weak) for d in problem.dependencies}
        assert found == {(node.name, exp.name, stored, False) for node in others}
    inputs = [b for b in problem.buffers if b.is_input]
    assert [(b.bytes, b.is_output) for b in inputs] == [(512, False)] * 2
    assert sum(b.is_output for b in problem.buffers) == 2


def test_reductions_on_a_gpu_tell_their_hint(live: Any, device: str) -> None:
    def totals(x: Any) -> Any:
        return x.sum(1), x.sum(0)

    problem = _problem(live, totals, live.Make(device, torch.float32).tensor(64, 4096))
    hints = {node.hint for node in problem.nodes}
    assert hints == ({""} if device == "cpu" else hints & {"inner", "outer", "default"})
    assert device == "cpu" or "inner" in hints


def test_every_kind_of_access_is_told_apart(live: Any, device: str) -> None:
    def touch(x: Any, y: Any, row: Any, ids: Any, table: Any, sums: Any) -> Any:
        return x.t() + y + row, table[ids] * 2, sums.index_add(0, ids, table[:8])

    make = live.Make(device, torch.float32)
    sums = torch.zeros(20, 4, device=device)
    args = (make.tensor(8, 16), make.tensor(16, 8), make.tensor(8))
    problem = _problem(live, touch, *args, make.integers(20, 8), make.tensor(20, 4), sums)
    arguments = sorted((b.name for b in problem.buffers if b.is_input), key=lambda n: int(n[3]))
    # Dynamo numbers arguments by their first use.
    x, y, row, table, ids, _ = arguments
    added = _named(problem, "permute")
    kinds = {access.buffer: access for access in added.reads}
    assert {kinds[x].kind, kinds[y].kind} == {"contiguous", "strided"}
    assert kinds[row].kind == "broadcast"
    assert (kinds[row].touched, kinds[row].bytes) == (128, 8 * 4)
    assert (kinds[x].touched, kinds[x].bytes, kinds[x].itemsize) == (128, 512, 4)
    assert {kinds[x].stride, kinds[y].stride} in ({1, 8}, {1, 16})
    looked_up = {access.buffer: access for access in _named(problem, "index.Tensor").reads}
    assert (looked_up[table].kind, looked_up[ids].kind) == ("gather", "broadcast")
    assert looked_up[ids].itemsize == 8
    scattered = _named(problem, "index_put")
    assert [access.kind for access in scattered.writes] == ["atomic"]


@pytest.mark.parametrize(
    ("divide", "told"),
    [
        (lambda x, _: x / 4.0, "mul"),
        (lambda x, _: x / -0.125, "mul"),
        (lambda x, _: x / 3.0, "truediv"),
        (lambda x, y: x / y, "truediv"),
        (lambda x, _: 4.0 / x, "reciprocal"),
    ],
)
def test_quotient_by_a_power_of_two_is_a_product(live: Any, divide: Any, told: str) -> None:
    tensor = live.Make("cpu", torch.float32).tensor
    (node,) = _problem(live, divide, tensor(8, 16), tensor(8, 16)).nodes
    divisions = {"mul", "truediv", "reciprocal"} & dict(node.ops).keys()
    assert told in divisions and ("truediv" in divisions) == (told == "truediv")


def test_no_access_moves_more_than_it_touches(graph: Any) -> None:
    for node in graph.surveyed.problem.nodes:
        for access in (*node.reads, *node.writes):
            if access.kind != "opaque":
                assert access.bytes <= access.touched * access.itemsize, (node.name, access)


def test_overwritten_input_waits_for_its_readers(live: Any, device: str) -> None:
    problem = live.captured("overwrite", device)[0].surveyed.problem
    copy = _named(problem, "copy_")
    product = _named(problem, "mm")
    readers = {
        n.name for n in problem.nodes if n is not copy for a in n.reads if a.buffer == "arg0_1"
    }
    waits = {d.producer: d.weak for d in problem.dependencies if d.consumer == copy.name}
    # The sum of the new value may be computed from the old one, which makes it a reader as well.
    assert product.name in readers
    assert {name for name, weak in waits.items() if weak} == readers - {
        name for name, weak in waits.items() if not weak
    }
    (written,) = (access.buffer for access in copy.writes)
    mutated = problem.buffer_by_name[written]
    assert "arg0_1" in mutated.aliases and mutated.is_output
    at = problem.index
    for reader in readers:
        assert problem.ancestors[at[copy.name]] >> at[reader] & 1


def test_what_only_waits_for_a_buffer_is_no_user_of_it(live: Any, device: str) -> None:
    problem = live.captured("overwrite", device)[0].surveyed.problem
    copy, product = _named(problem, "copy_"), _named(problem, "mm")
    (stored,) = (access.buffer for access in product.writes)
    assert copy.name not in problem.buffer_by_name[stored].users


def test_reader_of_a_scattered_buffer_reads_it_under_its_new_name(live: Any, device: str) -> None:
    def scatter(ids: Any, values: Any, table: Any) -> Any:
        grown = table.index_put((ids,), values, accumulate=True)
        return grown.sum(1) + table.sum(1)

    make = live.Make(device, torch.float32)
    args = (make.integers(6, 9), make.tensor(9, 4), make.tensor(6, 4))
    problem = _problem(live, scatter, *args)
    scattered = next(n for n in problem.nodes if n.writes[0].kind == "atomic")
    renamed = problem.buffer_by_name[scattered.writes[0].buffer]
    (base,) = renamed.aliases
    strong = {(d.consumer, d.producer) for d in problem.dependencies if not d.weak}
    copied = next(n for n in problem.nodes if n.writes[0].buffer == base)
    assert (scattered.name, copied.name) in strong
    (reader,) = renamed.users
    assert (reader, scattered.name) in strong
    assert {a.buffer for a in problem.node_by_name[reader].reads} >= {renamed.name}


def test_view_of_an_input_makes_it_an_output(live: Any, device: str) -> None:
    problem = _problem(
        live, lambda x: (x + 1, x[2:]), live.Make(device, torch.float32).tensor(4, 6)
    )
    (given,) = (b for b in problem.buffers if b.is_input)
    assert given.is_output


def test_dynamic_sizes_are_described_by_their_hint(live: Any, device: str) -> None:
    problem = live.captured("dynamic", device)[0].surveyed.problem
    assert {node.numel * node.rnumel for node in problem.nodes} >= {22 * 36}


def test_extern_kernel_has_its_operations_counted(live: Any, device: str) -> None:
    problem = live.captured("overwrite", device)[0].surveyed.problem
    product = _named(problem, "mm")
    assert (product.kind, product.fusible) == ("extern", False)
    assert product.flops == 2 * 16**3


def test_accesses_dependencies_and_users_agree(graph: Any) -> None:
    problem = graph.surveyed.problem
    writer = {a.buffer: node.name for node in problem.nodes for a in node.writes}
    position = problem.index
    for node in problem.nodes:
        for access in node.reads:
            assert access.buffer in problem.buffer_by_name
            if access.buffer in writer and writer[access.buffer] != node.name:
                assert any(
                    d.consumer == node.name and d.buffer == access.buffer
                    for d in problem.dependencies
                )
    readers: dict[str, set[str]] = {}
    for node in problem.nodes:
        for access in node.reads:
            readers.setdefault(access.buffer, set()).add(node.name)
    for buffer in problem.buffers:
        # What reads a buffer that others are parts of (a concatenation) uses the parts.
        shared = (buffer.name, *buffer.aliases)
        used = set(buffer.users) - {writer.get(buffer.name)}
        assert used <= set().union(*(readers.get(name, set()) for name in shared))
    for dependency in problem.dependencies:
        assert position[dependency.producer] < position[dependency.consumer]
        assert dependency.buffer in problem.buffer_by_name


def test_ancestors_are_those_of_the_scheduler(graph: Any) -> None:
    def ask(live_graph: Any, legality: Any, problem: Problem) -> dict[str, set[str]]:
        owner = {op: n.get_first_name() for n in live_graph.nodes for op in n.get_operation_names()}
        return {
            node.get_first_name(): {owner[op] for op in node.ancestors if op in owner}
            for node in live_graph.nodes
        }

    surveyed = graph.survey(ask)
    problem = surveyed.problem
    # What was surveyed before left nothing behind.
    assert problem == graph.surveyed.problem
    names = [node.name for node in problem.nodes]
    found = {
        name: {names[i] for i in bits(mask)}
        for name, mask in zip(names, problem.ancestors, strict=True)
    }
    assert found == {name: wanted - {name} for name, wanted in surveyed.found.items()}


def test_possible_fusions_are_those_of_inductors_first_round(graph: Any) -> None:
    def ask(live_graph: Any, legality: Any, problem: Problem) -> dict[frozenset[str], Any]:
        from fusewise.compiler.inductor.extract import score_of

        scheduler = live_graph.scheduler
        # Inductor takes only what is of the highest priority for its code generator each round.
        with mock.patch.object(
            scheduler, "get_possible_fusions_with_highest_priority", lambda pairs: pairs
        ):
            pairs = scheduler.get_possible_fusions(list(live_graph.nodes), False)
        return {
            frozenset((a.get_first_name(), b.get_first_name())): score_of(scheduler, a, b)
            for a, b in pairs
        }

    surveyed = graph.survey(ask)
    ours = {
        frozenset((p.first, p.second)): p.score
        for p in surveyed.problem.possible_fusions
        if not p.reorder
    }
    assert ours == surveyed.found


def test_problem_survives_the_store(graph: Any) -> None:
    problem = graph.surveyed.problem
    assert decode_problem(encode_problem(problem)) == problem


@pytest.mark.parametrize("name", ["layer_norm", "cross_entropy"])
def test_survey_generates_no_code(live: Any, device: str, name: str) -> None:
    graph = live.captured(name, device)[0]
    counted = ("generated_kernel_count", "generated_cpp_vec_kernel_count")

    def count() -> int:
        return sum(getattr(metrics, metric) for metric in counted)

    metrics.reset()
    graph.survey()
    assert count() == 0
    graph.generate(live.Schedule())
    assert count() > 0
