"""Architectures of text decoders: dense, with experts, and those that keep a state."""

from __future__ import annotations

from typing import Any, Final

from fusewise.datasets.transformers_models.sizes import (
    VOCABULARY,
    Architecture,
    Sizes,
    few_tokens,
    labelled_tokens,
    tokens,
)
from fusewise.datasets.transformers_models.text import encoder


def _decoder(sizes: Sizes, **more: Any) -> dict[str, Any]:
    """As Llama and its many descendants name their sizes; ``more`` is added or put instead."""
    return {
        **encoder(sizes),
        "num_key_value_heads": sizes.heads // sizes.source.choice((1, 2)),
        "intermediate_size": 3 * sizes.width,
        "head_dim": sizes.width // sizes.heads,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def _experts(sizes: Sizes, **more: Any) -> dict[str, Any]:
    """Few experts, each as small as where there are many of them."""
    count = sizes.source.choice((4, 8))
    return _decoder(
        sizes,
        num_experts=count,
        num_local_experts=count,
        num_experts_per_tok=2,
        intermediate_size=sizes.width,
        moe_intermediate_size=sizes.width,
        shared_expert_intermediate_size=sizes.width,
        **more,
    )


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


def _gptj(sizes: Sizes) -> dict[str, Any]:
    return {**_gpt2(sizes), "rotary_dim": sizes.width // sizes.heads // 2}


def _codegen(sizes: Sizes) -> dict[str, Any]:
    # Its heads are kept in four groups.
    heads = max(4, sizes.heads)
    return {**_gpt2(sizes), "n_head": heads, "rotary_dim": sizes.width // heads // 2}


def _gpt_neo(sizes: Sizes) -> dict[str, Any]:
    return encoder(
        sizes,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        attention_types=[[["global", "local"], 1]] if sizes.layers > 1 else [[["local"], 1]],
        window_size=32,
        use_cache=False,
    )


def _gpt_neox(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, use_parallel_residual=sizes.source.choice((True, False)), use_cache=False)


def _opt(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, ffn_dim=sizes.inner, word_embed_proj_dim=sizes.width, use_cache=False)


def _bloom(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "use_cache": False,
    }


def _falcon(sizes: Sizes) -> dict[str, Any]:
    return encoder(
        sizes,
        alibi=sizes.source.choice((True, False)),
        multi_query=sizes.source.choice((True, False)),
        parallel_attn=sizes.source.choice((True, False)),
        use_cache=False,
    )


def _mpt(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "max_seq_len": sizes.length,
        "use_cache": False,
    }


def _windowed(sizes: Sizes) -> dict[str, Any]:
    return _decoder(sizes, sliding_window=max(4, sizes.length // 4))


def _gemma2(sizes: Sizes) -> dict[str, Any]:
    return _windowed(sizes) | {"query_pre_attn_scalar": sizes.width // sizes.heads}


def _qwen3_moe(sizes: Sizes) -> dict[str, Any]:
    return _experts(sizes, decoder_sparse_step=1, norm_topk_prob=True)


def _mamba(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "state_size": 16,
        "use_cache": False,
        "pad_token_id": 0,
    }


def _mamba2(sizes: Sizes) -> dict[str, Any]:
    heads = 2 * sizes.heads
    return _mamba(sizes) | {
        "num_heads": heads,
        "head_dim": 2 * sizes.width // heads,
        "n_groups": 1,
        "chunk_size": 16,
    }


def _rwkv(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        # Its weights are drawn by the share of layers before, which one layer has none of.
        "num_hidden_layers": 2,
        "attention_hidden_size": sizes.width,
        "intermediate_size": sizes.inner,
        "context_length": sizes.few,
        "use_cache": False,
    }


def _recurrent_gemma(sizes: Sizes) -> dict[str, Any]:
    return _decoder(
        sizes,
        lru_width=sizes.width,
        attention_window_size=max(4, sizes.few // 2),
        block_types=["recurrent", "attention"][: sizes.layers],
    )


DECODERS: Final[dict[str, Architecture]] = {
    "gpt2": Architecture("GPT2LMHeadModel", _gpt2, tokens),
    "gpt_neo": Architecture("GPTNeoForCausalLM", _gpt_neo, labelled_tokens),
    "gpt_neox": Architecture("GPTNeoXForCausalLM", _gpt_neox, labelled_tokens),
    "gptj": Architecture("GPTJForCausalLM", _gptj, labelled_tokens),
    "codegen": Architecture("CodeGenForCausalLM", _codegen, labelled_tokens),
    "gpt_bigcode": Architecture("GPTBigCodeForCausalLM", _gpt2, labelled_tokens),
    "opt": Architecture("OPTForCausalLM", _opt, labelled_tokens),
    "bloom": Architecture("BloomForCausalLM", _bloom, labelled_tokens),
    "falcon": Architecture("FalconForCausalLM", _falcon, labelled_tokens),
    "mpt": Architecture("MptForCausalLM", _mpt, labelled_tokens),
    "llama": Architecture("LlamaForCausalLM", _decoder, labelled_tokens),
    "mistral": Architecture("MistralForCausalLM", _windowed, labelled_tokens),
    "qwen2": Architecture("Qwen2ForCausalLM", _decoder, labelled_tokens),
    "qwen3": Architecture("Qwen3ForCausalLM", _decoder, labelled_tokens),
    "gemma": Architecture("GemmaForCausalLM", _decoder, labelled_tokens),
    "gemma2": Architecture("Gemma2ForCausalLM", _gemma2, labelled_tokens),
    "phi": Architecture("PhiForCausalLM", _decoder, labelled_tokens),
    "phi3": Architecture("Phi3ForCausalLM", _decoder, labelled_tokens),
    "olmo2": Architecture("Olmo2ForCausalLM", _decoder, labelled_tokens),
    "cohere": Architecture("CohereForCausalLM", _decoder, labelled_tokens),
    "stablelm": Architecture("StableLmForCausalLM", _decoder, labelled_tokens),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _decoder, labelled_tokens),
    "granite": Architecture("GraniteForCausalLM", _decoder, labelled_tokens),
    "mixtral": Architecture("MixtralModel", _experts, tokens),
    "qwen2_moe": Architecture("Qwen2MoeModel", _experts, tokens),
    "qwen3_moe": Architecture("Qwen3MoeModel", _qwen3_moe, tokens),
    "olmoe": Architecture("OlmoeModel", _experts, tokens),
    "mamba": Architecture("MambaModel", _mamba, few_tokens),
    "mamba2": Architecture("Mamba2Model", _mamba2, few_tokens),
    "rwkv": Architecture("RwkvModel", _rwkv, few_tokens),
    "recurrent_gemma": Architecture("RecurrentGemmaModel", _recurrent_gemma, few_tokens),
}
