"""The corpus of generated programs: all families in turn, each sample from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.generated import (
    attention,
    chains,
    indexed,
    layouts,
    losses,
    mlp,
    norms,
    optimisers,
    quantised,
)
from fusewise.datasets.generated.draw import Draw, Program
from fusewise.schedule.errors import CorpusError

#: Every family by name. Add a function here and its programs are drawn.
FAMILIES: dict[str, Callable[[Draw], Program]] = {
    make.__name__: make
    for make in (
        norms.layer_norm,
        norms.rms_norm,
        norms.batch_norm,
        norms.group_norm,
        attention.softmax,
        attention.attention,
        attention.rope,
        losses.cross_entropy,
        losses.bce,
        losses.kl_divergence,
        losses.smooth_l1,
        optimisers.adam,
        optimisers.sgd,
        mlp.gated,
        mlp.gated_mlp,
        mlp.composed,
        quantised.quantise,
        quantised.dequantise,
        quantised.fake_quantise,
        indexed.embedding,
        indexed.index_add,
        indexed.gather_rows,
        layouts.broadcast,
        layouts.reduction,
        layouts.transpose,
        layouts.patches,
        chains.pointwise_chain,
        chains.many_users,
        chains.dropout,
        chains.in_place,
    )
}


class GeneratedCorpus:
    """Programs drawn from :data:`FAMILIES`.

    Args:
        scale: factor on sizes. At 1 a kernel takes some 5 µs to 5 ms on a few CPU cores; a GPU
            wants 16 or more.
        families: names to draw from; None draws from all.

    Raises:
        CorpusError: a name is none of the families.
    """

    name = "generated"
    licence = "Apache-2.0"

    def __init__(self, *, scale: float = 1.0, families: Sequence[str] | None = None) -> None:
        unknown = [name for name in families or () if name not in FAMILIES]
        if unknown:
            raise CorpusError(
                f"there is no family {unknown[0]!r}",
                subject="generated corpus",
                remedy=f"use some of {', '.join(FAMILIES)}",
            )
        self.scale = scale
        self.families = tuple(families or FAMILIES)

    def samples(self, seed: int, limit: int) -> Iterator[GraphSample]:
        """``limit`` samples, the families in turn; equal seeds and scales give equal samples."""
        for i in range(limit):
            yield self.sample(self.families[i % len(self.families)], f"{seed}-{i}")

    def sample(self, family: str, seed: str) -> GraphSample:
        """One sample of ``family``."""
        program = FAMILIES[family](Draw(f"{family}/{seed}", self.scale))
        return GraphSample(
            name=f"{family}/{seed}",
            family=f"{self.name}/{family}",
            module=program.module,
            args=program.args,
            training=program.training,
            licence=self.licence,
        )
