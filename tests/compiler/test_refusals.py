"""Every ground that the installed Inductor can give has a code, and every code a meaning."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch._inductor

from fusewise.compiler.inductor.refusals import MEANINGS, Refusal, classify

_INDUCTOR = Path(torch._inductor.__path__[0])
_ROOT = Path(__file__).resolve().parents[2]


def _texts() -> Iterator[tuple[str, str]]:
    """Where Inductor says why it does not fuse, and what, values replaced by ``x``."""
    sources = [_INDUCTOR / "scheduler.py", _INDUCTOR / "choices.py"]
    for path in (*sources, *sorted((_INDUCTOR / "codegen").rglob("*.py"))):
        text = path.read_text()
        # Most files have none, and would take long to parse.
        tree = ast.parse(text if re.search(r"\bwhy\(|WhyNoFuse", text) else "")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _says_why(node.func):
                yield f"{path.name}:{node.lineno}", _text(node.args[0])


def _says_why(function: ast.expr) -> bool:
    """Whether it is ``why(...)`` or ``WhyNoFuse(a, b)(...)``."""
    if isinstance(function, ast.Call):
        return isinstance(function.func, ast.Name) and function.func.id.startswith("WhyNoFuse")
    return isinstance(function, ast.Name) and function.id == "why"


def _text(argument: ast.expr) -> str:
    if isinstance(argument, ast.JoinedStr):
        parts = [v.value if isinstance(v, ast.Constant) else "x" for v in argument.values]
        return "".join(map(str, parts))
    assert isinstance(argument, ast.Constant), ast.dump(argument)
    return str(argument.value)


def test_the_sources_say_why() -> None:
    texts = [text for _, text in _texts()]
    assert len(texts) > 30
    assert "no shared data" in texts and "memory deps did not match" in texts


@pytest.mark.parametrize(
    ("place", "text"), [pytest.param(place, text, id=place) for place, text in _texts()]
)
def test_every_text_of_inductor_has_a_code(place: str, text: str) -> None:
    assert classify(text) not in (Refusal.OTHER, Refusal.RULE), (place, text)


def test_every_code_has_a_meaning() -> None:
    assert list(MEANINGS) == list(Refusal)
    assert len(set(MEANINGS.values())) == len(MEANINGS)


def test_the_page_is_up_to_date() -> None:
    written = runpy.run_path(str(_ROOT / "docs/generate_refusals.py"))["page"]()
    assert (_ROOT / "docs/refusals.md").read_text() == written, "run docs/generate_refusals.py"
