"""Generated programs: loading one so that it can be called.

C++ kernels are taken from a library that was built before where one is given; all others go
through Inductor's own code caches, so a kernel that two candidates share is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.cpp_loading import prebuilt

#: A program as Inductor generates it: takes a list of inputs, which it empties.
Call = Callable[[list[Any]], Any]


def load_program(
    source: str,
    constants: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    library: str = "",
) -> Call:
    """Compile and load a generated program.

    Args:
        source: the program's Python source.
        constants: tensors that it reaches by name.
        settings: Inductor settings that it was generated under.
        library: where its C++ kernels are, from ``build_library``; "" to have Inductor compile
            them.
    """
    call: Call = load_module(source, constants, settings, library).call
    return call


def load_module(
    source: str,
    constants: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    library: str = "",
) -> ModuleType:
    """Like :func:`load_program`, and give the whole module: its kernels are its globals."""
    with inductor_config.patch(dict(settings)), prebuilt(library):
        key, path = PyCodeCache.write(source)
        module: ModuleType = PyCodeCache.load_by_key_path(key, path, attrs=dict(constants))
    return module


def changed_settings() -> dict[str, Any]:
    """Inductor settings that differ from their defaults and can be sent to another process."""
    simple = (bool, int, float, str, type(None))
    changed = inductor_config._get_dict(skip_default=True)  # type: ignore[attr-defined]
    return {name: value for name, value in changed.items() if isinstance(value, simple)}
