"""What a lowering went by: every figure that Inductor held against a threshold of its own.

A lowering under another threshold comes out the same where no figure lies between the two; so a
choice that could change nothing is known before anything is lowered under it. Watches only: with
no :class:`Figures` active in this context, Inductor runs as if fusewise were not there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch._inductor import config as inductor_config
from torch._inductor import graph as inductor_graph
from torch._inductor import ir

#: Settings that say whether fusions are refused for tiling, and whether loops are turned round.
TILING_SETTINGS = frozenset(
    {"triton.tiling_prevents_pointwise_fusion", "triton.tiling_prevents_reduction_fusion"}
)
ORDERING_SETTING = "loop_ordering_after_fusion"


class _Figure(NamedTuple):
    """One comparison: ``value > max(floor, threshold)``."""

    value: int
    floor: int
    threshold: int

    def answered(self, threshold: Any) -> bool:
        return self.value > max(self.floor, int(threshold))


#: Settings by what is held against them.
_ACCUMULATED = ("realize_acc_reads_threshold", "realize_cpu_acc_reads_threshold")
_REUSED = ("realize_reads_threshold",)
_OPERATIONS = ("realize_opcount_threshold", "realize_cpu_opcount_threshold")
_COMPARED: dict[str, tuple[str, ...]] = {
    name: names for names in (_ACCUMULATED, _REUSED, _OPERATIONS) for name in names
}
_SPLIT, _CAT = "split_reductions", "force_pointwise_cat"


class Figures:
    """What was held against thresholds in the lowerings of one context."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, ...], set[_Figure]] = {
            names: set() for names in (_ACCUMULATED, _REUSED, _OPERATIONS)
        }
        self._split = False
        self._joined = False

    def matter(self, patches: Mapping[str, Any]) -> bool:
        """Whether the lowering might have come out otherwise under other settings.

        Of a setting that is not watched nothing is known: it might.
        """
        return any(self._matters(name, value) for name, value in patches.items())

    def _matters(self, name: str, value: Any) -> bool:
        if name in _COMPARED:
            figures = self._figures[_COMPARED[name]]
            return any(f.answered(f.threshold) != f.answered(value) for f in figures)
        return {_SPLIT: self._split, _CAT: self._joined}.get(name, True)

    def _compared(self, names: tuple[str, ...], data: Any, value: int, floor: int = 0) -> None:
        threshold = _in_force(names, data)
        self._figures[names].add(_Figure(value, floor, threshold))


def _in_force(names: tuple[str, ...], data: Any) -> int:
    """The threshold that holds for a value: newer versions have one of their own for the CPU."""
    config: Any = inductor_config
    general = getattr(config, names[0])
    if general is not None:
        return int(general)
    if ir.is_cpu(data):
        return int(getattr(config, names[1]))
    return int(getattr(config, f"_{names[0]}_default"))


_active: ContextVar[Figures | None] = ContextVar("fusewise_figures", default=None)
_lock = threading.Lock()
_installed = False


@contextmanager
def noting(figures: Figures) -> Iterator[None]:
    """Take note of all that is held against thresholds in this context."""
    _install()
    token = _active.set(figures)
    try:
        yield
    finally:
        _active.reset(token)


def _install() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        _watch_boxes()
        _watch_loops()
        _watch_graph()
        _installed = True


def _watch_boxes() -> None:
    box_class = ir.StorageBox
    exceeded, reuse = box_class.has_exceeded_max_reads, box_class.should_realize_on_reuse

    @functools.wraps(exceeded)
    def watched_exceeded(self: ir.StorageBox) -> bool:
        figures = _active.get()
        if figures is not None and isinstance(self.data, ir.Pointwise):
            figures._compared(_ACCUMULATED, self.data, self.num_reads())
        return exceeded(self)

    @functools.wraps(reuse)
    def watched_reuse(self: ir.StorageBox, users: int, **kwargs: Any) -> bool:
        figures = _active.get()
        if figures is not None and users > 1 and isinstance(self.data, ir.Pointwise | ir.Reduction):
            figures._compared(_REUSED, self.data, self.num_reads())
        return reuse(self, users, **kwargs)

    box_class.has_exceeded_max_reads = watched_exceeded  # type: ignore[method-assign]
    box_class.should_realize_on_reuse = watched_reuse  # type: ignore[method-assign]


def _watch_loops() -> None:
    large = ir.Loops.has_large_inner_fn

    @functools.wraps(large)
    def watched_large(self: ir.Loops, threshold: int | None = None) -> bool:
        figures = _active.get()
        if figures is not None:
            operations = self.inner_fn_opcount().num_ops
            figures._compared(_OPERATIONS, self, operations, threshold or 0)
        return large(self, threshold)

    ir.Loops.has_large_inner_fn = watched_large  # type: ignore[method-assign]
    splits = ir.Reduction.num_splits

    @functools.wraps(splits)
    def watched_splits(*args: Any, **kwargs: Any) -> Any:
        found = splits(*args, **kwargs)
        figures = _active.get()
        if figures is not None and found[1] != 1:
            figures._split = True
        return found

    ir.Reduction.num_splits = staticmethod(watched_splits)  # type: ignore[method-assign]


def _watch_graph() -> None:
    run = inductor_graph.GraphLowering.run

    @functools.wraps(run)
    def watched_run(self: inductor_graph.GraphLowering, *args: Any) -> Any:
        figures = _active.get()
        if figures is not None:
            # Graphs within the graph, and what is lowered as something else, come by here too or
            # are of a kind of which nothing is known.
            nodes: Any = self.module.graph
            figures._joined |= any(_may_join(str(node.target)) for node in nodes.nodes)
        return run(self, *args)

    inductor_graph.GraphLowering.run = watched_run  # type: ignore[method-assign]


def _may_join(target: str) -> bool:
    return "cat" in target or "stack" in target
