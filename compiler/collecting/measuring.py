"""The measuring process of a collection: the one of a compile, but for two things.

It dies with its parent: in a compile it is started by whatever thread compiles, which may end
before its process does. And it has the processor take denormal numbers for 0. These take ten times
as long as others, and come of values that were drawn, where a model has none: what takes an
exponential of them would seem to be slow by itself.
"""

from __future__ import annotations

import torch

from fusewise.compiler.collecting.child import die_with_parent
from fusewise.compiler.measuring import serving


def main(descriptor: int) -> int:
    """Serve whoever is at the other end of a socket; exit status of the process."""
    die_with_parent()
    # Threads that start later have it from this one.
    torch.set_flush_denormal(True)
    return serving.main(descriptor)
