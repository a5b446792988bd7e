"""What the roofline's time of a kernel is made of, and what trees are told of that.

A tree cannot add up features to a time; which bound decides, and by how much, is told to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.settled import settled

#: Terms of the roofline and what they are the time of; each kind of device has some of them.
TERMS: Final[Mapping[str, str]] = {
    "launch": "starting the kernel, or its threads",
    "bytes": "moving the distinct bytes",
    "sectors": "sectors or lines of memory, used in part or more than once",
    "lookups": "lines that are looked up one by one",
    "stores": "stores of a CPU",
    "blocks": "blocks of a GPU that begin",
    "updates": "atomic updates of a GPU",
    "operations": "operations, but for functions that a GPU has units for",
    "functions": "exponentials and the like on a GPU",
    "waits": "blocks of a GPU that wait for what they load",
}
#: Part of the whole time from which on a term is told: less is no bound.
_LEAST: Final = 1e-3


@dataclass(frozen=True, slots=True)
class RooflineParts:
    """What the analytic time is made of, each of shape [n] in microseconds."""

    launch: FloatArray
    #: Of the next two the greater one counts.
    memory: FloatArray
    arithmetic: FloatArray
    #: Until what blocks of a CUDA kernel load has arrived, turn after turn, and what memory and
    #: arithmetic do not overlap.
    waiting: FloatArray
    #: Each by itself, as if there were nothing else; by names of ``TERMS``.
    terms: Mapping[str, FloatArray]

    @property
    def us(self) -> FloatArray:
        """The whole."""
        result: FloatArray = self.launch + np.maximum(self.memory, self.arithmetic) + self.waiting
        return result

    @property
    def told(self) -> FloatArray:
        """What trees see, shape [n, 1 + T]: the log of the whole, of each term over it."""
        us = self.us
        none = np.zeros(len(us))
        shares = [np.maximum(self.terms.get(name, none) / us, _LEAST) for name in TERMS]
        return settled(np.log(np.column_stack([us, *shares])))

    def where(self, chosen: npt.NDArray[np.bool_], other: RooflineParts) -> RooflineParts:
        """These parts of the rows ``chosen`` [n], ``other`` of the others."""
        none = np.zeros(len(self.launch))
        return RooflineParts(
            launch=np.where(chosen, self.launch, other.launch),
            memory=np.where(chosen, self.memory, other.memory),
            arithmetic=np.where(chosen, self.arithmetic, other.arithmetic),
            waiting=np.where(chosen, self.waiting, other.waiting),
            terms={
                name: np.where(chosen, self.terms.get(name, none), other.terms.get(name, none))
                for name in TERMS
            },
        )
