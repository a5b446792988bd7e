"""Inductor's own program, whose kernels are compiled before anything is chosen.

Waits for no compiler. Predicts and chooses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final

from fusewise.compiler.block_savings import kernel_savings
from fusewise.compiler.building import Building, compile_in_pool, start_building
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.kernel_nodes import noting_kernels
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.spending import GraphSpending

#: A compiler of kernels is waited for no longer than this.
_MOST_BUILDING_S: Final = 600.0


@dataclass(frozen=True)
class OwnProgram:
    """Inductor's own program on its way; nothing of it where it is generated later."""

    program: Program | None = None
    building: Building | None = None
    #: What other block sizes are expected to save of its kernels, and their nodes, by name.
    savings: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)


def begin_own(
    graph: GraphCompile,
    report: GraphReport,
    purse: GraphSpending,
    *,
    ranked: bool,
    measured: bool,
) -> OwnProgram:
    """Generate Inductor's own program and have its kernels compiled.

    Args:
        graph: the graph.
        report: is told how long it took.
        purse: takes that for Inductor's own work.
        ranked: whether its kernels are read by the model of block sizes.
        measured: whether they are waited for, by a contest.
    """
    nodes: Mapping[str, frozenset[str]] = {}
    savings: Mapping[str, float] = {}
    building: Building | None = None
    start = time.perf_counter()
    with report.phase("generate"), noting_kernels() if ranked else nullcontext(nodes) as nodes:
        program = graph.own_program()
    purse.own(time.perf_counter() - start, again=True)
    if measured:
        building = start_building(program, purse.kind, _MOST_BUILDING_S)
    else:
        compile_in_pool(program, purse.kind)
    if ranked:
        # Block sizes that it has compiled are behind the program's own in the pool.
        with report.phase("block sizes"):
            savings = kernel_savings(program)
    return OwnProgram(program, building, savings, nodes)
