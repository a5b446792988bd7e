"""Inductor's settings as a user names them: options and modes of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch._inductor

from fusewise.schedule.errors import OptionError


def known_settings() -> frozenset[str]:
    """Names of all settings that Inductor has."""
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
