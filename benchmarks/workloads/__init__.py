"""The workloads of the benchmarks, by kind of program. Import this; nothing here runs anything."""

from __future__ import annotations

import re

from workloads import (
    attention,
    library_models,
    losses,
    message_passing,
    optimisers,
    quantised,
    recommendation,
    reductions,
    training,
    vision,
)
from workloads.drawn import Drawn, draw
from workloads.program import Case, Program, Workload

__all__ = [
    "CASES",
    "WORKLOADS",
    "Case",
    "Drawn",
    "Program",
    "Workload",
    "draw",
    "matching",
    "named",
]

WORKLOADS: tuple[Workload, ...] = (
    *library_models.WORKLOADS,
    *attention.WORKLOADS,
    *training.WORKLOADS,
    *losses.WORKLOADS,
    *optimisers.WORKLOADS,
    *recommendation.WORKLOADS,
    *vision.WORKLOADS,
    *quantised.WORKLOADS,
    *reductions.WORKLOADS,
    *message_passing.WORKLOADS,
)

#: Every workload in each of its dtypes.
CASES: tuple[Case, ...] = tuple(
    Case(workload, dtype) for workload in WORKLOADS for dtype in workload.dtypes
)


def matching(pattern: str) -> list[Case]:
    """Cases whose name, kind or family the regular expression is found in."""
    return [
        case
        for case in CASES
        if any(
            re.search(pattern, text)
            for text in (case.name, case.workload.kind, case.workload.family)
        )
    ]


def named(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)
