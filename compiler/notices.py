"""Telling the user, once, that fusewise stepped back, and why."""

from __future__ import annotations

import logging
import threading
import warnings

log = logging.getLogger("fusewise")

_told: set[str] = set()
_lock = threading.Lock()


class FusewiseWarning(UserWarning):
    """fusewise left a graph to Inductor, or did not do what a rule says."""


def warn_once(cause: str) -> None:
    """Warn of ``cause`` unless this process was warned of the same before."""
    if _first(cause):
        log.debug("stepped back: %s", cause)
        warnings.warn(
            f"fusewise leaves this to Inductor: {cause}", category=FusewiseWarning, stacklevel=2
        )


def tell_once(text: str) -> None:
    """Warn of something that the user said and that is not done, unless that was told before."""
    if _first(text):
        log.debug("%s", text)
        warnings.warn(f"fusewise: {text}", category=FusewiseWarning, stacklevel=2)


def _first(text: str) -> bool:
    """Whether ``text`` was not told in this process before."""
    with _lock:
        if text in _told:
            return False
        _told.add(text)
        return True
