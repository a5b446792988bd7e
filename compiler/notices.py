"""Telling the user, once, that fusewise stepped back, and why."""

from __future__ import annotations

import logging
import threading
import warnings

log = logging.getLogger("fusewise")

_told: set[str] = set()
_lock = threading.Lock()


class FusewiseWarning(UserWarning):
    """fusewise left a graph to Inductor."""


def warn_once(cause: str) -> None:
    """Warn of ``cause`` unless this process was warned of the same before."""
    with _lock:
        if cause in _told:
            return
        _told.add(cause)
    log.debug("stepped back: %s", cause)
    warnings.warn(
        f"fusewise leaves this to Inductor: {cause}", category=FusewiseWarning, stacklevel=2
    )
