"""Growing the trees of a block model: LightGBM on the log of times over those with Inductor's own.

Deterministic: equal kernels and seeds give equal trees, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fusewise.costmodel.block_model import BlockModel, BlockTrees, kind_of
from fusewise.costmodel.block_table import BLOCK_FEATURES
from fusewise.costmodel.booster import text_of
from fusewise.training.timed_blocks import BlockRows, TimedKernel, block_rows

#: Fewest kernels that trees of any use can be grown on.
MIN_KERNELS: Final = 30
#: What did best on families left out (docs/training.md).
PARAMETERS: Final[dict[str, Any]] = {
    "objective": "regression",
    "num_leaves": 47,
    "learning_rate": 0.06,
    "min_data_in_leaf": 10,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
}
TREES: Final = 300
#: Log of the ratio from which on sizes are equally bad: how bad is nothing to spend leaves on.
_BAD: Final = math.log(2.0)
#: So that equal rows give equal trees.
_REPEATABLE: Final[dict[str, Any]] = {
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


def fit_blocks(
    kernels: Sequence[TimedKernel],
    *,
    seed: int = 0,
    parameters: dict[str, Any] = PARAMETERS,
    trees: int = TREES,
) -> BlockModel:
    """A block model of ``kernels``, which are usable ones, in any order; one at least."""
    # Rows in an order of their own, so that equal kernels give equal trees.
    ordered = sorted(kernels, key=lambda kernel: kernel.source)
    text = grown(block_rows(ordered), seed=seed, parameters=parameters, trees=trees)
    kinds = {kind_of(kernel.facts) for kernel in ordered if kernel.facts is not None}
    return BlockModel(BlockTrees(trees=text, kernels=len(ordered), kinds=tuple(sorted(kinds))))


def grown(rows: BlockRows, *, seed: int, parameters: dict[str, Any], trees: int) -> str:
    """LightGBM's text of trees on ``rows``."""
    import lightgbm

    data = lightgbm.Dataset(
        rows.features,
        label=np.minimum(rows.log_ratio, _BAD),
        weight=rows.weight,
        feature_name=[feature.name for feature in BLOCK_FEATURES],
    )
    told = {**parameters, **_REPEATABLE, "seed": seed}
    return text_of(lightgbm.train(told, data, num_boost_round=trees))
