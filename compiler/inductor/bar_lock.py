"""The lock of progress bars, which copies of this process would share with it."""

from __future__ import annotations

import threading
from typing import Any

import torch.hub


def own_bar_lock() -> None:
    """Give this process a lock of its own for progress bars; the first thing to do in a copy.

    Inductor makes a bar, shown or not, for each program that it loads and each graph that it goes
    through, and ``tqdm`` locks those with a semaphore that a copy shares with the process that it
    was made of. A copy may be ended at any moment: one that had the lock then would have it for
    good, and the other would wait for it forever.
    """
    hub: Any = torch.hub
    # Without tqdm torch has bars that are none and lock nothing.
    set_lock = getattr(hub.tqdm, "set_lock", None)
    if set_lock is not None:
        set_lock(threading.RLock())
