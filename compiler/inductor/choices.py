"""Lowering and codegen choices: their names, values and what they mean to Inductor.

One table. Beside what is in it, a schedule can only have choices about single nodes, which are no
settings: see ``inlining``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch._inductor import config as inductor_config

from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Choice, Schedule


@dataclass(frozen=True)
class ChoiceKind:
    """A decision with its alternatives; the value that Inductor has anyway is not listed."""

    name: str
    stage: Literal["lowering", "codegen"]
    #: Inductor settings that take the value, those that this Inductor has.
    settings: tuple[str, ...]
    #: Values worth trying beside Inductor's own.
    values: tuple[bool | int, ...]
    devices: tuple[str, ...]
    meaning: str


CHOICES: tuple[ChoiceKind, ...] = (
    ChoiceKind(
        "inline_reads",
        "lowering",
        (
            "realize_reads_threshold",
            "realize_acc_reads_threshold",
            "realize_cpu_acc_reads_threshold",
        ),
        (2, 16, 64),
        ("cpu", "cuda"),
        "store a value once what is inlined into it reads more buffers than this",
    ),
    ChoiceKind(
        "inline_ops",
        "lowering",
        ("realize_opcount_threshold", "realize_cpu_opcount_threshold"),
        (8, 150),
        ("cpu", "cuda"),
        "store a value once it takes more operations than this to compute",
    ),
    ChoiceKind(
        "split_reductions",
        "lowering",
        ("split_reductions",),
        (False,),
        ("cuda",),
        "compute a long reduction in two kernels",
    ),
    ChoiceKind(
        "cat_at_once",
        "lowering",
        ("force_pointwise_cat",),
        (True,),
        ("cpu", "cuda"),
        "compute all parts of a concatenation in one kernel, each where it belongs",
    ),
    ChoiceKind(
        "combo_kernels",
        "codegen",
        ("combo_kernels", "benchmark_combo_kernel"),
        (True,),
        ("cuda",),
        "run independent small kernels in one launch",
    ),
    ChoiceKind(
        "fuse_across_tilings",
        "codegen",
        ("triton.tiling_prevents_pointwise_fusion", "triton.tiling_prevents_reduction_fusion"),
        (True,),
        ("cuda",),
        "fuse kernels that would be tiled differently",
    ),
    ChoiceKind(
        "loop_ordering",
        "codegen",
        ("loop_ordering_after_fusion",),
        (False,),
        ("cuda",),
        "reorder loops to make fusions possible",
    ),
)

_BY_NAME = {kind.name: kind for kind in CHOICES}
#: Settings whose value is not the choice's own.
_TRANSLATED: dict[str, dict[Any, Any]] = {
    # Inductor's test of profitability of a combo kernel benchmarks at compile time; measuring
    # whole graphs is our job, so the choice is combined with leaving that out.
    "benchmark_combo_kernel": {True: False},
    "triton.tiling_prevents_pointwise_fusion": {True: False},
    "triton.tiling_prevents_reduction_fusion": {True: False},
}


def config_patches(choices: Iterable[Choice]) -> dict[str, Any]:
    """Inductor settings for ``choices``; those about single nodes have none.

    Raises:
        PlanError: a choice that this fusewise or this Inductor does not know.
    """
    patches: dict[str, Any] = {}
    known = inductor_config.get_config_copy()
    for choice in choices:
        if choice.of_node:
            continue
        kind = _BY_NAME.get(choice.name)
        if kind is None:
            near = difflib.get_close_matches(choice.name, _BY_NAME, n=1)
            raise PlanError(
                f"unknown choice {choice.name!r}" + (f", nearest is {near[0]!r}" if near else ""),
                subject="schedule",
                remedy=f"use one of {', '.join(sorted(_BY_NAME))}",
            )
        present = [setting for setting in kind.settings if setting in known]
        if not present:
            raise PlanError(
                f"this Inductor has none of the settings behind {choice.name!r}",
                subject="schedule",
                remedy="search again under this torch",
            )
        for setting in present:
            patches[setting] = _TRANSLATED.get(setting, {}).get(choice.value, choice.value)
    return patches


def variants(device_type: str) -> list[tuple[Choice, ...]]:
    """Single choices that differ from Inductor's own and apply to the device, one at a time."""
    return [
        (Choice(kind.name, value),)
        for kind in CHOICES
        if device_type in kind.devices
        for value in kind.values
    ]


def schedule_of(choices: Iterable[Choice], plan: Plan | None) -> Schedule:
    """The schedule of a plan under ``choices``, each put where it acts."""
    choices = tuple(choices)
    return Schedule(
        lowering=tuple(c for c in choices if stage_of(c) == "lowering"),
        plan=plan,
        codegen=tuple(c for c in choices if stage_of(c) == "codegen"),
    )


def stage_of(choice: Choice) -> Literal["lowering", "codegen"]:
    """Whether a choice acts before or after fusion."""
    return "lowering" if choice.of_node else _BY_NAME[choice.name].stage
