"""Flags that a kernel of a collection is timed on: drawn, where nobody can foresee them.

Vectorised C++ reads each element of type bool by a branch, which costs 3 nanoseconds where it goes
the other way than the processor guessed and next to nothing where all go the same way. What a
comparison of drawn data gives may be either: by the chance of a network's first weights a ReLU
lets everything through, or half of it, and no property of the kernel tells. So it is timed on
flags of which half are set, as they are in a network that was trained.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from fusewise.compiler.measuring.runs import memory, put_back

_SEED: Final = 0


def flag_places(
    source: str, kernels: Collection[str], flags: Collection[str]
) -> Mapping[str, list[tuple[int, ...]]]:
    """Which arguments of each call of ``kernels`` are one of ``flags``, call by call.

    Args:
        source: of a program, in Python.
        kernels: names that it calls C++ kernels by.
        flags: names of its variables.
    """
    places: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    if not flags or not kernels:
        return places
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(call.func, ast.Name) and call.func.id in kernels:
            named = [
                i for i, a in enumerate(call.args) if isinstance(a, ast.Name) and a.id in flags
            ]
            places[call.func.id].append(tuple(named))
    return places


@contextmanager
def drawn(flags: Sequence[torch.Tensor]) -> Iterator[None]:
    """Half of the elements of ``flags`` set at random, the same each time, and put back after."""
    before = [memory(tensor).clone() for tensor in flags]
    for tensor in flags:
        memory(tensor).bernoulli_(0.5, generator=torch.Generator().manual_seed(_SEED))
    try:
        yield
    finally:
        put_back(flags, before)
