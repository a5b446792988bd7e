"""Inductor's functions replaced once a process, by ones that ask a context variable what to do.

Inductor has no place for most of what fusewise decides, so functions of its own are replaced by
dispatchers. They stay as long as the process lives and do what Inductor does wherever their
variable holds nothing: compiles without fusewise, in other threads too, run as if it were not
there. Never says what is replaced, nor by what.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")
#: One for all: of two that replace the same function, neither may miss the other's.
_lock = threading.RLock()


def once(replace: Callable[[], None]) -> Callable[[], None]:
    """Have ``replace`` do its work once a process, however often and from wherever it is called.

    Where it raises, nothing counts as done: the next call tries again.
    """
    done = False

    @functools.wraps(replace)
    def replace_once() -> None:
        nonlocal done
        if done:
            return
        with _lock:
            if not done:
                replace()
                done = True

    return replace_once


@contextmanager
def switched(
    variable: ContextVar[bool], wanted: bool, replace: Callable[[], None]
) -> Iterator[None]:
    """Have ``variable`` hold True here if that is wanted, and what asks for it be in place."""
    if not wanted:
        yield
        return
    replace()
    with holding(variable, True):
        yield


@contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Have ``variable`` hold ``value`` in this context, and then what it held before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
