"""The page as a file: one that needs nothing beside it, and that no name can break out of."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fusewise.compiler.explaining.html import check_page, write_page
from fusewise.compiler.explaining.report import ExplainedProgram
from fusewise.schedule.errors import OptionError, UnsupportedError

pytest.importorskip("jinja2")

HOSTILE = "</script><img src=x onerror=\"document.title='broken out'\">&amp;<!--"
Make = Callable[..., ExplainedProgram]


class Reader(HTMLParser):
    """What a browser would make of the file: its elements, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, str] = {}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag in ("script", "title", "h1"):
            self._inside = found.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "title", "h1"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data


def read(explained: ExplainedProgram) -> Reader:
    reader = Reader()
    reader.feed(explained.html())
    return reader


def test_the_data_are_those_of_the_json(make_explained: Make) -> None:
    explained = make_explained(nodes=30)
    assert json.loads(read(explained).texts["data"]) == json.loads(explained.json())


def test_nothing_is_fetched(make_explained: Make) -> None:
    reader = read(make_explained(nodes=6))
    assert reader.links == []
    assert "default-src 'none'" in make_explained(nodes=6).html()


@pytest.mark.parametrize("mark", [HOSTILE, "<!--<script>", "]]>\u2028\u2029{{ 7 * 7 }}{% if %}"])
def test_no_name_breaks_out(make_explained: Make, mark: str) -> None:
    plain, hostile = read(make_explained(nodes=30)), read(make_explained(nodes=30, mark=mark))
    assert hostile.tags == plain.tags
    told = json.loads(hostile.texts["data"])
    assert told["program"] == f"made{mark}"
    assert told["graphs"][0]["nodes"][3]["source"] == f"/model/block3{mark}.py:3"
    assert f"made{mark}" in hostile.texts["title"] and f"made{mark}" in hostile.texts["h1"]


def test_what_cannot_be_written_is_refused(make_explained: Make, tmp_path: Path) -> None:
    check_page(tmp_path / "report.html")
    with pytest.raises(OptionError, match="no folder"):
        check_page(tmp_path / "nowhere" / "report.html")
    with pytest.raises(OptionError, match="is a folder"):
        check_page(tmp_path)
    with pytest.raises(OptionError, match="cannot be written"):
        write_page(make_explained(nodes=3), tmp_path)


def test_the_library_that_it_needs_is_named(
    make_explained: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"fusewise\[report\]"):
        check_page(tmp_path / "report.html")
    with pytest.raises(UnsupportedError, match="jinja2"):
        make_explained(nodes=3).html()
