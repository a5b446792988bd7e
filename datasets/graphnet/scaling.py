"""Fits a graph to another dtype and a larger batch.

A captured graph has its batch baked in as literals and its dtype as conversions. Both are
rewritten node by node on fake tensors: a node that fails, or whose result does not follow the
batch, is tried with each literal and operand changed in turn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fusewise.datasets.graphnet.cutting import is_extern, name_of
from fusewise.datasets.graphnet.meta import TensorMeta, Unloadable, draw
from fusewise.datasets.graphnet.source import CPU
from fusewise.datasets.graphnet.tracing import Folder, Trace, is_data_dependent, quietly, tensors
from fusewise.datasets.graphnet.work import flops

#: A leading size above this is no batch.
_LARGEST_BATCH = 64
#: Buffers up to this many elements may be read as numbers by the model.
_SMALL = 16
_TAKES_SHAPE = {
    *("view", "reshape", "expand", "repeat", "broadcast_to", "unflatten", "tile", "new_zeros"),
    *("new_ones", "new_full", "new_empty", "zeros", "ones", "full", "empty", "rand", "randn"),
}
_VIEWS = {"view", "reshape"}
#: Factories that a model calls with its own dtype.
_ONE_DTYPE = {"layer_norm", "group_norm", "instance_norm", "prelu", "index_put", "scatter_add_"}
_FACTORIES = {"full", "zeros", "ones", "empty", "tensor", "new_zeros", "new_ones", "new_full"}


@dataclass(frozen=True)
class Edit:
    """Other arguments for a node, and methods to call on some operands first."""

    args: Any
    kwargs: Any
    calls: Mapping[fx.Node, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """A graph with its arguments and its run."""

    graph: fx.Graph
    #: Of each placeholder that is a tensor.
    inputs: dict[fx.Node, TensorMeta]
    trace: Trace
    #: 1 where the graph did not follow.
    factor: int


@dataclass(frozen=True)
class Most:
    """How large the parts of a scaled program may be."""

    #: Of one activation.
    bytes: int
    #: Of one extern operation.
    flops: int


UNBOUNDED = Most(1 << 62, 1 << 62)


def is_weight(name: str) -> bool:
    """Whether the argument of that name is a parameter or buffer of the model."""
    return "_parameters_" in name or "_buffers_" in name or name.startswith("L_self_")


def fit(
    graph: fx.Graph,
    metas: Mapping[str, TensorMeta],
    dtype: torch.dtype | None = None,
    factor: int = 1,
    most: Most = UNBOUNDED,
) -> Fitted:
    """``graph`` with fp32 arguments in ``dtype`` and ``factor`` times the batch.

    ``graph`` is changed. Where it cannot follow the batch, the result has its own batch. The
    factor is halved until it keeps to ``most``.

    Raises:
        Unloadable: an argument is not described, or the graph does not run in ``dtype``.
    """
    with quietly():
        return _fit(graph, metas, dtype, factor, most)


def _fit(
    graph: fx.Graph,
    metas: Mapping[str, TensorMeta],
    dtype: torch.dtype | None,
    factor: int,
    most: Most,
) -> Fitted:
    inputs, numbers = _inputs(graph, metas, dtype)
    generator = torch.Generator().manual_seed(0)
    small = {
        node: draw(meta, generator)
        for node, meta in inputs.items()
        if is_weight(meta.name) and math.prod(meta.shape) <= _SMALL
    }
    trace = _plain(graph, inputs, Folder(small, numbers), dtype)
    made = [node for node in trace.values if node not in inputs]
    largest = max((_bytes(trace.values[node]) for node in made), default=0)
    work = max((flops(node, trace.values) for node in made), default=0)
    while factor > 1 and (largest * factor > most.bytes or work * factor > most.flops):
        factor //= 2
    if factor > 1 and (batch := _batch(inputs)) is not None:
        scaled = {n: _scaled(m, batch, factor) for n, m in inputs.items()}
        larger = _Scaling(graph, trace, batch, factor).run(scaled)
        if larger is not None:
            return Fitted(graph, scaled, larger, factor)
    return Fitted(graph, inputs, trace, 1)


def _inputs(
    graph: fx.Graph, metas: Mapping[str, TensorMeta], dtype: torch.dtype | None
) -> tuple[dict[fx.Node, TensorMeta], dict[fx.Node, int]]:
    inputs: dict[fx.Node, TensorMeta] = {}
    numbers: dict[fx.Node, int] = {}
    for node in graph.find_nodes(op="placeholder"):
        meta = metas.get(str(node.target))
        if meta is None:
            raise Unloadable(f"its metadata does not describe the argument {node.target!r}")
        if "Sym" in node.meta["annotation"]:
            numbers[node] = int((meta.data or (0,))[0])
        elif dtype is not None and meta.dtype is torch.float32:
            inputs[node] = replace(meta, dtype=dtype)
        else:
            inputs[node] = meta
    return inputs, numbers


def _empty(mode: FakeTensorMode, meta: TensorMeta) -> torch.Tensor:
    with mode:
        return torch.empty(meta.shape, dtype=meta.dtype, device=CPU)


def _plain(
    graph: fx.Graph,
    inputs: Mapping[fx.Node, TensorMeta],
    folder: Folder,
    dtype: torch.dtype | None,
) -> Trace:
    """Run the graph at its own batch; literals are folded and operands cast on the way."""
    trace = Trace(FakeTensorMode())
    nesting = 0
    try:
        for node in list(graph.nodes):
            if node.op == "placeholder":
                if node in inputs:
                    trace.values[node] = _empty(trace.mode, inputs[node])
                continue
            folder.rewrite(node)
            if node.op == "output" or folder.read(node):
                continue
            if dtype is not None:
                _retype(node, dtype)
            try:
                value = _run_cast(graph, trace, node, dtype)
            except Exception as error:
                if is_data_dependent(error):
                    trace.ended = f"{type(error).__name__} at {node.name}"
                    break
                raise Unloadable(f"{_where(node)} fails: {error}"[:300]) from error
            nesting += _nests(node)
            if not trace.writes[node] and folder.fold(node, value):
                del trace.values[node]
    finally:
        _unnest(nesting)
    if not trace.ended:
        folder.rewrite(graph.output_node())
    folder.erase(graph)
    return trace


def _nests(node: fx.Node) -> int:
    name = getattr(node.target, "__name__", "")
    return (name == "_vmap_increment_nesting") - (name == "_vmap_decrement_nesting")


def _unnest(levels: int) -> None:
    for _ in range(levels):
        torch._C._functorch._vmap_decrement_nesting()


def _where(node: fx.Node) -> str:
    return f"{getattr(node.target, '__name__', node.target)} ({node.name})"


def _retype(node: fx.Node, dtype: torch.dtype) -> None:
    """Literals of fp32 that the model would have written in its own dtype."""
    limits = torch.finfo(dtype)
    name = getattr(node.target, "__name__", node.target)

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, float) and math.isfinite(leaf):
            return max(limits.min, min(limits.max, leaf))
        return dtype if leaf is torch.float32 and name in _FACTORIES else leaf

    node.args, node.kwargs = pytree.tree_map(changed, (node.args, node.kwargs))


def _run_cast(graph: fx.Graph, trace: Trace, node: fx.Node, dtype: torch.dtype | None) -> Any:
    """Run a node; if it mixes dtypes that torch does not, cast its floats to ``dtype``."""
    real = {
        operand: value.dtype
        for operand in node.all_input_nodes
        if isinstance(value := trace.values[operand], torch.Tensor) and value.is_floating_point()
    }
    other = [operand for operand, own in real.items() if own is not dtype]
    edit = Edit(node.args, node.kwargs, dict.fromkeys(other, ("to", (dtype,))))
    uniform = is_extern(node) or name_of(node) in _ONE_DTYPE
    if dtype is not None and uniform and len(set(real.values())) > 1:
        # Kernels refuse it, fake tensors do not.
        return _apply(graph, trace, node, edit)
    try:
        return trace.record(node, partial(trace.run, node, node.args, node.kwargs))
    except Exception as error:
        if dtype is None or not other or is_data_dependent(error):
            raise
        return _apply(graph, trace, node, edit)


def _apply(graph: fx.Graph, trace: Trace, node: fx.Node, edit: Edit) -> Any:
    """Change the graph as ``edit`` says and run the node.

    Raises whatever the node raises; the graph is as before then.
    """
    made: dict[fx.Node, fx.Node] = {}
    before = (node.args, node.kwargs)
    with graph.inserting_before(node):
        for operand, (method, rest) in edit.calls.items():
            made[operand] = graph.call_method(method, (operand, *rest))
    try:
        for new in made.values():
            trace.record(new, partial(trace.run, new, new.args, new.kwargs))
        node.args, node.kwargs = fx.map_arg((edit.args, edit.kwargs), lambda n: made.get(n, n))
        return trace.record(node, partial(trace.run, node, node.args, node.kwargs))
    except Exception:
        node.args, node.kwargs = before
        for new in made.values():
            trace.values.pop(new, None)
            trace.writes.pop(new, None)
            graph.erase_node(new)
        raise


def _batch(inputs: Mapping[fx.Node, TensorMeta]) -> int | None:
    """The leading size that most of the model's own arguments have."""
    free = [m.shape[0] for m in inputs.values() if not is_weight(m.name) and m.shape]
    if not free:
        return None
    counts = Counter(free)
    batch = max(sorted(counts), key=counts.__getitem__)
    return batch if 0 < batch <= _LARGEST_BATCH else None


def _scaled(meta: TensorMeta, batch: int, factor: int) -> TensorMeta:
    if is_weight(meta.name) or not meta.shape or meta.shape[0] != batch:
        return meta
    data = None if meta.data is None else meta.data * factor
    return replace(meta, shape=(batch * factor, *meta.shape[1:]), data=data)


class _Scaling:
    """One run with a larger batch beside the run with the graph's own."""

    def __init__(self, graph: fx.Graph, base: Trace, batch: int, factor: int) -> None:
        self.graph, self.base = graph, base
        self.batch, self.factor = batch, factor
        self._undo: list[tuple[fx.Node, Any, Any, list[fx.Node]]] = []

    def run(self, inputs: Mapping[fx.Node, TensorMeta]) -> Trace | None:
        """The larger run, with the graph rewritten; None, with the graph as before."""
        trace = Trace(self.base.mode, ended=self.base.ended)
        nesting, grew = 0, False
        try:
            for node in self.graph.nodes:
                if node in inputs:
                    trace.values[node] = _empty(trace.mode, inputs[node])
                elif node in self.base.values:
                    if not self._settle(trace, node):
                        self._take_back()
                        return None
                    nesting += _nests(node)
                    grew = grew or _grew(self.base.values[node], trace.values[node])
        finally:
            _unnest(nesting)
        if not grew:
            self._take_back()
            return None
        return trace

    def _settle(self, trace: Trace, node: fx.Node) -> bool:
        """Whether the node's result follows the batch, after the first edit with which it does."""
        for strict in (True, False):
            for edit in self._edits(trace, node):
                try:
                    replaced = self._called(trace, edit)
                    value = trace.record(node, partial(self._try, trace, node, edit, replaced))
                except Exception:  # noqa: BLE001 - any failure only means: try the next
                    continue
                if self._follows(trace, node, value, strict=strict):
                    self._write(trace, node, edit, replaced)
                    return True
        return False

    def _called(self, trace: Trace, edit: Edit) -> dict[fx.Node, torch.Tensor]:
        with trace.mode, torch.no_grad():
            return {
                operand: getattr(trace.values[operand], method)(*rest)
                for operand, (method, rest) in edit.calls.items()
            }

    def _try(self, trace: Trace, node: fx.Node, edit: Edit, replaced: Any) -> Any:
        return trace.run(node, edit.args, edit.kwargs, replaced)

    def _write(self, trace: Trace, node: fx.Node, edit: Edit, replaced: Any) -> None:
        """Put an accepted edit into the graph."""
        if not edit.calls and edit.args is node.args:
            return
        made: dict[fx.Node, fx.Node] = {}
        value = trace.values.pop(node)
        with self.graph.inserting_before(node):
            for operand, (method, rest) in edit.calls.items():
                made[operand] = new = self.graph.call_method(method, (operand, *rest))
                trace.values[new], trace.writes[new] = replaced[operand], frozenset()
        trace.values[node] = value
        self._undo.append((node, node.args, node.kwargs, list(made.values())))
        node.args, node.kwargs = fx.map_arg((edit.args, edit.kwargs), lambda n: made.get(n, n))

    def _take_back(self) -> None:
        for node, args, kwargs, made in reversed(self._undo):
            node.args, node.kwargs = args, kwargs
            for new in made:
                self.graph.erase_node(new)

    def _edits(self, trace: Trace, node: fx.Node) -> Iterator[Edit]:
        yield Edit(node.args, node.kwargs)
        name = getattr(node.target, "__name__", node.target)
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        if name in _TAKES_SHAPE:
            for i, leaf in enumerate(leaves):
                if type(leaf) is int and leaf > 0 and leaf % self.batch == 0:
                    larger = [*leaves[:i], leaf * self.factor, *leaves[i + 1 :]]
                    yield Edit(*pytree.tree_unflatten(larger, spec))
        fixed = [operand for operand in node.all_input_nodes if self._is_fixed(trace, operand)]
        for chosen in [[operand] for operand in fixed] + ([fixed] if len(fixed) > 1 else []):
            yield Edit(node.args, node.kwargs, {o: self._repeat(trace, o) for o in chosen})

    def _is_fixed(self, trace: Trace, operand: fx.Node) -> bool:
        """Whether the operand has a batch of its own that did not grow."""
        value, base = trace.values.get(operand), self.base.values.get(operand)
        if not isinstance(value, torch.Tensor) or not isinstance(base, torch.Tensor):
            return False
        return value.dim() > 0 and 0 < value.shape[0] == base.shape[0]

    def _repeat(self, trace: Trace, operand: fx.Node) -> tuple[str, tuple[Any, ...]]:
        value = trace.values[operand]
        if value.shape[0] == 1:
            return "expand", (self.factor, *[-1] * (value.dim() - 1))
        return "repeat", (self.factor, *[1] * (value.dim() - 1))

    def _follows(self, trace: Trace, node: fx.Node, value: Any, *, strict: bool) -> bool:
        new, old = tensors(value), tensors(self.base.values[node])
        if len(new) != len(old):
            return False
        for a, b in zip(old, new, strict=True):
            if a.dim() != b.dim():
                return False
            pairs = list(zip(a.shape, b.shape, strict=True))
            if any(size not in (own, own * self.factor) for own, size in pairs):
                return False
            if strict and pairs and a.shape != b.shape and not self._outermost(trace, node, a, b):
                return False
        return True

    def _outermost(self, trace: Trace, node: fx.Node, own: Any, larger: Any) -> bool:
        """A view of something batched outermost is batched outermost, not in its next size."""
        if node.target not in _VIEWS or larger.shape[0] != own.shape[0]:
            return True
        source = node.args[0]
        base = self.base.values[source]  # type: ignore[index]
        new = trace.values[source]  # type: ignore[index]
        return not (base.dim() and new.shape[0] == base.shape[0] * self.factor)


def _bytes(value: Any) -> int:
    return max((tensor.numel() * tensor.dtype.itemsize for tensor in tensors(value)), default=0)


def _grew(old: Any, new: Any) -> bool:
    pairs = zip(tensors(old), tensors(new), strict=True)
    return any(a.shape != b.shape for a, b in pairs)
