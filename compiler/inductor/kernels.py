"""What a schedule decides about the kernels of its plan, put in force for one compile.

Collects the ways in: how products and reductions are computed, launches that several kernels share,
and the tuning of block sizes. Each has a file of its own, and none knows of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._inductor.scheduler import Scheduler

from fusewise.compiler.inductor.choices import (
    COLUMNS,
    MATH,
    ONEDNN,
    OUTER,
    PRODUCTS,
    UNROLLED,
    VECTORS,
    WIDE,
    kernel_patches,
)
from fusewise.compiler.inductor.combos import combined_by
from fusewise.compiler.inductor.onednn_products import onednn_products
from fusewise.compiler.inductor.outer_threads import outer_threads
from fusewise.compiler.inductor.products import products_as_sums
from fusewise.compiler.inductor.reductions import check_shaped, check_split, reduced_by
from fusewise.compiler.inductor.templates import by_templates, check_templates
from fusewise.compiler.inductor.tuning import check_tuned, tuned
from fusewise.compiler.inductor.unrolled_loops import unrolled_loops
from fusewise.compiler.inductor.vector_math import written_out
from fusewise.compiler.inductor.whole_vectors import whole_vectors
from fusewise.compiler.inductor.wide_columns import wide_columns
from fusewise.compiler.inductor.wide_products import wide_products
from fusewise.schedule.kernel_choices import combos, tunings
from fusewise.schedule.products import templates
from fusewise.schedule.reductions import shapes, splits
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Choice, Schedule


@contextmanager
def kernels_by(schedule: Schedule, rules: RuleSet | None) -> Iterator[None]:
    """Have what is generated in this context follow a schedule's choices about kernels.

    Args:
        schedule: whose choices about kernels hold.
        rules: the user's, for kernels that Inductor would put into one launch.

    Raises:
        PlanError: a choice is none, or not legal in this graph.
    """
    with (
        combined_by(rules, combos(schedule.codegen)),
        tuned(kernel_patches(schedule.codegen), tunings(schedule.codegen)),
        reduced_by(splits(schedule.lowering), shapes(schedule.codegen)),
        by_templates(templates(schedule.lowering)),
        products_as_sums(Choice(PRODUCTS, True) in schedule.lowering),
        onednn_products(Choice(ONEDNN, True) in schedule.lowering),
        wide_products(Choice(WIDE, True) in schedule.lowering),
        written_out(Choice(MATH, True) in schedule.codegen),
        whole_vectors(Choice(VECTORS, True) in schedule.codegen),
        wide_columns(Choice(COLUMNS, True) in schedule.codegen),
        outer_threads(Choice(OUTER, True) in schedule.codegen),
        unrolled_loops(Choice(UNROLLED, True) in schedule.codegen),
    ):
        yield


def check_lowered() -> None:
    """See that each choice found what it is about in the graph. For when a graph is lowered.

    Raises:
        PlanError: one did not; names it.
    """
    check_split()
    check_templates()


def check_kernels(scheduler: Scheduler) -> None:
    """See that each choice about a kernel found its kernel. For when all code is generated.

    Args:
        scheduler: of which the code is.

    Raises:
        PlanError: one did not; names it.
    """
    check_lowered()
    # A kernel that reduces rows and columns at once leaves the last step of each sum of columns,
    # else a kernel of its own, to a library.
    check_tuned(scheduler.removed_ops)
    check_shaped()
