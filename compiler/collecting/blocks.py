"""Kernels that are timed with several block sizes: which of a graph, and the rows that come of it.

Compiles in a worker; times nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch

from fusewise.compiler.collecting.programs import Known
from fusewise.compiler.collecting.work import KernelRun
from fusewise.compiler.inductor.block_draw import KernelBlocks, compiled_blocks, source_hash
from fusewise.compiler.inductor.triton_ahead import triton_kernels
from fusewise.compiler.measuring.sampling import BlockTimes
from fusewise.datasets.rows import BlocksRow, blocks_signature, encode_source

#: Seconds for compiling the block sizes of one kernel, and of all kernels of a graph.
_KERNEL_S, _GRAPH_S = 6.0, 30.0
#: Kernels of a graph: where all is compiled already, time is no limit to them.
_MOST_KERNELS = 24


def with_blocks(
    runs: Sequence[KernelRun], known: Known, count: int, seconds: float
) -> list[KernelRun]:
    """Compile block sizes for the kernels that are to be timed, unless they were timed with some.

    Args:
        runs: programs of a graph, compiled.
        known: what was timed already; gets to know what is compiled here.
        count: block sizes of a kernel beside Inductor's own.
        seconds: that are left for the graph.
    """
    until = time.monotonic() + min(seconds, _GRAPH_S)
    left = _MOST_KERNELS
    found = []
    for run in runs:
        wanted = {call.kernel for call in run.calls if call.wanted and call.kind == "kernel"}
        blocks: dict[str, KernelBlocks] = {}
        for name, source, device in triton_kernels(run.program.source):
            now = time.monotonic()
            if name not in wanted or device != "cuda" or not left or now > until:
                continue
            if not known.claim(blocks_signature(source_hash(name, source))):
                continue
            compiled = compiled_blocks(name, source, count, min(until, now + _KERNEL_S))
            if compiled is not None:
                blocks[name] = compiled
                left -= 1
        found.append(dataclasses.replace(run, blocks=blocks))
    return found


def blocks_row(
    blocks: KernelBlocks, times: BlockTimes, device_key: str, graph_key: str
) -> BlocksRow | None:
    """What was found out about a kernel; None where nothing can be compared.

    Args:
        blocks: the kernel and its block sizes.
        times: of those that were compiled, in their order, as far as there was time.
        device_key: of the device.
        graph_key: of the problem that the kernel is of.
    """
    found = dict(zip(blocks.compiled, times.us, strict=False))
    us = {s: found.get(s) for s in blocks.sizes if s in found or s in blocks.failed}
    own = sum(sizes in us for sizes in blocks.sizes[: blocks.own])
    timed = sum(value is not None for value in us.values())
    if own < blocks.own or us[blocks.sizes[0]] is None or timed < 2:  # noqa: PLR2004 - a pair
        return None
    return BlocksRow(
        source_hash=blocks.source_hash,
        device_key=device_key,
        graph_key=graph_key,
        source=encode_source(blocks.source),
        name=blocks.name,
        own=own,
        sizes=tuple(us),
        us=tuple(us.values()),
        rounds=times.rounds,
        spread=times.spread,
        torch_version=str(torch.__version__),
    )
