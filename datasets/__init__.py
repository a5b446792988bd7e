"""The datasets room: where graphs come from, and the store of what was measured on them.

Holds the DuckDB store with its migrations and spool, the corpora, the splits by family, and the
published datasets: ``fusewise.datasets.load("h200")``. Never imports torch's compiler, never fits
or evaluates a model, and never decides which schedule wins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusewise.datasets.dataset import Dataset

__all__ = ["load"]


def load(name_or_path: str | os.PathLike[str]) -> Dataset:
    """The dataset of that name that comes with the package, or the one in that folder.

    Raises:
        DatasetError: there is none of that name, or it is damaged or of a newer schema.
    """
    # DuckDB and numpy are imported by whoever loads, not by whoever imports the room.
    from fusewise.datasets.dataset import load as load_dataset

    return load_dataset(name_or_path)
