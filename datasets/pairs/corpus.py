"""Every pair."""

from __future__ import annotations

from typing import Final

from fusewise.datasets.pairs import formulas, in_place, indexed
from fusewise.datasets.pairs.pair import Pair

PAIRS: Final[tuple[Pair, ...]] = (*in_place.PAIRS, *indexed.PAIRS, *formulas.PAIRS)
