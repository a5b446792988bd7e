"""Corpora: where graphs come from. A corpus is asked for samples and makes each as it is needed.

A sample is a real program with inputs, to be compiled and run; corpora never compile, lower or
measure anything themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fusewise.schedule.errors import CorpusError


@dataclass(frozen=True)
class GraphSample:
    """A program with the inputs to run it on."""

    #: Unique within the corpus for one seed: ``layer_norm/7-3``.
    name: str
    #: The unit of splitting: ``generated/layer_norm``.
    family: str
    module: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Whether a backward is to be compiled too: :func:`scalar_loss` of the outputs is
    #: differentiable then.
    training: bool = False
    licence: str = ""


class Corpus(Protocol):
    """Something that graphs come from."""

    @property
    def name(self) -> str:
        """Short name, stored as the source of its graphs."""
        ...

    @property
    def licence(self) -> str:
        """SPDX identifier of what its programs are under."""
        ...

    def samples(self, seed: int, limit: int) -> Iterator[GraphSample]:
        """At most ``limit`` samples, lazily; equal seeds give equal samples.

        Raises:
            CorpusError: it cannot be loaded.
        """
        ...


def scalar_loss(outputs: object) -> torch.Tensor:
    """Sum of all differentiable tensors in ``outputs`` (nested tuples, lists, dicts), fp32 scalar.

    Raises:
        CorpusError: nothing in it is differentiable.
    """
    parts = [tensor.float().sum() for tensor in _differentiable(outputs)]
    if not parts:
        raise CorpusError(
            "no output depends on anything that requires a gradient",
            subject="training sample",
            remedy="mark it as an inference sample, or let its inputs require gradients",
        )
    return torch.stack(parts).sum()


def _differentiable(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _differentiable(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _differentiable(part)
