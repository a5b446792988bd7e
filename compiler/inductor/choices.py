"""Lowering and codegen choices: their names, values and what they mean to Inductor.

Two tables. Choices about all of a graph are settings of Inductor's; those about single nodes and
kernels are applied where Inductor comes to them: see ``inlining`` and ``kernel_choices``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from fusewise.compiler.inductor.settings import known_settings
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import BLOCKS, COMBO
from fusewise.schedule.plan import Plan
from fusewise.schedule.products import ROWS, TEMPLATE
from fusewise.schedule.reductions import REDUCTION, SPLIT
from fusewise.schedule.schedule import NODE, Choice, Schedule

#: Products with a vector as sums. No setting: Inductor decides on it before a graph is handed over.
PRODUCTS = "products_as_sums"
#: Products of 16-bit values in fp32. No setting either.
WIDE = "wide_products"
#: Products of fp32 matrices by oneDNN. No setting either.
ONEDNN = "onednn_products"
#: Elementary functions written into kernels. Where Inductor writes C++, there is no setting for it.
MATH = "vector_math"
#: Flags and random numbers by whole vectors. Nor is there one for that.
VECTORS = "whole_vectors"
#: Columns reduced with several vectors side by side. Nor for that.
COLUMNS = "wide_columns"
#: Threads share the loops around reductions of few columns. Nor for that.
OUTER = "outer_threads"
#: Loops of Triton kernels that take several turns at once. Nor for that.
UNROLLED = "unrolled_loops"


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
    #: Whether the cost model, which sees a graph before code is generated, can tell what it does.
    #: What it cannot is tried on what was chosen otherwise.
    predictable: bool = True
    #: Whether the settings hold only while the code of a kernel is written. Elsewhere Inductor
    #: would go by them to time things while it generates code, and come to other code each time.
    in_kernels: bool = False
    #: Whether kernels of the same nodes are written or compiled otherwise, so that their times are
    #: none of those that are predicted.
    rewrites: bool = False


@dataclass(frozen=True)
class PartKind:
    """A decision about a node or a kernel; ``<prefix><name>`` is the name of the choice."""

    prefix: str
    stage: Literal["lowering", "codegen"]
    #: What it may be, in words.
    values: str
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
        "two_step_variance",
        "lowering",
        ("cpp.use_two_step_variance_threshold",),
        (0, 1 << 30),
        ("cpu",),
        "compute variances over up to so many values from the mean; over more in one go (Welford)",
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
        WIDE,
        "lowering",
        (),
        (True,),
        ("cpu",),
        "compute products, convolutions and attention of 16-bit values in fp32",
    ),
    ChoiceKind(
        ONEDNN,
        "lowering",
        (),
        (True,),
        ("cpu",),
        "multiply large fp32 matrices by oneDNN instead of the BLAS that PyTorch is built with",
    ),
    ChoiceKind(
        PRODUCTS,
        "lowering",
        (),
        (True,),
        ("cuda",),
        "compute products with a vector as sums, in a kernel of their own",
        predictable=False,
    ),
    ChoiceKind(
        "combo_kernels",
        "codegen",
        ("combo_kernels", "benchmark_combo_kernel"),
        (True,),
        ("cuda",),
        "run independent kernels in one launch, wherever Inductor finds any",
        predictable=False,
    ),
    ChoiceKind(
        "pointwise_autotune",
        "codegen",
        ("max_autotune_pointwise",),
        (True,),
        ("cuda",),
        "compile every kernel with several block sizes and take the fastest",
        predictable=False,
        in_kernels=True,
        rewrites=True,
    ),
    ChoiceKind(
        "coordinate_descent",
        "codegen",
        ("coordinate_descent_tuning",),
        (True,),
        ("cuda",),
        "change the block sizes of every kernel one by one as long as that is faster",
        predictable=False,
        in_kernels=True,
        rewrites=True,
    ),
    ChoiceKind(
        UNROLLED,
        "codegen",
        (),
        (True,),
        ("cuda",),
        "take four turns of a loop over a reduction at once, so that they wait for memory together",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        MATH,
        "codegen",
        (),
        (True,),
        ("cpu",),
        "write exp, log, tanh and erf into the kernels that need them; else they are library calls",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        VECTORS,
        "codegen",
        (),
        (True,),
        ("cpu",),
        "read and write flags, and draw random numbers, by whole vectors; else one by one",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        COLUMNS,
        "codegen",
        (),
        (True,),
        ("cpu",),
        "reduce columns of fp32 with four vectors side by side; else one after the other",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        OUTER,
        "codegen",
        (),
        (True,),
        ("cpu",),
        "share the loops around reductions of few columns; else threads are sent off in each turn",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        "parallel_grain",
        "codegen",
        ("cpp.min_chunk_size",),
        (2048, 8192),
        ("cpu",),
        "run loops of fewer iterations for each thread than this on one thread",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        "multiply_add",
        "codegen",
        ("cpp.enable_floating_point_contract_flag",),
        (True,),
        ("cpu",),
        "multiply and add in one instruction, which rounds once",
        predictable=False,
        rewrites=True,
    ),
    ChoiceKind(
        "vector_bits",
        "codegen",
        ("cpp.simdlen",),
        (256,),
        ("cpu",),
        "compute in vectors of so many bits, where the processor has wider ones, too",
        predictable=False,
        rewrites=True,
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

PART_CHOICES: tuple[PartKind, ...] = (
    PartKind(
        NODE,
        "lowering",
        "store, inline",
        ("cpu", "cuda"),
        "store the value of a node, or compute it in each of its users",
    ),
    PartKind(
        SPLIT,
        "lowering",
        "a number from 1",
        ("cuda",),
        "compute a reduction in so many parts, which a second kernel puts together",
    ),
    PartKind(
        TEMPLATE,
        "lowering",
        ", ".join(map(str, ROWS)),
        ("cuda",),
        "compute a matrix product in blocks of so many rows, with what follows in the same kernel",
    ),
    PartKind(
        REDUCTION,
        "codegen",
        "persistent, looped, cooperative",
        ("cuda",),
        "hold whole rows in a block, go through them, or share them between blocks",
    ),
    PartKind(
        COMBO,
        "codegen",
        "other kernels",
        ("cuda",),
        "run these kernels in one launch",
    ),
    PartKind(
        BLOCKS,
        "codegen",
        "autotune, descent",
        ("cuda",),
        "how the block sizes of one kernel are found",
    ),
)

_BY_NAME = {kind.name: kind for kind in CHOICES}
_BY_PREFIX = {kind.prefix: kind for kind in PART_CHOICES}
#: Settings that hold where kernels are put together as a schedule says, those that this Inductor
#: has. Sets are kept as they are: nothing is left out for its memory, for a benchmark, or for the
#: distance of its kernels.
_COMBINED: dict[str, Any] = {
    "combo_kernels": True,
    "benchmark_combo_kernel": False,
    "combo_kernels_pointwise_only": False,
    "combo_kernel_peak_memory_increase_gb": None,
    "combo_kernel_peak_memory_pct_threshold": None,
    "combo_kernel_max_distance": -1,
}
#: Settings whose value is not the choice's own.
_TRANSLATED: dict[str, dict[Any, Any]] = {
    # Inductor's test of profitability of a combo kernel benchmarks at compile time; measuring
    # whole graphs is our job, so the choice is combined with leaving that out.
    "benchmark_combo_kernel": {True: False},
    "cpp.enable_floating_point_contract_flag": {True: "fast"},
    "triton.tiling_prevents_pointwise_fusion": {True: False},
    "triton.tiling_prevents_reduction_fusion": {True: False},
}


def config_patches(choices: Iterable[Choice]) -> dict[str, Any]:
    """Inductor settings for ``choices``; those about single nodes and kernels say little there.

    Raises:
        PlanError: a choice that this fusewise or this Inductor does not know.
    """
    return _patches(choices, in_kernels=False)


def kernel_patches(choices: Iterable[Choice]) -> dict[str, Any]:
    """Inductor settings for ``choices`` while it writes the code of kernels.

    Raises:
        PlanError: as for :func:`config_patches`.
    """
    return _patches(choices, in_kernels=True)


def _patches(choices: Iterable[Choice], *, in_kernels: bool) -> dict[str, Any]:
    patches: dict[str, Any] = {}
    known = known_settings()
    for choice in choices:
        if choice.of_part:
            if _part_kind(choice).prefix == COMBO and not in_kernels:
                patches |= {name: value for name, value in _COMBINED.items() if name in known}
            continue
        kind = _BY_NAME.get(choice.name)
        if kind is None:
            raise _unknown(choice.name, _BY_NAME)
        if kind.in_kernels is not in_kernels:
            continue
        if not kind.settings:
            # Applied where Inductor comes to it.
            continue
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


def is_known(choice: Choice) -> bool:
    """Whether this version has a choice of that name."""
    if choice.of_part:
        return choice.name[: choice.name.index(":") + 1] in _BY_PREFIX
    return choice.name in _BY_NAME


def _part_kind(choice: Choice) -> PartKind:
    prefix = choice.name[: choice.name.index(":") + 1]
    if prefix not in _BY_PREFIX:
        raise _unknown(prefix, _BY_PREFIX)
    return _BY_PREFIX[prefix]


def _unknown(name: str, known: Iterable[str]) -> PlanError:
    near = difflib.get_close_matches(name, known, n=1)
    return PlanError(
        f"unknown choice {name!r}" + (f", nearest is {near[0]!r}" if near else ""),
        subject="schedule",
        remedy=f"use one of {', '.join(sorted(known))}",
    )


def variants(device_type: str) -> list[tuple[Choice, ...]]:
    """Single choices that differ from Inductor's own and apply to the device, one at a time.

    Those that this Inductor has settings for, if they are settings, and of which the cost model can
    tell what they do: see :func:`unpredictable`.
    """
    return _single(kind for kind in CHOICES if kind.predictable and device_type in kind.devices)


def unpredictable(device_type: str) -> list[tuple[Choice, ...]]:
    """Like :func:`variants`, those that change nothing that the cost model sees."""
    return _single(kind for kind in CHOICES if not kind.predictable and device_type in kind.devices)


def rewrites(choices: Iterable[Choice]) -> bool:
    """Whether some of ``choices`` have kernels of the same nodes written otherwise."""
    return any(not c.of_part and c.name in _BY_NAME and _BY_NAME[c.name].rewrites for c in choices)


def _single(kinds: Iterable[ChoiceKind]) -> list[tuple[Choice, ...]]:
    known = known_settings()
    return [
        (Choice(kind.name, value),)
        for kind in kinds
        if not kind.settings or not known.isdisjoint(kind.settings)
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
    return (_part_kind(choice) if choice.of_part else _BY_NAME[choice.name]).stage
