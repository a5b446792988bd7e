"""How single reductions are computed: Inductor's decisions about them, overruled by a schedule.

While it lowers a graph Inductor decides into how many parts a reduction is cut; while it writes a
kernel, whether a block holds whole rows and whether blocks share them. Its functions are replaced
once a process by dispatchers that ask context variables: with nothing wanted in this context,
Inductor decides as if fusewise were not there. Nothing here decides what is worth it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._inductor import choices as inductor_choices
from torch._inductor import ir
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.hooks import is_subgraph
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.schedule.errors import PlanError
from fusewise.schedule.reductions import Shape

#: Elements that a block can hold of a row: what is above is beyond Triton, or beyond its registers
#: by far.
_MOST_HELD = 32_768
#: Blocks that Inductor has share the reductions of a kernel of one row; fewer where rows are more.
_SHARED = 64
#: Reductions that Inductor cannot cut, or cuts by rules of its own.
_NEVER_CUT = frozenset({"argmax", "argmin", "scan", "dot"})


class _Reductions:
    """What is wanted, and where it was found."""

    def __init__(self, splits: Mapping[str, int], shapes: Mapping[str, Shape]) -> None:
        self.splits = dict(splits)
        self.shapes = dict(shapes)
        #: Elements of the result and of what each of them takes in, by node that is cut.
        self.met: dict[str, tuple[int | None, int | None]] = {}
        #: Why a reduction could not be cut, by node.
        self.uncut: dict[str, str] = {}
        self.shaped: set[str] = set()

    def shape_of(self, features: Any) -> tuple[str, Shape] | None:
        """What the kernel with these nodes is to look like, and the node that says so."""
        for node in features.scheduler_nodes():
            name = str(node.get_name())
            if name in self.shapes:
                return name, self.shapes[name]
        return None


_active: ContextVar[_Reductions | None] = ContextVar("fusewise_reductions", default=None)


@contextmanager
def reduced_by(splits: Mapping[str, int], shapes: Mapping[str, Shape]) -> Iterator[None]:
    """Have the reductions of graphs that are compiled in this context computed so.

    Args:
        splits: parts of a reduction, by the node of the graph that is lowered.
        shapes: of kernels, by a node of the problem.
    """
    if not splits and not shapes:
        yield
        return
    if splits:
        _dispatch_lowering()
    if shapes:
        _dispatch_codegen()
    with holding(_active, _Reductions(splits, shapes)):
        yield


def check_split() -> None:
    """See that each reduction that is to be cut was met. For when a graph is lowered.

    Raises:
        PlanError: one was not; names it.
    """
    wanted = _active.get()
    if wanted is None:
        return
    for name, parts in wanted.splits.items():
        why = "it is no reduction that Inductor could cut" if name not in wanted.met else ""
        why = wanted.uncut.get(name, why)
        if why:
            raise _refused(f"{name!r} cannot be cut into {parts}: {why}")


def check_shaped() -> None:
    """See that each kernel looks as is wanted. For when all code is generated.

    Raises:
        PlanError: one does not; names it.
    """
    wanted = _active.get()
    if wanted is None:
        return
    for name, shape in wanted.shapes.items():
        if name not in wanted.shaped:
            raise _refused(f"the kernel of {name!r} is not one that can be {shape}")


def _refused(why: str) -> PlanError:
    return PlanError(why, subject="schedule", remedy="leave the choice out, or search again")


@once
def _dispatch_lowering() -> None:
    original = ir.Reduction.num_splits

    @functools.wraps(original)
    def num_splits(
        device: Any,
        dst_dtype: Any,
        src_dtype: Any,
        inner_fn: Any,
        ranges: Sequence[Any],
        reduction_ranges: Sequence[Any],
        reduction_type: Any,
        reduction_numel: Any,
        input_node: Any = None,
    ) -> Any:
        hint, parts = original(
            device,
            dst_dtype,
            src_dtype,
            inner_fn,
            ranges,
            reduction_ranges,
            reduction_type,
            reduction_numel,
            input_node,
        )
        wanted = _active.get()
        node = getattr(V.graph, "current_node", None)
        if wanted is None or node is None or is_subgraph(V.graph):
            return hint, parts
        own = wanted.splits.get(node.name)
        if own is None or reduction_type in _NEVER_CUT:
            return hint, parts
        size = _size(ranges), _size([reduction_numel])
        # Both kernels of a reduction that is cut are reductions, too, of other sizes.
        if wanted.met.setdefault(node.name, size) != size:
            return hint, parts
        if own > 1 and (None in size or 2 * own > (size[1] or 0)):
            wanted.uncut[node.name] = f"it reduces {reduction_numel} elements, not to be cut so"
            return hint, parts
        return hint, own

    ir.Reduction.num_splits = staticmethod(num_splits)  # type: ignore[method-assign]


def _size(extents: Sequence[Any]) -> int | None:
    """Product of the extents; None where one is no number."""
    product = 1
    for extent in extents:
        if not getattr(extent, "is_number", isinstance(extent, int)):
            return None
        product *= int(extent)
    return product


def _power_of_two(size: int) -> int:
    """The size as heuristics see it: the least power of two that is no smaller."""
    return 1 << (size - 1).bit_length()


@once
def _dispatch_codegen() -> None:
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.codegen.triton_combo_kernel import ComboKernel

    choices_class = inductor_choices.InductorChoices
    persistent = choices_class.should_use_persistent_reduction
    cooperative = TritonKernel.should_use_cooperative_reduction

    @functools.wraps(persistent)
    def should_persist(features: Any, cooperative_reduction: bool) -> bool:
        wanted = _active.get()
        found = None if wanted is None else wanted.shape_of(features)
        if found is None or found[1] == "cooperative":
            return bool(persistent(features, cooperative_reduction))
        name, shape = found
        if shape == "looped":
            return False
        length = _size([features.reduction_numel])
        if length is None or length > _MOST_HELD:
            raise _refused(f"{name!r} reduces {length} elements, more than a block can hold")
        return True

    @functools.wraps(cooperative)
    def should_cooperate(self: Any) -> bool:
        wanted = _active.get()
        found = None if wanted is None else wanted.shape_of(self.features)
        if found is None:
            return bool(cooperative(self))
        if not self.inside_reduction or found[1] != "cooperative":
            return False
        rows, length = (_size([n]) for n in (self.features.numel, self.features.reduction_numel))
        if rows and length and _power_of_two(length) < _SHARED // _power_of_two(rows):
            raise _refused(f"{found[0]!r} reduces {length} elements, too few for blocks to share")
        return True

    choices_class.should_use_persistent_reduction = staticmethod(should_persist)  # type: ignore[method-assign]
    TritonKernel.should_use_cooperative_reduction = should_cooperate  # type: ignore[method-assign]
    for kernel_class in (TritonKernel, ComboKernel):
        _watch_codegen(kernel_class)


def _watch_codegen(kernel_class: Any) -> None:
    original = kernel_class.codegen_kernel

    @functools.wraps(original)
    def codegen_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _active.get()
        if wanted is not None:
            for kernel in getattr(self, "sub_kernels", None) or [self]:
                found = wanted.shape_of(kernel.features)
                if found is not None and _shape(kernel) == found[1]:
                    wanted.shaped.add(found[0])
        return original(self, *args, **kwargs)

    kernel_class.codegen_kernel = codegen_kernel


def _shape(kernel: Any) -> Shape | None:
    if not kernel.features.is_reduction():
        return None
    if kernel.cooperative_reduction:
        return "cooperative"
    return "persistent" if kernel.persistent_reduction else "looped"
