"""What an ablation gives, as data: for each graph and for the program, one entry a stage."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

#: ``same code``: as the stage named in ``reason``, whose figures these are.
StageStatus = Literal["measured", "same code", "not applicable", "failed"]


#: What is said of a program whose graphs differ.
_MOST_TELLING: tuple[StageStatus, ...] = ("measured", "same code", "not applicable")


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One stage left out of one graph, or of all graphs of a program."""

    name: str
    meaning: str
    #: Median microseconds of one run; of a program the sum over its graphs.
    us: float | None = None
    #: Half the distance between the 25th and the 75th percentile over the median.
    spread: float | None = None
    #: Median over the rounds of its time over that of ``everything``, with the 95 % interval;
    #: of a program the mean over its graphs, weighted by their times.
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    #: Generated kernels: launches on a GPU, loop nests on the CPU.
    kernels: int | None = None
    #: Calls into libraries.
    extern_calls: int | None = None
    #: Nodes that the scheduler was given.
    nodes: int | None = None
    #: Bytes that kernels and extern calls read and write, what stays within a kernel left out.
    bytes: int | None = None
    #: Most bytes that were allocated at one time, inputs included; of a program the largest.
    peak_bytes: int | None = None
    #: Largest relative error (L2) of any output against the graph in double precision.
    error: float | None = None
    #: Whether its results are as good as eager's and Inductor's own allow; None if not compared.
    accurate: bool | None = None
    status: StageStatus = "measured"
    reason: str = ""


class GraphAblation(msgspec.Struct, frozen=True, kw_only=True):
    """All stages of one graph, timed in one interleaved run."""

    kind: str
    key: str
    device: str
    #: Operators of the captured graph.
    operators: int
    stages: tuple[StageResult, ...]
    #: How times were taken: ``calls`` or ``cuda graph``.
    clock: str
    #: What errors are measured against: ``fp64`` or ``default``.
    reference: str
    rounds: int
    #: Load and clock frequencies while measuring.
    conditions: dict[str, float]


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """What each stage is worth to one program."""

    target: str
    training: bool
    device: str
    #: Of the whole program: one run of each of its graphs.
    stages: tuple[StageResult, ...]
    graphs: tuple[GraphAblation, ...]
    torch: str
    fusewise: str


def whole_program(graphs: tuple[GraphAblation, ...]) -> tuple[StageResult, ...]:
    """Each stage over all graphs; without figures where it has none in some graph.

    A stage that does not apply to a graph leaves that graph as it is.
    """
    if not graphs:
        return ()
    names = [stage.name for stage in graphs[0].stages]
    columns = {
        name: [next(s for s in graph.stages if s.name == name) for graph in graphs]
        for name in names
    }
    base = [next(s for s in graph.stages if s.name == "everything") for graph in graphs]
    return tuple(_sum(stages, base) for stages in columns.values())


def _sum(stages: list[StageResult], base: list[StageResult]) -> StageResult:
    first = stages[0]
    failed = [s for s in stages if s.status == "failed"]
    if failed:
        return StageResult(
            name=first.name, meaning=first.meaning, status="failed", reason=failed[0].reason
        )
    # Where a stage has nothing to act on, leaving it out changes nothing.
    parts = [b if s.status == "not applicable" else s for s, b in zip(stages, base, strict=True)]
    us = _added([p.us for p in parts])
    spreads = [(p.us or 0.0) * (p.spread or 0.0) for p in parts]
    accurate = [p.accurate for p in parts if p.accurate is not None]
    status = next(s for s in _MOST_TELLING if any(stage.status == s for stage in stages))
    return StageResult(
        name=first.name,
        meaning=first.meaning,
        us=us,
        spread=math.fsum(spreads) / us if us else None,
        ratio=_weighted(parts, base),
        kernels=_total([p.kernels for p in parts]),
        extern_calls=_total([p.extern_calls for p in parts]),
        nodes=_total([p.nodes for p in parts]),
        bytes=_total([p.bytes for p in parts]),
        peak_bytes=max((p.peak_bytes for p in parts if p.peak_bytes is not None), default=None),
        error=max((p.error for p in parts if p.error is not None), default=None),
        accurate=all(accurate) if accurate else None,
        status=status,
        reason=next((s.reason for s in stages if s.reason and s.status == status), ""),
    )


def _weighted(parts: list[StageResult], base: list[StageResult]) -> float | None:
    """The graphs' ratios, weighted by what each takes: rounds are paired within a graph only."""
    weights = [b.us or 0.0 for b in base]
    weighted = _added(
        [None if p.ratio is None else p.ratio * w for p, w in zip(parts, weights, strict=True)]
    )
    total = math.fsum(weights)
    return weighted / total if weighted is not None and total else None


def _added(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if len(found) == len(values) else None


def _total(values: list[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return sum(found) if len(found) == len(values) else None
