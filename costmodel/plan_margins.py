"""How far a plan's time may lie from what its groups cost in it, by schedules that were measured.

The intervals of groups know nothing of what happens between them, which on average is predicted
(:mod:`fusewise.costmodel.overheads`), nor of library calls that nobody has measured. It never
changes a predicted time.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.calibration import grouped_quantile
from fusewise.costmodel.interface import FloatArray

#: Part of a plan's time that may rest on the roofline alone before the plan counts as unsure.
UNSURE: Final = 0.01
#: Schedules that each range of times should have, and the most ranges.
_ROWS_A_RANGE, _MOST_RANGES = 60, 4

Labels = npt.NDArray[Any]


class PlanMargins(msgspec.Struct, frozen=True):
    """Logs of what the ends of a plan's interval are moved by, outwards; below 0 inwards."""

    #: Inner edges between the r ranges of the log of a plan's time in microseconds, length r - 1.
    edges: tuple[float, ...]
    #: For the lower and the upper end in each range.
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    #: For plans of which :data:`UNSURE` or more rests on the roofline, of whatever time. None where
    #: too few were measured: those of all others hold then, the roofline's intervals are wide.
    unsure: tuple[float, float] | None = None

    def ends(
        self, us: float, low_us: float, high_us: float, *, unsure: bool
    ) -> tuple[float, float]:
        """Ends of the interval of a plan that takes ``us``, from the sums over its groups."""
        at = int(np.searchsorted(self.edges, math.log(us))) if us > 0.0 else 0
        known = self.unsure if unsure else None
        lower, upper = known or (self.lower[at], self.upper[at])
        return min(us, low_us * math.exp(-lower)), max(us, high_us * math.exp(upper))


@runtime_checkable
class KnowsPlans(Protocol):
    """A model that has such margins."""

    @property
    def plans(self) -> PlanMargins | None:
        """Its margins, where it has some."""


def plan_margins(
    *,
    measured: FloatArray,
    us: FloatArray,
    low_us: FloatArray,
    high_us: FloatArray,
    unsure: npt.NDArray[np.bool_],
    labels: Labels,
    confidence: float = 0.9,
) -> PlanMargins | None:
    """Margins from n schedules that were predicted by models which saw nothing of their labels.

    None where there are too few of them.

    Args:
        measured: [n], in microseconds.
        us: [n], what was predicted; ``low_us`` and ``high_us`` [n] are the sums of the ends.
        unsure: [n], see :class:`PlanMargins`.
        labels: [n], family or graph.
        confidence: part of measured times that intervals should hold; of the rest half lies below.
    """
    if len(measured) < _ROWS_A_RANGE:
        return None
    if np.count_nonzero(~unsure) < _ROWS_A_RANGE:
        # Too few to tell the two apart.
        unsure = np.zeros(len(measured), dtype=bool)
    sure = ~unsure
    count = int(np.clip(np.count_nonzero(sure) // _ROWS_A_RANGE, 1, _MOST_RANGES))
    edges = np.unique(np.quantile(np.log(us[sure]), np.arange(1, count) / count))
    at = np.searchsorted(edges, np.log(us))
    level = (1.0 + confidence) / 2.0

    def margins(rows: npt.NDArray[np.bool_]) -> tuple[float, float]:
        below, above = np.log(low_us[rows] / measured[rows]), np.log(measured[rows] / high_us[rows])
        return (
            grouped_quantile(below, labels[rows], level),
            grouped_quantile(above, labels[rows], level),
        )

    found = [margins(sure & (at == b)) for b in range(len(edges) + 1)]
    enough = np.count_nonzero(unsure) >= _ROWS_A_RANGE
    return PlanMargins(
        edges=tuple(edges.tolist()),
        lower=tuple(lower for lower, _ in found),
        upper=tuple(upper for _, upper in found),
        unsure=margins(unsure) if enough else None,
    )
