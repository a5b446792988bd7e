"""Interrupts from the terminal, of which none is lost.

Python raises ``KeyboardInterrupt`` wherever the program happens to be. Where that is a callback of
a library in C, or what is done when an object ends, it is printed with a traceback and forgotten,
and who pressed Ctrl-C waits for a search that goes on.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Remembers, while it is entered, that an interrupt came; it is raised as ever besides.

    Where it cannot be raised nothing is printed: who asks for ``came`` takes it.

    Only in the main thread, and where nobody else has a handler of his own for them.
    """

    def __init__(self) -> None:
        #: Whether one came.
        self.came = False
        self._ours = False
        self._told_before = sys.unraisablehook

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._remember)
            self._told_before = sys.unraisablehook
            sys.unraisablehook = self._unraised
            self._ours = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = self._told_before

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)

    def _unraised(self, what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self._told_before(what)
