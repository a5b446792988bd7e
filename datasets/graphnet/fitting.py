"""Runs a captured graph on fake tensors in a wanted dtype and with a larger batch.

Both are limited to what keeps the program sensible: literals and operands follow the dtype, and the
batch grows until an activation or an extern operation becomes too large.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fusewise.datasets.graphnet.cutting import is_extern, name_of
from fusewise.datasets.graphnet.meta import TensorMeta, Unloadable, draw
from fusewise.datasets.graphnet.scaling import Edit, Scaling
from fusewise.datasets.graphnet.tracing import (
    Folder,
    Trace,
    empty,
    is_data_dependent,
    nests,
    quietly,
    tensors,
    unnest,
    where,
)
from fusewise.datasets.graphnet.work import flops

#: A leading size above this is no batch.
_LARGEST_BATCH = 64
#: Buffers up to this many elements may be read as numbers by the model.
_SMALL = 16
#: Operations besides the extern ones that refuse operands of different dtypes.
_ONE_DTYPE = {"layer_norm", "group_norm", "instance_norm", "prelu", "index_put", "scatter_add_"}
#: Factories that a model calls with its own dtype.
_FACTORIES = {"full", "zeros", "ones", "empty", "tensor", "new_zeros", "new_ones", "new_full"}


@dataclass(frozen=True)
class Fitted:
    """A graph with its arguments and its run."""

    graph: fx.Graph
    #: Of each placeholder that is a tensor.
    inputs: dict[fx.Node, TensorMeta]
    trace: Trace
    #: 1 where the graph did not follow.
    factor: int
    #: Why it did not; "" where it did, or was not asked to.
    kept: str = ""


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
        if not meta.shape or (is_weight(meta.name) and math.prod(meta.shape) <= _SMALL)
    }
    trace = _plain(graph, inputs, Folder(small, numbers), dtype)
    made = [node for node in trace.values if node not in inputs]
    largest = max((_bytes(trace.values[node]) for node in made), default=0)
    work = max((flops(node, trace.values) for node in made), default=0)
    while factor > 1 and (largest * factor > most.bytes or work * factor > most.flops):
        factor //= 2
    if factor > 1 and (batch := _batch(inputs)) is not None:
        scaled = {n: _scaled(m, batch, factor) for n, m in inputs.items()}
        scaling = Scaling(graph, trace, batch, factor)
        larger = scaling.run(scaled)
        if larger is None:
            return Fitted(graph, inputs, trace, 1, scaling.refusal)
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
                    trace.values[node] = empty(trace.mode, inputs[node])
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
                raise Unloadable(f"{where(node)} fails: {error}"[:300]) from error
            nesting += nests(node)
            # A level of vmap is a number too, but the run with a larger batch enters it again.
            if not trace.writes[node] and not nests(node) and folder.fold(node, value):
                del trace.values[node]
    finally:
        unnest(nesting)
    if not trace.ended:
        folder.rewrite(graph.output_node())
    folder.erase(graph)
    return trace


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


def _bytes(value: Any) -> int:
    return max((tensor.numel() * tensor.dtype.itemsize for tensor in tensors(value)), default=0)
