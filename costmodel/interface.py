"""What every cost model is: features in, microseconds with an interval out, always in batches.

Only the types; no model lives here, and nothing here knows where features come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Where a predicted time comes from. ``measured`` occurs for nodes whose time was measured alone,
#: ``free`` for nodes that run nothing.
Source = Literal["learned", "borrowed", "roofline", "measured", "free"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of n groups, in microseconds for one run of each."""

    #: Shape [n]: the median.
    us: FloatArray
    #: Shape [n]: lower end of the 90 % interval.
    low_us: FloatArray
    #: Shape [n]: upper end of the 90 % interval.
    high_us: FloatArray
    #: Length n: which model gave the row.
    source: tuple[Source, ...]

    def __len__(self) -> int:
        return len(self.source)


@runtime_checkable
class CostModel(Protocol):
    """Group features to microseconds. Implementations are immutable once made."""

    @property
    def id(self) -> str:
        """Text that differs whenever predictions differ; part of the key of what was compiled."""

    @property
    def name(self) -> str:
        """The name a user would ask for."""

    @property
    def features_version(self) -> int:
        """``FEATURES_VERSION`` of the features that :meth:`predict` expects."""

    def predict(self, features: FloatArray) -> Prediction:
        """Times of the groups with ``features`` of shape [n, F], as ``Featurizer.batch`` gives.

        Equal features give equal predictions, in whatever batch they come.
        """
