"""The documents say what the code does."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import duckdb
import pytest

from fusewise.compiler.inductor.choices import CHOICES
from fusewise.compiler.options import MODES, Options

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_features_are_up_to_date() -> None:
    written = runpy.run_path(str(ROOT / "docs/generate_features.py"))["page"]()
    assert (ROOT / "docs/features.md").read_text() == written, "run docs/generate_features.py"


@pytest.mark.parametrize("page", ["README.md", "docs/options.md"])
def test_every_option_and_mode_is_told(page: str) -> None:
    text = (ROOT / page).read_text()
    named = {f"fusewise.{field.name}" for field in fields(Options)}
    assert named <= set(re.findall(r"`(fusewise\.\w+)`", text))
    assert set(MODES) <= set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))


def test_every_choice_is_told() -> None:
    text = (ROOT / "docs/how-it-works.md").read_text()
    assert {kind.name for kind in CHOICES} <= set(re.findall(r"`(\w+)`", text))


def test_every_column_of_the_store_is_told() -> None:
    text = (ROOT / "docs/store.md").read_text()
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    told = {
        table: re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)
        for table, section in sections.items()
    }
    with duckdb.connect() as connection:
        for migration in sorted((ROOT / "datasets/migrations").glob("*.sql")):
            connection.execute(migration.read_text())
        columns = connection.execute(
            "SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns() "
            "WHERE NOT internal GROUP BY ALL"
        ).fetchall()
    assert told == dict(columns)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    # Figures come later than the place for them.
    assert [link for link in missing if not link.endswith("results.md")] == []
