"""The measuring process of a collection: the one of a compile, but that it dies with its parent.

There it is started by whatever thread compiles, which may end before its process does.
"""

from __future__ import annotations

from fusewise.compiler.collecting.child import die_with_parent
from fusewise.compiler.measuring import serving


def main(descriptor: int) -> int:
    """Serve whoever is at the other end of a socket; exit status of the process."""
    die_with_parent()
    return serving.main(descriptor)
