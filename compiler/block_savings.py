"""What other block sizes are expected to save of a graph's kernels.

The model of block sizes reads kernels as Inductor wrote them, so it knows those of Inductor's own
program, and kernels of other plans as far as they are the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from fusewise.compiler.inductor.blocks_ahead import compile_blocks
from fusewise.compiler.inductor.interceptors import Program
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
    every = {name: code for name, code, device in triton_kernels(program.source)}
    largest = sorted(every, key=lambda name: -_iterations(every[name]))[:_MOST_READ]
    kernels = {name: every[name] for name in largest}
    found = {name: expected_saving(name, code) for name, code in kernels.items()}
    known = {name: saving for name, saving in found.items() if saving is not None}
    likely = {name: kernels[name] for name, saving in known.items() if saving > _LIKELY}
    compile_blocks(likely, program.settings)
    return known


def by_signature(
    savings: Mapping[str, float], nodes: Mapping[str, frozenset[str]], survey: Survey
) -> dict[str, float]:
    """The same by the signatures of groups.

    Args:
        savings: of the kernels of Inductor's own program.
        nodes: of its kernels, by name.
        survey: of the graph under Inductor's own choices.
    """
    groups = {frozenset(group): group for group in survey.default_plan.groups}
    return {
        group_signature(survey.problem, groups[nodes[name]]): saving
        for name, saving in savings.items()
        if nodes.get(name) in groups
    }


def _iterations(code: str) -> int:
    """Iterations of a kernel, as far as its source tells."""
    hints = _HINTS.search(code)
    return math.prod(map(int, re.findall(r": *(\d+)", hints[1]))) if hints else 0
