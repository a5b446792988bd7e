"""The checkout under test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds ``pyproject.toml``."""
    return Path(__file__).resolve().parents[2]
