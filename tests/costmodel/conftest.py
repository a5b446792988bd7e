"""Problems made by hand, a device made up, and kernels that follow a known law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem


@pytest.fixture
def profile() -> DeviceProfile:
    """A CPU of no maker."""
    return DeviceProfile(
        key="cpu-test-4t",
        kind="cpu",
        name="test",
        threads=4,
        copy_gbs=40.0,
        gather_gbs=1.0,
        flops_gfs=200.0,
        transcendental_gops=3.0,
        launch_us=1.0,
        cache_bytes=1 << 20,
        cores=8,
        cache_gbs=160.0,
    )


@pytest.fixture
def gpu(profile: DeviceProfile) -> DeviceProfile:
    """A GPU of no maker."""
    told = {"key": "cuda-test", "kind": "cuda", "cores": 100, "threads": 1 << 18}
    return msgspec.structs.replace(profile, **told)


MakeNode = Callable[..., Node]


def pointwise(
    name: str,
    numel: int,
    reads: tuple[Access, ...] = (),
    writes: tuple[Access, ...] = (),
    ops: tuple[tuple[str, int], ...] = (("load", 1), ("add", 1), ("store", 1)),
    **changes: object,
) -> Node:
    fields: dict[str, object] = {
        "name": name,
        "kind": "pointwise",
        "device": "cpu",
        "numel": numel,
        "rnumel": 1,
        "ranges": ((numel,), ()),
        "reduction_type": "",
        "reads": reads,
        "writes": writes,
        "ops": ops,
        "origins": (),
        "source": "",
        "order": 0,
        "compiler_us": 0.0,
        "flops": 0,
        "signature": f"signature of {name}",
    }
    return Node(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def make_node() -> MakeNode:
    """``make_node(name, numel, reads, writes, ops, **changes)``: pointwise but for the changes."""
    return pointwise


def access(buffer: str, n: int, kind: str = "contiguous", index: str = "d0") -> Access:
    return Access(buffer, kind, n, 4 * n, 4, 1 if kind == "contiguous" else 8, index)  # type: ignore[arg-type]


def make_softmax(rows: int = 256, columns: int = 512) -> Problem:
    """max, exp(x - max), sum and division over rows, as four nodes."""
    n = rows * columns
    x, whole, each = access("arg0", n, index="c*d0 + d1"), "c*d0 + d1", "d0"
    reduction = {
        "kind": "reduction",
        "rnumel": columns,
        "ranges": ((rows,), (columns,)),
    }
    nodes = (
        pointwise(
            "op0",
            rows,
            (x,),
            (access("buf0", rows, index=each),),
            reduction_type="max",
            **reduction,
        ),
        pointwise(
            "op1",
            n,
            (x, access("buf0", rows, "broadcast", each)),
            (access("buf1", n, index=whole),),
            (("load", 2), ("sub", 1), ("exp", 1), ("store", 1)),
            ranges=((rows, columns), ()),
            order=1,
        ),
        pointwise(
            "op2",
            rows,
            (access("buf1", n, index=whole),),
            (access("buf2", rows, index=each),),
            reduction_type="sum",
            order=2,
            **reduction,
        ),
        pointwise(
            "op3",
            n,
            (access("buf1", n, index=whole), access("buf2", rows, "broadcast", each)),
            (access("buf3", n, index=whole),),
            (("load", 2), ("truediv", 1), ("store", 1)),
            ranges=((rows, columns), ()),
            order=3,
        ),
    )
    buffers = (
        Buffer("arg0", 4 * n, "float32", True, False, ("op0", "op1")),
        Buffer("buf0", 4 * rows, "float32", False, False, ("op1",)),
        Buffer("buf1", 4 * n, "float32", False, False, ("op2", "op3")),
        Buffer("buf2", 4 * rows, "float32", False, False, ("op3",)),
        Buffer("buf3", 4 * n, "float32", False, True, ()),
    )
    dependencies = (
        Dependency("op1", "op0", "buf0"),
        Dependency("op2", "op1", "buf1"),
        Dependency("op3", "op1", "buf1"),
        Dependency("op3", "op2", "buf2"),
    )
    return Problem("softmax", "inference", nodes, buffers, dependencies, ())


@pytest.fixture
def softmax() -> Problem:
    """See :func:`make_softmax`."""
    return make_softmax()


@dataclass
class Kernels:
    """Kernels with times that follow a law."""

    features: FloatArray
    us: FloatArray
    graph: FloatArray


def make_kernels(count: int, seed: int, profile: DeviceProfile) -> Kernels:
    """Single-node kernels; the law bends the roofline by size, arithmetic and reduction."""
    rng = np.random.default_rng(seed)
    nodes, buffers = [], []
    for i in range(count):
        n = int(2 ** rng.uniform(8, 23))
        reduces = rng.random() < 0.3
        rnumel = int(2 ** rng.integers(2, 9)) if reduces else 1
        reads = tuple(
            access(f"in{i}_{k}", n, ("contiguous", "strided")[int(rng.random() < 0.3)])
            for k in range(rng.integers(1, 5))
        )
        ops = (("add", int(rng.integers(1, 8))), ("exp", int(rng.integers(0, 3))))
        changes: dict[str, object] = {}
        if reduces:
            changes = {"kind": "reduction", "reduction_type": "sum", "rnumel": rnumel}
        nodes.append(
            pointwise(f"op{i}", max(n // rnumel, 1), reads, (access(f"out{i}", n),), ops, **changes)
        )
        buffers.append(Buffer(f"out{i}", 4 * n, "float32", False, True, ()))
    problem = Problem("kernels", "inference", tuple(nodes), tuple(buffers), (), ())
    x = Featurizer(problem, profile).batch([(node.name,) for node in nodes])
    numel = np.array([node.numel for node in nodes], dtype=float)
    reduction = np.array([node.kind == "reduction" for node in nodes])
    law = 0.6 + 0.5 * np.sin(np.log2(numel) / 3) + 0.4 * reduction
    us = roofline_us(x) * np.exp(law + rng.normal(0, 0.06, count))
    return Kernels(x, us, rng.integers(0, 40, count).astype(float))


@pytest.fixture
def kernels(profile: DeviceProfile) -> Callable[[int, int], Kernels]:
    """``kernels(count, seed)``."""
    return lambda count, seed: make_kernels(count, seed, profile)


#: Triton kernels as Inductor writes them for an H200.
_KERNELS = Path(__file__).parent / "triton_kernels"


@pytest.fixture
def kernel_text() -> Callable[[str], str]:
    """The source of a Triton kernel by its name."""
    return lambda name: (_KERNELS / f"{name}.txt").read_text("utf-8")


@pytest.fixture(scope="session")
def every_kernel() -> tuple[str, ...]:
    """The sources of all of them."""
    return tuple(path.read_text("utf-8") for path in sorted(_KERNELS.glob("*.txt")))


@pytest.fixture
def narrow(profile: DeviceProfile) -> DeviceProfile:
    """A processor of two threads with vectors of eight fp32 elements."""
    return msgspec.structs.replace(profile, kind="cpu", key="cpu-x-2t", threads=2, vector_width=32)
