"""The drawn sizes of one model, and what is made of them: architectures and their inputs.

Knows what an architecture needs, never which architectures there are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor

from fusewise.datasets.drawn import spread

#: Tokens and classes that models know. Real ones are larger; then the last product is all there is.
VOCABULARY: Final = 1024
#: The first few have a meaning to some models (padding, end of text).
_FIRST_TOKEN: Final = 4

#: Extents at scale 1, which suit a few CPU cores, and the most that they ever grow to.
_WIDTH, _MOST_WIDTH = 256, 2048
_LENGTH, _MOST_LENGTH = 128, 2048
_BATCH, _MOST_BATCH = 8, 64
_LEAST_LENGTH: Final = 8
#: Elements of a layer's activations and of its attention scores at scale 1. At 16 the largest
#: tensors that a model makes are of some 1 GB.
_ACTIVATIONS, _SCORES = 2**22, 2**24

_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_DTYPE_WEIGHTS: Final = (0.4, 0.45, 0.15)


@dataclass(frozen=True)
class Sizes:
    """The drawn sizes of one model."""

    width: int
    heads: int
    layers: int
    batch: int
    length: int
    dtype: torch.dtype
    training: bool
    #: Wanted implementation of attention; models that have none of their own for it use eager.
    attention: Literal["eager", "sdpa"]
    #: For whatever else an architecture draws: equal seeds draw equally.
    source: random.Random

    @classmethod
    def draw(cls, source: random.Random, scale: float) -> Sizes:
        """Sizes from ``source``; ``scale`` is a factor on the work."""
        heads = source.choice((2, 4, 8, 16))
        most_width = min(_MOST_WIDTH, _WIDTH * scale**0.75)
        per_head = source.choice([w for w in (16, 32, 64, 128) if heads * w <= most_width] or [8])
        width = heads * per_head
        length = spread(
            source, _LEAST_LENGTH, max(_LEAST_LENGTH, min(_MOST_LENGTH, _LENGTH * scale))
        )
        # Many sequences are padded to a power of two or a multiple of 8, many are not.
        length = length if source.random() < 0.5 else length // 8 * 8  # noqa: PLR2004
        most_batch = min(
            _MOST_BATCH,
            _BATCH * scale**0.75,
            _ACTIVATIONS * scale / (length * width),
            _SCORES * scale / (heads * length * length),
        )
        return cls(
            width=width,
            heads=heads,
            layers=source.choice((1, 2)),
            batch=spread(source, 1, max(1.0, most_batch)),
            length=length,
            dtype=source.choices(_DTYPES, _DTYPE_WEIGHTS)[0],
            training=source.random() < 0.5,  # noqa: PLR2004
            attention=source.choice(("eager", "sdpa")),
            source=source,
        )

    @property
    def inner(self) -> int:
        """Width inside of a feed-forward block."""
        return 4 * self.width

    @property
    def few(self) -> int:
        """A length for models that unroll a loop over it."""
        return min(self.length, 32)

    def image(self, patch: int) -> int:
        """Side of a square image of about :attr:`length` patches, at least 2 by 2."""
        return patch * max(2, math.isqrt(self.length))


class Recipe(Protocol):
    """How to make a model of drawn sizes and what it is called with."""

    @property
    def model(self) -> str:
        """The model's class in the library."""

    def configured(self, config_class: Any, sizes: Sizes) -> Any:
        """A configuration of that class."""

    def given(self, config: Any, sizes: Sizes) -> dict[str, Tensor]:
        """Keyword arguments of the call; floats are cast to the model's dtype."""


@dataclass(frozen=True)
class Architecture:
    """One architecture: its class in the library, and how it is configured and called."""

    #: ``BertModel``; its configuration class is known to it.
    model: str
    #: Arguments of the configuration.
    config: Callable[[Sizes], dict[str, Any]]
    #: Keyword arguments of the call.
    inputs: Callable[[Sizes], dict[str, Tensor]]

    def configured(self, config_class: Any, sizes: Sizes) -> Any:
        """From the arguments that are given for these sizes."""
        return config_class(**self.config(sizes))

    def given(self, config: Any, sizes: Sizes) -> dict[str, Tensor]:
        """As given for these sizes, which the configuration is of."""
        del config
        return self.inputs(sizes)


def tokens(sizes: Sizes) -> dict[str, Tensor]:
    """Tokens of :attr:`Sizes.length`."""
    return {"input_ids": token_ids(sizes, sizes.length)}


def padded_tokens(sizes: Sizes) -> dict[str, Tensor]:
    """Tokens with a mask of the padding, as encoders take them."""
    mask = torch.ones(sizes.batch, sizes.length, dtype=torch.int64)
    if sizes.source.random() < 0.5:  # noqa: PLR2004
        mask[0, sizes.length * 3 // 4 :] = 0
    return {**tokens(sizes), "attention_mask": mask}


def labelled_tokens(sizes: Sizes) -> dict[str, Tensor]:
    """Tokens, with labels where the model is trained: the loss is part of the program then."""
    ids = token_ids(sizes, sizes.length)
    return {"input_ids": ids, "labels": ids} if sizes.training else {"input_ids": ids}


def few_tokens(sizes: Sizes) -> dict[str, Tensor]:
    """Tokens of :attr:`Sizes.few`."""
    return {"input_ids": token_ids(sizes, sizes.few)}


def two_texts(sizes: Sizes) -> dict[str, Tensor]:
    """Tokens for the encoder and for the decoder."""
    return {**tokens(sizes), "decoder_input_ids": token_ids(sizes, max(4, sizes.length // 2))}


def images(patch: int, *, channels: int = 3) -> Callable[[Sizes], dict[str, Tensor]]:
    """Square images of :meth:`Sizes.image`."""

    def make(sizes: Sizes) -> dict[str, Tensor]:
        side = sizes.image(patch)
        return {"pixel_values": torch.randn(sizes.batch, channels, side, side)}

    return make


def token_ids(sizes: Sizes, length: int) -> Tensor:
    """Tokens of that length."""
    return drawn_ids(sizes.batch, length, VOCABULARY)


def drawn_ids(batch: int, length: int, known: int) -> Tensor:
    """Texts of that length, of a model that knows so many tokens."""
    return torch.randint(min(_FIRST_TOKEN, known - 1), known, (batch, length))
