"""Transformer blocks in plain torch: encoder, causal decoder, Llama-like, vision, and decoding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.program import BF16, FP32, Program, Workload, by_device, normal, placed


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """From [batch, length, width] to [batch, heads, length, width / heads]."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def heads_together(x: Tensor) -> Tensor:
    """The inverse of :func:`heads_apart`."""
    batch, heads, length, each = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * each)


class Attention(nn.Module):
    """Attention with its softmax written out, as models do that look at the weights."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        q, k, v = (heads_apart(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            length = x.shape[1]
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        weights = scores.float().softmax(-1).to(x.dtype)
        return self.out(heads_together(weights @ v))


class Block(nn.Module):
    """Attention and MLP with residuals, normalised before (GPT-2, ViT) or after (BERT)."""

    def __init__(self, width: int, heads: int, *, causal: bool, before: bool, gelu: str) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=causal)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before, self.gelu = before, gelu

    def _mlp(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        if self.before:
            x = x + self.attention(self.first(x))
            return x + self._mlp(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self._mlp(x))


def _encoder(device: torch.device, dtype: torch.dtype) -> Program:
    width, heads, batch, length = by_device(device, cpu=(128, 4, 8, 128), gpu=(768, 12, 16, 512))
    block = Block(width, heads, causal=False, before=False, gelu="none")
    x = normal(batch, length, width, device=device, dtype=dtype)
    return Program(placed(block, device, dtype, "inference"), (x,))


def _causal(device: torch.device, dtype: torch.dtype) -> Program:
    width, heads, batch, length = by_device(device, cpu=(128, 4, 8, 128), gpu=(768, 12, 8, 512))
    block = Block(width, heads, causal=True, before=True, gelu="tanh")
    x = normal(batch, length, width, device=device, dtype=dtype)
    return Program(placed(block, device, dtype, "inference"), (x,))


def _vision(device: torch.device, dtype: torch.dtype) -> Program:
    width, heads, batch, length = by_device(device, cpu=(96, 3, 16, 65), gpu=(768, 12, 32, 197))
    block = Block(width, heads, causal=False, before=True, gelu="none")
    # An odd number of patches, as a class token makes it, defeats alignment.
    x = normal(batch, length, width, device=device, dtype=dtype)
    return Program(placed(block, device, dtype, "inference"), (x,))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) in the half-split form."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019), computed in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Over the last axis."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return scaled.to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    """RMSNorm, rotary attention with shared keys and values, SwiGLU."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.shared = heads, heads // 2
        each = width // heads
        self.norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * self.shared * each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        angles = torch.outer(
            torch.arange(length, dtype=FP32), 1e4 ** -(torch.arange(0, each, 2) / each)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        y = self.norm(x)
        k, v = (heads_apart(part, self.shared) for part in self.kv(y).chunk(2, dim=-1))
        q = rotate(heads_apart(self.q(y), self.heads), self.cos, self.sin)
        k = rotate(k, self.cos, self.sin).repeat_interleave(2, dim=1)
        v = v.repeat_interleave(2, dim=1)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads_together(attended))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def _llama(device: torch.device, dtype: torch.dtype) -> Program:
    width, heads, batch, length = by_device(device, cpu=(128, 4, 8, 128), gpu=(1024, 16, 4, 1024))
    x = normal(batch, length, width, device=device, dtype=dtype)
    return Program(placed(LlamaBlock(width, heads, length), device, dtype, "inference"), (x,))


def _decode(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Tensor, angles: Tensor
) -> Tensor:
    """Attend from one new token: rotate, write it into the cache in place, softmax over the past.

    q, k, v [batch, heads, 1, each]; keys, values [batch, heads, length, each]; at [1].
    """
    cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    keys.index_copy_(2, at, rotate(k, cos, sin))
    values.index_copy_(2, at, v)
    scores = rotate(q, cos, sin) @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
    past = torch.arange(keys.shape[2], device=q.device) <= at
    weights = scores.float().masked_fill(~past, float("-inf")).softmax(-1)
    return weights.to(q.dtype) @ values


def _kv_cache(device: torch.device, dtype: torch.dtype) -> Program:
    batch, heads, length, each = by_device(device, cpu=(8, 16, 1024, 64), gpu=(32, 16, 2048, 128))
    q, k, v = (normal(batch, heads, 1, each, device=device, dtype=dtype) for _ in range(3))
    keys, values = (normal(batch, heads, length, each, device=device, dtype=dtype) for _ in "kv")
    at = torch.tensor([length // 2], device=device)
    angles = (length // 2 * 1e4 ** -(torch.arange(0, each, 2) / each)).repeat(2).to(device)
    return Program(_decode, (q, k, v, keys, values, at, angles))


WORKLOADS = (
    Workload("encoder_block", "inference", "transformer", _encoder),
    Workload("causal_block", "inference", "transformer", _causal),
    Workload("llama_block", "inference", "transformer", _llama),
    Workload("vision_block", "inference", "vision", _vision, (BF16, FP32)),
    Workload("kv_cache_decode", "inference", "decoding", _kv_cache),
)
