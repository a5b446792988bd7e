"""Graph keys: the same for the same program, and a named part that differs for another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from fusewise.compiler.inductor.graph_key import GraphKey, graph_key


def _key(graph: Any, device: str = "here", model: str = "roofline") -> GraphKey:
    compiled = graph.compile
    return graph_key(compiled.gm, compiled.example_inputs, compiled.kwargs, device, model)


def _inference(live: Any, function: Any, *args: Any) -> Any:
    (graph,) = live.capture(live.UserProgram(function, args))
    return graph


def scaled(x: Any, y: Any) -> Any:
    return (x * 2 + y).relu()


@pytest.fixture
def graph(live: Any) -> Any:
    return _inference(live, scaled, torch.randn(6, 8), torch.randn(8))


def test_same_program_has_the_same_key(live: Any, graph: Any) -> None:
    def renamed(first: Any, second: Any) -> Any:
        doubled = first * 2
        return torch.relu(doubled + second)

    key = _key(graph)
    again = _key(_inference(live, scaled, torch.randn(6, 8), torch.randn(8)))
    assert (again.key, again.parts) == (key.key, key.parts)
    other_names = _key(_inference(live, renamed, torch.randn(6, 8), torch.randn(8)))
    assert other_names.differs(key.parts) == ()


@pytest.mark.parametrize(
    ("function", "args", "parts"),
    [
        (lambda x, y: (x * 3 + y).relu(), ((6, 8), (8,)), ("graph",)),
        (lambda x, y: (x * 2 + y).sigmoid(), ((6, 8), (8,)), ("graph",)),
        (lambda x, _: (x * 2 + x).relu(), ((6, 8), (8,)), ("graph", "inputs")),
        (scaled, ((6, 16), (16,)), ("inputs",)),
    ],
)
def test_another_program_differs_in_its_part(
    live: Any, graph: Any, function: Any, args: Any, parts: tuple[str, ...]
) -> None:
    other = _key(_inference(live, function, *(torch.randn(*shape) for shape in args)))
    assert other.differs(_key(graph).parts) == parts
    assert other.key != _key(graph).key


def test_layout_and_dtype_of_inputs_count(live: Any, graph: Any) -> None:
    key = _key(graph)
    turned = _inference(live, scaled, torch.randn(8, 6).t(), torch.randn(8))
    assert _key(turned).differs(key.parts) == ("inputs",)
    double = _inference(live, scaled, torch.randn(6, 8).double(), torch.randn(8).double())
    assert "inputs" in _key(double).differs(key.parts)


def test_settings_device_and_model_have_parts_of_their_own(graph: Any) -> None:
    key = _key(graph)
    with inductor_config.patch(max_fusion_size=7):
        assert _key(graph).differs(key.parts) == ("settings",)
    assert _key(graph, device="elsewhere").differs(key.parts) == ("device",)
    assert _key(graph, model="trained").differs(key.parts) == ("model",)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium" if precision == "highest" else "highest")
        assert "device" in _key(graph).differs(key.parts)
    finally:
        torch.set_float32_matmul_precision(precision)


def test_what_packages_leave_behind_is_no_setting(graph: Any) -> None:
    key = _key(graph)
    name = "aot_inductor.metadata"
    # Inductor writes it there for good when a package is made, whoever makes it.
    with inductor_config.patch({name: {"AOTI_DEVICE_KEY": "cpu"}}):
        assert "AOTI_DEVICE_KEY" in str(inductor_config.save_config_portable()[name])
        assert _key(graph).key == key.key


def test_forward_backward_and_inference_differ(live: Any) -> None:
    keys = [_key(g).key for name in ("rms_norm", "batch_norm") for g in live.captured(name)]
    assert len(set(keys)) == len(keys) == 4


def test_dynamic_sizes_count_by_magnitude(live: Any) -> None:
    def sized(rows: int) -> GraphKey:
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        return _key(_inference(live, scaled, x, torch.randn(8)))

    assert sized(20).key == sized(30).key
    assert sized(20).differs(sized(2000).parts) != ()


def test_settings_that_are_functions_go_by_name(graph: Any) -> None:
    def keep(gm: Any) -> None:
        return None

    with inductor_config.patch(post_grad_custom_pre_pass=keep):
        first = _key(graph)
    with inductor_config.patch(post_grad_custom_pre_pass=keep):
        assert _key(graph).key == first.key
    assert "0x" not in repr(dict(first.parts))
