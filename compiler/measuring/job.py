"""What is sent to the measuring process and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fusewise.compiler.measuring.inputs import Input
from fusewise.compiler.measuring.operators import Operators
from fusewise.schedule.block_sizes import BlockSizes


@dataclass(frozen=True)
class GraphJob:
    """One graph to measure candidates of: how to make its inputs, and what to judge outputs by."""

    graph_id: str
    #: The captured graph as ``send_graph`` gives it; None where it cannot be sent.
    graph: bytes | None
    #: Precision that the graph has the value of each node in, in their order.
    dtypes: tuple[torch.dtype | None, ...]
    inputs: tuple[Input, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    device: str
    #: Threads of the caller's process, which the candidates run with.
    threads: int
    #: Whether the graph draws random numbers, so that only another compiled run can be compared.
    random: bool
    #: Graph whose values the inputs were saved from, if that one was measured here.
    saved_from: str | None = None
    #: Whether another graph will ask for this one's values.
    keep_values: bool = False
    #: Operators that its programs call and not every process knows.
    operators: Operators = field(default_factory=Operators)


@dataclass(frozen=True)
class ProgramJob:
    """One candidate: its generated program, and the settings it is to be compiled under."""

    id: str
    source: str
    constants: Mapping[str, torch.Tensor]
    settings: Mapping[str, Any]
    #: Where its C++ kernels were built before; "" to have them compiled when it is loaded.
    library: str = ""
    #: Hash of the code without its comments; "" where nobody needs it.
    code_hash: str = ""
    #: Whether its Triton kernels are in the caches on disk.
    compiled: bool = False
    #: By the file of a kernel that is tuned step by step, what it was compiled with ahead.
    blocks: Mapping[str, tuple[BlockSizes, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """How long and how well to measure."""

    seconds: float
    #: Seconds that calls may take if the programs are to be told apart: where they take longer the
    #: last programs are not run; None for no end.
    within_s: float | None = None
    min_rounds: int = 12
    max_rounds: int = 400
    #: Half-width of the 95 % interval of a median, relative, at which more rounds are no use.
    target_interval: float = 0.005
    #: Whether the most memory that each program needs is wanted, too.
    memory: bool = False
    #: Whether more programs of the graph will follow, so that its inputs are worth keeping.
    more: bool = False
    #: Whether only the fastest is wanted: time goes to those that may be it.
    race: bool = False


@dataclass
class ProgramResult:
    """What was found out about one candidate."""

    id: str
    #: One time for each round, in microseconds; NaN for rounds that it was left out of.
    samples: list[float] = field(default_factory=list)
    #: Error of each output (and overwritten input) against the reference.
    errors: list[float] = field(default_factory=list)
    #: Most bytes allocated at one time, inputs included; None where that was not asked for.
    peak_bytes: int | None = None
    #: Why it could not be run; "" where it was.
    failure: str = ""


@dataclass
class GraphResult:
    """What was found out about all candidates of one graph, first the default."""

    programs: list[ProgramResult]
    #: What errors are measured against: ``fp64`` or ``default``.
    reference: str
    #: How times were taken: ``calls`` or ``cuda graph``.
    clock: str
    #: Resolution of the dtype of each output that ``errors`` speaks of.
    resolutions: list[float]
    #: Load and clock frequencies while measuring.
    conditions: dict[str, float]
    #: Seconds by phase.
    seconds: dict[str, float]
