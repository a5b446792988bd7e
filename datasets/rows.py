"""The rows of the store: one small struct a table.

A row is what a process appends to its spool and what the store gives back. Rows know nothing of
DuckDB: how they become table rows is written in ``tables.py``. Times are in microseconds for one
run, moments are timezone-aware UTC.
"""

from __future__ import annotations

import uuid
import zlib
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import StoreError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, CandidateStatus, Choice, Schedule

DeviceKind = Literal["cpu", "cuda"]
GraphKind = Literal["forward", "backward", "inference"]
Subject = Literal["kernel", "schedule", "extern"]
MeasurementStatus = Literal["ok", "failed"]

#: What fits a DuckDB INTEGER and is a count.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
#: A moment with its zone; rows without one would shift when read elsewhere.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def utc_now() -> datetime:
    """This moment in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """A random identity that no other process will choose."""
    return uuid.uuid4().hex


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A device that something was measured on."""

    key: str
    kind: DeviceKind
    name: str
    #: CPU threads that kernels run on; 0 on a GPU.
    threads: Count = 0
    #: What is known of it: bandwidths, peak rates, cache sizes, counts; flat JSON values.
    profile: dict[str, object] = {}
    first_seen: Moment = msgspec.field(default_factory=utc_now)


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lowered graph, with its problem so that features can be computed anew later."""

    key: str
    #: The named hashes that the key is made of: a miss can say which one differed.
    parts: dict[str, str]
    kind: GraphKind
    #: The unit of splitting: graphs of one family never stand on both sides.
    family: str = ""
    #: Where it came from: a corpus and sample name, or ``compile``.
    source: str = ""
    licence: str = ""
    nodes: Count = 0
    #: :func:`encode_problem` of it, or None where it was not kept.
    problem: bytes | None = None
    torch_version: str = ""
    created: Moment = msgspec.field(default_factory=utc_now)


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A distinct kernel on a device, with its features and one graph that it occurs in."""

    #: Hash of everything that decides its code.
    signature: str
    device_key: str
    graph_key: str
    #: Names of the graph's nodes that it is made of, in fused order.
    nodes: tuple[str, ...]
    features_version: Count
    features: list[float]
    #: The compiler's own estimate; None where it has none.
    compiler_us: float | None = None


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of a graph with its prediction."""

    id: str
    graph_key: str
    schedule: Schedule
    origin: str
    groups: Count
    predicted_us: float | None = None
    predicted_low_us: float | None = None
    predicted_high_us: float | None = None


class MeasurementRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a kernel, a schedule or an extern call; failed ones say why."""

    subject: Subject
    #: Kernel signature, schedule id, or extern signature.
    subject_id: str
    graph_key: str
    device_key: str
    threads: Count = 0
    status: MeasurementStatus = "ok"
    reason: str = ""
    median_us: float | None = None
    #: Half the distance between the 25th and the 75th percentile over the median.
    spread: float | None = None
    rounds: Count = 0
    #: Confidence interval of the median, low and high.
    interval: tuple[float, float] | None = None
    #: Relative error (L2) against the high-precision reference, worst output.
    error: float | None = None
    #: State of clock and load while it was taken; flat JSON values.
    clock: dict[str, object] = {}
    #: Hash of the generated code that ran.
    code_hash: str = ""
    torch_version: str = ""
    at: Moment = msgspec.field(default_factory=utc_now)
    id: str = msgspec.field(default_factory=new_id)


class CandidateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate without its schedule, which stands in the schedules by its id."""

    schedule_id: str
    origin: str
    groups: int
    predicted_us: float | None = None
    predicted_low_us: float | None = None
    predicted_high_us: float | None = None
    measured_us: float | None = None
    spread: float | None = None
    rounds: int = 0
    error: float | None = None
    peak_bytes: int | None = None
    #: Block sizes that tuning came to, by kernel.
    blocks: tuple[Choice, ...] = ()
    status: CandidateStatus = "predicted"
    accepted: bool = False
    reason: str = ""

    @classmethod
    def of(cls, candidate: Candidate) -> CandidateSummary:
        """Summary of ``candidate``."""
        return cls(
            schedule_id=candidate.schedule.id,
            **{name: getattr(candidate, name) for name in cls.__struct_fields__[1:]},
        )


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Which schedule was chosen for a graph on a device, and among what. The newest one holds."""

    graph_key: str
    device_key: str
    #: ``measure``, ``predict`` or ``replay``.
    mode: str
    #: Identity of the cost model that was asked; "" where none was.
    model_id: str
    schedule_id: str
    candidates: tuple[CandidateSummary, ...] = ()
    at: Moment = msgspec.field(default_factory=utc_now)


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trained cost model that was registered."""

    id: str
    path: str
    #: "" where it is meant for more than one device.
    device_key: str
    features_version: Count
    manifest: dict[str, object] = {}
    at: Moment = msgspec.field(default_factory=utc_now)


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a corpus that was collected from, and what came of it."""

    device_key: str
    #: Label of the corpus, :attr:`fusewise.datasets.corpus.CorpusSpec.label`.
    corpus: str
    name: str
    #: 0 the first time that the program is gone over.
    round: Count = 0
    status: MeasurementStatus = "ok"
    #: What was given up and why, a line each; "" where nothing was.
    reason: str = ""
    graphs: Count = 0
    #: Kernels and schedules that were timed.
    kernels: Count = 0
    schedules: Count = 0
    at: Moment = msgspec.field(default_factory=utc_now)


class BlocksRow(msgspec.Struct, frozen=True, kw_only=True):
    """A distinct Triton kernel that was timed on a device with several block sizes."""

    #: Of its generated source, whatever the kernel is called in there.
    source_hash: str
    device_key: str
    #: Of a problem that it occurs in.
    graph_key: str
    #: :func:`encode_source` of the generated source.
    source: bytes
    #: Of the kernel in it.
    name: str
    #: How many of ``sizes``, the first of them, are those that Inductor itself would try.
    own: Count
    sizes: tuple[BlockSizes, ...]
    #: Median of a launch with each of ``sizes``, cache warm; None where it does not compile, spills
    #: registers or does not run.
    us: tuple[float | None, ...]
    #: Samples of each, taken in turns.
    rounds: Count = 0
    #: Half the distance between the quartiles of the samples over their median, the middle one of
    #: all sizes; None where there were too few samples.
    spread: float | None = None
    torch_version: str = ""
    at: Moment = msgspec.field(default_factory=utc_now)


Row = (
    DeviceRow
    | GraphRow
    | KernelRow
    | ScheduleRow
    | MeasurementRow
    | DecisionRow
    | ModelRow
    | ItemRow
    | BlocksRow
)

#: No signature of a kernel, which is a hash, begins with this.
_BLOCKS = "blocks"

_problem_decoder = msgspec.json.Decoder(Problem)


def encode_problem(problem: Problem) -> bytes:
    """``problem`` as it is stored: zlib over its msgspec JSON."""
    return zlib.compress(msgspec.json.encode(problem), 6)


def encode_source(source: str) -> bytes:
    """The source of a kernel as it is stored: zlib over UTF-8."""
    return zlib.compress(source.encode(), 9)


def decode_source(stored: bytes) -> str:
    """The source that :func:`encode_source` stored.

    Raises:
        StoreError: the bytes are damaged.
    """
    try:
        return zlib.decompress(stored).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise StoreError(
            f"a stored kernel cannot be read: {error}",
            subject="store",
            remedy="collect it again with --block-sizes into another store",
        ) from error


def blocks_signature(source_hash: str) -> str:
    """What a kernel's timing with several block sizes is known by among signatures."""
    return f"{_BLOCKS} {source_hash}"


def decode_problem(stored: bytes) -> Problem:
    """The problem that :func:`encode_problem` stored.

    Raises:
        StoreError: the bytes are damaged or of another form of problem.
    """
    try:
        return _problem_decoder.decode(zlib.decompress(stored))
    except (zlib.error, msgspec.DecodeError) as error:
        raise StoreError(
            f"a stored problem cannot be read: {error}",
            subject="store",
            remedy="compile or collect the graph again, which stores its problem anew",
        ) from error
