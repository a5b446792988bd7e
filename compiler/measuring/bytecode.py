"""Byte code of what a measuring process imports, where Python keeps none.

Images of containers are often made with ``PYTHONDONTWRITEBYTECODE``, and without the byte code of
installed packages. Each process that imports torch and Inductor then compiles them anew: eleven
seconds instead of five on one such machine, as long as several small programs take to compile.
"""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source
from pathlib import Path

import platformdirs
import torch

_FORBIDDEN, _PLACE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"


def kept_bytecode() -> dict[str, str]:
    """Variables of a process that keeps byte code in the user's cache and finds it there.

    Empty where byte code is beside the packages already, or Python may write it there.
    """
    if not sys.dont_write_bytecode or os.environ.get(_PLACE):
        return {}
    if Path(cache_from_source(torch.__file__)).exists():
        return {}
    place = Path(platformdirs.user_cache_dir("fusewise")) / "bytecode"
    return {_PLACE: str(place), _FORBIDDEN: ""}
