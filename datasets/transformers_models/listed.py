"""Architectures of the library's own sizes, cut down: those that nothing more need be said of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from fusewise.datasets.transformers_models import listed_classes as classes
from fusewise.datasets.transformers_models.cut_down import cut_down
from fusewise.datasets.transformers_models.listed_inputs import (
    Inputs,
    listed_frames,
    listed_images,
    listed_images_and_text,
    listed_sound,
    listed_sound_of_a_channel,
    listed_spectra,
    listed_tokens,
    listed_two_texts,
    listed_video,
)
from fusewise.datasets.transformers_models.sizes import Sizes

#: Of each stack, at most: where layers are of two kinds, one of each.
_LAYERS: Final = 2
_DIVISIBLE_BY: Final = 8


@dataclass(frozen=True)
class Listed:
    """One architecture: its class in the library, and how it is called."""

    model: str
    inputs: Inputs
    #: Power of two that its widths can be divided by and go on fitting each other.
    divisible_by: int

    def configured(self, config_class: Any, sizes: Sizes) -> Any:
        """The library's own configuration, cut down."""
        config = config_class()
        cut_down(config, layers=_LAYERS, width=sizes.width, divisible_by=self.divisible_by)
        return config

    def given(self, config: Any, sizes: Sizes) -> dict[str, Tensor]:
        """As large as the configuration says."""
        return self.inputs(sizes, config)


_BY_INPUTS: Final[tuple[tuple[dict[str, str], Inputs], ...]] = (
    (classes.TOKENS, listed_tokens),
    (classes.TWO_TEXTS, listed_two_texts),
    (classes.IMAGES, listed_images),
    (classes.IMAGES_AND_TEXT, listed_images_and_text),
    (classes.SOUND, listed_sound),
    (classes.SOUND_OF_A_CHANNEL, listed_sound_of_a_channel),
    (classes.FRAMES, listed_frames),
    (classes.SPECTRA, listed_spectra),
    (classes.VIDEO, listed_video),
)

#: Every listed architecture by name.
LISTED: Final[dict[str, Listed]] = {
    name: Listed(model, inputs, classes.DIVISIBLE_BY.get(name, _DIVISIBLE_BY))
    for models, inputs in _BY_INPUTS
    for name, model in models.items()
}
