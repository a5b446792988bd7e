"""Writes ``features.md`` from the feature table of the cost model."""

from __future__ import annotations

from pathlib import Path

from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION

_TEXT = """\
# Features of the cost model

Written by `docs/generate_features.py` from `costmodel/feature_table.py`; do not edit.

Version {version}, {count} features of a group of nodes, in the order of the columns. All are
computed from the problem alone; no code is generated for them. A model and a stored sample carry
the version that they were made with, and one of another version is refused.

Units: `log2` columns hold log2(1 + x), since sizes span decades and trees split on order only;
`share` columns lie in 0 to 1; `count` and `flag` columns hold plain numbers.

| column | name | unit | definition |
| ---: | --- | --- | --- |
{rows}
"""


def page() -> str:
    """The page as it has to be."""
    rows = "\n".join(
        f"| {column} | `{feature.name}` | {feature.unit} | {feature.definition} |"
        for column, feature in enumerate(FEATURES)
    )
    return _TEXT.format(version=FEATURES_VERSION, count=len(FEATURES), rows=rows)


if __name__ == "__main__":
    Path(__file__).with_name("features.md").write_text(page())
