"""Start of a measuring process: the GPU's context is made while Python still imports.

Run by :mod:`fusewise.compiler.measuring.client` with the module that serves, the file descriptor
of a socket to the parent, and the device.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading


def main() -> None:
    """Import what serves, and serve."""
    module, descriptor, device = sys.argv[1:]
    if device != "cpu":
        threading.Thread(target=_touch, args=(device,), daemon=True).start()
    # Importing takes a seventh less time so; what serves has garbage collected.
    gc.disable()
    sys.exit(importlib.import_module(module).main(int(descriptor)))


def _touch(device: str) -> None:
    # What serves imports it first, too: here it is waited for.
    import torch

    # A context is made without Python's lock. Where there can be none, the first request tells why.
    with contextlib.suppress(Exception):
        torch.zeros(1, device=device)


if __name__ == "__main__":
    main()
