"""Numbers that come out alike on every processor.

Logarithms and sums of arrays differ between processors in the last bits of a double, as numpy has
them computed by whatever instructions there are. Among equally good splits of a tree that decides
which one is taken. What models are trained on is therefore rounded far above such differences, and
far below what a measurement can tell; and so is what is kept of their errors.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from fusewise.costmodel.interface import FloatArray

_T = TypeVar("_T")
#: Takes away the last 13 of the 53 significant bits of a 64-bit float.
_SPLIT: Final = float((1 << 13) + 1)


def settled(values: FloatArray | np.float64, bits: int = 24) -> FloatArray:
    """``values``, of any shape, with so many significant bits: as many as fp32 has by default."""
    fraction, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return rounded


def without_last_bits(values: FloatArray) -> FloatArray:
    """``values``, of any shape and below 1e300, with 40 significant bits, in little time.

    By Veltkamp's split (Dekker 1971, section 5): what is added takes the last bits away.
    """
    scaled = values * _SPLIT
    return np.asarray(scaled - (scaled - values))


def settled_record(record: _T) -> _T:
    """``record`` with every float in it rounded to seven decimals that count, as people write them.

    It may be a struct, tuple, list or dict of such, or a float alone.
    """
    found: Any = record
    if isinstance(record, float):
        found = float(f"{record:.7g}")
    elif isinstance(record, msgspec.Struct):
        parts = {name: settled_record(getattr(record, name)) for name in record.__struct_fields__}
        found = msgspec.structs.replace(record, **parts)
    elif isinstance(record, tuple | list):
        found = type(record)(map(settled_record, record))
    elif isinstance(record, dict):
        found = {key: settled_record(value) for key, value in record.items()}
    return found  # type: ignore[no-any-return]
