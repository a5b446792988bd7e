"""Random problems with a made-up compiler and cost model, for the tests of the search room."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest

from fusewise.costmodel.interface import FloatArray
from fusewise.schedule.plan import Plan, Step, build_plan, is_acyclic
from fusewise.schedule.problem import (
    Access,
    Buffer,
    Dependency,
    Node,
    PossibleFusion,
    Problem,
)
from fusewise.search.legality import Verdict
from fusewise.search.tree import Join, Leaf, Tree

BYTES_PER_US = 2_000.0
LAUNCH_US = 2.0


class MadeUpCompiler:
    """Legality by loop size: a reduction's group takes what has its outer or its whole size."""

    def __init__(self, problem: Problem, group_nodes: int = 12) -> None:
        self.problem = problem
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.group_nodes = group_nodes

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        self.asked.append((first.nodes, second.nodes))
        nodes = [self.problem.node_by_name[n] for n in (*first.nodes, *second.nodes)]
        if len(nodes) > self.group_nodes:
            return Verdict(False, "size", f"{len(nodes)} nodes")
        buffers = [
            {a.buffer for n in side.nodes for a in self._accesses(n)} for side in (first, second)
        ]
        if not buffers[0] & buffers[1]:
            return Verdict(False, "nothing shared", "no common buffer")
        whole = {n.numel * n.rnumel for n in nodes}
        outer = {n.numel for n in nodes if n.rnumel > 1}
        if len(whole) == 1 and not outer:
            return Verdict(True)
        if len(outer) == 1 and whole <= {max(whole), *outer} and len(whole) <= 2:
            return Verdict(True, reorder=len(nodes) % 2 == 0)
        return Verdict(False, "numel", f"sizes {sorted(whole)}")

    def _accesses(self, name: str) -> tuple[Access, ...]:
        node = self.problem.node_by_name[name]
        return (*node.reads, *node.writes)


class MadeUpCost:
    """Bytes that are left to move, launch time, and a penalty on groups with much in them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.calls: list[int] = []

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        self.calls.append(len(groups))
        return np.array([self._us(group) for group in groups])

    def _us(self, group: frozenset[str]) -> float:
        nodes = [self.problem.node_by_name[n] for n in sorted(group)]
        assert all(node.kind != "nop" for node in nodes)
        written = {a.buffer for n in nodes for a in n.writes}
        read = {a.buffer: a.bytes for n in nodes for a in n.reads}
        moved = sum(b for name, b in read.items() if name not in written)
        for node in nodes:
            for a in node.writes:
                if not set(self.problem.buffer_by_name[a.buffer].users) <= group:
                    moved += a.bytes
        reductions = sum(n.rnumel > 1 for n in nodes)
        penalty = 1 + 0.15 * max(0, reductions - 1) ** 2 + 0.02 * max(0, len(nodes) - 5)
        return LAUNCH_US + moved / BYTES_PER_US * penalty


def make_problem(seed: int, count: int, *, fixed: float = 0.08, span: int = 8) -> Problem:
    """A random graph: node i reads up to three of the ``span`` buffers before it or an input."""
    rng = random.Random(seed)
    sizes: dict[str, int] = {"in0": 4096, "in1": 4096, "in2": 64}
    nodes: list[Node] = []
    deps: list[Dependency] = []
    readers: dict[str, list[str]] = {}
    for i in range(count):
        name, out = f"op{i}", f"buf{i}"
        recent = [f"buf{j}" for j in range(max(0, i - span), i)]
        pool = recent + (["in0", "in1", "in2"] if rng.random() < 0.3 or not recent else [])
        sources = list(dict.fromkeys(rng.choice(pool) for _ in range(rng.randint(1, 3))))
        size = max(sizes[s] for s in sources)
        draw = rng.random()
        kind, numel, rnumel = "pointwise", size, 1
        if draw < fixed:
            kind = rng.choice(["extern", "template", "foreach", "nop"])
        elif draw < fixed + 0.25 and size > 64:
            kind, numel, rnumel = "reduction", 64, size // 64
        elif draw > 0.9 and size == 64:
            numel = 4096
        sizes[out] = numel
        for s in sources:
            readers.setdefault(s, []).append(name)
            if s.startswith("buf"):
                deps.append(Dependency(name, f"op{s[3:]}", s))
        if i > 4 and rng.random() < 0.04:
            deps.append(Dependency(name, f"op{rng.randrange(i - 4, i)}", "", weak=True))
        nodes.append(
            Node(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                device="cpu",
                numel=numel,
                rnumel=rnumel,
                ranges=((numel,), (rnumel,) if rnumel > 1 else ()),
                reduction_type="sum" if rnumel > 1 else "",
                reads=tuple(_access(s, sizes[s]) for s in sources),
                writes=(_access(out, numel),),
                ops=(("add", 1),),
                origins=("add",),
                source="",
                order=i,
                compiler_us=0.0,
                flops=0,
                signature=f"{kind}{numel}x{rnumel}",
            )
        )
    buffers = tuple(
        Buffer(
            name=b,
            bytes=4 * size,
            dtype="float32",
            is_input=b.startswith("in"),
            is_output=b.startswith("buf") and b not in readers,
            users=tuple(readers.get(b, ())),
        )
        for b, size in sizes.items()
    )
    bare = Problem(f"made up {seed}", "inference", tuple(nodes), buffers, tuple(deps), ())
    return Problem(bare.key, bare.kind, bare.nodes, buffers, bare.dependencies, _possible(bare))


def _access(buffer: str, size: int) -> Access:
    return Access(buffer, "contiguous", size, 4 * size, 4, 1, "i")


def _possible(problem: Problem) -> tuple[PossibleFusion, ...]:
    names = problem.node_by_name
    return tuple(
        PossibleFusion(d.producer, d.consumer, (1,))
        for d in problem.dependencies
        if not d.weak and names[d.producer].fusible and names[d.consumer].fusible
    )


def greedy(problem: Problem, seed: int = 0, *, align: bool = False) -> Plan:
    """A plan such as a greedy compiler would make, now and then with an align."""
    compiler = MadeUpCompiler(problem, group_nodes=6)
    rng = random.Random(seed)
    group: dict[str, Tree] = {n.name: Leaf(n.name, i) for i, n in enumerate(problem.nodes)}
    steps: list[Step] = []
    for pair in problem.possible_fusions:
        a, b = group[pair.first], group[pair.second]
        movable = all(
            problem.node_by_name[n].kind not in {"foreach", "template"}
            for n in (*a.nodes, *b.nodes)
        )
        if a == b or not movable or rng.random() < 0.3 or not compiler.verdict(a, b).legal:
            continue
        if align and rng.random() < 0.3:
            steps.append(Step("align", a.nodes[0], b.nodes[0], True))
            continue
        join = Join(a, b)
        if len(problem.nodes) > 400 or is_acyclic(
            problem, [t.nodes for t in {*group.values(), join} if t not in (a, b)]
        ):
            steps.append(Step("fuse", pair.first, pair.second))
            group.update(dict.fromkeys(join.nodes, join))
    plan = build_plan([n.name for n in problem.nodes], steps)
    return plan if is_acyclic(problem, plan.groups) else Plan(*_unfused(problem))


def _unfused(problem: Problem) -> tuple[tuple[tuple[str, ...], ...], tuple[Step, ...]]:
    return tuple((n.name,) for n in problem.nodes), ()


def _graph(*rows: tuple[str, str, str, tuple[str, ...]]) -> Problem:
    """A graph of rows (name, kind, device, nodes or inputs read); each node writes one buffer."""
    size = 4096
    named = {row[0] for row in rows}
    reads = {
        name: tuple(f"b_{s}" if s in named else s for s in sources) for name, *_, sources in rows
    }
    readers: dict[str, list[str]] = {}
    for name, sources in reads.items():
        for source in sources:
            readers.setdefault(source, []).append(name)
    nodes = tuple(
        Node(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            device=device,
            numel=64 if kind == "reduction" else size,
            rnumel=64 if kind == "reduction" else 1,
            ranges=((size,), ()),
            reduction_type="",
            reads=tuple(_access(s, size) for s in reads[name]),
            writes=(_access(f"b_{name}", size),),
            ops=(),
            origins=(),
            source="",
            order=i,
            compiler_us=0.0,
            flops=0,
            signature="",
        )
        for i, (name, kind, device, _) in enumerate(rows)
    )
    buffers = tuple(
        Buffer(
            b,
            4 * size,
            "float32",
            not b.startswith("b_"),
            b not in readers,
            tuple(readers.get(b, ())),
        )
        for b in dict.fromkeys([*readers, *(f"b_{name}" for name in named)])
    )
    deps = tuple(
        Dependency(name, s[2:], s)
        for name, sources in reads.items()
        for s in sources
        if s.startswith("b_")
    )
    return Problem("graph", "inference", nodes, buffers, deps, ())


def crossed() -> Problem:
    """Two pairs worth fusing, a with c and b with d, that close a cycle only together."""
    return _graph(
        ("a", "pointwise", "cpu", ("left",)),
        ("d", "pointwise", "cpu", ("right",)),
        ("x", "extern", "cpu", ("a",)),
        ("y", "extern", "cpu", ("d",)),
        ("b", "pointwise", "cpu", ("right", "x")),
        ("c", "pointwise", "cpu", ("left", "y")),
    )


def siblings() -> Problem:
    """Two reductions of one input, as in a softmax, and what uses both."""
    return _graph(
        ("scale", "pointwise", "cpu", ("in",)),
        ("max", "reduction", "cpu", ("scale",)),
        ("sum", "reduction", "cpu", ("scale", "max")),
        ("out", "pointwise", "cpu", ("scale", "max", "sum")),
    )


@pytest.fixture(scope="session")
def made_up() -> ModuleType:
    """This module: its graphs, compiler and costs."""
    return sys.modules[__name__]


@pytest.fixture
def small() -> Problem:
    """A graph of 24 nodes."""
    return make_problem(3, 24)
