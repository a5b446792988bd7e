"""What travels between the processes of a collection: items, prepared graphs, results.

Data only. Everything here can be pickled and holds no tensor of a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from fusewise.compiler.inductor.block_draw import KernelBlocks
from fusewise.compiler.measuring.job import GraphJob, ProgramJob
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import Row

Strategy = Literal["random", "active"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to collect on one device."""

    #: ``cpu`` or ``cuda``.
    device: str = "cpu"
    #: CPU threads that kernels run on; 0 for as many as torch takes.
    threads: int = 0
    #: Folder of device profiles and models.
    home: str = ""
    #: Pieces of each program, at most, of those that are cut into pieces; 0 for all.
    pieces: int = 0
    #: Random plans of each graph, beside Inductor's own and the unfused one.
    plans: int = 4
    #: Other lowerings of each graph.
    lowerings: int = 2
    #: Whole schedules that are timed of each graph, at most; 0 for none.
    schedules: int = 8
    #: Share of the graphs of which whole schedules are timed.
    schedule_share: float = 1.0
    #: ``active`` takes the plans that a cost model finds fast or is unsure of.
    strategy: Strategy = "random"
    #: Name or path of that model; "" for the newest of the device.
    model: str = ""
    seed: int = 0
    #: Processes that time, one at a time, while the others load and make ready; 0 for as many as
    #: the device has use for. On a CPU there is one.
    timers: int = 0
    #: Processes that compile; 0 for as many as there are cores (less three beside a GPU).
    workers: int = 0
    #: Seconds after which a worker that has said nothing is given up.
    patience_s: float = 240.0
    #: Larger graphs are left out: their kernels are those of smaller ones.
    most_nodes: int = 200
    #: Seconds of a worker for one graph: when they are gone, what is ready of it is timed.
    graph_s: float = 80.0
    #: Graphs of which one run takes longer are left out: their kernels' time is spent on others.
    most_run_s: float = 0.04
    #: Block sizes, beside Inductor's own, that each distinct Triton kernel is timed with.
    block_sizes: int = 0
    #: Kernels that the roofline foretells to take fewer microseconds are left out.
    least_us: float = 0.0


@dataclass(frozen=True)
class Item:
    """A program to collect from."""

    corpus: CorpusSpec
    name: str
    #: Kernels that were timed this often already are not timed again.
    round: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is known by in the store."""
        return self.corpus.label, self.name, self.round

    def __str__(self) -> str:
        return f"{self.corpus.label}:{self.name}"


@dataclass(frozen=True)
class Call:
    """A call of a program: which kernel or extern operation, and whether its time is wanted."""

    kind: Literal["kernel", "extern"]
    #: Name of the generated kernel; "" for an extern call.
    kernel: str
    signature: str
    #: The group that it runs, in fused order.
    nodes: tuple[str, ...]
    #: Features of the group where the time is wanted; None for an extern call.
    features: tuple[float, ...] | None
    wanted: bool


@dataclass(frozen=True)
class KernelRun:
    """A program whose kernels are to be timed one by one."""

    program: ProgramJob
    #: Key of the problem that its groups are of.
    problem_key: str
    calls: tuple[Call, ...]
    #: Names of flags that could be either as well: C++ kernels that read them are timed on drawn
    #: ones.
    flags: frozenset[str] = frozenset()
    #: By their names, kernels that are timed with several block sizes besides.
    blocks: Mapping[str, KernelBlocks] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedGraph:
    """A graph whose programs are compiled and wait to be timed."""

    item: Item
    #: Name of the sample: of the item, or of a piece of it.
    sample: str
    key: str
    job: GraphJob
    #: Device, graph and schedules.
    rows: tuple[Row, ...]
    runs: tuple[KernelRun, ...]
    #: Whole programs, Inductor's own first, by schedule id.
    contest: tuple[ProgramJob, ...]


@dataclass(frozen=True)
class Ready:
    """A worker has started."""


@dataclass(frozen=True)
class Finished:
    """A worker is through with an item."""

    item: Item
    #: Graphs that were sent.
    graphs: int
    failures: tuple[str, ...]
    #: Of the samples that it met.
    fingerprints: tuple[str, ...]


@dataclass
class Batch:
    """What came of one graph of an item, or of the item itself."""

    item: Item
    rows: list[Row] = field(default_factory=list)
    graphs: int = 0
    kernels: int = 0
    schedules: int = 0
    #: Kernels that were timed with several block sizes.
    blocks: int = 0
    failures: list[str] = field(default_factory=list)
    #: Signatures that were timed or failed.
    signatures: list[str] = field(default_factory=list)
    #: Whether this is the last of the item.
    finished: bool = False


@dataclass
class Usage:
    """Where the time of a station went, in seconds."""

    elapsed: float = 0.0
    #: The device was timing, tuning and inputs included.
    timing: float = 0.0
    #: Workers were at an item, and neither held up nor made to stand still; all together.
    compiling: float = 0.0
    workers: int = 0
    #: Workers or timing processes that died or were killed.
    lost: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together, one after the other."""
        return Usage(
            elapsed=self.elapsed + other.elapsed,
            timing=self.timing + other.timing,
            compiling=self.compiling + other.compiling,
            workers=max(self.workers, other.workers),
            lost=self.lost + other.lost,
        )

    def told(self) -> str:
        """Where the time went, in a few words."""
        share = self.timing / self.elapsed if self.elapsed else 0.0
        busy = self.compiling / (self.elapsed * self.workers) if self.elapsed else 0.0
        return (
            f"device: timing {share:.0%}, waiting {1 - share:.0%} of {self.elapsed:.0f} s; "
            f"{self.workers} workers: busy {busy:.0%}; {self.lost} processes lost"
        )
