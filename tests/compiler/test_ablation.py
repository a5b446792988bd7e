"""Each stage left out of real programs: what is generated, what is measured, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.nn import functional

import fusewise
from fusewise.compiler.ablating.program import OTHERS, STAGE_NAMES, Effort, ablate_program
from fusewise.compiler.ablating.result import Ablation, StageResult
from fusewise.compiler.ablating.uncompiled import uncompiled_program
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.program import load_program
from fusewise.compiler.inductor.stages import (
    STAGE,
    STAGES,
    Generated,
    compile_stage,
    generate_stage,
)
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.errors import OptionError, UnsupportedError


@pytest.fixture(scope="module")
def effort() -> Callable[..., Effort]:
    """A short measurement, with a store of its own beside the device profile of all."""
    store = default_store_path().with_name("ablation.duckdb")

    def make(*stages: str, seconds: float = 0.3) -> Effort:
        return Effort(store=store, seconds=seconds, top_k=1, search_s=2, stages=stages)

    return make


def _norm(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = functional.layer_norm(x.relu() + 1, (48,), w)
    return y * y.sigmoid(), x.exp().sum(-1)


def _arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(24, 48, generator=generator), torch.randn(48, generator=generator)


def _compiled(function: Callable[..., Any], visit: Callable[..., Any], *args: Any) -> Any:
    """What a function gives with each of its graphs compiled by ``visit``."""
    torch._dynamo.reset()
    # AOTAutograd's own cache would answer before a graph is seen.
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
        return torch.compile(
            function, backend=lambda gm, inputs: compile_whole(gm, inputs, visit, {})
        )(*args)


def _generated(stage: str, function: Callable[..., Any], *args: Any) -> Generated:
    """What a stage makes of the one graph of a function."""
    found: list[Generated] = []

    def visit(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        graph = GraphCompile(gm, inputs, kwargs)
        found.append(generate_stage(graph, STAGE[stage], args[0].device.type, "key"))
        return graph.compile(None, None)

    _compiled(function, visit, *args)
    return found[0]


def _depends(generated: Generated) -> list[bool]:
    """For each group of several nodes, whether one of them needs another, however far."""
    problem = generated.problem
    ancestors = problem.ancestors
    return [
        any(ancestors[problem.index[a]] >> problem.index[b] & 1 for a in group for b in group)
        for group in generated.groups
        if len(group) > 1
    ]


def test_every_stage_says_what_it_is() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert all(stage.meaning for stage in STAGES)
    assert STAGES[0].name == "everything"
    assert [stage.name for stage in STAGES] == list(STAGE_NAMES[: -len(OTHERS)])


def test_no_fusion_leaves_every_node_alone() -> None:
    fused = _generated("everything", _norm, *_arguments())
    alone = _generated("no_fusion", _norm, *_arguments())
    assert [node.signature for node in alone.problem.nodes] == [
        node.signature for node in fused.problem.nodes
    ]
    assert any(len(group) > 1 for group in fused.groups)
    assert all(len(group) == 1 for group in alone.groups)
    assert alone.kernels == len(alone.problem.nodes) > fused.kernels


def test_vertical_and_horizontal_are_told_apart() -> None:
    def branches(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x.sum(-1, keepdim=True)
        return x - total, x.exp(), (x * 2).tanh()

    x = _arguments()[0]
    across = _generated("no_vertical", branches, x)
    along = _generated("no_horizontal", branches, x)
    both = _generated("everything", branches, x)
    assert any(_depends(both))
    assert _depends(across) and not any(_depends(across))
    assert _depends(along) and all(_depends(along))


def test_no_inlining_stores_every_value() -> None:
    inlined = _generated("everything", _norm, *_arguments())
    stored = _generated("no_inlining_no_fusion", _norm, *_arguments())
    assert len(stored.problem.nodes) > len(inlined.problem.nodes)
    # Nothing is left to a node but one operation, its loads and its stores.
    for node in stored.problem.nodes:
        computing = [op for op, _ in node.ops if op not in {"load", "store", "store_reduction"}]
        origins = {o for o in node.origins if "permute" not in o and "view" not in o}
        assert len(origins) <= 1 or len(computing) <= 1, node


def test_one_kernel_for_each_operation() -> None:
    """Counted against what the captured graph says, and read in the code."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # A mean and a variance of one pass are one operator with two results.
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        y = (x - mean) * torch.rsqrt(variance + 1e-5)
        return y.t() * 2, y

    found = _generated("one_kernel_per_operation", function, _arguments()[0])
    # var_mean, sub, add, rsqrt, mul, mul; a transposition is a view of no cost.
    assert (found.kernels, found.externs) == (6, 0)
    functions = re.findall(r"^\s*(cpp_fused_\w+)\(", found.program.source, re.MULTILINE)
    assert len(functions) == len(set(functions)) == found.kernels


def test_constants_of_another_device_are_not_stored() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.full((), 2.0)) + torch.arange(48)

    found = _generated("no_inlining", function, _arguments()[0])
    assert {node.device for node in found.problem.nodes} == {"cpu"}
    assert len(found.problem.nodes) > 2


def test_a_stage_goes_past_the_caches() -> None:
    """What is compiled without a stage is never given to whoever compiles with it."""
    sources: list[str] = []

    def visit(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        graph = GraphCompile(gm, inputs, kwargs)
        outputs = [
            graph.compile(None, None),
            compile_stage(graph, STAGE["no_inlining_no_fusion"], "cpu"),
            graph.compile(None, None),
        ]
        sources.extend(output.source_code for output in outputs)
        return outputs[1]

    found = _compiled(_norm, visit, *_arguments())
    assert sources[0] == sources[2] != sources[1]
    for value, wanted in zip(found, _norm(*_arguments()), strict=True):
        torch.testing.assert_close(value, wanted, rtol=2e-5, atol=2e-5)


def test_the_uncompiled_program_is_the_graph() -> None:
    programs: list[Any] = []

    def visit(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        programs.append(uncompiled_program(gm))
        return GraphCompile(gm, inputs, kwargs).compile(None, None)

    table = torch.arange(48.0)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x * table, -torch.inf)

    x = _arguments()[0]
    wanted = _compiled(function, visit, x)
    program = programs[0]
    call = load_program(program.source, program.constants, program.settings)
    for inputs in ([x, table], [table, x]):
        try:
            outputs = call(list(inputs))
        except (RuntimeError, AssertionError):
            continue
        if outputs[0].shape == wanted.shape and torch.equal(outputs[0], wanted):
            return
    pytest.fail("no order of inputs gives the function's result")


def _stage(stages: tuple[StageResult, ...], name: str) -> StageResult:
    return next(stage for stage in stages if stage.name == name)


@pytest.fixture(scope="module")
def trained(effort: Callable[..., Effort]) -> Ablation:
    """A training program under every stage."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)).train()
    sample = GraphSample("norm", "test/norm", module, (torch.randn(32, 16),), training=True)
    return ablate_program(sample, effort(*STAGE_NAMES))


@pytest.mark.slow
def test_forward_and_backward_are_measured(trained: Ablation) -> None:
    assert trained.training
    assert [graph.kind for graph in trained.graphs] == ["forward", "backward"]
    for graph in trained.graphs:
        assert [stage.name for stage in graph.stages] == list(STAGE_NAMES)
        assert graph.reference == "fp64"
        assert graph.clock == "calls"
        for stage in graph.stages:
            if stage.status == "not applicable":
                assert stage.name == "no_template_epilogues"
                assert "template" in stage.reason
                continue
            assert stage.status in ("measured", "same code"), stage
            assert stage.us is not None and stage.us > 0
            assert stage.accurate is True, stage
            assert stage.peak_bytes is not None and stage.peak_bytes > 0
            if stage.name != "uncompiled":
                assert stage.bytes is not None and stage.bytes > 0


@pytest.mark.slow
def test_a_program_is_the_sum_of_its_graphs(trained: Ablation) -> None:
    for name in ("everything", "no_fusion", "one_kernel_per_operation"):
        whole = _stage(trained.stages, name)
        parts = [_stage(graph.stages, name) for graph in trained.graphs]
        assert whole.us == pytest.approx(sum(part.us or 0 for part in parts))
        assert whole.kernels == sum(part.kernels or 0 for part in parts)
        assert whole.bytes == sum(part.bytes or 0 for part in parts)
        assert whole.peak_bytes == max(part.peak_bytes or 0 for part in parts)
    assert _stage(trained.stages, "everything").ratio == pytest.approx(1.0)
    # Where there is no template, leaving out its epilogues leaves what there is.
    none = _stage(trained.stages, "no_template_epilogues")
    assert none.status == "not applicable"
    assert none.us == _stage(trained.stages, "everything").us


@pytest.mark.slow
def test_stages_move_what_they_should(trained: Ablation) -> None:
    def of(name: str) -> StageResult:
        return _stage(trained.stages, name)

    everything, alone = of("everything"), of("no_inlining_no_fusion")
    assert (everything.kernels or 0) < (of("no_fusion").kernels or 0) < (alone.kernels or 0)
    assert (everything.bytes or 0) < (of("no_fusion").bytes or 0) < (alone.bytes or 0)
    assert (everything.nodes or 0) < (of("no_inlining").nodes or 0)
    assert (of("default").kernels, of("default").bytes) == (everything.kernels, everything.bytes)
    assert of("learned").kernels is not None


def test_memory_is_what_a_program_allocates(effort: Callable[..., Effort]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, x), x)

    x = torch.randn(256, 256)
    found = fusewise.ablate(function, x, effort=effort("everything"))
    matrix = 256 * 256 * 4
    # The input, the product that is kept for the second one, and that one.
    assert _stage(found.stages, "everything").peak_bytes == pytest.approx(3 * matrix, rel=0.01)


@pytest.mark.slow
def test_a_graph_that_draws_numbers(effort: Callable[..., Effort]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x.relu(), 0.5, training=True) * 2

    stages = ("no_fusion", "no_rewrites", "uncompiled")
    found = fusewise.ablate(function, torch.randn(64, 64), effort=effort(*stages))
    assert [stage.name for stage in found.stages] == ["everything", *stages]
    assert found.graphs[0].reference == "default"
    assert _stage(found.stages, "no_fusion").accurate is True
    # Torch draws other numbers than Inductor: there is nothing to compare.
    assert _stage(found.stages, "uncompiled").accurate is None
    assert all(stage.us is not None for stage in found.stages)


@pytest.mark.slow
def test_what_a_rewrite_is_worth(effort: Callable[..., Effort]) -> None:
    """A padded product and an attention written out: graphs that rewriting changes."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v

    tensors = [torch.randn(2, 4, 32, 16) for _ in range(3)]
    found = fusewise.ablate(function, *tensors, effort=effort("no_rewrites"))
    kept, gone = _stage(found.stages, "everything"), _stage(found.stages, "no_rewrites")
    assert gone.accurate is True
    assert (kept.kernels, kept.extern_calls) != (gone.kernels, gone.extern_calls)


@pytest.mark.slow
def test_a_stage_that_fails_leaves_the_others(
    effort: Callable[..., Effort], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is stored, either."""
    from fusewise.compiler.inductor import stages

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("no such loop")

    monkeypatch.setattr(stages, "_only", refuse)
    found = fusewise.ablate(
        _norm, *_arguments(), effort=effort("no_vertical", "no_fusion", "uncompiled")
    )
    failed = _stage(found.stages, "no_vertical")
    assert failed.status == "failed" and "no such loop" in failed.reason
    assert failed.us is None
    assert _stage(found.stages, "no_fusion").us is not None
    with Store.open(effort().store) as store:
        store.ingest()
        assert store.rows("graphs") == []
        assert store.rows("decisions") == []


def test_an_unknown_stage_is_refused(effort: Callable[..., Effort]) -> None:
    with pytest.raises(OptionError, match="no_sense"):
        fusewise.ablate(_norm, *_arguments(), effort=effort("no_sense"))


def test_a_program_that_computes_nothing(effort: Callable[..., Effort]) -> None:
    with pytest.raises(UnsupportedError, match="no graph of it computes"):
        fusewise.ablate(lambda x: x, torch.ones(3), effort=effort("no_fusion"))


@pytest.mark.gpu
def test_every_stage_on_a_gpu(effort: Callable[..., Effort]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128)).cuda().train()
    x = torch.randn(128, 64, device="cuda")
    sample = GraphSample("norm", "test/norm", module, (x,), training=True)
    found = ablate_program(sample, effort(*STAGE_NAMES, seconds=1.0))
    assert found.device.startswith("cuda")
    for graph in found.graphs:
        assert graph.clock == "cuda graph"
        for stage in graph.stages:
            if stage.status != "not applicable":
                assert stage.us is not None and stage.accurate is True, stage
                assert stage.peak_bytes is not None and stage.peak_bytes > 0
    everything, alone = (
        _stage(found.stages, name) for name in ("everything", "one_kernel_per_operation")
    )
    assert (alone.kernels or 0) > (everything.kernels or 0)


@pytest.mark.gpu
def test_template_epilogues_on_a_gpu(tmp_path: Path) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b) * 2

    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    made = Effort(
        store=tmp_path / "store.duckdb",
        seconds=1.0,
        top_k=0,
        mode="max-autotune-no-cudagraphs",
        stages=("no_template_epilogues",),
    )
    found = fusewise.ablate(function, a, b, effort=made)
    stage = _stage(found.stages, "no_template_epilogues")
    assert stage.status in ("measured", "same code")
    assert stage.us is not None
