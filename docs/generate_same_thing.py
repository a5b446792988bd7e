"""Writes ``same-thing.md`` from the pairs of programs that do the same."""

from __future__ import annotations

from pathlib import Path

from fusewise.datasets.pairs.corpus import PAIRS
from fusewise.datasets.pairs.pair import Pair

_TEXT = """\
# The same thing written differently

Written by `docs/generate_same_thing.py` from the pairs in `datasets/pairs/`; do not edit.

A program can be written in place or with new values, by slices or by a concatenation, with `einsum`
or with `@`. Dynamo and AOTAutograd turn all of it into one form without mutation before anything is
lowered, so most of it is the same to fusion. Each pair here does the same in eager mode, and both
forms are compiled; they are the **same** where Inductor's own plan puts them into the same kernels:
as many, with loops as long, that read and store as many bytes. What is computed inside a kernel
may still be written otherwise (a multiplication by a mask is no selection). All on the CPU; a test
holds every outcome.

{same} of {count} pairs are the same to Inductor, and {mended} more under a choice that fusewise
tries by itself, as one of its [choices beside the plan](how-it-works.md#choices-beside-the-plan).

| pair | one form | the other | groups |
| --- | --- | --- | --- |
{rows}

## Where it is not the same

{reasons}
"""


def _outcome(pair: Pair) -> str:
    if not pair.differs:
        return "same"
    return f"same under `{pair.mended_by}`" if pair.mended_by else "differ"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def page() -> str:
    """The page as it has to be."""
    rows = "\n".join(
        f"| {pair.name} | {_code(pair.forms[0])} | {_code(pair.forms[1])} | {_outcome(pair)} |"
        for pair in PAIRS
    )
    reasons: dict[str, list[str]] = {}
    for pair in PAIRS:
        if pair.differs:
            mended = f" With `{pair.mended_by}` both are the same." if pair.mended_by else ""
            text = f"{pair.differs[0].upper()}{pair.differs[1:]}.{mended}"
            reasons.setdefault(text, []).append(pair.name)
    return _TEXT.format(
        same=sum(not pair.differs for pair in PAIRS),
        mended=sum(bool(pair.mended_by) for pair in PAIRS),
        count=len(PAIRS),
        rows=rows,
        reasons="\n".join(f"- *{'*, *'.join(names)}*: {why}" for why, names in reasons.items()),
    )


if __name__ == "__main__":
    Path(__file__).with_name("same-thing.md").write_text(page())
