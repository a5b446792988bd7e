"""Judge a model that exists already: the work behind ``train-costmodel --evaluate-only``.

Chooses the kernels that are fair to judge it by; trains and saves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fusewise.costmodel.block_model import blocks_of
from fusewise.costmodel.borrowed import BorrowedModel
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import estimator_for
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.splits import split_groups
from fusewise.datasets.store import Store
from fusewise.training.block_training import evaluate_blocks
from fusewise.training.fit import Trained, TrainingReport, judge_of
from fusewise.training.foreseen import foreseen
from fusewise.training.judged import JudgedKernels
from fusewise.training.out_of_range import out_of_range
from fusewise.training.source import source_of
from fusewise.training.split import take


def evaluate(
    data: Store | Dataset,
    profile: DeviceProfile,
    model: CostModel,
    *,
    seen_families: tuple[str, ...] = (),
    strange: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Trained:
    """Judge an existing model by kernels that it has not seen.

    Of a dataset with a test split that counts, whatever the model has seen. Else kernels of
    families that it has not seen count; where there are none, all do, the report's split says
    ``all``, and what the model was trained on flatters it.

    With ``strange`` it is also seen whether an estimator notices classes and sizes of kernels that
    it was not trained on, by the kernels that are not judged by.

    Raises:
        ModelError: no kernels, or kernels of other features.
        StoreError: the store cannot be read.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split: Literal["published split", "unseen families", "all"] = "all"
    held = samples
    test = np.asarray(samples.split == "test", dtype=bool)
    unseen = np.array([family not in seen_families for family in samples.family], dtype=bool)
    if isinstance(data, Dataset) and test.any():
        split, held = "published split", take(samples, test)
    elif seen_families and unseen.any():
        split, held = "unseen families", take(samples, unseen)
    progress(f"judging by {len(held)} kernels")
    judge = judge_of(source, held, profile)
    found = judge.evaluate(model)
    unknown = None
    if strange and split != "all":
        rest = take(samples, ~test if split == "published split" else ~unseen)
        groups = np.array(split_groups(rest.family, rest.graph_key), dtype=np.object_)
        kernels = JudgedKernels(rest, source.problems())
        unknown = out_of_range(kernels, groups, estimator_for(profile.kind), progress)
    report = TrainingReport(
        device=profile.key,
        split=split,
        n_train=0,
        model=found.model,
        roofline=found.roofline,
        baselines=found.baselines,
        n_schedules_skipped=found.skipped,
        foresight=foreseen(source, held, profile, model),
        out_of_range=unknown,
        blocks=evaluate_blocks(blocks_of(model), source.blocks(profile.key), seen_families),
        borrowed_from=model.lender.key if isinstance(model, BorrowedModel) else "",
        model_id=model.id,
    )
    return Trained(report, judge, model)
