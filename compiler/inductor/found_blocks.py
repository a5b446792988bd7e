"""Block sizes that tuning came to: read where a kernel keeps them, and told to another one.

Inductor keeps what it found beside the kernel's source, in a cache that another machine, or this
one after a while, does not have. Compiles and runs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.block_sizes import (
    config_of,
    found_by_steps,
    load_kernel,
    sizes_of,
)
from fusewise.compiler.inductor.triton_ahead import triton_kernels
from fusewise.compiler.inductor.tuning import tuned_as_measured
from fusewise.schedule.block_sizes import BlockSizes, parse_sizes
from fusewise.schedule.kernel_choices import BLOCKS
from fusewise.schedule.schedule import Choice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Told:
    """A kernel that knows its block sizes."""

    name: str
    #: Of its source.
    path: str
    sizes: BlockSizes


def found_blocks(
    source: str, nodes: Mapping[str, frozenset[str]], codegen: Sequence[Choice]
) -> tuple[Choice, ...]:
    """The block sizes of tuned kernels of a program, as far as they were found by now.

    Args:
        source: the program.
        nodes: of its kernels, by name.
        codegen: choices of its schedule.
    """
    found = []
    for name, path, chosen in _tuned(source, nodes, codegen):
        configs = _configs(path, name)
        if len(configs) == 1 and found_by_steps(configs[0]):
            found += [Choice(choice, sizes_of(configs[0]).text) for choice in chosen]
    return tuple(sorted(found))


def tuned_kernels(
    source: str, nodes: Mapping[str, frozenset[str]], codegen: Sequence[Choice]
) -> dict[str, tuple[str, ...]]:
    """Names of the choices that have a kernel of a program tuned, by the path of its source.

    For the arguments see :func:`found_blocks`.
    """
    return {path: tuple(chosen) for _, path, chosen in _tuned(source, nodes, codegen)}


def tell_blocks(
    source: str, nodes: Mapping[str, frozenset[str]], blocks: Sequence[Choice]
) -> tuple[Told, ...]:
    """Have kernels of a program that is about to be loaded take the block sizes that were found.

    Those that do not fit a kernel are left out: it is tuned as others are.

    Args:
        source: the program.
        nodes: of its kernels, by name.
        blocks: what :func:`found_blocks` gave.
    """
    sizes = {choice.name: parse_sizes(str(choice.value)) for choice in blocks}
    told = []
    for name, path, chosen in _tuned(source, nodes, blocks):
        wanted = sizes[chosen[0]]
        with tuned_as_measured():
            kernel: Any = load_kernel(path, name)
            own = kernel.configs[0]
            fits = own.kwargs.keys() == dict(wanted.constants).keys()
            if not fits or kernel.save_cache_hook is None:
                log.debug("%s cannot have %s", name, wanted.text)
                continue
            kernel.save_cache_hook(config_of(wanted, own), 0, found_by_coordesc=True)
        told.append(Told(name, path, wanted))
    return tuple(told)


def _tuned(
    source: str, nodes: Mapping[str, frozenset[str]], choices: Sequence[Choice]
) -> Iterator[tuple[str, str, list[str]]]:
    """Name, path and choices of the kernels that there are choices about."""
    names = {c.name.removeprefix(BLOCKS): c.name for c in choices if c.name.startswith(BLOCKS)}
    for name, code, device in triton_kernels(source):
        chosen = sorted(names[node] for node in nodes.get(name, ()) if node in names)
        if chosen and device == "cuda":
            _, path = PyCodeCache.write(code)
            yield name, path, chosen


def _configs(path: str, name: str) -> Sequence[Any]:
    with tuned_as_measured():
        return load_kernel(path, name).configs or ()
