"""Block sizes of a Triton kernel, as a value. What they do to its time is not known here."""

from __future__ import annotations

import msgspec

from fusewise.schedule.errors import PlanError

_WARPS, _STAGES = "warps", "stages"


class BlockSizes(msgspec.Struct, frozen=True, array_like=True):
    """What a kernel is compiled with."""

    #: Arguments that are constants of the compiled kernel, by name, in the order of names.
    constants: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    @property
    def text(self) -> str:
        """For people and files: ``R0_BLOCK=2048 XBLOCK=1 warps=16 stages=1``."""
        told = (*self.constants, (_WARPS, self.warps), (_STAGES, self.stages))
        return " ".join(f"{name}={value}" for name, value in told)


def parse_sizes(text: str) -> BlockSizes:
    """What :attr:`BlockSizes.text` tells.

    Raises:
        PlanError: it is none.
    """
    found: dict[str, int] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if not name.isidentifier() or not value.isdigit() or not int(value):
            raise _refused(text, f"{word!r} is no size")
        found[name] = int(value)
    if not {_WARPS, _STAGES} <= found.keys():
        raise _refused(text, "it lacks warps or stages")
    warps, stages = found.pop(_WARPS), found.pop(_STAGES)
    return BlockSizes(tuple(sorted(found.items())), warps, stages)


def _refused(text: str, why: str) -> PlanError:
    return PlanError(
        f"block sizes {text!r}: {why}",
        subject="schedule",
        remedy="write them like XBLOCK=1024 warps=4 stages=1, or leave them out",
    )
