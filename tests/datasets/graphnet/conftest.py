"""Samples in GraphNet's format, written by the tests themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

#: Shape, dtype and further fields of one argument.
Argument = tuple[Any, ...]
WriteSample = Callable[..., Path]

_IMAGE: Mapping[str, Argument] = {"L_x_": ([2, 8], "float32")}


def _meta(arguments: Mapping[str, Argument]) -> str:
    classes = []
    for name, (shape, dtype, *rest) in arguments.items():
        fields = {"name": name, "shape": shape, "dtype": f"torch.{dtype}", "data": None}
        fields |= {"mean": 0.0, "std": 1.0} | dict(*rest)
        lines = "\n".join(f"    {key} = {value!r}" for key, value in fields.items())
        classes.append(f"class Meta_{name}:\n{lines}\n")
    return "\n\n".join(classes)


def model_text(body: str, arguments: Sequence[str]) -> str:
    """A ``model.py`` with that forward."""
    given = "".join(
        f", {name}: {'torch.nn.parameter.Parameter' if '_parameters_' in name else 'torch.Tensor'}"
        for name in arguments
    )
    return (
        "import torch\nfrom torch import device\n\n\n"
        f"class GraphModule(torch.nn.Module):\n    def forward(self{given}):\n"
        + indent(body.strip(), " " * 8)
        + "\n"
    )


@pytest.fixture
def write_sample(tmp_path: Path) -> WriteSample:
    """Write a sample below a checkout; gives the folder of the sample."""

    def write(
        body: str = "return (torch.relu(L_x_),)",
        arguments: Mapping[str, Argument] = _IMAGE,
        *,
        name: str = "timm/toy10",
        text: str = "",
        tags: Sequence[str] = (),
    ) -> Path:
        folder = tmp_path / "checkout" / "samples" / name
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(text or model_text(body, list(arguments)))
        (folder / "weight_meta.py").write_text(_meta(arguments))
        (folder / "input_meta.py").write_text("")
        (folder / "graph_net.json").write_text(json.dumps({"original_tag": list(tags)}))
        return folder

    return write


def transformer(
    blocks: int = 4, width: int = 16, heads: int = 4
) -> tuple[str, dict[str, Argument]]:
    """Forward and arguments of a small encoder: embedding, mask, equal blocks."""
    arguments: dict[str, Argument] = {
        "L_ids_": ([2, 6], "int64", {"min_val": 0, "max_val": 30}),
        "L_mask_": ([2, 6], "int64", {"min_val": 0, "max_val": 1}),
        "L_self_buffers_positions_": ([1, 12], "int64", {"min_val": 0, "max_val": 11}),
        "L_self_parameters_table_": ([31, width], "float32"),
        "L_self_parameters_places_": ([12, width], "float32"),
    }
    lines = [
        "places = L_self_buffers_positions_[(slice(None, None, None), slice(0, 6, None))]",
        "table = torch.nn.functional.embedding(L_ids_, L_self_parameters_table_)",
        "at = torch.nn.functional.embedding(places, L_self_parameters_places_)",
        "h = table + at",
        "table = at = None",
        "seen = L_mask_[(slice(None, None, None), None, None, slice(None, None, None))]",
        "wide = seen.expand(2, 1, 6, 6)",
        "hidden = wide == 0",
    ]
    for i in range(blocks):
        w = {name: f"L_self_parameters_{name}_{i}_" for name in ("g", "b", "q", "o", "u", "d")}
        arguments |= {
            w["g"]: ([width], "float32"),
            w["b"]: ([width], "float32"),
            w["q"]: ([3 * width, width], "float32"),
            w["o"]: ([width, width], "float32"),
            w["u"]: ([4 * width, width], "float32"),
            w["d"]: ([width, 4 * width], "float32"),
        }
        lines += [
            f"n = torch.nn.functional.layer_norm(h, ({width},), {w['g']}, {w['b']}, 1e-05)",
            f"qkv = torch._C._nn.linear(n, {w['q']}, None)",
            f"qkv_1 = qkv.view(2, 6, 3, {heads}, {width // heads})",
            "qkv_2 = qkv_1.permute(2, 0, 3, 1, 4)",
            "parts = qkv_2.unbind(0)",
            "q = parts[0]",
            "k = parts[1]",
            "v = parts[2]",
            "scores = torch.matmul(q, k.transpose(-2, -1))",
            "scaled = scores / 2.0",
            "masked = scaled.masked_fill(hidden, -3.4028234663852886e+38)",
            "p = torch.nn.functional.softmax(masked, dim=-1)",
            "a = torch.matmul(p, v)",
            "a_1 = a.transpose(1, 2)",
            f"a_2 = a_1.reshape(2, 6, {width})",
            f"o = torch._C._nn.linear(a_2, {w['o']}, None)",
            "h += o",
            "h_1 = h",
            f"u = torch._C._nn.linear(h_1, {w['u']}, None)",
            "g = torch._C._nn.gelu(u)",
            f"d = torch._C._nn.linear(g, {w['d']}, None)",
            "h = h_1 + d",
        ]
    lines.append("return (h,)")
    return "\n".join(lines), arguments


@pytest.fixture(scope="session")
def encoder() -> Callable[..., tuple[str, dict[str, Argument]]]:
    """Makes forwards with :func:`transformer`."""
    return transformer
