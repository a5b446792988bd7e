"""What other block sizes are expected to save of a graph's kernels.

The model of block sizes reads kernels as Inductor wrote them, so it knows those of programs that
were generated, and kernels of other plans as far as they are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fusewise.compiler.inductor.blocks_ahead import compile_blocks
from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.kernel_nodes import noting_kernels
from fusewise.compiler.inductor.triton_ahead import triton_kernels
from fusewise.compiler.inductor.worth_trying import expected_saving
from fusewise.compiler.survey import Survey
from fusewise.schedule.problem import group_signature

#: Kernels of a program that are read, the largest: each takes hundredths of a second.
_MOST_READ: Final = 32
#: How the sizes of a kernel's loops stand in its source.
_HINTS: Final = re.compile(r"size_hints=\{([^}]*)\}")
#: Part of a kernel's time that has to be expected for its block sizes to be compiled before it is
#: known whether they are tried.
_LIKELY: Final = 0.05


def kernel_savings(program: Program) -> dict[str, float]:
    """Part of their time that other block sizes are expected to save of kernels, by their names.

    What is likely to be tried is on its way in Inductor's pool by then.
    """
    kernels = _kernels_to_read(program)
    known = _expected(kernels)
    likely = {name: kernels[name] for name, saving in known.items() if saving > _LIKELY}
    compile_blocks(likely, program.settings)
    return known


def read_survey(graph: GraphCompile, surveyed: Survey) -> tuple[Program, dict[str, float]]:
    """What Inductor writes under the choices of a survey, and what there is to save by block sizes.

    Returns:
        The program without its constants, as it may come from a copy of this process; and part of
        their time that is expected to be saved of kernels, by signature.

    Raises:
        PlanError: the choices are illegal for this graph.
        RuntimeError: Inductor fails under them.
    """
    with noting_kernels() as nodes:
        program = graph.generate(schedule_of(surveyed.choices, None))
    savings = by_signature(_expected(_kernels_to_read(program)), nodes, surveyed)
    return replace(program, constants={}), savings


def _kernels_to_read(program: Program) -> dict[str, str]:
    """Sources of the largest kernels of a program, by name."""
    every = {name: code for name, code, device in triton_kernels(program.source)}
    largest = sorted(every, key=lambda name: -_iterations(every[name]))[:_MOST_READ]
    return {name: every[name] for name in largest}


def _expected(kernels: Mapping[str, str]) -> dict[str, float]:
    found = {name: expected_saving(name, code) for name, code in kernels.items()}
    return {name: saving for name, saving in found.items() if saving is not None}


def by_signature(
    savings: Mapping[str, float], nodes: Mapping[str, frozenset[str]], surveyed: Survey
) -> dict[str, float]:
    """The same by the signatures of groups.

    Args:
        savings: of the kernels that Inductor writes by itself under the choices of a survey.
        nodes: of these kernels, by name.
        surveyed: the survey.
    """
    groups = {frozenset(group): group for group in surveyed.default_plan.groups}
    return {
        group_signature(surveyed.problem, groups[nodes[name]]): saving
        for name, saving in savings.items()
        if nodes.get(name) in groups
    }


def _iterations(code: str) -> int:
    """Iterations of a kernel, as far as its source tells."""
    hints = _HINTS.search(code)
    return math.prod(map(int, re.findall(r": *(\d+)", hints[1]))) if hints else 0
