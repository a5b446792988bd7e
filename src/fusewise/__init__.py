"""fusewise: a ``torch.compile`` backend that decides fusion by search, a cost model and timing.

``torch.compile(model, backend="fusewise")`` is all it takes; :func:`reports` tells what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusewise.compiler.reports import GraphReport

__version__ = "0.1.0"
__all__ = ["__version__", "reports"]


def reports() -> list[GraphReport]:
    """One report for each graph compiled in this process with the backend, oldest first."""
    # torch is imported by whoever compiles, not by whoever asks for the version.
    from fusewise.compiler.reports import reports as all_reports

    return all_reports()
