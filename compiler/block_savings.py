"""What other block sizes are expected to save of a graph's kernels.

The model of block sizes reads kernels as Inductor wrote them, so it knows those of Inductor's own
program, and kernels of other plans as far as they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.triton_ahead import triton_kernels
from fusewise.compiler.inductor.worth_trying import expected_saving
from fusewise.compiler.survey import Survey
from fusewise.schedule.problem import group_signature


def savings_of(
    program: Program, nodes: Mapping[str, frozenset[str]], survey: Survey
) -> dict[str, float]:
    """Part of a kernel's time that other block sizes are expected to save, by signature.

    Args:
        program: Inductor's own.
        nodes: of its kernels, by name.
        survey: of the graph under Inductor's own choices.
    """
    groups = {frozenset(group): group for group in survey.default_plan.groups}
    found: dict[str, float] = {}
    for name, code, device in triton_kernels(program.source):
        group = groups.get(nodes.get(name, frozenset()))
        saving = expected_saving(name, code) if group is not None and device == "cuda" else None
        if group is not None and saving is not None:
            found[group_signature(survey.problem, group)] = saving
    return found
