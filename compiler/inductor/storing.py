"""Storing every value at lowering: what Inductor would compute inside its users gets a kernel.

A third point at which Inductor is met, beside those of :mod:`~fusewise.compiler.inductor.hooks`:
where it has lowered one operator of the captured graph. Decides nothing by itself and does nothing
outside of :func:`storing_every_value`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._inductor import graph as inductor_graph
from torch._inductor import ir
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from fusewise.compiler.inductor.hooks import is_subgraph
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.compiler.inductor.values import box_of, is_stored


class Stored:
    """What became of the operators of one graph."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        #: For each operation that the scheduler will see, the captured operator that it computes.
        self.operator: dict[str, str] = {}

    def store(self, graph: inductor_graph.GraphLowering, lower: Callable[[], Any]) -> Any:
        """Lower one operator, and store what it gives wherever that is computed at all.

        Values on another device than the graph's (a number that a GPU kernel takes from the CPU)
        stay as they are: a kernel there would have to be waited for.
        """
        before = len(graph.operations)
        result = lower()
        for value in pytree.tree_leaves(result):
            box = box_of(value)
            if box is None or is_stored(box):
                continue
            if _device_type(box) == self._device_type:
                box.realize()
        node = V.graph.current_node
        for operation in graph.operations[before:]:
            self.operator[operation.get_operation_name()] = node.name
        return result


def _device_type(box: ir.StorageBox) -> str:
    device = box.get_device()
    return "" if device is None else str(device.type)


_active: ContextVar[Stored | None] = ContextVar("fusewise_stored", default=None)


@contextmanager
def storing_every_value(device_type: str) -> Iterator[Stored]:
    """Store each value that graphs lowered in this context compute on ``device_type``."""
    _install()
    stored = Stored(device_type)
    with holding(_active, stored):
        yield stored


@once
def _install() -> None:
    original = inductor_graph.GraphLowering.call_function

    @functools.wraps(original)
    def call_function(
        self: inductor_graph.GraphLowering, target: Any, args: Any, kwargs: Any
    ) -> Any:
        stored = _active.get()
        lower = functools.partial(original, self, target, args, kwargs)
        return lower() if stored is None or is_subgraph(self) else stored.store(self, lower)

    inductor_graph.GraphLowering.call_function = call_function  # type: ignore[method-assign]
