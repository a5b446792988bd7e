"""Plans of made-up kernels on a made-up device, with what is offered for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.plan import Step, build_plan, is_acyclic
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem, group_signature
from fusewise.search.finishing import Finishes

GPU = DeviceProfile(
    key="cuda-test",
    kind="cuda",
    name="test",
    threads=270_000,
    copy_gbs=4000.0,
    gather_gbs=140.0,
    flops_gfs=50_000.0,
    transcendental_gops=900.0,
    launch_us=1.0,
    cache_bytes=60 << 20,
    cores=132,
    cache_gbs=8000.0,
)
SMALL, LARGE = 4096, 1 << 26


def kernel(name: str, numel: int, rnumel: int = 1, kind: str = "pointwise") -> Node:
    def access(buffer: str, n: int) -> Access:
        return Access(buffer, "contiguous", n, 4 * n, 4, 1, "d0")

    return Node(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        device="cuda:0",
        numel=numel,
        rnumel=rnumel,
        ranges=((numel,), (rnumel,) if rnumel > 1 else ()),
        reduction_type="sum" if kind == "reduction" else "",
        reads=(access(f"in_{name}", numel * rnumel),),
        writes=(access(f"buf_{name}", numel),),
        ops=(("load", 1), ("add", 1), ("store", 1)),
        origins=(),
        source="",
        order=0,
        compiler_us=0.0,
        flops=10**12 if kind == "extern" else 0,
        signature=f"{kind} {numel} {rnumel}",
        hint="inner" if kind == "reduction" else "",
    )


def finishes(
    nodes: Sequence[Node],
    *needs: tuple[str, str],
    together: Sequence[tuple[str, str]] = (),
    device: DeviceProfile = GPU,
    savings: Mapping[str, float] | None = None,
    flags: str = "",
) -> Finishes:
    buffers = [
        Buffer(f"buf_{n.name}", 4 * n.numel, "torch.float32", False, True, ()) for n in nodes
    ]
    inputs = [
        Buffer(f"in_{n.name}", 4 * n.numel * n.rnumel, "torch.float32", True, False, (n.name,))
        for n in nodes
    ]
    every = tuple(
        msgspec.structs.replace(b, dtype="torch.bool") if b.name == flags else b
        for b in (*inputs, *buffers)
    )
    dependencies = tuple(Dependency(user, made, f"buf_{made}") for made, user in needs)
    problem = Problem("key", "inference", tuple(nodes), every, dependencies, possible_fusions=())
    steps = [Step("fuse", *pair) for pair in together]
    plan = build_plan([node.name for node in nodes], steps)
    assert is_acyclic(problem, plan.groups)
    by_signature = {
        group_signature(problem, [node]): part for node, part in (savings or {}).items()
    }
    return Finishes(plan, PlanCost(problem, device, Roofline(device)), by_signature)
