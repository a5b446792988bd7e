"""Inductor's settings as a user names them: options and modes of ``torch.compile``."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch._inductor
from torch._inductor import config as inductor_config

from fusewise.schedule.errors import OptionError

#: Settings that only say where and how a package is written.
_PACKAGING = "aot_inductor."
#: Inductor writes into these once a package was made, for good.
_WRITTEN: dict[str, Any] = {"aot_inductor.metadata": {}}


@functools.cache
def known_settings() -> frozenset[str]:
    """Names of all settings that Inductor has."""
    # Asked for again and again, and each time Inductor copies all of their values.
    return frozenset(torch._inductor.list_options())


def inductor_settings(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that ``torch.compile(backend="inductor")`` would compile under.

    Raises:
        OptionError: a mode that Inductor does not have.
    """
    settings: dict[str, Any] = {}
    if mode is not None and mode != "default":
        modes = torch._inductor.list_mode_options()
        if mode not in modes:
            raise OptionError(
                f"there is no mode {mode!r}",
                subject="torch.compile",
                remedy=f"use measure, predict, replay, {', '.join(modes)}",
            )
        settings |= modes[mode]
    return settings | dict(options)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that Inductor does not have.

    Raises:
        OptionError: names the first and the nearest valid one.
    """
    known = known_settings()
    for name in settings:
        if name.replace("-", "_") not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise OptionError(
                "Inductor has no such setting",
                subject=f"setting {name!r}",
                remedy=f"the nearest is {near[0]!r}" if near else "see torch._inductor.config",
            )


def outside_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings as they are now with ``settings`` on top, those about packages left out."""
    own = {name: value for name, value in settings.items() if not name.startswith(_PACKAGING)}
    with inductor_config.patch(own):
        return portable_settings()


def portable_settings() -> dict[str, Any]:
    """All settings as they are now, but for what packages that were made before left in them."""
    written = {name: value for name, value in _WRITTEN.items() if name in known_settings()}
    with inductor_config.patch(written):
        return dict(inductor_config.save_config_portable())


@contextmanager
def settings_in_force(settings: Mapping[str, Any]) -> Iterator[None]:
    """Exactly the settings that :func:`outside_settings` gave, whatever was turned on since."""
    now = inductor_config.save_config_portable()
    changed = {name: value for name, value in settings.items() if now.get(name) != value}
    with inductor_config.patch(changed):
        yield
