"""LightGBM's trees without LightGBM's Python package: loaded and evaluated by its library alone.

Importing the package takes a second, most of it for scikit-learn and pandas, which is as long as
many a compile; its library loads in milliseconds and gives the same bits. Predicts only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fusewise.costmodel.interface import FloatArray

if TYPE_CHECKING:
    import lightgbm

#: Names of the library in the package's folder, by system.
_NAMES: Final = ("lib_lightgbm.so", "lib_lightgbm.dylib", "lib_lightgbm.dll")
#: Constants of LightGBM's C interface: rows of 64-bit floats, ordinary predictions, all trees.
_FLOAT64, _ROW_MAJOR, _NORMAL, _FIRST, _ALL = 1, 1, 0, 0, -1


#: Lines of a model's text about how it was grown, and sizes of the text itself. Predictions need
#: none of them, nor do SHAP values and gains.
_OF_GROWTH: Final = re.compile(
    r"^(?:leaf_weight|internal_weight|internal_value|tree_sizes)=.*\n", re.MULTILINE
)


class BoosterError(Exception):
    """LightGBM refused; in its own words."""


class Booster:
    """Trees that were read from LightGBM's text."""

    def __init__(self, text: str) -> None:
        """Read the trees.

        Raises:
            BoosterError: the text is no model of LightGBM's.
        """
        self._text = text
        self._library = _library()
        self._handle = ctypes.c_void_p()
        iterations = ctypes.c_int()
        self._check(
            self._library.LGBM_BoosterLoadModelFromString(
                text.encode(), ctypes.byref(iterations), ctypes.byref(self._handle)
            )
        )
        weakref.finalize(self, self._library.LGBM_BoosterFree, self._handle)

    def __reduce__(self) -> tuple[type[Booster], tuple[str]]:
        """Copies read the text anew: each has trees of its own to let go of."""
        return Booster, (self._text,)

    def predict(self, rows: FloatArray) -> FloatArray:
        """What the trees give for ``rows`` [n, F], on one thread: [n].

        Raises:
            BoosterError: the trees are of another number of columns.
        """
        matrix = np.ascontiguousarray(rows, dtype=np.float64)
        result = np.empty(len(matrix))
        length = ctypes.c_int64()
        self._check(
            self._library.LGBM_BoosterPredictForMat(
                self._handle,
                matrix.ctypes.data_as(ctypes.c_void_p),
                _FLOAT64,
                ctypes.c_int32(matrix.shape[0]),
                ctypes.c_int32(matrix.shape[1]),
                _ROW_MAJOR,
                _NORMAL,
                _FIRST,
                _ALL,
                b"num_threads=1",
                ctypes.byref(length),
                result.ctypes.data_as(ctypes.POINTER(ctypes.c_double)),
            )
        )
        return result

    def _check(self, status: int) -> None:
        if status:
            raise BoosterError(self._library.LGBM_GetLastError().decode(errors="replace"))


def text_of(booster: lightgbm.Booster, trees: int | None = None) -> str:
    """The text of what LightGBM's package trained, without what nobody asks a kept model for.

    Of its first ``trees``, or of all.
    """
    return _OF_GROWTH.sub("", str(booster.model_to_string(num_iteration=trees)))


@cache
def _library() -> Any:
    library = ctypes.cdll.LoadLibrary(str(_path()))
    library.LGBM_GetLastError.restype = ctypes.c_char_p
    library.LGBM_BoosterFree.argtypes = [ctypes.c_void_p]
    return library


def _path() -> Path:
    """The library that the package would load: asked for where it is not at its usual place."""
    found = importlib.util.find_spec("lightgbm")
    if found is not None and found.origin is not None:
        for name in _NAMES:
            path = Path(found.origin).parent / "lib" / name
            if path.is_file():
                return path
    from lightgbm.libpath import _find_lib_path

    return Path(_find_lib_path()[0])
