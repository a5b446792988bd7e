"""Configurations cut down: the library's own sizes, with few layers, few tokens and less width.

What a number of a configuration is, is told by its name: configurations of the library agree on
most of these. Widths are all divided by one power of two, so that they go on fitting each other.
Knows nothing of what models are called with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

from fusewise.datasets.transformers_models.sizes import VOCABULARY

_LAYERS: Final = re.compile(
    r"(^|_)(num|n)_((encoder|decoder)_)?(hidden_)?(layers?|blocks)$|^(encoder|decoder)_layers$"
    r"|^(depths?|layers|layers_per_stage|num_hidden_groups)$"
)
_KINDS_OF_LAYERS: Final = re.compile(r"^(layer_types|mlp_layer_types|layers_block_type)$")
#: The first layers of models with experts have none.
_WITHOUT_EXPERTS: Final = re.compile(r"^first_k_dense_replace$")
_EXPERTS: Final = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$")
_WIDTH: Final = re.compile(
    r"(^|_)(hidden_sizes?|hidden_dim|intermediate_(size|dim)|inner_dim|d_inner|n_inner|(ffn|mlp)_dim"
    r"|ffn_hidden_size|feedforward_dim|d_ff|dims?|d_model|model_dim|n_embd|embed(ding)?_(dim|size)"
    r"|head_dim|d_head|d_kv|projection_dim|lora_rank|(out_)?channels|output_channels|width)$"
)
_TOKENS: Final = re.compile(r"(?<!type_)vocab_size$")
_LENGTH: Final = re.compile(
    r"^(max_position_embeddings|n_positions|max_(source|target)_positions"
    r"|max_(encoder|decoder)_position_embeddings)$"
)
#: Ids of tokens with a meaning; others get the last of these.
_MEANINGS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

#: The least and the most width that is wanted of a model.
_LEAST_WIDTH, _MOST_WIDTH = 256, 1024
#: Twice the groups that some models have them in.
_FEW_EXPERTS: Final = 16
#: Longest text of a model that does not say.
_ANY_LENGTH: Final = 512
#: Some models count positions from 2.
_FIRST_POSITIONS: Final = 8


def cut_down(config: Any, *, layers: int, width: int, divisible_by: int) -> None:
    """Change ``config`` and the configurations within it.

    Args:
        config: as its class makes it.
        layers: of each stack and stage, at most.
        width: wanted; more where that is very little, or where widths cannot be divided so far.
        divisible_by: power of two that widths can be divided by and go on fitting each other.
    """
    by = _divisor(width_of(config), width, divisible_by)
    for part in parts(config):
        for name, value in list(vars(part).items()):
            if _whole(value):
                setattr(part, name, _number(name, value, layers, by))
            elif isinstance(value, list | tuple):
                setattr(part, name, _several(name, value, layers, by))
        if hasattr(part, "use_cache"):
            part.use_cache = False


def parts(config: Any) -> Iterator[Any]:
    """``config`` and the configurations within it, outermost first."""
    yield config
    for value in list(vars(config).values()):
        # Of whatever class: all can be told as a dictionary.
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def told(config: Any, *names: str, default: int) -> int:
    """The first whole number that ``config`` or one within it has under one of ``names``."""
    for part in parts(config):
        for name in names:
            value = getattr(part, name, None)
            if _whole(value):
                return value
    return default


def width_of(config: Any) -> int:
    """Width of the outermost stack that tells it."""
    names = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "encoder_hidden_dim")
    return told(config, *names, default=_LEAST_WIDTH)


def heads_of(config: Any) -> int:
    """Heads of attention of the outermost stack that tells them."""
    names = ("num_attention_heads", "encoder_attention_heads", "n_head", "n_heads", "num_heads")
    return told(config, *names, default=1)


def most_length(config: Any) -> int:
    """Tokens that all texts of the model may have."""
    found = [
        value
        for part in parts(config)
        for name, value in vars(part).items()
        if _LENGTH.search(name) and _whole(value)
    ]
    return max(1, min(found, default=_ANY_LENGTH) - _FIRST_POSITIONS)


def _whole(value: object) -> TypeGuard[int]:
    """Whether it is a number, which flags are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _divisor(width: int, wanted: int, divisible_by: int) -> int:
    wanted = max(_LEAST_WIDTH, min(wanted, _MOST_WIDTH))
    by = 1
    while by < divisible_by and width // by > wanted:
        by *= 2
    return by


def _number(name: str, value: int, layers: int, by: int) -> int:
    if _LAYERS.search(name):
        return min(value, layers)
    if _WITHOUT_EXPERTS.search(name):
        return min(value, layers - 1)
    if _EXPERTS.search(name):
        return min(value, _FEW_EXPERTS)
    if _TOKENS.search(name):
        return min(value, VOCABULARY)
    if name.endswith("token_id") and value >= VOCABULARY:
        return _MEANINGS.get(name, len(_MEANINGS))
    return value // by if _WIDTH.search(name) and value % by == 0 else value


def _several(name: str, values: list[Any] | tuple[Any, ...], layers: int, by: int) -> Any:
    if _KINDS_OF_LAYERS.search(name):
        # One of each kind first.
        return [*dict.fromkeys(values), *values][:layers]
    if not all(map(_whole, values)):
        return values
    return type(values)(_number(name, value, layers, by) for value in values)
