"""The block model: which block sizes of a Triton kernel are worth compiling, before any is.

From the source of a kernel alone it tells how long it would take with other block sizes than
Inductor's own, as a ratio. Made by ``train-costmodel`` where several sizes of kernels were timed,
and kept in the file of the model for the device. Compiles and times nothing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.block_table import BLOCKS_DIGEST, BLOCKS_VERSION
from fusewise.costmodel.booster import Booster, BoosterError
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.triton_facts import KernelFacts
from fusewise.costmodel.triton_source import facts_of
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import ModelError

log = logging.getLogger(__name__)


class BlockTrees(msgspec.Struct, frozen=True, kw_only=True):
    """A block model as it is kept in a file."""

    version: int = BLOCKS_VERSION
    digest: str = BLOCKS_DIGEST
    #: Text of a LightGBM booster.
    trees: str
    #: Kernels that it was fitted to.
    kernels: int = 0
    #: Which kinds of kernels these are, by :func:`kind_of`; empty where nobody noted it.
    kinds: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it was made for the features of this version."""
        return (self.version, self.digest) == (BLOCKS_VERSION, BLOCKS_DIGEST)


def kind_of(facts: KernelFacts) -> str:
    """What a kernel is, as far as trees that saw none like it know nothing of it."""
    return f"{facts.kind} of mixed order" if facts.each_block is not None else facts.kind


@dataclass(frozen=True)
class Ranking:
    """Block sizes of a kernel, those first that are expected to be the fastest."""

    sizes: tuple[BlockSizes, ...]
    #: For each, the time that is expected over that of the best of Inductor's own.
    ratios: tuple[float, ...]


class BlockModel:
    """Trees for block sizes. Immutable, and equal texts predict equal bits."""

    def __init__(self, kept: BlockTrees) -> None:
        """``kept``: of this version."""
        self.kept = kept
        #: Changes with what it predicts.
        self.id = f"blocks-{kept.version}-{hashlib.sha256(kept.trees.encode()).hexdigest()[:16]}"

    @cached_property
    def _booster(self) -> Booster:
        try:
            return Booster(self.kept.trees)
        except BoosterError as error:
            raise ModelError(
                f"its trees cannot be read: {error}",
                subject=f"block model {self.id}",
                remedy="train it again with train-costmodel",
            ) from error

    def log_ratios(
        self, facts: KernelFacts, sizes: Sequence[BlockSizes], own: BlockSizes
    ) -> FloatArray:
        """Log of the expected time with each of ``sizes`` over that with ``own``, shape [n].

        Args:
            facts: of the kernel.
            sizes: block sizes of it, in any order.
            own: what Inductor itself would take first; its own ratio is 1, so that is 0.

        Raises:
            ModelError: the trees cannot be read.
        """
        if not sizes:
            return np.empty(0)
        found = self._booster.predict(block_features(facts, sizes, own))
        return np.where(np.array([one == own for one in sizes]), 0.0, found)

    def ranked(self, source: str, sizes: Sequence[BlockSizes], own: int) -> Ranking | None:
        """``sizes`` in the order of their expected times; equals stay in the order given.

        Args:
            source: of the kernel, as Inductor generates it.
            sizes: that it may be compiled with.
            own: the first so many of these are Inductor's own, one at least.

        Returns:
            None where the kernel is unknown, or of a kind that it was not trained on.

        Raises:
            ModelError: the trees cannot be read.
        """
        facts = facts_of(source)
        if facts is None or not 0 < own <= len(sizes):
            return None
        if self.kept.kinds and kind_of(facts) not in self.kept.kinds:
            return None
        found = self.log_ratios(facts, sizes, sizes[0])
        ratios = np.exp(found - found[:own].min())
        order = np.argsort(ratios, kind="stable")
        return Ranking(
            tuple(sizes[at] for at in order), tuple(float(ratio) for ratio in ratios[order])
        )


def block_model(kept: BlockTrees | None, subject: str) -> BlockModel | None:
    """What was kept in a model's file, where it is of this version.

    ``subject`` names the model in the log. Times of kernels are as good without.
    """
    if kept is None:
        return None
    if not kept.usable:
        log.debug(
            "%s: block sizes left out, made for version %d (%s), this is version %d (%s)",
            subject, kept.version, kept.digest, BLOCKS_VERSION, BLOCKS_DIGEST,
        )  # fmt: skip
        return None
    return BlockModel(kept)


@runtime_checkable
class KnowsBlocks(Protocol):
    """A cost model that may know about block sizes."""

    @property
    def blocks(self) -> BlockModel | None:
        """What it knows, if anything."""


def blocks_of(model: CostModel) -> BlockModel | None:
    """What ``model`` knows about block sizes; None where that is nothing."""
    return model.blocks if isinstance(model, KnowsBlocks) else None
