"""Lookups: by indices that were loaded, which lead anywhere, and by such as loops compute."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.problem import Access, Buffer, Node, Problem

_ROWS, _COLUMNS = 4096, 4096
_OUT = _ROWS * _COLUMNS


def lookup(*, loaded: bool) -> Problem:
    """An image is read at other places: those of a map that is loaded, or computed ones."""
    image = Access("image", "gather", _OUT, 4 * _OUT, 4, 0, f"{_COLUMNS}*tmp0 + tmp1 : ")
    places = Access("map", "contiguous", _OUT, 8 * _OUT, 8, 1, f"i0 : {_OUT}")
    node = Node(
        name="op0",
        kind="pointwise",
        device="cuda",
        numel=_OUT,
        rnumel=1,
        ranges=((_ROWS, _COLUMNS), ()),
        reduction_type="",
        reads=(image, places) if loaded else (image,),
        writes=(Access("out", "contiguous", _OUT, 4 * _OUT, 4, 1, f"i0 : {_OUT}"),),
        ops=(("index_expr", 2), ("indirect_indexing", 2), ("load", 1), ("store", 1)),
        origins=(),
        source="",
        order=0,
        compiler_us=0.0,
        flops=0,
        signature="s",
    )
    buffers = (
        Buffer("image", 4 * _OUT, "float32", True, False, ("op0",)),
        Buffer("map", 8 * _OUT, "int64", True, False, ("op0",)),
        Buffer("out", 4 * _OUT, "float32", False, True, ()),
    )
    return Problem("lookup", "inference", (node,), buffers, (), ())


@pytest.fixture
def gpu(profile: DeviceProfile) -> DeviceProfile:
    """A device whose cache holds little of the image."""
    return msgspec.structs.replace(profile, key="cuda-test", kind="cuda", cores=100)


def test_computed_places_are_near_each_other(gpu: DeviceProfile) -> None:
    def features(loaded: bool) -> np.ndarray:
        return Featurizer(lookup(loaded=loaded), gpu).group(["op0"])

    assert features(loaded=True)[COLUMN["random_bytes"]] == np.log2(1 + 4 * _OUT)
    assert features(loaded=False)[COLUMN["random_bytes"]] == 0.0
    assert features(loaded=False)[COLUMN["line_bytes"]] > 0.0
    slow, fast = (roofline_us(features(loaded)[None])[0] for loaded in (True, False))
    assert slow > 2 * fast
