"""The corpus of generated programs: all families in turn, each sample from a seed of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.drawn import chosen_families, drawn_names, family_of
from fusewise.datasets.generated import (
    adapted,
    addresses,
    attention,
    caches,
    chains,
    classifiers,
    composed,
    contrasts,
    control,
    critics,
    dense_heads,
    detections,
    diffusion,
    events,
    fields,
    forecasts,
    gathers,
    gauges,
    generative,
    graphics,
    image_attention,
    images,
    indexed,
    joins,
    layouts,
    likelihoods,
    lingual,
    losses,
    low_precision,
    masks,
    meshes,
    mixers,
    mixtures,
    mlp,
    norms,
    objectives,
    omics,
    optimisers,
    quantised,
    recommendation,
    recurrences,
    reductions,
    regions,
    relations,
    remade,
    residual_nets,
    resized,
    returns,
    scatters,
    segments,
    sequences,
    signals,
    simulations,
    single,
    single_indexed,
    single_long,
    sounds,
    spaces,
    speech,
    states,
    statistics,
    structures,
    styled,
    tabular,
    tiny,
    transforms,
    unrolled,
    video,
    visual,
    weights,
    wide,
)
from fusewise.datasets.generated.draw import Draw, Program

#: What tells of one domain each. Add a module or one of its families, and its programs are drawn.
_MODULES = (
    norms,
    attention,
    losses,
    optimisers,
    mlp,
    quantised,
    indexed,
    layouts,
    chains,
    reductions,
    wide,
    tiny,
    scatters,
    gathers,
    images,
    joins,
    caches,
    masks,
    diffusion,
    recommendation,
    mixtures,
    resized,
    segments,
    sequences,
    fields,
    objectives,
    spaces,
    statistics,
    visual,
    lingual,
    contrasts,
    meshes,
    adapted,
    styled,
    gauges,
    remade,
    critics,
    tabular,
    low_precision,
    control,
    transforms,
    video,
    generative,
    dense_heads,
    detections,
    structures,
    simulations,
    speech,
    forecasts,
    mixers,
    residual_nets,
    recurrences,
    unrolled,
    omics,
    signals,
    sounds,
    events,
    image_attention,
    classifiers,
    states,
    graphics,
    relations,
    addresses,
    returns,
    likelihoods,
    regions,
    weights,
    single,
    single_indexed,
    single_long,
)
#: Every family of one kind of program.
KINDS: dict[str, Callable[[Draw], Program]] = {
    make.__name__: make for module in _MODULES for make in module.FAMILIES
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
