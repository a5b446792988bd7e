"""The two programs of the demo: a BERT-like encoder for inference and a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewise.schedule.errors import CorpusError

_BATCH, _LENGTH, _WIDTH, _LAYERS, _VOCABULARY = 8, 128, 256, 4, 1024


@dataclass(frozen=True)
class Program:
    """A module, its arguments, and how it is run."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool

    def run(self, call: Callable[..., Any]) -> list[Tensor]:
        """Run ``call`` in the module's place: outputs, and after a backward the gradients."""
        with torch.set_grad_enabled(self.training):
            output = call(*self.args, **self.kwargs)
        if not self.training:
            return [output.last_hidden_state]
        self.module.zero_grad(set_to_none=True)
        output.backward()
        return [output.detach(), *(p.grad for p in self.module.parameters() if p.grad is not None)]


def encoder() -> Program:
    """A BERT-like encoder of the transformers library, with random weights, for inference.

    Raises:
        CorpusError: transformers is not installed.
    """
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise CorpusError(
            f"the transformers library cannot be imported: {error}",
            subject="demo",
            remedy="pip install transformers",
        ) from error
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * _WIDTH,
        max_position_embeddings=_LENGTH,
    )
    tokens = torch.randint(0, _VOCABULARY, (_BATCH, _LENGTH))
    mask = torch.ones(_BATCH, _LENGTH, dtype=torch.int64)
    return Program(
        "BERT-like encoder",
        BertModel(config, add_pooling_layer=False).train(False),
        (),
        {"input_ids": tokens, "attention_mask": mask},
        training=False,
    )


class _Block(nn.Module):
    """A gated MLP with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(_WIDTH)
        self.gate = nn.Linear(_WIDTH, 2 * _WIDTH, bias=False)
        self.up = nn.Linear(_WIDTH, 2 * _WIDTH, bias=False)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with the block's part added."""
        inner = self.norm(x)
        inner = functional.silu(self.gate(inner)) * self.up(inner)
        result: Tensor = x + self.down(inner)
        return result


class _Step(nn.Module):
    """Loss of a small language model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        """Cross entropy of the predicted tokens."""
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def training_step() -> Program:
    """Normalisations, gated MLPs, residuals and cross entropy, forward and backward."""
    torch.manual_seed(1)
    x = torch.randn(_BATCH, _LENGTH, _WIDTH)
    wanted = torch.randint(0, _VOCABULARY, (_BATCH, _LENGTH))
    return Program("training step", _Step(), (x, wanted), {}, training=True)
