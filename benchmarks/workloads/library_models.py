"""Models of the transformers library, built from configurations; nothing is downloaded.

Only these need the library. Their plain counterparts are in ``attention``.
"""

from __future__ import annotations

import torch
from torch import nn

from workloads.program import Program, Workload, by_device, integers, normal, placed


def _bert(device: torch.device, dtype: torch.dtype) -> Program:
    from transformers import BertConfig, BertModel

    width, heads, batch, length = by_device(device, cpu=(128, 4, 4, 64), gpu=(768, 12, 16, 512))
    config = BertConfig(
        vocab_size=4096,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        attn_implementation="eager",
    )
    model = BertModel(config, add_pooling_layer=False)
    ids = integers(4096, batch, length, device=device)
    mask = torch.ones_like(ids)
    return Program(placed(_Hidden(model), device, dtype, "inference"), (ids, mask))


class _Hidden(nn.Module):
    """The last hidden state alone: the library's own result types are no tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, first: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        result = self.model(first) if mask is None else self.model(first, attention_mask=mask)
        return result.last_hidden_state


def _gpt2(device: torch.device, dtype: torch.dtype) -> Program:
    from transformers import GPT2Config, GPT2Model

    width, heads, batch, length = by_device(device, cpu=(128, 4, 4, 64), gpu=(768, 12, 8, 512))
    config = GPT2Config(
        vocab_size=4096,
        n_embd=width,
        n_layer=2,
        n_head=heads,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="eager",
    )
    model = placed(_Hidden(GPT2Model(config)), device, dtype, "inference")
    return Program(model, (integers(4096, batch, length, device=device),))


def _llama(device: torch.device, dtype: torch.dtype) -> Program:
    from transformers import LlamaConfig, LlamaModel

    width, heads, batch, length = by_device(device, cpu=(128, 4, 4, 64), gpu=(1024, 16, 4, 1024))
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=3 * width,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = placed(_Hidden(LlamaModel(config)), device, dtype, "inference")
    return Program(model, (integers(4096, batch, length, device=device),))


def _vit(device: torch.device, dtype: torch.dtype) -> Program:
    from transformers import ViTConfig, ViTModel

    width, heads, batch, side = by_device(device, cpu=(96, 3, 4, 64), gpu=(768, 12, 32, 224))
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=side,
        patch_size=16,
        attn_implementation="eager",
    )
    model = placed(_Hidden(ViTModel(config, add_pooling_layer=False)), device, dtype, "inference")
    return Program(model, (normal(batch, 3, side, side, device=device, dtype=dtype),))


WORKLOADS = (
    Workload("bert_encoder", "inference", "transformer", _bert),
    Workload("gpt2_layers", "inference", "transformer", _gpt2),
    Workload("llama_layers", "inference", "transformer", _llama),
    Workload("vit_layers", "inference", "vision", _vit),
)
