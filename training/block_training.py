"""The block model in ``train-costmodel``: trained and judged where kernels were timed with several.

Which families are held out is decided by whoever trains the cost model beside it; here it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from fusewise.costmodel.block_model import BlockModel
from fusewise.datasets.block_samples import BlockSample
from fusewise.datasets.samples import KernelSamples
from fusewise.training.block_fit import MIN_KERNELS, fit_blocks
from fusewise.training.block_scores import BlockJudgement, judge_blocks, large
from fusewise.training.split import SplitBy
from fusewise.training.timed_blocks import TimedKernel, usable


class BlockReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of training or judging a block model."""

    #: Kernels that it was fitted to before it was judged, and those that it was judged by.
    n_train: int
    n_kernels: int
    #: Kernels with sources that cannot be read, or without a time to compare with.
    unknown: int
    #: On those of 3 us and more, and on all; None where there are none to judge by.
    large: BlockJudgement | None
    all: BlockJudgement | None


@dataclass(frozen=True)
class HeldOut:
    """What is not trained on until all is judged, and what never is."""

    by: SplitBy
    graphs: frozenset[str]
    families: frozenset[str]
    #: Families that are not trained on in the end, either.
    for_good: frozenset[str]

    @classmethod
    def of(cls, by: SplitBy, held: KernelSamples, for_good: Collection[str]) -> HeldOut:
        """As kernels were held out to judge the cost model by."""
        return cls(
            by,
            frozenset(map(str, held.graph_key)),
            frozenset(str(family) for family in held.family if family),
            frozenset(for_good),
        )

    def judges(self, sample: BlockSample) -> bool:
        """Whether a kernel is judged by."""
        if self.by == "graph":
            return sample.graph_key in self.graphs
        return sample.split == "test" or sample.family in self.families

    def never(self, sample: BlockSample) -> bool:
        """Whether it is never trained on."""
        return sample.split == "test" or sample.family in self.for_good


def train_blocks(
    samples: Iterable[BlockSample],
    held: HeldOut,
    *,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[BlockModel | None, BlockReport | None]:
    """A block model of all kernels that may be trained on, and how one does that saw fewer.

    None and None where no kernels were timed with several block sizes; no model where they are
    fewer than ``MIN_KERNELS``.
    """
    samples = list(samples)
    if not samples:
        return None, None
    progress(f"fitting to block sizes of {len(samples)} kernels")
    judged = usable(_timed(sample) for sample in samples if held.judges(sample))
    fitted = usable(
        _timed(sample) for sample in samples if not held.judges(sample) and not held.never(sample)
    )
    final = usable(_timed(sample) for sample in samples if not held.never(sample))
    known = len(usable(map(_timed, samples)))
    model = fit_blocks(fitted, seed=seed) if len(fitted) >= MIN_KERNELS else None
    report = _report(model, judged, n_train=len(fitted), unknown=len(samples) - known)
    kept = fit_blocks(final, seed=seed) if len(final) >= MIN_KERNELS else None
    return kept, report


def evaluate_blocks(
    model: BlockModel | None, samples: Iterable[BlockSample], seen_families: Collection[str]
) -> BlockReport | None:
    """How an existing model does on kernels of the test split; else of families not seen; else all.

    None without a model or kernels.
    """
    samples = list(samples)
    if model is None or not samples:
        return None
    test = [sample for sample in samples if sample.split == "test"]
    unseen = [sample for sample in samples if sample.family not in seen_families]
    chosen = test or (unseen if seen_families else []) or samples
    judged = usable(map(_timed, chosen))
    return _report(model, judged, n_train=0, unknown=len(chosen) - len(judged))


def _report(
    model: BlockModel | None, judged: list[TimedKernel], *, n_train: int, unknown: int
) -> BlockReport:
    return BlockReport(
        n_train=n_train,
        n_kernels=len(judged),
        unknown=unknown,
        large=None if model is None else judge_blocks(model, large(judged)),
        all=None if model is None else judge_blocks(model, judged),
    )


def _timed(sample: BlockSample) -> TimedKernel:
    return TimedKernel(
        sample.source, sample.sizes, sample.own, sample.us, sample.family or sample.graph_key
    )
