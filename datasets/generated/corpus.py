"""The corpus of generated programs: all families in turn, each sample from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.drawn import chosen_families, drawn_names, family_of
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
        families: names to draw from; none for all.

    Raises:
        CorpusError: a name is none of the families.
    """

    name = "generated"
    licence = "Apache-2.0"

    def __init__(self, *, scale: float = 1.0, families: Sequence[str] = ()) -> None:
        self.scale = scale
        self.families = chosen_families(families, FAMILIES, self.name)

    def names(self, seed: int) -> Iterator[str]:
        """``layer_norm/7-0`` and so on, the families in turn, without end."""
        return drawn_names(self.families, seed)

    def build(self, name: str) -> Iterator[GraphSample]:
        """The one program of that name; equal names and scales give equal programs.

        Raises:
            CorpusError: the name is of another form or of an unknown family.
        """
        family = family_of(name, FAMILIES, self.name)
        program = FAMILIES[family](Draw(name, self.scale))
        yield GraphSample(
            name=name,
            family=f"{self.name}/{family}",
            module=program.module,
            args=program.args,
            training=program.training,
            licence=self.licence,
        )
