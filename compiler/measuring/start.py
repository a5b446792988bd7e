"""Start of a measuring process: imports what serves, without collecting garbage meanwhile.

Run by :mod:`fusewise.compiler.measuring.client` with the name of the module that serves, the file
descriptor of a socket to the parent, and the folder where the code of what is imported is kept.
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys

from fusewise.compiler.measuring.imported import kept_imports


def main() -> None:
    """Import what serves, and serve."""
    module, descriptor, folder = sys.argv[1:]
    # An interrupt from the terminal is meant for the parent, which ends this process if it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Importing takes a seventh less time so; what serves has garbage collected.
    gc.disable()
    with kept_imports(folder):
        serving = importlib.import_module(module)
        # What loads programs has imported this by now, and goes on to what programs import.
        programs = sys.modules.get("fusewise.compiler.inductor.program")
        if programs is not None:
            programs.get_ready()
    sys.exit(serving.main(int(descriptor)))


if __name__ == "__main__":
    main()
