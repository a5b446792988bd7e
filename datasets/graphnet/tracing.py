"""Runs a graph on fake tensors: what shape, storage and mutations each of its nodes has.

Nothing is computed. Python numbers that the run knows (sizes, an epsilon kept in a buffer) are
written into the graph as literals, so that afterwards every value that a node makes is a tensor
or a tuple of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree

from fusewise.datasets.graphnet.meta import TensorMeta, Unloadable
from fusewise.datasets.graphnet.source import CPU

#: What stands for the shape of a program that depends on its data.
_DATA_DEPENDENT = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "PendingUnbackedSymbolNotFound",
)
_READS_VALUE = ("item", "_local_scalar_dense")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's layout."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def elements(self) -> int:
        """Elements of memory that it spans."""
        if 0 in self.shape:
            return 0
        spans = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in spans)

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass
class Trace:
    """What a run found out about the nodes that it reached, in order."""

    mode: FakeTensorMode
    values: dict[fx.Node, Any] = field(default_factory=dict)
    #: Storages that a node writes to.
    writes: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    #: Why the run ended before the graph did; "" if it did not.
    ended: str = ""

    def run(
        self,
        node: fx.Node,
        args: Any,
        kwargs: Any,
        replaced: Mapping[fx.Node, torch.Tensor] | None = None,
    ) -> Any:
        """The fake result of ``node`` on ``args``; ``replaced`` stands in for some nodes."""
        values, instead = self.values, replaced or {}
        args, kwargs = fx.map_arg(
            (args, kwargs), lambda n: instead[n] if n in instead else values[n]
        )
        with self.mode, torch.no_grad():
            if isinstance(node.target, str):
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

    def record(self, node: fx.Node, run: Callable[[], Any]) -> Any:
        """Keep the result of ``run`` as the node's value, and what it wrote to."""
        read = [t for other in node.all_input_nodes for t in tensors(self.values[other])]
        before = [tensor._version for tensor in read]
        value = run()
        changed = [t for t, version in zip(read, before, strict=True) if t._version != version]
        self.values[node] = value
        self.writes[node] = frozenset(storage(tensor) for tensor in changed)
        return value

    def storages(self, node: fx.Node) -> frozenset[int]:
        """Storages of the tensors that ``node`` made."""
        return frozenset(storage(tensor) for tensor in tensors(self.values[node]))


def storage(tensor: torch.Tensor) -> int:
    """A number that two tensors share if they alias; good while either lives."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def is_batched(value: Any) -> bool:
    """Whether a value only has a meaning inside a vmap."""
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors(value))


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in tensors(part)]
    return []


class Folder:
    """Literals in place of nodes whose values are no tensors.

    Args:
        small: the data of small buffers, from which single numbers can be read.
    """

    def __init__(self, small: Mapping[fx.Node, torch.Tensor], numbers: Mapping[fx.Node, int]):
        self._small = dict(small)
        self._literals: dict[fx.Node, Any] = dict(numbers)

    def rewrite(self, node: fx.Node) -> None:
        """Put what is known of the node's arguments into the node."""
        if any(other in self._literals for other in node.all_input_nodes):
            node.args, node.kwargs = fx.map_arg(
                (node.args, node.kwargs), lambda n: self._literals.get(n, n)
            )

    def read(self, node: fx.Node) -> bool:
        """Whether ``node`` reads one number out of a small buffer; it is a literal from then on."""
        name = getattr(node.target, "__name__", node.target)
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source not in self._small:
            return False
        if name in _READS_VALUE and self._small[source].numel() == 1:
            self._literals[node] = self._small[source].item()
            return True
        if len(node.all_input_nodes) == 1 and name in ("getitem", "to", "float", "detach"):
            with suppress(Exception), unset_fake_temporarily():
                rest = (node.args[1:], node.kwargs)
                if node.op == "call_method":
                    method = getattr(self._small[source], str(node.target))
                    self._small[node] = method(*rest[0], **rest[1])
                else:
                    self._small[node] = self._small[source][rest[0][0]]  # type: ignore[index]
        return False

    def erase(self, graph: fx.Graph) -> None:
        """Take the nodes that became literals out of the graph, so that they use nothing."""
        for node in reversed(list(graph.nodes)):
            if node in self._literals and node.op != "placeholder" and not node.users:
                graph.erase_node(node)

    def fold(self, node: fx.Node, value: Any) -> bool:
        """Whether ``value`` is a literal, which then replaces the node."""
        if isinstance(value, torch.Tensor) or tensors(value):
            return False
        leaves = pytree.tree_leaves(value)
        if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
            raise Unloadable(f"the number {node.name} depends on data")
        self._literals[node] = tuple(value) if isinstance(value, torch.Size) else value
        return True


@contextmanager
def quietly() -> Iterator[None]:
    """Without the log of operations that fail on fake tensors: failing tries are expected."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def empty(mode: FakeTensorMode, meta: TensorMeta) -> torch.Tensor:
    """A fake tensor of that shape and dtype."""
    with mode:
        return torch.empty(meta.shape, dtype=meta.dtype, device=CPU)


def nests(node: fx.Node) -> int:
    """By how many levels of vmap the statement goes deeper."""
    name = getattr(node.target, "__name__", "")
    return (name == "_vmap_increment_nesting") - (name == "_vmap_decrement_nesting")


def unnest(levels: int) -> None:
    """Leave levels of vmap that a run which failed left open."""
    for _ in range(levels):
        torch._C._functorch._vmap_decrement_nesting()


def where(node: fx.Node) -> str:
    """A node as it is told of in refusals."""
    return f"{getattr(node.target, '__name__', node.target)} ({node.name})"


def is_data_dependent(error: BaseException) -> bool:
    """Whether the program's shapes depend on its data from there on."""
    return type(error).__name__ in _DATA_DEPENDENT
