"""The datasets that come with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewise.datasets import load
from fusewise.datasets.card import card
from fusewise.datasets.dataset import shipped_names
from fusewise.datasets.verify import check

#: Bytes that all of them may take together, in the repository and in the wheel.
_MOST = 60 * 10**6


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_names())
def test_it_is_sound_and_its_card_is_up_to_date(name: str) -> None:
    dataset = load(name)
    assert check(dataset).name == name
    written = (dataset.folder / "CARD.md").read_text()
    assert written == card(dataset.manifest), f"run fusewise dataset card {name} --write"


def test_they_are_small(checkout: Path) -> None:
    files = (checkout / "datasets" / "published").rglob("*")
    assert sum(path.stat().st_size for path in files if path.is_file()) < _MOST
