"""Reading samples: what is refused, and what the metadata becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fusewise.datasets.graphnet.families import architecture, is_test_collection
from fusewise.datasets.graphnet.meta import TensorMeta, Unloadable, draw, read_meta
from fusewise.datasets.graphnet.source import parse

_MODULE = "class GraphModule(torch.nn.Module):\n    def forward(self, x):\n        {}\n"


def _forward(*lines: str) -> str:
    return "import torch\n" + _MODULE.format("\n        ".join(lines))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import os\n" + _forward("return (x,)"), "import os"),
        ("import torch as t\n" + _forward("return (x,)"), "import torch as t"),
        ("from torch import hub\n" + _forward("return (x,)"), "hub"),
        (_forward("return (x,)") + "print(1)\n", "print"),
        (_forward("return (x,)") + _MODULE.format("return (x,)"), "2 modules"),
        ("import torch\n", "0 modules"),
        (_forward("for i in x: pass", "return (x,)"), "straight-line"),
        (_forward("if x: pass", "return (x,)"), "straight-line"),
        (_forward("import os", "return (x,)"), "straight-line"),
        (_forward("y = open('f')", "return (y,)"), "open"),
        (_forward("y = eval('1')", "return (y,)"), "eval"),
        (_forward("y = torch.load('f')", "return (y,)"), "torch.load"),
        (_forward("y = torch.from_file('f')", "return (y,)"), "torch.from_file"),
        (_forward("y = torch.hub.load('a', 'b')", "return (y,)"), "torch.hub.load"),
        (_forward("y = torch.os.system('ls')", "return (y,)"), "torch.os.system"),
        (_forward("y = torch.ops.load_library('f')", "return (y,)"), "load_library"),
        (_forward("y = torch.nn.functional.__class__('f')", "return (y,)"), "__class__"),
        (_forward("y = x.__class__", "return (y,)"), "__class__"),
        (_forward("y = x.__reduce__()", "return (y,)"), "__reduce__"),
        (_forward("y = x.register_hook(x)", "return (y,)"), "register_hook"),
        (_forward("y = x.numpy()", "return (y,)"), "numpy"),
        (_forward("y = [t for t in x]", "return (y,)"), "[t for t in x]"),
        (_forward("y = (lambda: x)()", "return (y,)"), "lambda"),
        (_forward("y = unknown + x", "return (y,)"), "unknown"),
        (_forward("y = torch.relu(*x)", "return (y,)"), "*x"),
        (_forward("y = torch.relu(x, **x)", "return (y,)"), "unpacks"),
        (_forward("x.data = x", "return (x,)"), "assigns to"),
        (_forward("y = 9 ** 9 ** 9", "return (y,)"), "computes pow"),
        (_forward("y = torch.relu(x)"), "returns nothing"),
        ("def forward(:\n", "cannot be parsed"),
    ],
)
def test_code_that_is_no_torch_program_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(Unloadable) as caught:
        parse(text)
    assert named in str(caught.value)


def test_statements_become_operations() -> None:
    graph = parse(
        _forward(
            "torch._C._log_api_usage_once('a')",
            "y = torch.zeros(2, device=device(type='cuda', index=0))",
            "y[slice(0, 1, None)] = -x.T",
            "y += float('-inf')",
            "x = None",
            "return (y,)",
        )
    )
    assert [node.name for node in graph.nodes] == [
        *("x", "zeros", "getattr_1", "neg", "setitem", "iadd", "output")
    ]
    zeros = graph.find_nodes(op="call_function", target=torch.zeros)[0]
    assert zeros.kwargs["device"] == torch.device("cpu")


def test_metadata_is_parsed_and_never_executed(write_sample: Callable[..., Path]) -> None:
    folder = write_sample(arguments={"a": ([2], "float32", {"min_val": -1.5})})
    assert read_meta(folder)["a"].low == -1.5
    (folder / "input_meta.py").write_text("raise SystemExit\n")
    with pytest.raises(Unloadable, match="no class"):
        read_meta(folder)
    (folder / "input_meta.py").write_text("class A:\n    name = exit()\n")
    with pytest.raises(Unloadable, match="exit"):
        read_meta(folder)
    (folder / "input_meta.py").write_text("class A:\n    name = 'a'\n    shape = [1]\n")
    with pytest.raises(Unloadable, match="incomplete"):
        read_meta(folder)
    (folder / "weight_meta.py").unlink()
    (folder / "input_meta.py").write_text("")
    with pytest.raises(Unloadable, match=r"no weight_meta\.py"):
        read_meta(folder)


@given(
    low=st.integers(-5, 5),
    width=st.integers(0, 5),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bfloat16]),
)
def test_values_keep_to_their_range(low: int, width: int, dtype: torch.dtype) -> None:
    meta = TensorMeta("a", (4, 5), dtype, mean=low, std=2.0, low=low, high=low + width)
    values = draw(meta, torch.Generator().manual_seed(0))
    assert values.dtype is dtype
    assert values.shape == (4, 5)
    assert low <= values.min() and values.max() <= low + width


def test_an_epsilon_that_was_rounded_away_is_there() -> None:
    generator = torch.Generator()
    meta = TensorMeta("L_self_bn_eps", (), torch.float32, data=(0.0,))
    assert 0 < draw(meta, generator).item() < 1e-5
    assert draw(TensorMeta("L_self_p", (), torch.float32, data=(0.0,)), generator).item() == 0


def test_drawn_matrices_have_no_mean_that_nothing_makes_up_for() -> None:
    generator = torch.Generator().manual_seed(0)

    def mean(name: str, *shape: int) -> float:
        meta = TensorMeta(name, shape, torch.float32, mean=3.0, std=1.0)
        return draw(meta, generator).mean().item()

    assert abs(mean("L_self_modules_conv_parameters_weight_", 16, 16, 3, 3)) < 0.1
    assert mean("L_self_modules_norm_parameters_weight_", 2048) > 2.9
    assert mean("L_inputs_", 2, 3, 32, 32) > 2.9


def test_variances_are_positive() -> None:
    meta = TensorMeta("v", (1000,), torch.float32, mean=1.0, std=2.0, low=0.0)
    assert draw(meta, torch.Generator()).min() > 0


@pytest.mark.parametrize(
    ("sample", "tags", "kind"),
    [
        ("timm/resnet50d.a1_in1k", (), "resnet"),
        ("timm/convnextv2_atto.fcmae", (), "convnext"),
        ("mmseg/HRNetV2p-W18-Small", (), "hrnet"),
        ("mmpose/pose_resnet_50", (), "resnet"),
        ("ultralytics/yolo11n-seg", (), "yolo"),
        ("transformers-auto-model/gpt2", (), "gpt2"),
        ("transformers-auto-model/someone_thing", ("pytorch", "bert", "en"), "bert"),
        ("transformers-auto-model/opus-mt-en-de", (), "marian"),
        ("transformers-auto-model/Someone_roberta-large-ner", (), "roberta"),
        ("transformers-auto-model/nobody-knows", (), "nobody"),
    ],
)
def test_architectures(sample: str, tags: Any, kind: str) -> None:
    assert architecture(sample, tags) == kind


@pytest.mark.parametrize("form", ["{}", "{}/a", "graphnet/{}/a"])
def test_test_collections(form: str) -> None:
    assert is_test_collection(form.format("mmseg"))
    assert not is_test_collection(form.format("timm"))
