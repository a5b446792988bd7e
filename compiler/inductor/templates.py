"""Single matrix products by Inductor's Triton template, into which what follows is fused.

Inductor does that where a user asks for ``max-autotune``, with a benchmark of some twenty tilings
for each product. Here a schedule names the products, and the tiling follows from it, so that there
is nothing to benchmark while a graph is lowered. How operators are lowered is replaced once a
process by a dispatcher that asks a context variable: where nothing is wanted in this context,
Inductor calls the library. Nothing here decides where a template is worth it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.choices import InductorChoices
from torch._inductor.dependencies import MemoryDep
from torch._inductor.exc import LoweringException
from torch._inductor.kernel.mm import mm_template
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.scheduler import BaseSchedulerNode as _Node
from torch._inductor.scheduler import Scheduler
from torch._inductor.template_heuristics.params import DictKernelTemplateParams
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.lowering_calls import lower_otherwise
from fusewise.compiler.inductor.plans import node_name
from fusewise.compiler.inductor.products import HALF
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.schedule.errors import PlanError
from fusewise.schedule.products import MOST_COLUMN_BYTES

#: What Inductor has for a product, by the name of the template or the library.
_Offers = Mapping[str, Iterable[KernelTemplateChoice]]

aten = torch.ops.aten
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
#: The least that Triton multiplies at once.
_LEAST = 16
#: Bytes of a row of the first matrix that a block takes in one turn: a line of the cache.
_TURN_BYTES = 128
#: Elements of a block's result for each of its warps, and the least and the most warps.
_WARP_ELEMENTS, _LEAST_WARPS, _MOST_WARPS = 1024, 4, 8
#: Bytes that the loads of a block of fp32 take at once, where rows begin so.
_ROW_BYTES = 16
#: Turns of which loads are under way at a time.
_STAGES = 3


def suited_products(nodes: Iterable[_Node]) -> frozenset[str]:
    """Products of a lowered graph that templates compute at the rate that is known of them.

    Of fp32 these have matrices that lie row by row, each row on 16 bytes, and are computed in full:
    where one lay column by column, as a layer's weights do, or rows began anywhere, steps took 1.2
    times as long on an H200 as with the library.

    Args:
        nodes: of the graph, as Inductor schedules them.

    Returns:
        The names of their nodes.
    """
    return frozenset(node_name(node) for node in nodes if _is_suited(node))


def _is_suited(node: _Node) -> bool:
    product = node.node
    # Of other library calls inputs may be anything, generators of random numbers among it.
    if not isinstance(product, ir.ExternKernelOut):
        return False
    match product.inputs:
        # A bias comes before them.
        case [*_, ir.IRNode() as left, ir.IRNode() as right]:
            return left.get_dtype() == right.get_dtype() and _suits(left) and _suits(right)
    return False


def _suits(matrix: ir.IRNode) -> bool:
    dtype = matrix.get_dtype()
    if dtype != torch.float32:
        return dtype in HALF
    sizes, values = V.graph.sizevars, _ROW_BYTES // dtype.itemsize
    match matrix.maybe_get_stride():
        case [*_, row, within] if sizes.statically_known_equals(within, 1):
            exact = torch.get_float32_matmul_precision() == "highest"
            return exact and sizes.statically_known_multiple_of(row, values)
    return False


class _Products:
    """Rows of a block by product, and what was found of them."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.rows = dict(rows)
        self.made: set[str] = set()


_active: ContextVar[_Products | None] = ContextVar("fusewise_templates", default=None)


@contextmanager
def by_templates(rows: Mapping[str, int]) -> Iterator[None]:
    """Have products of graphs that are lowered in this context computed by templates.

    Args:
        rows: of a block, by the node of the graph that is lowered.
    """
    if not rows:
        yield
        return
    _install()
    with holding(_active, _Products(rows)):
        yield


def check_templates() -> None:
    """See that each product was met that a template is to compute. For when a graph is lowered.

    Raises:
        PlanError: one was not, or there is no template for it; names it.
    """
    wanted = _active.get()
    if wanted is None:
        return
    for name in sorted(wanted.rows.keys() - wanted.made):
        raise PlanError(
            f"{name!r} is no matrix product that a template could compute on this device",
            subject="schedule",
            remedy="leave the choice out, or search again",
        )


@once
def _install() -> None:
    lower_otherwise(_lowered)
    _dispatch_sharing()


def _lowered(graph: Any, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    wanted = _active.get()
    node = getattr(V.graph, "current_node", None)
    if wanted is None or node is None or target not in _PRODUCTS:
        return None
    rows = wanted.rows.get(node.name)
    if rows is None:
        return None
    tiled = _Tiled(rows)
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    try:
        with holding(_active, None), inductor_config.patch(settings), V.set_choices_handler(tiled):
            # Asks everybody again, who now have nothing to say.
            found = graph.call_function(target, args, kwargs)
    except LoweringException:
        if tiled.taken:
            raise
        # There is no template for it: the library computes it, and the check tells.
        return None
    wanted.made.add(node.name)
    return found


@once
def _dispatch_sharing() -> None:
    original = Scheduler.shared_data_after_reordering_loop

    @functools.wraps(original)
    def shared_data(self: Scheduler, node1: _Node, node2: _Node) -> int:
        found = original(self, node1, node2)
        if found >= 0 or _active.get() is None or not node1.is_template():
            return found
        return _shared(self, node1, node2)

    Scheduler.shared_data_after_reordering_loop = shared_data  # type: ignore[method-assign]


def _shared(scheduler: Scheduler, template: _Node, follower: _Node) -> int:
    """Bytes that a template writes and a follower reads, in the same order by other loops; or -1.

    What a layer makes of its rows has the dimensions of its batch, too; a product has but two.
    Inductor merges loops after fusion only, and so finds nothing in common.
    """
    written = {dep.name: dep for dep in template.read_writes.writes if isinstance(dep, MemoryDep)}
    common = [
        read
        for read in follower.read_writes.reads
        if isinstance(read, MemoryDep)
        and read.name in written
        and read.num_vars != written[read.name].num_vars
        and read.normalize() == written[read.name].normalize()
    ]
    return sum(scheduler.dep_size_hint(dep) for dep in common) if common else -1


class _Tiled(InductorChoices):
    """Inductor's choices, but for one product: the plain template in blocks of so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        #: Whether there is a template for it.
        self.taken = False

    def _finalize_template_configs(
        self, template_choices: _Offers, *_args: Any, **_kwargs: Any
    ) -> list[KernelTemplateChoice]:
        # One alone is taken as it is; of several each would be timed.
        offered = itertools.islice(template_choices.get(mm_template.uid, ()), 1)
        found = [self._tiled(one) for one in offered]
        self.taken = self.taken or bool(found)
        return found

    def _tiled(self, offered: KernelTemplateChoice) -> KernelTemplateChoice:
        """The template that is offered, with these blocks instead of its own."""
        inputs: Any = offered.inputs
        _, columns, inner = inputs.mnk_hinted()
        itemsize = inputs.dtype().itemsize
        turn = min(_power_of_two(inner), _TURN_BYTES // itemsize)
        block_columns = min(_power_of_two(columns), MOST_COLUMN_BYTES // itemsize)
        warps = self._rows * block_columns // _WARP_ELEMENTS
        tiling = {
            "BLOCK_M": self._rows,
            "BLOCK_N": block_columns,
            "BLOCK_K": turn,
            "EVEN_K": V.graph.sizevars.statically_known_true(inputs.mnk_symbolic()[2] % turn == 0),
            "num_warps": min(max(warps, _LEAST_WARPS), _MOST_WARPS),
            "num_stages": _STAGES,
        }
        params = DictKernelTemplateParams({**offered.params.to_kwargs(), **tiling})
        return KernelTemplateChoice(
            offered.template, params, offered.extra_kwargs, offered.layout, offered.inputs
        )


def _power_of_two(size: int) -> int:
    """The least power of two that is no smaller, and that Triton multiplies."""
    return max(_LEAST, 1 << (size - 1).bit_length())
