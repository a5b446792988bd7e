"""Block sizes of a Triton kernel, as a value. What they do to its time is not known here."""

from __future__ import annotations

import msgspec


class BlockSizes(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel is compiled with."""

    #: Arguments that are constants of the compiled kernel, by name, in the order of names.
    constants: tuple[tuple[str, int], ...]
    warps: int
    stages: int
