"""The contest: generating the shortlisted candidates and timing them against Inductor's own.

Knows which programs run and how fast; the rule by which one is accepted is the search room's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.fx

from fusewise.compiler.building import LibraryBuilding, finish_building
from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks, await_blocks
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.toolchain import probed_vectors
from fusewise.compiler.inductor.triton_ahead import await_kernels, pooled_kernels
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.index_ranges import index_ranges
from fusewise.compiler.measuring.inputs import Observed, specify
from fusewise.compiler.measuring.job import Budget, GraphJob, GraphResult, ProgramJob
from fusewise.compiler.measuring.operators import operators_of
from fusewise.compiler.measuring.reference import dtypes_of
from fusewise.compiler.measuring.sent_graph import send_graph
from fusewise.compiler.measuring.window_offsets import inner_offsets
from fusewise.schedule.errors import MeasureError, PlanError
from fusewise.schedule.schedule import Candidate

#: An answer is waited for no longer than this, however large the budget.
_MOST_WAITING_S = 86_400.0
#: Programs whose constants are larger are not sent to another process.
_MOST_CONSTANT_BYTES = 1 << 30


def graph_job(
    graph: GraphCompile,
    *,
    key: str,
    device: str,
    observed: Sequence[Observed | None],
    forward_key: str | None,
    with_reference: bool = True,
) -> GraphJob:
    """What the measuring process needs to know of a graph.

    Args:
        graph: the graph.
        key: by which its values are found again if a backward graph needs them.
        device: that it runs on.
        observed: the caller's inputs; a backward graph has none of them.
        forward_key: key of the forward graph that a backward one belongs to, if it was measured.
        with_reference: whether outputs will be judged, or only times taken.

    Raises:
        MeasureError: an input that cannot be made in another process; names it.
    """
    names = input_names(graph.gm)
    backward = graph.kind == "backward"
    return GraphJob(
        graph_id=key,
        graph=send_graph(graph.gm) if with_reference else None,
        dtypes=dtypes_of(graph.gm),
        inputs=specify(
            graph.example_inputs,
            names,
            () if backward else observed,
            saved=frozenset(names) if backward else frozenset(),
            made_up=index_ranges(graph.gm) | inner_offsets(graph.gm),
        ),
        input_names=names,
        output_names=output_names(graph.gm),
        device=device,
        threads=torch.get_num_threads(),
        random=draws_random_numbers(graph.gm),
        saved_from=forward_key if backward else None,
        keep_values=graph.kind == "forward",
        operators=operators_of(graph.gm),
    )


def input_names(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Names of a graph's inputs, in order."""
    return tuple(node.name for node in gm.graph.nodes if node.op == "placeholder")


def output_names(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Names of the values that a graph returns, in order; "" for what is no value of the graph."""
    returned = next(node for node in reversed(gm.graph.nodes) if node.op == "output").args[0]
    return tuple(getattr(value, "name", "") for value in returned)


def draws_random_numbers(gm: torch.fx.GraphModule) -> bool:
    """Whether an operator of the graph gives another result each time."""
    return any(_draws(node) for node in gm.graph.nodes if node.op == "call_function")


def _draws(node: torch.fx.Node) -> bool:
    if "inductor_seed" in str(node.target):
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    # Attention is tagged for its dropout, which is mostly off.
    module = node.graph.owning_module
    assert module is not None
    arguments = node.normalized_arguments(module, normalize_to_only_use_kwargs=True)
    return arguments is None or arguments.kwargs.get("dropout_p") != 0.0


def has_collectives(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph talks to other processes, which a measuring process cannot."""
    return any(
        "c10d" in str(getattr(node.target, "namespace", ""))
        for node in gm.graph.nodes
        if node.op == "call_function"
    )


@dataclass(frozen=True)
class Generating:
    """How far generating may go where time is short."""

    #: Whether more programs may be generated; asked before each turn.
    may: Callable[[], bool]
    #: Programs to generate in one turn.
    at_once: int
    #: Told of each program that is new code, as soon as it is there.
    made: Callable[[Program], object]


@dataclass(frozen=True)
class Generated:
    """What became of candidates whose programs were asked for."""

    #: With their programs: those that are new code.
    kept: list[tuple[Candidate, Program]]
    #: Those that are not, or that there is no program of, with the reason.
    dropped: list[Candidate]
    #: Those that were not begun.
    left: list[Candidate]


def generate_distinct(
    graph: GraphCompile, default: Program, candidates: Sequence[Candidate], most: int
) -> tuple[list[tuple[Candidate, Program]], list[Candidate]]:
    """Programs of the first ``most`` candidates that are new code.

    Half of all distinct decisions give code that was there before; those are not worth timing.

    Returns:
        The candidates with their programs, and the ones left out with the reason.
    """
    made = generate_while(graph, default, candidates, most)
    return made.kept, made.dropped


def generate_while(
    graph: GraphCompile,
    default: Program,
    candidates: Sequence[Candidate],
    most: int,
    limit: Generating | None = None,
) -> Generated:
    """The same for as long as ``limit`` allows."""
    seen = {default.code_hash: "Inductor's own"}
    kept: list[tuple[Candidate, Program]] = []
    dropped: list[Candidate] = []
    left = list(candidates)
    while left and len(kept) < most and (limit is None or limit.may()):
        # As many as are still missing: all of them are needed unless some are the same.
        turn = most - len(kept) if limit is None else min(most - len(kept), limit.at_once)
        some, left = left[:turn], left[turn:]
        programs = graph.generate_all([candidate.schedule for candidate in some])
        for candidate, program in zip(some, programs, strict=True):
            if isinstance(program, PlanError):
                dropped.append(_failed(candidate, str(program)))
            elif isinstance(program, Exception):
                dropped.append(_failed(candidate, f"{type(program).__name__}: {program}"))
            elif program.code_hash in seen:
                same = f"same code as {seen[program.code_hash]}"
                dropped.append(msgspec.structs.replace(candidate, reason=same))
            else:
                seen[program.code_hash] = f"candidate {candidate.schedule.id}"
                kept.append((candidate, program))
                if limit is not None:
                    limit.made(program)
    return Generated(kept, dropped, left)


def _failed(candidate: Candidate, reason: str) -> Candidate:
    return msgspec.structs.replace(candidate, status="failed", reason=reason)


def hold(
    job: GraphJob,
    programs: Sequence[tuple[Candidate, Program]],
    budget_s: float,
    *,
    memory: bool = False,
    more: bool = False,
    timing_s: float | None = None,
    race: bool = False,
    meanwhile: Callable[[Callable[[], object]], None] | None = None,
) -> GraphResult:
    """Time the candidates, Inductor's own first, in the measuring process of the device.

    The job is best announced before (:func:`announce`): it then is ready by now.

    Args:
        job: the graph.
        programs: candidates with their programs.
        budget_s: seconds for building and timing them. Where calls take so long that not all can
            be told from Inductor's own within them, the last ones are left out.
        memory: whether the most memory that each needs is wanted, too.
        more: whether another contest of the graph will follow.
        timing_s: seconds that go into timing at most, much less where all is decided; a sixth of
            the budget if None.
        race: whether only the fastest is wanted, and the times of others only as far as they tell
            that they are not.
        meanwhile: called while C++ kernels are built, with what waits until they are.

    Raises:
        MeasureError: the process could not do it.
    """
    size = sum(_bytes(value) for value in programs[0][1].constants.values())
    if size > _MOST_CONSTANT_BYTES:
        raise MeasureError(
            f"the graph has {size >> 20} MiB of constants",
            subject="graph",
            remedy="mode predict chooses without measuring",
        )
    began = time.monotonic()
    # Compiling in the worker is bounded by the caller's budget as well, and never cut too short.
    timeout_s = min(60.0 + 4 * budget_s, _MOST_WAITING_S)
    seconds = min(max(budget_s / 6, 1.0), 20.0) if timing_s is None else timing_s
    process = measuring_process(job.device)
    if process.graph_id != job.graph_id:
        # The process that the graph was announced to is gone; this one is new.
        process.prepare(job)
    # Candidates share most of their kernels. They are built here while the graph is prepared there.
    finish_building()
    for _, program in programs:
        # All are asked for before any is waited for.
        pooled_kernels(program.source, program.settings)
        ask_for_blocks(program.source, program.settings)
    building = LibraryBuilding([program for _, program in programs], timeout_s)
    if meanwhile is not None:
        meanwhile(building.wait)
    library = building.wait()
    if library:
        # By now they are probed here; there it would take seconds for each set of instructions.
        process.trust(probed_vectors())
    jobs = [
        ProgramJob(
            candidate.schedule.id,
            program.source,
            program.constants,
            program.settings,
            library,
            compiled=await_kernels(program.source, program.settings, timeout_s),
            blocks=await_blocks(program.source, budget_s / 2),
        )
        for candidate, program in programs
    ]
    left_s = max(0.0, budget_s - (time.monotonic() - began))
    timing = Budget(seconds=seconds, within_s=left_s, memory=memory, more=more, race=race)
    return process.measure(jobs, timing, timeout_s)


def _bytes(value: Any) -> int:
    return value.numel() * value.itemsize if isinstance(value, torch.Tensor) else 0


def announce(job: GraphJob) -> None:
    """Have the inputs and the reference made while candidates are still being generated.

    Raises:
        MeasureError: the process could not be reached.
    """
    measuring_process(job.device).prepare(job)
