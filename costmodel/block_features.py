"""Features of block sizes of a Triton kernel: what the trees of the block model see.

Computed from the facts of the kernel's source, for many block sizes at once; no code is compiled.
What each column means stands in :mod:`fusewise.costmodel.block_table`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fusewise.costmodel.block_table import OF_KERNEL, OF_SIZES
from fusewise.costmodel.block_tiles import SECTOR, WARP, Array, Tiles
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.settled import settled
from fusewise.costmodel.triton_facts import KernelFacts
from fusewise.schedule.block_sizes import BlockSizes

_KINDS: Final = ("pointwise", "reduction", "persistent_reduction")
_HINTS: Final = ("", "inner", "outer", "outer_tiny", "default")
#: Registers that a thread needs beside its values, and the most that it can have.
_SPARE, _MOST_REGISTERS = 16, 255
_MOST_BLOCKS: Final = 32
#: Bytes of a register.
_WORD: Final = 4


def block_features(facts: KernelFacts, sizes: Sequence[BlockSizes], own: BlockSizes) -> FloatArray:
    """Features of a kernel with each of ``sizes``, shape [n, F], all finite.

    Args:
        facts: of its source.
        sizes: block sizes of it.
        own: what Inductor itself would take first.
    """
    tiles = Tiles(facts.accesses, tuple(facts.numels))
    columns = _of_sizes(facts, tiles, (own, *sizes))
    every = settled(np.array([columns[feature.name] for feature in OF_SIZES]).T)
    kernel = _of_kernel(facts, tiles)
    fixed = settled(np.array([kernel[feature.name] for feature in OF_KERNEL]))
    return np.column_stack(
        [np.broadcast_to(fixed, (len(sizes), len(fixed))), every[1:], every[1:] - every[0]]
    )


def _of_kernel(facts: KernelFacts, tiles: Tiles) -> dict[str, float]:
    numels, accesses = facts.numels, facts.accesses
    results = np.prod([n for dim, n in numels.items() if dim[0] != "r"], dtype=float)
    length = np.prod([n for dim, n in numels.items() if dim[0] == "r"], dtype=float)
    whole = np.array([float(n) for n in numels.values()])[:, None, None]
    share = np.array([access.share for access in accesses])
    passed = (tiles.elements(whole) * tiles.width)[:, 0] * share
    different = tiles.touched(np.broadcast_to(whole, (len(numels), len(accesses), 1)))[:, 0]
    different = np.minimum(different * SECTOR * share, passed)
    total = max(float(passed.sum()), 1.0)

    def part(chosen: list[bool]) -> float:
        return float(passed[np.array(chosen, dtype=bool)].sum()) / total

    def along(prefix: str) -> float:
        return part(
            [
                any(dim[0] == prefix and abs(stride) == 1 for dim, stride in access.strides.items())
                for access in accesses
            ]
        )

    return {
        "kind": _KINDS.index(facts.kind),
        "hint": _HINTS.index(facts.hint) if facts.hint in _HINTS else len(_HINTS),
        "dims": sum(dim[0] != "r" for dim in numels),
        "reduced_dims": sum(dim[0] == "r" for dim in numels),
        "mixed": facts.each_block is not None,
        "results": np.log2(results),
        "x_numel": np.log2(numels.get("x", 1)),
        "y_numel": np.log2(numels.get("y", 1)),
        "length": np.log2(length),
        "iterations": np.log2(results * length),
        "loads": sum(access.doing == "load" for access in accesses),
        "stores": sum(access.doing == "store" for access in accesses),
        "atomics": sum(access.doing == "atomic" for access in accesses),
        "indirect": sum(access.indirect for access in accesses),
        "operations": np.log2(1.0 + facts.operations),
        "special": np.log2(1.0 + facts.special),
        "together": facts.together,
        "welford": facts.welford,
        "passes": facts.passes,
        "live": facts.live,
        "bytes": np.log2(max(float(different.sum()), 1.0)),
        "reuse": np.log2(total / max(float(different.sum()), 1.0)),
        "width_least": float(tiles.width.min()),
        "width_most": float(tiles.width.max()),
        "along_x": along("x"),
        "along_y": along("y"),
        "along_rows": along("r"),
        "stored": part([access.doing != "load" for access in accesses]),
        "masked": part([bool(access.masked) for access in accesses]),
        "kept": part([access.eviction == "evict_last" for access in accesses]),
        "looked_up": part([access.indirect for access in accesses]),
        "run": np.log2(_run(tiles, _main(facts, tiles, whole))),
        "vector_most": _mean_log(tiles.vector_most * tiles.width, passed[:, None])[0],
        "multiprocessors": np.log2(facts.multiprocessors),
    }


class _Launch:
    """How a kernel is cut into blocks and turns, with each of some block sizes [n]."""

    def __init__(self, facts: KernelFacts, sizes: Sequence[BlockSizes]) -> None:
        self.dims = tuple(facts.numels)
        told = [dict(each.constants) for each in sizes]
        names = [f"{dim.upper()}BLOCK" for dim in self.dims]
        #: Positions of a block along each dimension, and all that there are [D, n].
        self.block: Array = np.array(
            [[float(one.get(name, facts.blocks.get(name, 1))) for one in told] for name in names]
        )
        self.numel: Array = np.array([float(n) for n in facts.numels.values()])[:, None]
        self.reduced = np.array([dim[0] == "r" for dim in self.dims])
        self.warps: Array = np.array([float(each.warps) for each in sizes])
        self.threads = self.warps * WARP
        parts = np.ceil(self.numel / self.block)
        #: Part of the positions of all blocks that are there [D, n].
        self.used: Array = self.numel / (parts * np.minimum(self.block, self.numel))
        #: Turns of a block along each dimension [D, n].
        self.turns_along: Array = np.where(self.reduced[:, None], parts, 1.0)
        self.programs: Array = parts[~self.reduced].prod(axis=0)
        if facts.each_block is not None:
            x = self.dims.index("x")
            through = np.array([float(one.get("RSPLIT_SIZE", facts.each_block)) for one in told])
            self.turns_along[x] = np.ceil(through / self.block[x])
            self.programs = self.programs / parts[x] * np.ceil(self.numel[x] / through)
        self.turns: Array = self.turns_along.prod(axis=0)
        self.held: Array = self.block.prod(axis=0)

    def along(self, dim: str) -> Array:
        """The block along a dimension that there need not be."""
        at = self.dims.index(dim) if dim in self.dims else None
        return np.ones(self.block.shape[1]) if at is None else self.block[at]


def _of_sizes(facts: KernelFacts, tiles: Tiles, sizes: Sequence[BlockSizes]) -> dict[str, Array]:
    launch = _Launch(facts, sizes)
    tile = np.minimum(launch.block, launch.numel)[:, None]
    vector = tiles.vector(tile, launch.threads)
    columns = {
        "x_block": launch.along("x"),
        "y_block": launch.along("y"),
        "r_block": launch.block[launch.reduced].prod(axis=0),
        "held": launch.held,
        "warps": launch.warps,
        "each": launch.held / launch.threads,
        "programs": launch.programs,
        "share_out": launch.programs / facts.multiprocessors,
        "turns": launch.turns,
        "padding": launch.held * launch.turns * launch.programs / float(launch.numel.prod()),
        **_threads(facts, tiles, launch, tile, vector),
    }
    memory = _memory(facts, tiles, launch, tile, vector)
    columns |= _resources(facts, launch, tiles, np.exp2(memory["turn_bytes"]) * launch.threads)
    logs: dict[str, Array] = {name: np.log2(found) for name, found in columns.items()}
    stages = {
        "stages": np.array([float(size.stages) for size in sizes]),
        "loop_stages": np.array([float(dict(s.constants).get("NUM_STAGES", 0)) for s in sizes]),
    }
    return logs | memory | stages


def _threads(
    facts: KernelFacts, tiles: Tiles, launch: _Launch, tile: Array, vector: Array
) -> dict[str, Array]:
    """How the threads of a block lie in the main access."""
    _, along = tiles.spread(tile, launch.threads, vector)
    main = _main(facts, tiles, launch.numel[:, None])
    inner = tiles.order[0, main]
    row_threads: Array = along[launch.reduced, main].prod(axis=0)
    # Threads beside a row come before those that share it where it is not the inner dimension.
    before = 1.0 if launch.reduced[inner] else along[inner, main]
    row_warps = np.maximum(row_threads * before / WARP, 1.0)
    results = launch.held / launch.block[launch.reduced].prod(axis=0)
    rows_each = np.maximum(results / launch.threads * row_threads, 1.0)
    return {
        "run_threads": along[inner, main],
        "runs": launch.block[inner] / _run(tiles, main),
        "row_threads": row_threads,
        "row_warps": np.minimum(np.minimum(row_warps, row_threads), launch.warps),
        "combining": 1.0 + facts.together * np.log2(row_threads) * rows_each,
    }


def _main(facts: KernelFacts, tiles: Tiles, numel: Array) -> int:
    """The access with the most bytes, loads before stores; ``numel`` [D, 1, 1]."""
    doubled = np.array([1.0 + (access.doing == "load") for access in facts.accesses])
    return int(np.argmax(tiles.elements(numel)[:, 0] * tiles.width[:, 0] * doubled))


def _run(tiles: Tiles, main: int) -> float:
    return float(tiles.runs[tiles.order[0, main], main])


def _memory(
    facts: KernelFacts, tiles: Tiles, launch: _Launch, tile: Array, vector: Array
) -> dict[str, Array]:
    """What is loaded and stored; logs."""
    warp = np.full(len(launch.warps), float(WARP))
    warp_tile, _ = tiles.spread(tile, warp, vector)
    elements = tiles.elements(launch.block[:, None])
    looped = np.array([[dim in access.looped for access in facts.accesses] for dim in launch.dims])
    # How often a block does each access, and the part of it that is not beyond the end.
    times = np.where(looped[:, :, None], launch.turns_along[:, None], 1.0).prod(axis=0)
    share = np.array([access.share for access in facts.accesses])[:, None]
    within = np.where(tiles.along, launch.used[:, None], 1.0).prod(axis=0) * share
    held = tiles.elements(tile) * tiles.width * within
    done = times * launch.programs
    passed = held * done
    whole = np.broadcast_to(tile, (*tiles.along.shape[:2], len(launch.warps)))
    by_block = (tiles.touched(whole) * SECTOR * done * within).sum(axis=0)
    each_request = tiles.touched(warp_tile)
    requests = np.maximum(elements / (launch.threads * vector), 1.0) * times
    by_warp = each_request * requests * SECTOR * launch.warps * launch.programs * within
    loads = np.array([access.doing == "load" for access in facts.accesses])
    total = np.maximum(passed.sum(axis=0), 1.0)
    return {
        "vector_loads": _mean_log(vector * tiles.width, passed * loads[:, None]),
        "vector_stores": _mean_log(vector * tiles.width, passed * ~loads[:, None]),
        "each_request": _mean_log(each_request, passed),
        "sector_bytes": np.log2(np.maximum(by_block, 1.0)),
        "sector_ratio": np.log2(np.maximum(by_block, 1.0) / total),
        "warp_sectors": np.log2(np.maximum(by_warp.sum(axis=0), 1.0)),
        "requests": np.log2(requests.sum(axis=0)),
        "turn_bytes": np.log2(np.maximum(held[loads].sum(axis=0), 1.0) / launch.threads),
    }


def _resources(
    facts: KernelFacts, launch: _Launch, tiles: Tiles, turn_bytes: Array
) -> dict[str, Array]:
    """What a multiprocessor can hold, and its threads do; ``turn_bytes``: what a block loads."""
    each = np.maximum(launch.held / launch.threads, 1.0)
    words = max(float(tiles.width.max()) / _WORD, 1.0)
    registers = np.minimum(_SPARE + each * max(facts.live, 1) * words, _MOST_REGISTERS)
    by_registers = facts.registers / (registers * launch.threads)
    blocks = np.minimum(facts.most_threads / launch.threads, by_registers)
    blocks = np.clip(np.floor(blocks), 1.0, _MOST_BLOCKS)
    waves = launch.programs / (blocks * facts.multiprocessors)
    work = each * launch.turns
    return {
        "registers": registers,
        "resident": blocks * launch.warps,
        "waves": waves,
        "last_wave": np.ceil(waves) / waves,
        "rounds": np.ceil(waves) * launch.turns,
        "flight_bytes": turn_bytes * blocks,
        "work": work * (1 + facts.operations),
        "special_work": 1.0 + work * facts.special,
    }


def _mean_log(values: Array, weights: Array) -> Array:
    """Mean log2 over accesses [n], by weight; 0 where there are none."""
    total = weights.sum(axis=0)
    found: Array = (np.log2(values) * weights).sum(axis=0) / np.where(total > 0.0, total, 1.0)
    return found
