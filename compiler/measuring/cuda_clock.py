"""The clock speed of a GPU: an idle one runs at a fraction of it, and takes a while to come up.

Whoever takes times has the device work first, here or, where the time until then is known to be
spent on something else, by a thread meanwhile. Times nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import filelock
import torch

from fusewise.compiler.measuring.device import device_lock

log = logging.getLogger(__name__)

#: Seconds of work after which an idle device runs at its full clock, at first and after a pause.
_WAKE_S, _WAKE_AGAIN_S = 0.3, 0.02
#: Seconds after which a device may have lowered its clock, and between two spells of work that
#: keep it from that.
_PAUSE_S, _REST_S = 1.0, 0.5
#: Seconds after which a device is not kept awake any longer, whatever is still to come.
_MOST_S = 30.0

_last_used: dict[int, float] = {}
_keepers: dict[int, _Keeper] = {}


def wake() -> None:
    """Have the current device work until its clock is up, if it may have been idle."""
    device = torch.cuda.current_device()
    let_rest(torch.device("cuda", device))
    now = time.perf_counter()
    if now - _last_used.get(device, -math.inf) > _PAUSE_S:
        deadline = now + (_WAKE_AGAIN_S if device in _last_used else _WAKE_S)
        work = _something()
        while time.perf_counter() < deadline:
            _work_on(work)
            torch.cuda.synchronize()
    stay_awake()


def stay_awake() -> None:
    """Say that the current device has just worked."""
    _last_used[torch.cuda.current_device()] = time.perf_counter()


def wake_meanwhile(device: torch.device) -> None:
    """Have a GPU come up and stay awake until :func:`wake` or :func:`let_rest`, by a thread.

    Nothing is done for a CPU.
    """
    if device.type != "cuda":
        return
    index = _index(device)
    if index not in _keepers:
        _keepers[index] = keeper = _Keeper(index)
        keeper.start()


def let_rest(device: torch.device) -> None:
    """Have nothing of this module's work on a device any more; returns when nothing does."""
    keeper = _keepers.pop(_index(device), None) if device.type == "cuda" else None
    if keeper is not None:
        keeper.end()


@contextmanager
def waking(device: torch.device) -> Iterator[None]:
    """Keep a GPU that this process uses awake in here, for what is timed in here or right after."""
    used = device.type == "cuda" and torch.cuda.is_initialized()
    # Any other launch may spoil what is being captured.
    if not used or torch.cuda.is_current_stream_capturing():
        yield
        return
    wake_meanwhile(device)
    try:
        yield
    finally:
        let_rest(device)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _something() -> torch.Tensor:
    """What a device can work on; of the stream that the caller's program works on, to be reused."""
    return torch.zeros(1 << 22, device="cuda")


def _work_on(work: torch.Tensor) -> None:
    """Launch what keeps arithmetic units and memory busy: an empty loop leaves kernels slow."""
    for _ in range(20):
        work.add_(1.0)


class _Keeper(threading.Thread):
    """Has a GPU work for a little while, again and again, unless somebody times on it."""

    def __init__(self, device: int) -> None:
        super().__init__(name="fusewise-awake", daemon=True)
        self._device = device
        self._over = threading.Event()

    def end(self) -> None:
        """Stop, and wait until the device has."""
        self._over.set()
        self.join()

    def run(self) -> None:
        until = time.perf_counter() + _MOST_S
        try:
            torch.cuda.set_device(self._device)
            work, stream = _something(), torch.cuda.Stream()
            while not self._over.is_set() and time.perf_counter() < until:
                self._spell(work, stream)
                self._over.wait(_REST_S)
        except Exception:
            # Whoever wants it awake has it work then.
            log.debug("a GPU is not kept awake", exc_info=True)

    def _spell(self, work: torch.Tensor, stream: torch.cuda.Stream) -> None:
        seconds = _WAKE_AGAIN_S if self._device in _last_used else _WAKE_S
        deadline = time.perf_counter() + seconds
        lock = device_lock(f"cuda:{self._device}")
        while time.perf_counter() < deadline:
            if self._over.is_set():
                return
            try:
                with lock.acquire(timeout=0), torch.cuda.stream(stream):
                    _work_on(work)
                    stream.synchronize()
            except filelock.Timeout:
                # Somebody times on it: it is awake, and must not be disturbed.
                break
        _last_used[self._device] = time.perf_counter()
