"""Architectures of text models: encoders, decoders, both, mixtures of experts, state spaces."""

from __future__ import annotations

from typing import Any, Final

from fusewise.datasets.transformers_models.sizes import (
    VOCABULARY,
    Architecture,
    Sizes,
    labelled_tokens,
    padded_tokens,
    tokens,
    two_texts,
)


def _encoder(sizes: Sizes, **more: Any) -> dict[str, Any]:
    """As BERT and its many descendants name their sizes."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.inner,
        "max_position_embeddings": sizes.length + 8,
        **more,
    }


def _decoder(sizes: Sizes, **more: Any) -> dict[str, Any]:
    """As Llama and its many descendants name their sizes."""
    shared = sizes.random.choice((1, 2))
    return {
        **_encoder(sizes),
        "num_key_value_heads": sizes.heads // shared,
        "intermediate_size": 3 * sizes.width,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def _experts(sizes: Sizes, **more: Any) -> dict[str, Any]:
    count = sizes.random.choice((4, 8))
    return _decoder(sizes, **dict.fromkeys(("num_local_experts", "num_experts"), count), **more)


def _gpt2(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "n_positions": sizes.length,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": False,
    }


def _t5(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "d_kv": sizes.width // sizes.heads,
        "d_ff": sizes.inner,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "feed_forward_proj": sizes.random.choice(("relu", "gated-gelu")),
        "use_cache": False,
    }


ARCHITECTURES: Final[dict[str, Architecture]] = {
    "bert": Architecture("BertModel", _encoder, padded_tokens),
    "gpt2": Architecture("GPT2LMHeadModel", _gpt2, labelled_tokens),
    "llama": Architecture("LlamaForCausalLM", _decoder, labelled_tokens),
    "mixtral": Architecture("MixtralForCausalLM", _experts, tokens),
    "t5": Architecture("T5Model", _t5, two_texts),
}
