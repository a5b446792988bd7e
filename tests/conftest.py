"""What holds for every test: a store and a compile cache of its own, no GPU tests without a GPU."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_home = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests, and the processes they start, off the user's store and Inductor's cache."""
    home = Path(tempfile.mkdtemp(prefix="fusewise-tests-"))
    config.stash[_home] = home
    os.environ["FUSEWISE_HOME"] = str(home / "store")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(home / "inductor")


def pytest_collection_finish() -> None:
    """Have no test write down what torch does at each step of a compile.

    It does where anybody listens, and pytest listens to all loggers that pass nothing on.
    """
    logging.getLogger("torch.__trace").propagate = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folders of this session."""
    shutil.rmtree(config.stash[_home], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``gpu`` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
