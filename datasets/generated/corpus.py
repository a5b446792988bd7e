"""The corpus of generated programs: all families in turn, each sample from a seed of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.drawn import chosen_families, drawn_names, family_of
from fusewise.datasets.generated import (
    attention,
    caches,
    chains,
    composed,
    diffusion,
    gathers,
    images,
    indexed,
    joins,
    layouts,
    losses,
    masks,
    mixtures,
    mlp,
    norms,
    optimisers,
    quantised,
    recommendation,
    reductions,
    scatters,
    tiny,
    wide,
)
from fusewise.datasets.generated.draw import Draw, Program

#: Every family of one kind of program. Add a function here and its programs are drawn.
KINDS: dict[str, Callable[[Draw], Program]] = {
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
        losses.vocabulary,
        losses.bce,
        losses.kl_divergence,
        losses.smooth_l1,
        optimisers.adam,
        optimisers.sgd,
        optimisers.many_small,
        optimisers.factored,
        mlp.gated,
        mlp.gated_mlp,
        mlp.composed,
        quantised.quantise,
        quantised.dequantise,
        quantised.fake_quantise,
        quantised.eight_bit_floats,
        quantised.integer_residual,
        quantised.accumulated,
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
        reductions.long_rows,
        reductions.distributions,
        reductions.columns,
        reductions.full_reduction,
        reductions.middle_axes,
        reductions.scan,
        reductions.chosen,
        wide.many_inputs,
        wide.many_outputs,
        wide.branches,
        wide.side_by_side,
        tiny.scalars,
        tiny.channel_parameters,
        tiny.counters,
        tiny.small_tensors,
        scatters.scatter_rows,
        scatters.scatter_elements,
        scatters.table_gradient,
        scatters.histogram,
        scatters.graph_messages,
        gathers.gather_table,
        gathers.along_rows,
        gathers.pages,
        gathers.sampled_image,
        gathers.routing,
        images.pooling,
        images.upsample,
        images.pixel_shuffle,
        images.padding,
        images.colours,
        images.convolved,
        joins.concatenation,
        joins.splits,
        joins.stacked,
        joins.recurrent_cell,
        caches.key_cache,
        caches.decode_step,
        caches.ring,
        caches.slices,
        masks.attention_mask,
        masks.triangle,
        masks.masked_means,
        masks.thresholds,
        diffusion.timestep_embedding,
        diffusion.sampler_step,
        diffusion.modulated,
        diffusion.noised,
        recommendation.embedding_bags,
        recommendation.interaction,
        recommendation.hashing,
        recommendation.ranking,
        mixtures.stages,
        mixtures.together,
    )
}
#: Every family by name.
FAMILIES: dict[str, Callable[[Draw], Program]] = KINDS | composed.COMPOSED


class GeneratedCorpus:
    """Programs drawn from :data:`FAMILIES`.

    Args:
        scale: factor on the largest sizes. At 1 kernels take up to some 5 ms on a few CPU cores;
            a GPU wants 16 or more. The smallest do next to nothing at any scale.
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
        """``layer_norm/7-0`` and so on, the families in turn, without end.

        Of all families, every third name is of a random structure: there are more of those than
        of the others, each of which would be drawn seldom.
        """
        if len(self.families) < len(FAMILIES):
            return drawn_names(self.families, seed)
        return drawn_names(_in_thirds(), seed)

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


def _in_thirds() -> Iterator[str]:
    """Two kinds of programs and a random structure in turn, without end."""
    kinds, structures = itertools.cycle(KINDS), itertools.cycle(composed.COMPOSED)
    while True:
        yield from (next(kinds), next(kinds), next(structures))
