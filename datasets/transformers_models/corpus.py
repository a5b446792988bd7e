"""The corpus of transformers models: every architecture in turn, each model from its own seed."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fusewise.datasets.blocks import Block, blocks, leaves
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.drawn import chosen_families, drawn_names, family_of
from fusewise.datasets.transformers_models.decoders import DECODERS
from fusewise.datasets.transformers_models.listed import LISTED
from fusewise.datasets.transformers_models.perception import PERCEPTION
from fusewise.datasets.transformers_models.sizes import Recipe, Sizes
from fusewise.datasets.transformers_models.text import TEXT
from fusewise.schedule.errors import CorpusError

#: Every architecture by name. Add one to the tables of its kind and its models are drawn.
ARCHITECTURES: Final[dict[str, Recipe]] = {**TEXT, **DECODERS, **PERCEPTION, **LISTED}

#: Models of more modules without children than this are cut into blocks.
_WHOLE: Final = 100
_SUBJECT: Final = "transformers corpus"


class TransformersCorpus:
    """Small models of :data:`ARCHITECTURES`.

    Args:
        scale: factor on the work; 1 suits a few CPU cores, a GPU wants 16.
        families: architectures to draw from; none for all.

    Raises:
        CorpusError: a name is none of the architectures.
    """

    name = "transformers"
    licence = "Apache-2.0"

    def __init__(self, *, scale: float = 1.0, families: Sequence[str] = ()) -> None:
        self.scale = scale
        self.families = chosen_families(families, ARCHITECTURES, self.name)

    def names(self, seed: int) -> Iterator[str]:
        """``bert/7-0`` and so on, the architectures in turn, without end.

        Raises:
            CorpusError: transformers is not installed.
        """
        if importlib.util.find_spec("transformers") is None:
            raise _missing("transformers is not installed")
        return drawn_names(self.families, seed)

    def build(self, name: str) -> Iterator[GraphSample]:
        """The model of that name, or its blocks; equal names and scales give equal models.

        Raises:
            CorpusError: transformers is not installed or of a version without the model, or the
                name is of another form.
        """
        family = family_of(name, ARCHITECTURES, self.name)
        source = random.Random(name)
        sizes = Sizes.draw(source, self.scale)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.getrandbits(62))
            module, kwargs = _built(family, sizes)
            if leaves(module) > _WHOLE:
                parts = blocks(module, (), kwargs)
            else:
                parts = [Block("", module, (), kwargs, "")]
        for part in parts:
            yield GraphSample(
                name=f"{name}#{part.path}" if part.path else name,
                family=f"{self.name}/{family}",
                module=part.module,
                args=part.args,
                kwargs=part.kwargs,
                training=sizes.training,
                licence=self.licence,
                fingerprint=part.fingerprint,
            )


def _built(family: str, sizes: Sizes) -> tuple[nn.Module, dict[str, Any]]:
    architecture = ARCHITECTURES[family]
    try:
        import transformers
    except ImportError as error:
        raise _missing(f"the transformers library cannot be imported: {error}") from error
    try:
        kind = getattr(transformers, architecture.model)
        config = _config(kind, architecture, sizes)
        module = kind(config)
        inputs = architecture.given(config, sizes)
    except Exception as error:
        raise CorpusError(
            f"transformers {transformers.__version__} cannot build the {family} model: {error}",
            subject=_SUBJECT,
            remedy="install another version of transformers, or leave the family out",
        ) from error
    module = module.to(sizes.dtype).train(sizes.training).requires_grad_(sizes.training)
    return module, {name: _cast(value, sizes.dtype) for name, value in inputs.items()}


def _config(kind: Any, architecture: Recipe, sizes: Sizes) -> Any:
    config = architecture.configured(kind.config_class, sizes)
    # A backbone may support less than what is built on it.
    supported = getattr(kind, "_supports_sdpa", False) and not hasattr(config, "backbone_config")
    attention = sizes.attention if supported else "eager"
    # Set on every part of a model of several: each has its own configuration.
    config._attn_implementation = attention
    return config


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _missing(cause: str) -> CorpusError:
    return CorpusError(cause, subject=_SUBJECT, remedy="pip install transformers")
