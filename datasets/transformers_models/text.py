"""Architectures of text models: encoders, and encoders with decoders."""

from __future__ import annotations

from typing import Any, Final

from fusewise.datasets.transformers_models.sizes import (
    VOCABULARY,
    Architecture,
    Sizes,
    padded_tokens,
    tokens,
    two_texts,
)


def encoder(sizes: Sizes, **more: Any) -> dict[str, Any]:
    """As BERT and its many descendants name their sizes; ``more`` is added or put instead."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.inner,
        # Some models count positions from 2.
        "max_position_embeddings": sizes.length + 8,
        **more,
    }


def _albert(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, embedding_size=min(128, sizes.width))


def _electra(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, embedding_size=max(8, sizes.width // 2))


def _squeezebert(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, embedding_size=sizes.width)


def _distilbert(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "dim": sizes.width,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "hidden_dim": sizes.inner,
        "max_position_embeddings": sizes.length,
    }


def _deberta(sizes: Sizes) -> dict[str, Any]:
    return encoder(
        sizes,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
        norm_rel_ebd="layer_norm",
        share_att_key=sizes.source.choice((True, False)),
    )


def _modernbert(sizes: Sizes) -> dict[str, Any]:
    return encoder(
        sizes, intermediate_size=sizes.width * 3 // 2, local_attention=32, pad_token_id=0
    )


def _convbert(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, embedding_size=sizes.width, head_ratio=2)


def _esm(sizes: Sizes) -> dict[str, Any]:
    kind = sizes.source.choice(("rotary", "absolute"))
    return encoder(sizes, position_embedding_type=kind, pad_token_id=1, mask_token_id=3)


def _xlnet(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "d_inner": sizes.inner,
    }


def _t5(sizes: Sizes, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "d_kv": sizes.width // sizes.heads,
        "d_ff": sizes.inner,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "feed_forward_proj": sizes.source.choice(("relu", "gated-gelu")),
        "use_cache": False,
        **more,
    }


def _bart(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "encoder_layers": sizes.layers,
        "decoder_layers": 1,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.inner,
        "decoder_ffn_dim": sizes.inner,
        "max_position_embeddings": sizes.length + 8,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "use_cache": False,
    }


def _prophetnet(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "num_encoder_layers": sizes.layers,
        "num_decoder_layers": 1,
        "num_encoder_attention_heads": sizes.heads,
        "num_decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.inner,
        "decoder_ffn_dim": sizes.inner,
        "max_position_embeddings": sizes.length + 8,
        "use_cache": False,
    }


TEXT: Final[dict[str, Architecture]] = {
    "bert": Architecture("BertModel", encoder, padded_tokens),
    "roberta": Architecture("RobertaModel", encoder, padded_tokens),
    "albert": Architecture("AlbertModel", _albert, padded_tokens),
    "electra": Architecture("ElectraModel", _electra, padded_tokens),
    "distilbert": Architecture("DistilBertModel", _distilbert, padded_tokens),
    "deberta_v2": Architecture("DebertaV2Model", _deberta, padded_tokens),
    "mpnet": Architecture("MPNetModel", encoder, padded_tokens),
    "modernbert": Architecture("ModernBertModel", _modernbert, padded_tokens),
    "roformer": Architecture("RoFormerModel", encoder, padded_tokens),
    "convbert": Architecture("ConvBertModel", _convbert, padded_tokens),
    "squeezebert": Architecture("SqueezeBertModel", _squeezebert, padded_tokens),
    "esm": Architecture("EsmModel", _esm, padded_tokens),
    "xlnet": Architecture("XLNetModel", _xlnet, tokens),
    "t5": Architecture("T5Model", _t5, two_texts),
    "mt5": Architecture("MT5EncoderModel", _t5, tokens),
    "bart": Architecture("BartModel", _bart, two_texts),
    "pegasus": Architecture("PegasusModel", _bart, two_texts),
    "marian": Architecture("MarianModel", _bart, two_texts),
    "m2m_100": Architecture("M2M100Model", _bart, two_texts),
    "prophetnet": Architecture("ProphetNetModel", _prophetnet, two_texts),
}
