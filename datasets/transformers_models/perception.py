"""Architectures of vision and audio models, and of those that read images and text."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from fusewise.datasets.transformers_models.sizes import (
    VOCABULARY,
    Architecture,
    Sizes,
    images,
    token_ids,
)
from fusewise.datasets.transformers_models.text import encoder

_PATCH: Final = 8
#: Of an image that a model with stages halves several times.
_STAGED: Final = 4


def _vit(sizes: Sizes, **more: Any) -> dict[str, Any]:
    config = encoder(sizes, image_size=sizes.image(_PATCH), patch_size=_PATCH, **more)
    del config["vocab_size"], config["max_position_embeddings"]
    return config


def _beit(sizes: Sizes) -> dict[str, Any]:
    return _vit(sizes, use_relative_position_bias=True, use_mask_token=False)


def _dinov2(sizes: Sizes) -> dict[str, Any]:
    return _vit(sizes, mlp_ratio=4, use_swiglu_ffn=sizes.source.choice((True, False)))


def _windows(sizes: Sizes, **more: Any) -> dict[str, Any]:
    return {
        "image_size": _staged(sizes),
        "patch_size": 4,
        "embed_dim": sizes.width,
        "depths": [2, 1],
        "num_heads": [sizes.heads, sizes.heads],
        "window_size": 4,
        **more,
    }


def _staged(sizes: Sizes) -> int:
    """Side of an image that is cut into patches of 4 and those into windows of 4, twice."""
    return max(32, sizes.image(_STAGED) // 32 * 32)


def _staged_images(sizes: Sizes) -> dict[str, Tensor]:
    side = _staged(sizes)
    # Batch norm refuses statistics of a single value, which the last stage may have.
    batch = max(2, sizes.batch) if sizes.training else sizes.batch
    return {"pixel_values": torch.randn(batch, 3, side, side)}


def _stages(sizes: Sizes, **more: Any) -> dict[str, Any]:
    widths = [max(8, sizes.width // 4), max(16, sizes.width // 2)]
    return {"num_stages": 2, "hidden_sizes": widths, "depths": [1, 2], **more}


def _resnet(sizes: Sizes) -> dict[str, Any]:
    return _stages(
        sizes,
        embedding_size=max(8, sizes.width // 4),
        layer_type=sizes.source.choice(("basic", "bottleneck")),
    )


def _segformer(sizes: Sizes) -> dict[str, Any]:
    return {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "hidden_sizes": [sizes.width // 2, sizes.width],
        "sr_ratios": [4, 2],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [sizes.heads // 2, sizes.heads],
        "mlp_ratios": [4, 4],
    }


def _mobilevit(sizes: Sizes) -> dict[str, Any]:
    width = sizes.width
    return {
        "image_size": _staged(sizes),
        "hidden_sizes": [width // 2, width, width],
        "neck_hidden_sizes": [16, 16, 32, 32, 48, 64, 128],
        "num_attention_heads": min(4, sizes.heads),
    }


def _poolformer(sizes: Sizes) -> dict[str, Any]:
    width = sizes.width
    return {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "hidden_sizes": [width // 2, width],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "padding": [2, 1],
    }


def _clip(sizes: Sizes) -> dict[str, Any]:
    text = encoder(sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return {"text_config": text, "vision_config": _vit(sizes), "projection_dim": sizes.width}


def _image_and_text(sizes: Sizes) -> dict[str, Tensor]:
    return {"input_ids": token_ids(sizes, sizes.length), **images(_PATCH)(sizes)}


def _wav2vec2(sizes: Sizes) -> dict[str, Any]:
    # Four layers of convolutions instead of seven, for short pieces of sound.
    channels = max(16, sizes.width // 2)
    return encoder(
        sizes,
        conv_dim=[channels] * 4,
        conv_stride=[5, 2, 2, 2],
        conv_kernel=[10, 3, 3, 2],
        num_feat_extract_layers=4,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm=sizes.source.choice(("group", "layer")),
        # Masks are drawn by numpy, which no compiler follows.
        apply_spec_augment=False,
        layerdrop=0.0,
    )


def _sound(sizes: Sizes) -> dict[str, Tensor]:
    # A frame is 40 samples.
    return {"input_values": torch.randn(sizes.batch, 40 * sizes.length + 400)}


def _whisper(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": sizes.width,
        "num_mel_bins": 80,
        "encoder_layers": sizes.layers,
        "decoder_layers": 1,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "encoder_ffn_dim": sizes.inner,
        "decoder_ffn_dim": sizes.inner,
        "max_source_positions": sizes.length,
        "max_target_positions": sizes.length,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "use_cache": False,
    }


def _spectrum_and_text(sizes: Sizes) -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(sizes.batch, 80, 2 * sizes.length),
        "decoder_input_ids": token_ids(sizes, max(4, sizes.length // 2)),
    }


def _spectrogram(sizes: Sizes) -> dict[str, Any]:
    return encoder(sizes, max_length=_frames(sizes), num_mel_bins=32, patch_size=16)


def _frames(sizes: Sizes) -> int:
    return max(32, 4 * sizes.length)


def _spectrogram_input(sizes: Sizes) -> dict[str, Tensor]:
    return {"input_values": torch.randn(sizes.batch, _frames(sizes), 32)}


PERCEPTION: Final[dict[str, Architecture]] = {
    "vit": Architecture("ViTModel", _vit, images(_PATCH)),
    "deit": Architecture("DeiTModel", _vit, images(_PATCH)),
    "beit": Architecture("BeitModel", _beit, images(_PATCH)),
    "dinov2": Architecture("Dinov2Model", _dinov2, images(_PATCH)),
    "vit_msn": Architecture("ViTMSNModel", _vit, images(_PATCH)),
    "siglip": Architecture("SiglipVisionModel", _vit, images(_PATCH)),
    "swin": Architecture("SwinModel", _windows, _staged_images),
    "swinv2": Architecture("Swinv2Model", _windows, _staged_images),
    "convnext": Architecture("ConvNextModel", _stages, _staged_images),
    "convnextv2": Architecture("ConvNextV2Model", _stages, _staged_images),
    "resnet": Architecture("ResNetModel", _resnet, _staged_images),
    "segformer": Architecture("SegformerModel", _segformer, _staged_images),
    "mobilevit": Architecture("MobileViTModel", _mobilevit, _staged_images),
    "poolformer": Architecture("PoolFormerModel", _poolformer, _staged_images),
    "clip": Architecture("CLIPModel", _clip, _image_and_text),
    "wav2vec2": Architecture("Wav2Vec2Model", _wav2vec2, _sound),
    "hubert": Architecture("HubertModel", _wav2vec2, _sound),
    "whisper": Architecture("WhisperModel", _whisper, _spectrum_and_text),
    "audio_spectrogram": Architecture("ASTModel", _spectrogram, _spectrogram_input),
}
