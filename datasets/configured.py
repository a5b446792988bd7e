"""Models of the transformers library, built from small random configurations.

Nothing is downloaded: weights are drawn, sizes are small. The library is optional and only
imported when samples are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import CorpusError

_VOCABULARY = 1024


@dataclass(frozen=True)
class _Sizes:
    """The drawn sizes of one model."""

    width: int
    heads: int
    layers: int
    batch: int
    length: int
    training: bool

    @classmethod
    def draw(cls, source: random.Random, scale: float) -> _Sizes:
        heads = source.choice((2, 4))
        return cls(
            width=heads * source.choice((16, 32, 64)),
            heads=heads,
            layers=source.choice((1, 2)),
            batch=max(1, int(source.choice((1, 2, 4, 8)) * scale)),
            length=max(8, int(source.choice((16, 32, 64, 128)) * min(scale, 4.0))),
            training=source.choice((False, True)),
        )


_Built = tuple[nn.Module, dict[str, Any]]


def _tokens(sizes: _Sizes) -> Tensor:
    return torch.randint(0, _VOCABULARY, (sizes.batch, sizes.length))


def _bert(library: ModuleType, sizes: _Sizes) -> _Built:
    config = library.BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width,
        attn_implementation="eager",
    )
    mask = torch.ones(sizes.batch, sizes.length, dtype=torch.int64)
    return library.BertModel(config), {"input_ids": _tokens(sizes), "attention_mask": mask}


def _gpt2(library: ModuleType, sizes: _Sizes) -> _Built:
    config = library.GPT2Config(
        vocab_size=_VOCABULARY,
        n_embd=sizes.width,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        n_positions=sizes.length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    return library.GPT2LMHeadModel(config), {"input_ids": _tokens(sizes)}


def _llama(library: ModuleType, sizes: _Sizes) -> _Built:
    config = library.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads // 2,
        intermediate_size=3 * sizes.width,
        use_cache=False,
        attn_implementation="eager",
    )
    return library.LlamaForCausalLM(config), {"input_ids": _tokens(sizes)}


def _t5(library: ModuleType, sizes: _Sizes) -> _Built:
    config = library.T5Config(
        vocab_size=_VOCABULARY,
        d_model=sizes.width,
        d_kv=sizes.width // sizes.heads,
        d_ff=4 * sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        use_cache=False,
    )
    return library.T5EncoderModel(config), {"input_ids": _tokens(sizes)}


def _vit(library: ModuleType, sizes: _Sizes) -> _Built:
    config = library.ViTConfig(
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width,
        image_size=32,
        patch_size=4,
        attn_implementation="eager",
    )
    return library.ViTModel(config), {"pixel_values": torch.randn(sizes.batch, 3, 32, 32)}


#: Every family by name.
CONFIGURED: dict[str, Callable[[ModuleType, _Sizes], _Built]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
}


class ConfiguredCorpus:
    """Small models of :data:`CONFIGURED`.

    Args:
        scale: factor on batch and length.
        families: names to draw from; None draws from all.

    Raises:
        CorpusError: a name is none of the families.
    """

    name = "configured"
    licence = "Apache-2.0"

    def __init__(self, *, scale: float = 1.0, families: Sequence[str] | None = None) -> None:
        unknown = [name for name in families or () if name not in CONFIGURED]
        if unknown:
            raise CorpusError(
                f"there is no family {unknown[0]!r}",
                subject="configured corpus",
                remedy=f"use some of {', '.join(CONFIGURED)}",
            )
        self.scale = scale
        self.families = tuple(families or CONFIGURED)

    def samples(self, seed: int, limit: int) -> Iterator[GraphSample]:
        """``limit`` samples, the families in turn; equal seeds and scales give equal samples.

        Raises:
            CorpusError: transformers is not installed, or of a version without the model.
        """
        library = _transformers()
        for i in range(limit):
            family = self.families[i % len(self.families)]
            source = random.Random(f"{family}/{seed}-{i}")
            sizes = _Sizes.draw(source, self.scale)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(source.getrandbits(62))
                module, kwargs = _build(library, family, sizes)
            yield GraphSample(
                name=f"{family}/{seed}-{i}",
                family=f"{self.name}/{family}",
                module=module.train(sizes.training).requires_grad_(sizes.training),
                args=(),
                kwargs=kwargs,
                training=sizes.training,
                licence=self.licence,
            )


def _build(library: ModuleType, family: str, sizes: _Sizes) -> _Built:
    try:
        return CONFIGURED[family](library, sizes)
    except (AttributeError, TypeError, ValueError, ImportError) as error:
        raise CorpusError(
            f"transformers {library.__version__} cannot build the {family} model: {error}",
            subject="configured corpus",
            remedy="install another version of transformers, or leave the family out",
        ) from error


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise CorpusError(
            f"the transformers library cannot be imported: {error}",
            subject="configured corpus",
            remedy="pip install transformers",
        ) from error
    library: ModuleType = transformers
    return library
