"""Writes ``refusals.md`` from the enum of all grounds on which a fusion is refused."""

from __future__ import annotations

from pathlib import Path

from fusewise.compiler.inductor.refusals import MEANINGS

_TEXT = """\
# Why a fusion was not made

Written by `docs/generate_refusals.py` from `compiler/inductor/refusals.py`; do not edit.

One code for every ground that Inductor or fusewise has to leave two groups apart. They are what
`fusewise explain` gives as `reason` ([explain](explain.md)); `detail` beside it has the words and
values of the case. A fusion that was taken has no reason.

| reason | meaning |
| --- | --- |
{rows}
"""


def page() -> str:
    """The page as it has to be."""
    rows = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in MEANINGS.items())
    return _TEXT.format(rows=rows)


if __name__ == "__main__":
    Path(__file__).with_name("refusals.md").write_text(page())
