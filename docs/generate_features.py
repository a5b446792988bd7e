"""Writes ``features.md`` from the feature tables of the cost model and the block model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusewise.costmodel.block_table import BLOCKS_VERSION, OF_KERNEL, OF_SIZES
from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION, Feature

_TEXT = """\
# Features of the cost model

Written by `docs/generate_features.py` from `costmodel/feature_table.py`; do not edit.

Version {version}, {count} features of a group of nodes, in the order of the columns. All are
computed from the problem alone; no code is generated for them. A model and a stored sample carry
the version that they were made with, and one of another version is refused.

Units: `log2` columns hold log2(1 + x), since sizes span decades and trees split on order only;
`share` columns lie in 0 to 1; `count` and `flag` columns hold plain numbers. `doublings` columns
hold means or sums over several accesses or nodes of log2(1 + x), of log2(x) where x is 1 at the
least.

| column | name | unit | definition |
| ---: | --- | --- | --- |
{rows}

## Of block sizes

Written from `costmodel/block_table.py`. Version {blocks_version}, {blocks} features of a generated
Triton kernel with some [block sizes](training.md#block-sizes), computed from its source: the
{of_kernel} of the kernel, the {of_sizes} of the sizes, and for each of the latter how it differs
from the same of Inductor's own first sizes (`..._change`). Here `log2` columns hold log2(x), so
that a difference is a ratio.

| column | name | unit | definition |
| ---: | --- | --- | --- |
{block_rows}
"""


def page() -> str:
    """The page as it has to be."""
    return _TEXT.format(
        version=FEATURES_VERSION,
        count=len(FEATURES),
        rows=_rows(FEATURES),
        blocks_version=BLOCKS_VERSION,
        blocks=len(OF_KERNEL) + 2 * len(OF_SIZES),
        of_kernel=len(OF_KERNEL),
        of_sizes=len(OF_SIZES),
        block_rows=_rows((*OF_KERNEL, *OF_SIZES)),
    )


def _rows(features: Sequence[Feature]) -> str:
    return "\n".join(
        f"| {column} | `{feature.name}` | {feature.unit} | {feature.definition} |"
        for column, feature in enumerate(features)
    )


if __name__ == "__main__":
    Path(__file__).with_name("features.md").write_text(page())
