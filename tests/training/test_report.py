"""The report: one file with all that was asked for, and nothing beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fusewise.schedule.problem import Access, Node, Problem
from fusewise.training.command import main
from fusewise.training.kernel_story import bytes_told, nodes_told

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VOID = {"img", "meta", "br"}


class Reader(HTMLParser):
    """Keeps ids, images and links, and sees that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.images: dict[str, str] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if found.get("id"):
            self.ids.add(found["id"] or "")
        if tag == "img":
            self.images[found["alt"] or ""] = found["src"] or ""
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(*arguments: object) -> tuple[str, Reader]:
    path = Path(str(arguments[-1]))
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert f"report {path}" in result.stdout
    text, reader = path.read_text("utf-8"), Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


def test_of_a_training(make_store: Callable[..., Path], tmp_path: Path):
    store = make_store(families=14, graphs=28)
    text, reader = report("--store", store, "--report", tmp_path / "deep" / "out.html")
    assert reader.ids == {
        "scores",
        "parity",
        "by_class",
        "by_size",
        "by_family",
        "calibration",
        "strange",
        "learning",
        "importance",
        "worst",
    }
    assert len(reader.images) == 7
    for source in reader.images.values():
        kind, _, data = source.partition(";base64,")
        assert kind == "data:image/png"
        assert base64.b64decode(data).startswith(b"\x89PNG")
    # Nothing is fetched from anywhere.
    assert all(link.startswith("data:") for link in reader.links)
    worst = text[text.index('id="worst"') :]
    assert worst.count("<details") == 20
    assert worst.count(" × measured: pointwise, family") == 20
    for part in ("contiguous, 4 B each", "add ", "reads ", "roofline "):
        assert part in worst
    # The furthest off comes first.
    factors = [float(one) for one in re.findall(r"<summary>([\d.]+) × measured", worst)]
    off = np.abs(np.log(factors))
    assert off[0] == pytest.approx(off[off > 0].max(), abs=0.02)


def test_of_a_model_that_exists(make_store: Callable[..., Path], tmp_path: Path):
    store = make_store(graphs=8, families=4)
    options = ("--evaluate-only", "--model", "roofline", "--report", tmp_path / "out.html")
    text, reader = report("--store", store, *options)
    # It was not trained, and has no trees.
    assert not {"learning", "importance"} & reader.ids
    assert "trained on" not in text


def test_what_is_told_of_a_kernel():
    read = Access("arg0", "strided", 64, 2048, 4, 8, "i0")
    write = Access("buf0", "contiguous", 8, 32, 4, 1, "i0")
    nodes = tuple(
        Node(
            name=f"op{i}",
            kind="reduction",
            device="cpu",
            numel=8,
            rnumel=8,
            ranges=((8,), (2, 4)),
            reduction_type="sum",
            reads=(read,),
            writes=(write,),
            ops=(("load", 1), ("mul", 2), ("exp", 1)),
            origins=("aten.mul.Tensor", "aten.exp.default", "aten.exp.default"),
            source="model.py:7",
            order=i,
            compiler_us=0.0,
            flops=0,
            signature=str(i),
        )
        for i in range(3)
    )
    problem = Problem("g", "inference", nodes, (), (), ())
    (first, _), more = nodes_told(problem, ["op0", "op1", "op2"], most=2)
    assert more == 1
    assert first.ranges == "8 reduced over 2 × 4 by sum"
    assert first.operations == "mul 2, exp"
    assert first.accesses == (
        "reads 2.0 KiB strided of stride 8, 4 B each; writes 32 B contiguous, 4 B each"
    )
    assert (first.origins, first.source) == ("mul, exp", "model.py:7")
    assert bytes_told(3 << 20) == "3.0 MiB"
