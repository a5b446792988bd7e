"""A captured graph as a program that calls torch's operators one by one: compiled by nobody.

What its results differ by from the high-precision run is rounding that the program itself has.
"""

from __future__ import annotations

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.graph_module import _format_import_block
from torch.package.importer import sys_importer

from fusewise.compiler.inductor.interceptors import Program
from fusewise.schedule.errors import UnsupportedError

_CALL = """
class _Constants:
    def __getattr__(self, name):
        return globals()[name]


def call(args):
    values = list(args)
    args.clear()
    return forward(_Constants(), *values)
"""


def uncompiled_program(gm: torch.fx.GraphModule) -> Program:
    """The program of a graph as AOTAutograd hands it over.

    Raises:
        UnsupportedError: it has subgraphs, or values that no name in a program stands for.
    """
    constants: dict[str, torch.Tensor] = {}
    for node in gm.graph.nodes:
        if node.op != "get_attr":
            continue
        value = getattr(gm, str(node.target), None)
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(
                f"{node.target} is no tensor",
                subject="graph without compiling",
                remedy="the other stages are measured",
            )
        # Inductor compiles under a mode in which real tensors are refused.
        with unset_fake_temporarily():
            constants[str(node.target)] = value.detach()
    code = gm.graph.python_code("self")
    imports = _format_import_block(code.globals, sys_importer)
    return Program(f"import torch\n{imports}\n{code.src}\n{_CALL}", constants, {})
