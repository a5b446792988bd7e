"""Problems as the text of published datasets: nothing lost, and nothing of the machine in it."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from fusewise.datasets.problem_text import problem_of, problem_text, without_machine_paths
from fusewise.schedule.errors import DatasetError
from fusewise.schedule.problem import Computed, Problem
from tests.costmodel import one_node

_COMPUTED = (Computed("exp", 1, 0b1, 0.25), Computed("pow", 1, 0, 1.0))
_ORIGINS = {
    "modules": ("layers.0",),
    "fx_names": ("exp",),
    "sources": ("model.py:3",),
    "written_as": ("aten.softmax",),
}


def _problem(library: str, computed: tuple[Computed, ...], held: float, *, told: bool) -> Problem:
    read, written = (one_node.access("contiguous", "i0 : 64", 64, 1, buffer) for buffer in "ab")
    read = msgspec.structs.replace(read, along=1, held=held)
    problem = one_node.problem_of(((64,), ()), read, msgspec.structs.replace(written, along=1))
    node = msgspec.structs.replace(
        problem.nodes[0],
        ops=(("exp", 2), ("pow", 1)),
        origins=("aten.exp.default",),
        source="model.py:3",
        compiler_us=1.5,
        library=library,
        computed=computed,
        **(_ORIGINS if told else {}),
    )
    other = msgspec.structs.replace(node, name="op1", library="", computed=())
    first, second = problem.buffers
    first = msgspec.structs.replace(first, users=("op", "op1"))
    return msgspec.structs.replace(problem, nodes=(node, other), buffers=(first, second))


@pytest.mark.parametrize(
    ("library", "computed", "held", "told"),
    product(("", "onednn"), ((), _COMPUTED), (1.0, 0.25), (False, True)),
)
def test_a_problem_comes_back_whatever_its_nodes_say(
    library: str, computed: tuple[Computed, ...], held: float, told: bool
) -> None:
    problem = _problem(library, computed, held, told=told)
    assert problem_of(problem_text(problem), "key") == problem


def test_nodes_with_too_few_fields_are_refused() -> None:
    kind, nodes, *rest = msgspec.json.decode(problem_text(_problem("", (), 1.0, told=False)))
    text = msgspec.json.encode([kind, [nodes[0][:-3]], *rest]).decode()
    with pytest.raises(DatasetError, match=r"graph key: .* fields.*fusewise dataset verify"):
        problem_of(text, "key")


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("/srv/someone/project/model.py:12", "project/model.py:12"),
        ('File "/opt/lib/python/torch/nn.py"', 'File "torch/nn.py"'),
        (r"C:\work\someone\model.py:3", "someone/model.py:3"),
        # What a corpus knows a program by is no place on a machine.
        ("timm@16:beit/beit_base/0-0#blocks.0", "timm@16:beit/beit_base/0-0#blocks.0"),
        ("graphnet:transformers/google/bert@fp16,x2", "graphnet:transformers/google/bert@fp16,x2"),
        ("package/part/model.py:3", "package/part/model.py:3"),
    ],
)
def test_only_paths_of_a_machine_are_cut(text: str, published: str) -> None:
    assert without_machine_paths(text) == published
