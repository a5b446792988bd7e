"""Start of a measuring process: imports what serves, without collecting garbage meanwhile.

Run by :mod:`fusewise.compiler.measuring.client` with the name of the module that serves and the
file descriptor of a socket to the parent.
"""

from __future__ import annotations

import gc
import importlib
import sys


def main() -> None:
    """Import what serves, and serve."""
    module, descriptor = sys.argv[1:]
    # Importing takes a seventh less time so; what serves has garbage collected.
    gc.disable()
    sys.exit(importlib.import_module(module).main(int(descriptor)))


if __name__ == "__main__":
    main()
