"""What models are called with whose sizes are the library's own: as their configurations say.

Batches are as large as the drawn sizes would make tensors within the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from fusewise.datasets.drawn import spread
from fusewise.datasets.transformers_models.cut_down import (
    heads_of,
    most_length,
    parts,
    told,
    width_of,
)
from fusewise.datasets.transformers_models.sizes import VOCABULARY, Sizes, drawn_ids

#: From drawn sizes and a configuration to keyword arguments of the call.
Inputs = Callable[[Sizes, Any], dict[str, Tensor]]

_SIDE: Final = 224
_FRAMES_OF_VIDEO: Final = 8
_MELS: Final = 80
#: Samples of a quarter of a second of sound and of five; half a minute in spectra.
_LEAST_SAMPLES, _MOST_SAMPLES, _FRAMES = 4000, 80000, 3000
#: Channels of the first layers, for each pixel.
_FIRST_CHANNELS: Final = 8


def listed_tokens(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Tokens."""
    return {"input_ids": _text(sizes, config, 1)}


def listed_two_texts(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Tokens for the encoder and half as many for the decoder."""
    return {"input_ids": _text(sizes, config, 1), "decoder_input_ids": _text(sizes, config, 2)}


def listed_images(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Images of the side that the model is made for."""
    height, width = _side(config)
    batch = _batch(sizes, height * width)
    return {"pixel_values": torch.randn(batch, _channels(config), height, width)}


def listed_images_and_text(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Images, and as many texts."""
    images = listed_images(sizes, config)["pixel_values"]
    return {"pixel_values": images, "input_ids": _ids(config, len(images), _length(sizes, config))}


def listed_video(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Frames of the side and number that the model is made for."""
    height, width = _side(config)
    frames = told(config, "num_frames", "frames_per_clip", default=_FRAMES_OF_VIDEO)
    batch = _batch(sizes, frames * height * width)
    return {"pixel_values": torch.randn(batch, frames, _channels(config), height, width)}


def listed_sound(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Up to five seconds of sound."""
    del config
    samples = spread(sizes.source, _LEAST_SAMPLES, _MOST_SAMPLES)
    # First layers have far more channels for a sample than for a pixel.
    return {"input_values": torch.randn(_batch(sizes, samples * _FIRST_CHANNELS), samples)}


def listed_sound_of_a_channel(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """The same, with an extent for its single channel."""
    return {name: sound[:, None] for name, sound in listed_sound(sizes, config).items()}


def listed_spectra(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """Spectra of half a minute, frames innermost; with tokens where the model has a decoder."""
    mels = _mels(config)
    batch = _batch(sizes, _FRAMES * mels)
    return {"input_features": torch.randn(batch, mels, _FRAMES), **_decoder(sizes, config, batch)}


def listed_frames(sizes: Sizes, config: Any) -> dict[str, Tensor]:
    """As many frames of spectra as there would be tokens; with tokens for the decoder, if any."""
    mels = _mels(config)
    length = max(_MELS, sizes.length)
    batch = _batch(sizes, length * width_of(config))
    return {"input_features": torch.randn(batch, length, mels), **_decoder(sizes, config, batch)}


def _text(sizes: Sizes, config: Any, part: int) -> Tensor:
    """Tokens of a ``part``-th of the length, as many texts as the model's own width allows."""
    wider = max(1.0, width_of(config) / sizes.width, heads_of(config) / sizes.heads)
    length = max(4, _length(sizes, config) // part)
    return _ids(config, max(1, int(sizes.batch / wider)), length)


def _decoder(sizes: Sizes, config: Any, batch: int) -> dict[str, Tensor]:
    if not getattr(config, "is_encoder_decoder", False):
        return {}
    return {"decoder_input_ids": _ids(config, batch, _length(sizes, config))}


def _length(sizes: Sizes, config: Any) -> int:
    """Tokens of a text, as drawn if the model takes so many."""
    return min(sizes.length, most_length(config))


def _ids(config: Any, batch: int, length: int) -> Tensor:
    known = told(config, "vocab_size", default=VOCABULARY)
    return drawn_ids(batch, length, min(VOCABULARY, known))


def _batch(sizes: Sizes, elements: int) -> int:
    """Of inputs of so many elements, as large as tensors in a model of the drawn sizes are."""
    drawn = sizes.batch * sizes.length * sizes.width
    # Normalisation over the batch refuses statistics of a single value.
    return max(2, min(sizes.batch, drawn // (elements * _FIRST_CHANNELS)))


def _side(config: Any) -> tuple[int, int]:
    for part in parts(config):
        size = getattr(part, "image_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple):
            return size[0], size[-1]
    return _SIDE, _SIDE


def _channels(config: Any) -> int:
    return told(config, "num_channels", "in_channels", "in_chans", default=3)


def _mels(config: Any) -> int:
    names = ("num_mel_bins", "input_feat_per_channel", "input_channels", "feature_size", "n_mels")
    return told(config, *names, "input_dim", default=_MELS)
