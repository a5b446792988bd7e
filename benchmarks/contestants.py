"""The contestants: eager, Inductor as it is, under settings or without a stage, and fusewise.

Says how each is compiled. Each gets an empty compile cache and, if it is fusewise, a store of its
own that starts as a copy of the same one, so that none profits from another's work.
"""

from __future__ import annotations

import os
import re
import shutil
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusewise.compiler.ablating.backend import STAGE, stage_backend

#: What all others are compared with.
BASELINE = "inductor"
DEFAULT_NAMES = ("eager", BASELINE, "fusewise", "predict")

#: Settings of Inductor that a user might turn on by hand.
_PRESETS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    "combo": {"combo_kernels": True},
    "descent": {"coordinate_descent_tuning": True},
    "combo+descent": {"combo_kernels": True, "coordinate_descent_tuning": True},
    "pointwise-autotune": {"max_autotune_pointwise": True},
    "max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
}
#: Backend of a contestant that is Inductor without one of its stages.
_STAGE = "stage"
#: Files of a store's folder that a contestant starts with.
_KEPT = ("store.duckdb", "devices", "models")


@dataclass(frozen=True)
class Contestant:
    """A way to compile."""

    name: str
    #: None is eager: not compiled at all.
    backend: str | None
    options: dict[str, Any] = field(default_factory=dict)


def contestant(text: str) -> Contestant:
    """The contestant or stage of that name, or ``SETTING=VALUE[+SETTING=VALUE]`` for Inductor.

    Raises:
        ValueError: there is none of that name.
    """
    if text == "eager":
        return Contestant(text, None)
    if text in ("fusewise", "predict"):
        mode = "measure" if text == "fusewise" else "predict"
        return Contestant(text, "fusewise", {"fusewise.mode": mode})
    if text in STAGE:
        return Contestant(text, _STAGE)
    if text in _PRESETS:
        return Contestant(text, "inductor", _PRESETS[text])
    if "=" not in text:
        known = ", ".join(["eager", "fusewise", "predict", *_PRESETS, *STAGE])
        raise ValueError(f"no contestant {text!r}; there are {known}, or SETTING=VALUE")
    settings = dict(pair.split("=", 1) for pair in text.split("+"))
    return Contestant(text, "inductor", {k: _value(v) for k, v in settings.items()})


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def compiled(function: Callable[..., Any], who: Contestant, home: Path) -> Callable[..., Any]:
    """``function`` as the contestant compiles it on its first call.

    Each gets a code object of its own: Dynamo keeps what it compiled by code object, and would go
    through the guards of all contestants at every call of the last one.
    """

    def step(*args: Any) -> Any:
        return function(*args)

    own = types.FunctionType(
        step.__code__.replace(co_name=re.sub(r"\W", "_", f"step_{who.name}")),
        globals(),
        closure=step.__closure__,
    )
    if who.backend is None:
        return own
    if who.backend == _STAGE:
        return torch.compile(own, backend=stage_backend(who.name))
    options = dict(who.options)
    if who.backend == "fusewise":
        options["fusewise.store"] = str(home / "store.duckdb")
    return torch.compile(own, backend=who.backend, options=options)


def copy_home(home: Path | None, target: Path) -> None:
    """Make the folder ``target`` with the store, models and device profiles of ``home``."""
    target.mkdir(parents=True)
    for name in _KEPT if home is not None else ():
        kept = home / name
        if kept.is_dir():
            shutil.copytree(kept, target / name)
        elif kept.is_file():
            shutil.copy2(kept, target / name)


@contextmanager
def own_caches(folder: Path, store: Path | None) -> Iterator[Path]:
    """Empty compile caches in ``folder``, and a copy of the store's folder; gives the copy."""
    from torch._inductor.utils import clear_caches

    home = folder / "home"
    copy_home(store, home)
    kept_variables = {name: os.environ.get(name) for name in cache_variables(folder)}
    os.environ.update(cache_variables(folder))
    clear_caches()
    try:
        yield home
    finally:
        for name, value in kept_variables.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        clear_caches()


def cache_variables(folder: Path) -> dict[str, str]:
    """Variables by which all compile caches are in ``folder``."""
    inductor = folder / "inductor"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "TRITON_CACHE_DIR": str(inductor / "triton"),
    }
