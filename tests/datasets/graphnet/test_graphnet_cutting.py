"""Fitting models to a dtype and batch, and cutting them: pieces together are the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

from fusewise.datasets.corpus import scalar_loss
from fusewise.datasets.graphnet.cutting import CutSize, cut, is_extern, weight
from fusewise.datasets.graphnet.fitting import Fitted, Most, fit
from fusewise.datasets.graphnet.meta import TensorMeta, Unloadable, draw
from fusewise.datasets.graphnet.pieces import Piece
from fusewise.datasets.graphnet.program import Program
from fusewise.datasets.graphnet.source import parse

WHOLE = CutSize(10**9, 10**9)


def _fit(
    body: str,
    arguments: Mapping[str, tuple[Any, ...]],
    dtype: torch.dtype | None = None,
    factor: int = 1,
) -> Fitted:
    metas = {}
    for name, (shape, kind, *rest) in arguments.items():
        fields = dict(*rest)
        metas[name] = TensorMeta(
            name,
            tuple(shape),
            getattr(torch, kind),
            mean=0.0,
            std=1.0,
            low=fields.get("min_val"),
            high=fields.get("max_val"),
            data=fields.get("data"),
        )
    lines = "\n        ".join(body.splitlines())
    given_names = ", ".join(arguments)
    text = (
        "import torch\nclass GraphModule(torch.nn.Module):\n"
        f"    def forward(self, {given_names}):\n        {lines}\n"
    )
    return fit(parse(text), metas, dtype, factor)


def _inputs(fitted: Fitted) -> dict[fx.Node, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {node: draw(meta, generator) for node, meta in fitted.inputs.items()}


def _run(nodes: list[fx.Node], values: dict[fx.Node, Any]) -> None:
    for node in nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if isinstance(node.target, str):
            values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)


def _pieces(program: Program, size: CutSize) -> Iterator[Piece]:
    for start, stop in cut(program.nodes, size):
        yield program.piece(start, stop)


def _assert_pieces_make_the_model(fitted: Fitted, size: CutSize) -> None:
    program = Program(fitted, training=False)
    whole = _inputs(fitted)
    parts = {node: value.clone() for node, value in whole.items()}
    _run(program.nodes, whole)
    for start, stop in cut(program.nodes, size):
        try:
            piece = program.piece(start, stop)
        except Unloadable:
            _run(program.nodes[start:stop], parts)
            continue
        results = piece.module()(*[parts[each.node] for each in piece.inputs])
        parts.update(zip(piece.outputs, results, strict=True))
    for node in fitted.graph.output_node().all_input_nodes:
        torch.testing.assert_close(parts[node], whole[node], rtol=0, atol=0)


@settings(max_examples=12, deadline=None)
@given(target=st.integers(3, 60), externs=st.integers(0, 4), factor=st.sampled_from([1, 3]))
def test_pieces_together_are_the_model(
    encoder: Callable[..., Any], target: int, externs: int, factor: int
) -> None:
    fitted = _fit(*encoder(blocks=2), factor=factor)
    assert fitted.factor == factor
    _assert_pieces_make_the_model(fitted, CutSize(target, externs))


def test_ranges_cover_all_statements_in_order(encoder: Callable[..., Any]) -> None:
    program = Program(_fit(*encoder()), training=False)
    ranges = list(cut(program.nodes, CutSize(10, 2)))
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(program.nodes)
    for start, stop in ranges[:-1]:
        assert sum(map(weight, program.nodes[start:stop])) >= 8
        assert sum(map(is_extern, program.nodes[start:stop])) <= 6


def test_equal_blocks_are_equal_pieces(encoder: Callable[..., Any]) -> None:
    def prints(**sizes: int) -> list[str]:
        program = Program(_fit(*encoder(blocks=12, **sizes)), training=False)
        return [piece.fingerprint for piece in _pieces(program, CutSize(12, 2))]

    narrow, wide = prints(), prints(width=32)
    assert len(set(narrow)) < len(narrow) / 2
    assert not set(narrow) & set(wide)


def test_a_fingerprint_tells_dtype_literals_and_training_apart() -> None:
    body = "y = torch.relu(x)\nz = y * {}\nreturn (z,)"
    arguments = {"L_self_parameters_x_": ([4, 4], "float32")}

    def print_of(scale: float, dtype: torch.dtype | None, *, training: bool) -> str:
        text = body.format(scale).replace("(x)", "(L_self_parameters_x_)")
        program = Program(_fit(text, arguments, dtype), training=training)
        return next(_pieces(program, WHOLE)).fingerprint

    found = {
        print_of(2.0, None, training=False),
        print_of(3.0, None, training=False),
        print_of(2.0, torch.bfloat16, training=False),
        print_of(2.0, None, training=True),
    }
    assert len(found) == 4
    assert print_of(2.0, None, training=False) in found


def test_integers_are_made_again_and_not_invented() -> None:
    fitted = _fit(
        "far = L_ids_ + 3\nnear = far.clamp(0, 9)\nw = L_table_ * 2.0\n"
        "row = torch.nn.functional.embedding(near, w)\nreturn (row,)",
        {
            "L_ids_": ([5], "int64", {"min_val": 0, "max_val": 20}),
            "L_table_": ([10, 4], "float32"),
        },
    )
    program = Program(fitted, training=False)
    (embedding,) = [i for i, n in enumerate(program.nodes) if "embedding" in n.name]
    piece = program.piece(embedding, embedding + 1)
    assert {str(each.node) for each in piece.inputs} == {"l_ids_", "w"} or {
        each.spec.dtype for each in piece.inputs
    } == {torch.int64, torch.float32}
    generator = torch.Generator().manual_seed(0)
    (row,) = piece.module()(*[each.draw(generator) for each in piece.inputs])
    assert row.shape == (5, 4)


def test_integers_that_are_rounded_from_activations_are_refused() -> None:
    fitted = _fit(
        "y = x * 3.0\ni = y.to(torch.int64)\nrow = x[i]\nreturn (row,)",
        {"x": ([8], "float32", {"min_val": 0, "max_val": 2})},
    )
    program = Program(fitted, training=False)
    with pytest.raises(Unloadable, match="rounded"):
        program.piece(2, 3)
    with pytest.raises(Unloadable, match="rounds"):
        program.piece(1, 3)


def test_writes_reach_the_piece_that_makes_an_integer_again() -> None:
    fitted = _fit(
        "i = torch.zeros(4, dtype=torch.int64)\ni[slice(2, 4, None)] = 1\n"
        "y = x * 2.0\nrow = y[i]\nreturn (row,)",
        {"x": ([2, 3], "float32")},
    )
    _assert_pieces_make_the_model(fitted, CutSize(1, 0, least=1))
    program = Program(fitted, training=False)
    piece = program.piece(len(program.nodes) - 1, len(program.nodes))
    x = torch.randn(2, 3)
    torch.testing.assert_close(piece.module()(x)[0], x[[0, 0, 1, 1]])


@pytest.mark.parametrize("least", [1, 3, 5])
def test_writing_in_place_across_cuts(least: int) -> None:
    fitted = _fit(
        "y = torch.zeros_like(x)\na = torch.sin(x)\ny[slice(0, 2, None)] = a[slice(0, 2, None)]\n"
        "b = torch.nn.functional.relu(y, inplace=True)\nb += x\nc = b.mul_(2.0)\n"
        "d = torch.cos(y)\nreturn (c, d)",
        {"x": ([4, 3], "float32")},
    )
    _assert_pieces_make_the_model(fitted, CutSize(least, 0, least=1))


def test_memory_that_two_inputs_share_is_not_written_to() -> None:
    fitted = _fit(
        "y = x * 2.0\nv = y.view(6)\nz = v.mul_(3.0)\nw = y + 1.0\nreturn (z, w)",
        {"x": ([2, 3], "float32")},
    )
    with pytest.raises(Unloadable, match="share"):
        Program(fitted, training=False).piece(2, 4)


def test_training_pieces_have_gradients_where_the_model_has(encoder: Callable[..., Any]) -> None:
    program = Program(_fit(*encoder(blocks=2)), training=True)
    pieces = list(_pieces(program, CutSize(8, 2)))
    assert any(piece.training for piece in pieces)
    for piece in pieces:
        if piece.training:
            args = [each.draw(torch.Generator()) for each in piece.inputs]
            for _ in range(2):
                scalar_loss(piece.module()(*args)).backward()
            assert any(arg.grad is not None for arg in args)
        assert all(not each.requires_grad for each in piece.inputs if not piece.training)


def test_a_training_piece_may_write_to_its_leaves() -> None:
    fitted = _fit(
        "h = x * L_self_parameters_w_\nh += x\nh *= 2.0\nreturn (h,)",
        {"x": ([3], "float32"), "L_self_parameters_w_": ([3], "float32")},
    )
    piece = Program(fitted, training=True).piece(1, 3)
    args = [each.draw(torch.Generator()) for each in piece.inputs]
    before = [arg.detach().clone() for arg in args]
    scalar_loss(piece.module()(*args)).backward()
    assert all(torch.equal(a.detach(), b) for a, b in zip(args, before, strict=True))


def test_an_operation_without_a_derivative_makes_no_training_piece() -> None:
    width, weight = "L_x_, L_x_, L_x_, 8, 2", "L_self_parameters_{}_"
    names = [weight.format(name) for name in "wbop"]
    fitted = _fit(
        f"a = torch._native_multi_head_attention({width}, {', '.join(names)})\n"
        "y = a[0]\nz = y + 1.0\nreturn (z,)",
        {"L_x_": ([1, 3, 8], "float32")}
        | dict(zip(names, (([n], "float32") for n in (1, 1, 1, 1)), strict=True))
        | {names[0]: ([24, 8], "float32"), names[1]: ([24], "float32")}
        | {names[2]: ([8, 8], "float32"), names[3]: ([8], "float32")},
    )
    program = Program(fitted, training=True)
    assert not program.piece(0, len(program.nodes)).training
    assert program.piece(2, 3).training


def test_layouts_are_those_of_the_model() -> None:
    fitted = _fit(
        "t = x.transpose(0, 1)\nu = torch.exp(t)\ne = L_w_.expand(4, 3)\n"
        "v = u[slice(0, 3, None)].sum()\nz = e + v\nreturn (z,)",
        {"x": ([4, 5], "float32"), "L_w_": ([1, 3], "float32")},
    )
    program = Program(fitted, training=False)
    at = next(i for i, node in enumerate(program.nodes) if node.name == "add")
    piece = program.piece(at, at + 1)
    for each in piece.inputs:
        value = each.draw(torch.Generator())
        assert (tuple(value.shape), value.stride()) == (each.spec.shape, each.spec.stride)
    assert (0, 1) in {each.spec.stride for each in piece.inputs}


def test_literals_follow_the_batch(encoder: Callable[..., Any]) -> None:
    fitted = _fit(*encoder(blocks=1), factor=5)
    (result,) = fitted.graph.output_node().all_input_nodes
    assert fitted.trace.values[result].shape == (10, 6, 16)
    values = _inputs(fitted)
    _run(Program(fitted, training=False).nodes, values)
    assert values[result].shape == (10, 6, 16)


def test_a_batch_stays_outermost_and_operands_are_repeated() -> None:
    fitted = _fit(
        "y = L_x_.view(1, -1, 2, 4)\nz = torch.cat([L_self_parameters_c_, y], dim=1)\nreturn (z,)",
        {"L_x_": ([1, 3, 8], "float32"), "L_self_parameters_c_": ([1, 1, 2, 4], "float32")},
        factor=4,
    )
    (result,) = fitted.graph.output_node().all_input_nodes
    assert fitted.trace.values[result].shape == (4, 4, 2, 4)


def test_a_model_that_cannot_follow_keeps_its_batch() -> None:
    body = "y = L_x_ + L_self_parameters_c_\nz = torch.outer(y.sum(1), y.sum(1))\nreturn (z,)"
    arguments = {"L_x_": ([2, 3], "float32"), "L_self_parameters_c_": ([3], "float32")}
    fitted = _fit(body, arguments, factor=4)
    assert (fitted.factor, fitted.kept) == (4, "")
    summed = _fit("y = torch.einsum('bi->i', L_x_)\nreturn (y.view(3),)", arguments, factor=4)
    assert (summed.factor, summed.kept) == (1, "no result of it grows")
    squared = _fit("return (torch.mm(L_x_, L_x_),)", {"L_x_": ([2, 2], "float32")}, factor=4)
    assert squared.factor == 1
    assert squared.kept.startswith("mm (mm) fails: ")


def test_the_factor_keeps_to_the_largest_activation() -> None:
    graph = parse(
        "import torch\nclass GraphModule(torch.nn.Module):\n    def forward(self, L_x_):\n"
        "        return (L_x_ * 2.0,)\n"
    )
    metas = {"L_x_": TensorMeta("L_x_", (2, 8), torch.float32)}
    assert fit(graph, metas, None, 16, Most(bytes=256, flops=1)).factor == 4


def test_dtypes_follow_and_mixtures_are_cast() -> None:
    fitted = _fit(
        "m = torch.full((3, 3), -3.4028234663852886e+38, dtype=torch.float32)\n"
        "y = L_x_.float()\nz = torch.matmul(y, L_self_parameters_w_)\nr = z + m\nreturn (r,)",
        {"L_x_": ([3, 4], "float32"), "L_self_parameters_w_": ([4, 3], "float32")},
        torch.float16,
    )
    (result,) = fitted.graph.output_node().all_input_nodes
    assert fitted.trace.values[result].dtype is torch.float16
    values = _inputs(fitted)
    _run(Program(fitted, training=False).nodes, values)
    assert torch.isfinite(values[result]).any()


def test_numbers_in_buffers_become_literals() -> None:
    fitted = _fit(
        "e = L_self_eps.item()\ny = x + e\ns = y.shape\nz = y.view(s[1], s[0])\nreturn (z,)",
        {"x": ([2, 3], "float32"), "L_self_eps": ([], "float32", {"data": (0.25,)})},
    )
    add = next(node for node in fitted.graph.nodes if node.name == "add")
    assert add.args[1] == 0.25
    assert [
        each.spec.shape for each in next(_pieces(Program(fitted, training=False), WHOLE)).inputs
    ] == [(2, 3)]


def test_the_part_before_data_dependent_shapes_is_used() -> None:
    fitted = _fit(
        "y = torch.exp(x)\nz = y[y > 0]\nw = z + 1.0\nreturn (w,)", {"x": ([5], "float32")}
    )
    assert fitted.trace.ended
    program = Program(fitted, training=False)
    assert [node.name for node in program.piece(0, 1).outputs] == ["exp"]
