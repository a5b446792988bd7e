"""Choices about kernels on a device: what they generate, that it is right, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.autotune_cache import AutotuneCache

import fusewise
from fusewise.compiler.contest import announce, graph_job, hold
from fusewise.compiler.inductor.choices import (
    config_patches,
    kernel_patches,
    stage_of,
    unpredictable,
    variants,
)
from fusewise.compiler.inductor.interceptors import Applier, Program
from fusewise.compiler.inductor.tuning import check_tuned, tuned
from fusewise.compiler.measuring.inputs import observe
from fusewise.datasets.store import Store
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import blocks_choice, combo_choice
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.reductions import Shape, shape_choice, split_choice
from fusewise.schedule.schedule import Candidate, Choice, Schedule

gpu = pytest.mark.gpu


def launches(source: str) -> list[str]:
    """Triton kernels of a program in the order in which it runs them."""
    return re.findall(r"^\s+(triton_\w+)\.run\(", source, re.MULTILINE)


def lookups(*tables: Any) -> list[Any]:
    """As many kernels as tables that share nothing, and one that needs them all."""
    ids, *rest = tables
    rows = [table[ids].relu() * 2 for table in rest]
    return [*rows, torch.stack([row.sum(1) for row in rows]).amax(0)]


@pytest.fixture
def graph(live: Any) -> Any:
    """Four lookups of unlike widths, and what is made of them."""
    make = live.Make("cuda", torch.float32)
    tables = [make.tensor(50, width) for width in (16, 24, 40, 64)]
    (found,) = live.capture(live.UserProgram(lookups, (make.integers(50, 30), *tables)))
    return found


def first_nodes(graph: Any) -> list[str]:
    return [group[0] for group in graph.surveyed.default.groups]


def schedule(graph: Any, *codegen: Choice) -> Schedule:
    return Schedule(plan=graph.surveyed.default, codegen=codegen)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_is_not_predicted_is_not_looked_at_either(kind: str) -> None:
    looked_at, tried = variants(kind), unpredictable(kind)
    assert not set(looked_at) & set(tried)
    names = {choice.name for choices in tried for choice in choices}
    wanted = {
        "combo_kernels",
        "coordinate_descent",
        "pointwise_autotune",
        "products_as_sums",
        "unrolled_loops",
    }
    assert (names >= wanted) is (kind == "cuda")


def test_on_a_cpu_kernels_have_neither(live: Any) -> None:
    (found,) = live.captured("adam_step")
    names = first_nodes(found)
    assert len(names) > 1
    with pytest.raises(PlanError, match="only kernels on a GPU"):
        found.generate(schedule(found, combo_choice(names[:2])))
    with pytest.raises(PlanError, match="nothing to tune"):
        found.generate(schedule(found, blocks_choice(names[0], "descent")))


def test_a_kind_that_is_not_known_is_refused(live: Any) -> None:
    (found,) = live.captured("layer_norm")
    with pytest.raises(PlanError, match="'cmbo:', nearest is 'combo:'"):
        found.generate(Schedule(codegen=(Choice("cmbo:op0", "op1"),)))


def test_what_is_not_computed_by_a_kernel_after_all_need_not_have_one() -> None:
    with tuned({}, {"op7": "descent"}):
        check_tuned({"op7", "op12"})
        with pytest.raises(PlanError, match="no Triton kernel is generated for 'op7'"):
            check_tuned({"op12"})


def rows_and_columns(x: Any) -> Any:
    y = x * 2
    return y.sum(1), y.sum(0)


@gpu
def test_all_kernels_are_tuned_beside_one_of_rows_and_columns(live: Any) -> None:
    make = live.Make("cuda", torch.float32)
    (graph,) = live.capture(live.UserProgram(rows_and_columns, (make.tensor(32768, 768),)))
    choices = [blocks_choice(name, "descent") for name in first_nodes(graph)]
    program = graph.generate(schedule(graph, *sorted(choices)))
    # The library takes the last step of the columns' sums, whatever the plan says.
    assert len(launches(program.source)) < len(choices)
    assert "'coordinate_descent_tuning': True" in program.source
    live.difference(graph.run(program), graph.eager())


@gpu
def test_chosen_kernels_share_a_launch_and_others_do_not(graph: Any, live: Any) -> None:
    names = first_nodes(graph)
    stock = launches(graph.stock.source)
    assert len(stock) >= 4
    pair = graph.generate(schedule(graph, combo_choice(names[:2])))
    four = graph.generate(schedule(graph, combo_choice(names[:2]), combo_choice(names[2:4])))
    assert len(launches(pair.source)) == len(stock) - 1
    assert len(launches(four.source)) == len(stock) - 2
    for program in (pair, four):
        live.difference(graph.run(program), graph.eager())


def two_chains(a: Any, b: Any) -> Any:
    return a.sum(0).softmax(0), b.sum(0).softmax(0)


@gpu
def test_what_cannot_be_is_refused(live: Any) -> None:
    make = live.Make("cuda", torch.float32)
    (graph,) = live.capture(
        live.UserProgram(two_chains, (make.tensor(700, 600), make.tensor(500, 400)))
    )
    problem, plan = graph.surveyed.problem, graph.surveyed.default
    at = plan.group_of()
    chains = sorted(
        {
            (plan.groups[at[d.producer]][0], plan.groups[at[d.consumer]][0])
            for d in problem.dependencies
            if at[d.consumer] != at[d.producer]
        }
    )
    needs = {name: {n for n, user in chains if user == name} for pair in chains for name in pair}
    (first, second), (third, fourth) = next(
        (one, two)
        for one in chains
        for two in chains
        if one < two
        and not set(one) & set(two)
        and not needs[two[0]] & set(one)
        and not needs[one[0]] & set(two)
    )
    straight = (combo_choice([first, third]), combo_choice([second, fourth]))
    live.difference(graph.run(graph.generate(schedule(graph, *straight))), graph.eager())
    refused = {
        "another needs": (combo_choice([first, second]),),
        "what one of them computes": (
            combo_choice([first, fourth]),
            combo_choice([second, third]),
        ),
        "no node 'op99'": (combo_choice([first, "op99"]),),
        "kernel is generated for 'op99'": (blocks_choice("op99", "descent"),),
    }
    for reason, choices in refused.items():
        with pytest.raises(PlanError, match=reason):
            graph.generate(schedule(graph, *choices))


@gpu
@pytest.mark.parametrize(
    "choices",
    [
        choices
        for choices in unpredictable("cuda")
        if config_patches(choices) or kernel_patches(choices)
    ],
    ids=lambda choices: str(choices[0].name),
)
def test_settings_of_inductors_are_choices(
    graph: Any, live: Any, choices: tuple[Choice, ...]
) -> None:
    program = graph.generate(schedule(graph, *choices))
    assert program.code_hash != graph.stock.code_hash
    live.difference(graph.run(program), graph.eager())


@gpu
def test_one_kernel_is_tuned_and_the_others_are_not(graph: Any, live: Any) -> None:
    names = first_nodes(graph)
    program = graph.generate(schedule(graph, blocks_choice(names[1], "descent")))
    assert program.source.count("'coordinate_descent_tuning': True") == 1
    # What else there is to start from is compiled beside it: its own list stays Inductor's.
    assert program.source.count("'max_autotune_pointwise': True") == 0
    several = graph.generate(schedule(graph, blocks_choice(names[1], "autotune")))
    assert several.source.count("'max_autotune_pointwise': True") == 1
    assert len(launches(program.source)) == len(launches(graph.stock.source))
    live.difference(graph.run(program), graph.eager())


def compiled(graph: Any, chosen: Schedule) -> tuple[Any, Program | None, list[Any]]:
    """What a program would get of a schedule, and its kernels."""
    before = set(map(id, PyCodeCache.modules))
    applier = Applier(chosen.plan)
    with graph.context():
        output = graph.compile.compile(chosen, applier)
    (module,) = (m for m in PyCodeCache.modules if id(m) not in before and hasattr(m, "call"))
    kernels = [v for name, v in vars(module).items() if name.startswith("triton_")]
    return output, applier.program, kernels


@gpu
def test_block_sizes_are_those_that_were_measured(live: Any) -> None:
    """The user's process neither tunes again nor takes other block sizes."""
    # Of widths of its own: what this process has compiled before, it does not look up again.
    make = live.Make("cuda", torch.float32)
    tables = [make.tensor(50, width) for width in (20, 28, 44, 72)]
    (graph,) = live.capture(live.UserProgram(lookups, (make.integers(50, 30), *tables)))
    names = first_nodes(graph)
    chosen = schedule(graph, *(blocks_choice(name, "descent") for name in names[:2]))
    program = graph.generate(chosen)
    job = graph_job(
        graph.compile,
        key="blocks",
        device="cuda:0",
        observed=observe(graph.inputs),
        forward_key=None,
    )
    announce(job)
    entries = [
        (Candidate(schedule=s, origin="test", groups=1), p)
        for s, p in ((Schedule(), graph.stock), (chosen, program))
    ]
    result = hold(job, entries, 10.0)
    assert [p.failure for p in result.programs] == ["", ""]

    counters.clear()
    output, own, kernels = compiled(graph, chosen)
    assert own is not None and own.code_hash == program.code_hash
    live.difference(output([v.clone() for v in graph.inputs]), graph.eager()[: -len(graph.inputs)])
    assert counters["inductor"]["coordesc_tuning_bench"] == 0
    tuned = [k for k in kernels if k.inductor_meta.get("coordinate_descent_tuning")]
    assert len(tuned) == 2
    for kernel in tuned:
        (launcher,) = kernel.launchers
        assert launcher.config.found_by_coordesc
        # Without a tag of ours this is where the measuring process wrote.
        cache = AutotuneCache.create(kernel.inductor_meta, kernel.filename, "")
        kept = cache._read() if cache is not None else None
        assert kept is not None and kept["found_by_coordesc"]
        assert {name: kept[name] for name in launcher.config.kwargs} == launcher.config.kwargs
        assert kept["num_warps"] == launcher.config.num_warps


@gpu
def test_code_of_other_choices_is_other_code_in_the_cache(graph: Any) -> None:
    names = first_nodes(graph)
    chosen = schedule(graph, combo_choice(names[:3]), blocks_choice(names[3], "autotune"))
    first, program, _ = compiled(graph, chosen)
    assert program is not None
    assert len(launches(first.source_code)) == len(launches(graph.stock.source)) - 2
    counters.clear()
    again, _, _ = compiled(graph, chosen)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert again.source_code == first.source_code
    other, _, _ = compiled(graph, schedule(graph, combo_choice(names[1:3])))
    assert other.source_code != first.source_code


@gpu
def test_small_kernels_are_tried_in_common_launches(
    live: Any, compile_with: Callable[..., Any], store: Path, tmp_path: Path
) -> None:
    make = live.Make("cuda", torch.float32)
    ids, tables = make.integers(60, 40), [make.tensor(60, 8 * i) for i in range(2, 14)]
    wanted = lookups(ids, *tables)
    live.difference(compile_with(lookups, "measure", budget_s=40)(ids, *tables), wanted)
    (report,) = fusewise.reports()
    assert report.fallback is None
    tried = [c for c in report.candidates if c.origin == "finish"]
    assert tried and all(c.status == "measured" for c in tried)
    shared = [c for c in tried if any(x.name.startswith("combo:") for x in c.schedule.codegen)]
    assert shared
    # Known from now on, from the store and from a plan file.
    torch._dynamo.reset()
    live.difference(compile_with(lookups, "measure")(ids, *tables), wanted)
    again = fusewise.reports()[-1]
    assert (again.source, again.chosen) == ("store", report.chosen)
    # And in a plan file, whichever of them it holds.
    with Store.open(store) as opened:
        (row,) = opened.rows("graphs")
    planned = PlannedGraph(
        kind=row.kind, key_parts=row.parts, device="cuda:0", schedule=shared[-1].schedule
    )
    path = tmp_path / "plan.json"
    write_plan_file(path, PlanFile(fusewise="1", torch="2", graphs=(planned,)))
    torch._dynamo.reset()
    live.difference(compile_with(lookups, "replay", plan=path)(ids, *tables), wanted)
    replayed = fusewise.reports()[-1]
    assert (replayed.source, replayed.fallback) == ("plan file", None)
    assert replayed.chosen is not None and replayed.chosen.schedule == shared[-1].schedule


def reductions(a: Any, b: Any, c: Any) -> Any:
    return torch.softmax(a, -1), b.exp().sum(0), c.exp().sum(1)


@pytest.fixture
def reduced(live: Any) -> Any:
    """Rows that are looped over, columns that are cut into parts, few long rows."""
    make = live.Make("cuda", torch.float32)
    args = (make.tensor(64, 1500), make.tensor(9000, 60), make.tensor(4, 60_000))
    (found,) = live.capture(live.UserProgram(reductions, args))
    return found


@gpu
@pytest.mark.parametrize("shape", get_args(Shape))
def test_a_reduction_is_computed_as_the_schedule_says(reduced: Any, live: Any, shape: str) -> None:
    problem = reduced.surveyed.problem
    for group in reduced.surveyed.default.groups:
        nodes = [problem.node_by_name[name] for name in group]
        if not any(node.kind == "reduction" for node in nodes):
            continue
        chosen = schedule(reduced, shape_choice(group[0], shape))
        if shape == "persistent" and max(node.rnumel for node in nodes) > 32_768:
            with pytest.raises(PlanError, match="more than a block can hold"):
                reduced.generate(chosen)
            continue
        short = any(node.kind == "reduction" and node.rnumel * node.numel < 64 for node in nodes)
        if shape == "cooperative" and short:
            with pytest.raises(PlanError, match="too few for blocks to share"):
                reduced.generate(chosen)
            continue
        program = reduced.generate(chosen)
        assert ("launch_cooperative_grid" in program.source) is (shape == "cooperative")
        live.difference(reduced.run(program), reduced.eager())


@gpu
def test_a_reduction_is_cut_into_as_many_parts_as_the_schedule_says(
    reduced: Any, live: Any
) -> None:
    stock = len(launches(reduced.stock.source))
    found = []
    for parts in (1, 4, 24):
        program = reduced.generate(Schedule(lowering=(split_choice("sum_2", parts),)))
        live.difference(reduced.run(program), reduced.eager())
        found.append(len(launches(program.source)))
    assert found[0] == stock - 1 or found[0] < found[1]
    assert found[1] == found[2]
    for name, parts, why in (
        ("exp", 2, "no reduction"),
        ("nowhere", 2, "no reduction"),
        ("sum_2", 10**9, "not to be cut so"),
    ):
        with pytest.raises(PlanError, match=why):
            reduced.generate(Schedule(lowering=(split_choice(name, parts),)))


@gpu
def test_a_kernel_that_reduces_nothing_has_no_shape(graph: Any) -> None:
    with pytest.raises(PlanError, match="is not one that can be looped"):
        graph.generate(schedule(graph, shape_choice("op99", "looped")))


def test_on_a_cpu_no_reduction_is_cut(live: Any) -> None:
    (found,) = live.captured("layer_norm")
    with pytest.raises(PlanError, match="no reduction"):
        found.generate(Schedule(lowering=(split_choice("nowhere", 2),)))


def test_code_is_the_same_while_a_compile_waits(live: Any, device: str) -> None:
    """What is generated on a lowering that stands is what the program will be compiled by."""

    def f(x: Any, y: Any, z: Any) -> Any:
        return (x * y + x).relu(), z.exp(), torch.softmax(y, -1)

    make = live.Make(device, torch.float32)
    args = (make.tensor(64, 100), make.tensor(64, 100), make.tensor(40, 70))
    (graph,) = live.capture(live.UserProgram(f, args))
    names = first_nodes(graph)
    choices = [cs for cs in unpredictable(device) if stage_of(cs[0]) == "codegen"]
    if device == "cuda":
        nodes = graph.surveyed.problem.node_by_name
        groups = graph.surveyed.default.groups
        reduced = next(g[0] for g in groups if any(nodes[n].kind == "reduction" for n in g))
        choices += [
            (combo_choice(names[:2]), blocks_choice(names[0], "autotune")),
            (shape_choice(reduced, "looped"),),
        ]
    schedules = [schedule(graph, *codegen) for codegen in choices]
    direct = [graph.generate(chosen).code_hash for chosen in schedules]
    assert len(set(direct)) > 1
    found: list[Any] = []

    def visit() -> bool:
        found.extend(graph.compile.generate_all(schedules))
        return False

    with graph.context():
        assert graph.compile.compile_after(visit, measured=False) is None
    assert [program.code_hash for program in found] == direct
