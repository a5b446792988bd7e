"""From a live scheduler to a :class:`Problem`: nodes, accesses, buffers, dependencies.

Reads only; generates no code and changes nothing on the nodes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import sympy
import torch.fx
from torch._inductor import dependencies as inductor_deps
from torch._inductor import ir, mkldnn_ir
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.utils import sympy_product, sympy_subs
from torch._inductor.virtualized import V
from torch.utils._sympy.symbol import SymT, make_symbol

from fusewise.compiler.inductor import bodies
from fusewise.compiler.inductor.computed import computed
from fusewise.compiler.inductor.origins import (
    module_path,
    origins_of,
    positions,
    source_line,
    written_as,
)
from fusewise.compiler.inductor.plans import node_name, owners
from fusewise.schedule.problem import (
    UNPLACED,
    Access,
    AccessKind,
    Buffer,
    Computed,
    Dependency,
    Node,
    NodeKind,
    PossibleFusion,
    Problem,
)

_SchedulerNode = inductor_scheduler.BaseSchedulerNode
#: Nodes of the wrapper's own: sizes that are read from a tensor, checks of sizes, and names of what
#: a call gave several of.
_NAMES_AND_SIZES: tuple[type, ...] = tuple(
    getattr(ir, name)
    for name in (
        "AssertScalar",
        "DynamicScalar",
        "DynamicSelectStorageOffset",
        "DynamicSliceSize",
        "MultiOutput",
    )
    if hasattr(ir, name)
)


def extract_problem(
    scheduler: inductor_scheduler.Scheduler,
    nodes: Sequence[_SchedulerNode],
    *,
    key: str,
    kind: Literal["forward", "backward", "inference"],
    possible_fusions: Sequence[PossibleFusion] = (),
) -> Problem:
    """Describe the graph that ``scheduler`` holds before it fuses ``nodes``."""
    owner = owners(nodes)
    buffers = _buffers(scheduler, nodes, owner)
    sizes = {buffer.name: buffer for buffer in buffers}
    position = positions()
    return Problem(
        key=key,
        kind=kind,
        nodes=tuple(_node(node, i, sizes, position) for i, node in enumerate(nodes)),
        buffers=buffers,
        dependencies=tuple(_dependencies(scheduler, nodes, owner)),
        possible_fusions=tuple(possible_fusions),
    )


#: What a size is taken to be of which nothing is known.
UNKNOWN = 8192


def hint(expr: Any) -> int:
    """Size of a possibly symbolic expression as the compiler guesses it; :data:`UNKNOWN` if not."""
    if isinstance(expr, int):
        return expr
    return int(V.graph.sizevars.optimization_hint(expr, fallback=UNKNOWN))


def runs_nothing(operation: Any) -> bool:
    """Whether an operation is only a line of the wrapper: nothing is called for it."""
    return isinstance(operation, _NAMES_AND_SIZES)


def score_of(scheduler: inductor_scheduler.Scheduler, node1: Any, node2: Any) -> tuple[int, ...]:
    """Inductor's own score of a fusion, most significant part first."""
    score: Any = V.choices.score_fusion(scheduler, node1, node2)
    # A dataclass in newer versions, a tuple in older ones.
    parts = dataclasses.asdict(score).values() if hasattr(score, "__dataclass_fields__") else score
    return tuple(int(part) for part in parts)


def signature_with(live: _SchedulerNode, node: Node, reads: Sequence[Access]) -> str:
    """The signature that ``node`` would have if its reads stood in another order.

    They stand in the order of their buffers' names, so that a graph whose inputs are called
    otherwise gives other signatures.
    """
    return _signature(
        live, node.kind, node.ranges, node.reduction_type, reads, node.writes, node.origins
    )


def _node(
    node: _SchedulerNode,
    order: int,
    buffers: dict[str, Buffer],
    position: Mapping[torch.fx.Node, int],
) -> Node:
    ranges = _ranges(node)
    kind = _kind(node)
    loops = (*ranges[0], *ranges[1])
    body = getattr(node, "_body", None)
    operations, held = ((), {}) if body is None else _computed(body)
    reads = tuple(_accesses(node.read_writes.reads, buffers, loops, math.prod(loops), held))
    writes = tuple(_accesses(node.read_writes.writes, buffers, loops, 0, {}))
    reduction_type = _reduction_type(node)
    origins, source = _origins(node, position)
    operators = tuple(str(origin.target) for origin in origins)
    generated = kind in {"pointwise", "reduction", "scan", "sort"}
    return Node(
        name=node_name(node),
        kind=kind,
        device=str(node.get_device()),
        numel=math.prod(ranges[0]),
        rnumel=math.prod(ranges[1]),
        ranges=ranges,
        reduction_type=reduction_type,
        reads=reads,
        writes=writes,
        ops=() if body is None else bodies.operations(body),
        origins=operators,
        source=source,
        order=order,
        compiler_us=0.0 if kind == "nop" else _compiler_us(node),
        flops=0 if generated else _flops(node, origins),
        signature=_signature(node, kind, ranges, reduction_type, reads, writes, operators),
        hint=_hint(node),
        library=_library(node),
        computed=operations,
        modules=tuple(module_path(origin) for origin in origins),
        fx_names=tuple(origin.name for origin in origins),
        sources=tuple(source_line(origin) for origin in origins),
        written_as=tuple(written_as(origin) for origin in origins),
    )


def _kind(node: _SchedulerNode) -> NodeKind:
    if isinstance(node, inductor_scheduler.NopKernelSchedulerNode) or runs_nothing(node.node):
        return "nop"
    if node.is_foreach():
        return "foreach"
    if node.is_template():
        return "template"
    if not isinstance(node, inductor_scheduler.SchedulerNode):
        return "extern"
    data = getattr(node.node, "data", None)
    if isinstance(data, ir.Scan):
        return "scan"
    if isinstance(data, ir.Sort):
        return "sort"
    return "reduction" if node.is_reduction() else "pointwise"


def _flops(node: _SchedulerNode, origins: Sequence[torch.fx.Node]) -> int:
    """Operations of a library call or a template; 0 where unknown."""
    counted = node.estimate_flops()
    if not counted:
        # Inductor counts those of the one operator that a node says it is of. No template does,
        # nor a library call whose result a lowering rounds; that is of the last operator, others
        # are of what it reads.
        own = origins if node.is_template() else origins[-1:]
        counted = sum(map(_operations, own))
    return int(counted or 0)


def _operations(origin: torch.fx.Node) -> int:
    flops: Any = count_flops_fx(origin)
    # Asking a symbol for its number would have the program compiled for that one alone.
    return hint(flops.node.expr) if isinstance(flops, torch.SymInt) else flops or 0


def _reduction_type(node: _SchedulerNode) -> str:
    data = getattr(node.node, "data", None)
    return str(getattr(data, "reduction_type", "") or "")


def _hint(node: _SchedulerNode) -> str:
    """The reduction hint of a node on a GPU: not in its loops, but it decides the block sizes."""
    hint = getattr(getattr(node.node, "data", None), "reduction_hint", None)
    return hint.name.lower() if hint is not None and node.is_reduction() and node.is_gpu() else ""


def _library(node: _SchedulerNode) -> str:
    """The library of an extern product, where a schedule chose another than Inductor takes."""
    return "onednn" if isinstance(node.node, mkldnn_ir.LinearUnary) else ""


def _ranges(node: _SchedulerNode) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = getattr(node, "_sizes", None)
    if sizes is None or len(sizes) != 2:  # noqa: PLR2004
        layout = getattr(node.node, "layout", None)
        return (hint(sympy_product(layout.size)) if isinstance(layout, ir.Layout) else 1,), ()
    return tuple(map(hint, sizes[0])), tuple(map(hint, sizes[1]))


def _compiler_us(node: _SchedulerNode) -> float:
    """Inductor's estimate in microseconds (it gives milliseconds); 0 where it has none.

    To six digits: more are noise, which problems that are kept would be larger by.
    """
    milliseconds = float(node.get_estimated_runtime())
    return float(f"{milliseconds * 1e3:.6g}") if math.isfinite(milliseconds) else 0.0


def _computed(body: Any) -> tuple[tuple[Computed, ...], dict[inductor_deps.Dep, float]]:
    """What a body computes, and of its reads under masks how often these let them be."""
    operations, loads = computed(body, hint)
    if all(load.held == 1.0 for load in loads):
        return operations, {}
    places, ranges = inductor_deps.index_vars_squeeze(*body.sizes, prefix="d")
    found = body.indexing_from_args(places)
    # As the compiler names places that were looked up.
    names = {v: make_symbol(SymT.TMP, i) for i, v in enumerate(body.indirect_vars)}
    held: dict[inductor_deps.Dep, float] = {}
    for normalize in (True, False):
        recorder = inductor_deps._RecordLoadStoreInner(ranges, normalize)
        for load in loads:
            index = sympy_subs(found[load.place], names)
            dep = inductor_deps.MemoryDep(load.buffer, *recorder.canonicalize(index))
            held[dep] = max(load.held, held.get(dep, 0.0))
    return operations, held


def _accesses(
    deps: Iterable[inductor_deps.Dep],
    buffers: dict[str, Buffer],
    loops: Sequence[int],
    iterations: int,
    held: Mapping[inductor_deps.Dep, float],
) -> Iterable[Access]:
    """Describe ``deps`` of a nest of ``loops``, which touch an element in so many iterations.

    ``held`` is the share of these in which they are wanted, where it is not all.
    """
    for dep in sorted(deps, key=str):
        if isinstance(dep, inductor_deps.WeakDep):
            continue
        buffer = buffers.get(dep.name)
        size = buffer.bytes if buffer else 0
        if not isinstance(dep, inductor_deps.MemoryDep):
            yield Access(dep.name, "opaque", 0, size, 1, 0, "*")
            continue
        itemsize = _itemsize(dep.name)
        # Inductor leaves loops that an index does not use out of the dependency.
        touched = max(math.prod(hint(s) for s in dep.size), iterations)
        distinct = hint(dep.get_numel()) * itemsize
        merged = dep.normalize()
        yield Access(
            buffer=dep.name,
            kind=_access_kind(dep, touched),
            touched=touched,
            # A gather's indices can point anywhere in the buffer, but not at more than they are.
            bytes=min(distinct, touched * itemsize, size or distinct),
            itemsize=itemsize,
            stride=_innermost_stride(dep),
            index=_canonical_index(merged),
            along=_along(merged, loops),
            held=held.get(dep, 1.0),
        )


def _itemsize(buffer: str) -> int:
    dtype = V.graph.get_dtype(buffer)
    return int(dtype.itemsize)


def _access_kind(dep: inductor_deps.MemoryDep, touched: int) -> AccessKind:
    if dep.mode is not None:
        return "atomic"
    if dep.is_indirect():
        return "gather"
    if hint(dep.get_numel()) < touched:
        return "broadcast"
    return "contiguous" if _innermost_stride(dep) == 1 else "strided"


def _innermost_stride(dep: inductor_deps.MemoryDep) -> int:
    if not dep.var_names:
        return 0
    last = dep.var_names[-1]
    if last not in dep.index.free_symbols:
        return 0
    step = sympy.expand(dep.index.subs(last, last + 1) - dep.index)
    # A stride that depends on the position (division, modulo) has no one value: as bad as a jump.
    return hint(step) if not (step.free_symbols & set(dep.var_names)) else 2


def _canonical_index(merged: inductor_deps.MemoryDep) -> str:
    """The index over the loop variables that it uses, loops ``merged`` where they are contiguous.

    So a pointwise write over [4096] and a reduction's read over [64, 64] of the same elements in
    the same order agree, and so does a broadcast read with the write of what it repeats.
    """
    used = [
        (var, size)
        for var, size in zip(merged.var_names, merged.size, strict=True)
        if var in merged.index.free_symbols
    ]
    renamed = {var: sympy.Symbol(f"i{k}") for k, (var, _) in enumerate(used)}
    return f"{merged.index.xreplace(renamed)} : {', '.join(str(size) for _, size in used)}"


def _along(merged: inductor_deps.MemoryDep, loops: Sequence[int]) -> int:
    """Which of ``loops`` the index uses, as in :attr:`Access.along`.

    A dependency has the loops from the outermost on, neighbours as one where the index lets them,
    and leaves out only those inside the last that it uses.
    """
    turning = [extent for extent in loops if extent > 1]
    used = at = 0
    for var, size in zip(merged.var_names, map(hint, merged.size), strict=True):
        turns = 1
        while turns < size and at < len(turning):
            turns *= turning[at]
            used |= (var in merged.index.free_symbols) << at
            at += 1
        if turns != size:
            return UNPLACED
    return used


def _origins(
    node: _SchedulerNode, position: Mapping[torch.fx.Node, int]
) -> tuple[tuple[torch.fx.Node, ...], str]:
    """The operations that ended up in ``node``, and the line of the last one that has any."""
    origins = origins_of(node.get_nodes(), position)
    source = next(filter(None, map(source_line, reversed(origins))), "")
    return tuple(o for o in origins if o.op == "call_function"), source


def _signature(
    node: _SchedulerNode,
    kind: str,
    ranges: tuple[tuple[int, ...], tuple[int, ...]],
    reduction_type: str,
    reads: Sequence[Access],
    writes: Sequence[Access],
    origins: Sequence[str],
) -> str:
    names: dict[str, str] = {}
    turning = [extent for extent in (*ranges[0], *ranges[1]) if extent > 1]
    ends = combinations(range(len(turning) + 1), 2)
    runs = [math.prod(turning[first:last]) for first, last in ends]

    def anonymous(access: Access) -> tuple[Any, ...]:
        name = names.setdefault(access.buffer, f"b{len(names)}")
        # Where two runs of loops are as long, the index does not say which it goes along.
        along = (access.along,) if len(runs) > len(set(runs)) else ()
        told = (access.kind, access.touched, access.bytes, access.itemsize, access.index)
        return (name, *told, *along)

    accesses = [anonymous(a) for a in (*reads, *writes)]
    body = getattr(node, "_body", None)
    code = bodies.code(body) if body is not None else str(origins)
    text = repr((kind, str(node.get_device()), ranges, reduction_type, accesses, code))
    text += _hint(node) + _library(node)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _buffers(
    scheduler: inductor_scheduler.Scheduler,
    nodes: Sequence[_SchedulerNode],
    owner: dict[str, str],
) -> tuple[Buffer, ...]:
    outputs = set(V.graph.get_output_names())
    written: dict[str, Buffer] = {}
    for name, buf in scheduler.name_to_buf.items():
        # A buffer that mutates another is that other one's memory: it can never stay in a register.
        kept = name in outputs or bool(buf.get_mutations()) or _used_by_output(buf)
        # Weak users only have to wait for it.
        reading = [user.get_name() for user in buf.users if not user.is_weak]
        users = {owner.get(user, "") for user in reading} - {""}
        written[name] = Buffer(
            name=name,
            bytes=_bytes(buf.node),
            dtype=str(buf.node.maybe_get_dtype() or "") if buf.node is not None else "",
            is_input=False,
            is_output=kept,
            users=tuple(sorted(users, key=lambda n: (len(n), n))),
            aliases=tuple(sorted({*buf.get_aliases(), *buf.get_mutations()})),
        )
    read: dict[str, list[str]] = {}
    for node in nodes:
        for dep in node.read_writes.reads:
            if dep.name not in written:
                read.setdefault(dep.name, []).append(node_name(node))
    inputs = [
        Buffer(
            name=name,
            bytes=_bytes(V.graph.get_buffer(name)) if V.graph.try_get_buffer(name) else 0,
            dtype=str(V.graph.get_dtype(name)) if V.graph.try_get_buffer(name) else "",
            is_input=True,
            is_output=name in outputs,
            users=tuple(dict.fromkeys(users)),
        )
        for name, users in read.items()
    ]
    return (*inputs, *written.values())


def _used_by_output(buf: inductor_scheduler.SchedulerBuffer) -> bool:
    return any(isinstance(user.node, inductor_scheduler.OutputNode) for user in buf.users)


def _bytes(buffer: Any) -> int:
    layout = buffer.maybe_get_layout() if buffer is not None else None
    if not isinstance(layout, ir.Layout):
        return 0
    return hint(layout.storage_size()) * int(layout.dtype.itemsize)


def _dependencies(
    scheduler: inductor_scheduler.Scheduler,
    nodes: Sequence[_SchedulerNode],
    owner: dict[str, str],
) -> Iterable[Dependency]:
    for node in nodes:
        consumer = node_name(node)
        seen: set[tuple[str, str, bool]] = set()
        for dep in sorted(node.unmet_dependencies, key=str):
            producer = owner.get(scheduler.name_to_buf[dep.name].defining_op_name())
            weak = isinstance(dep, inductor_deps.WeakDep)
            entry = (producer or "", dep.name, weak)
            if producer is None or producer == consumer or entry in seen:
                continue
            seen.add(entry)
            yield Dependency(consumer, producer, dep.name, weak)
