"""Corpora: where graphs come from. A corpus names its programs and builds one when it is asked to.

Naming is cheap and runs nothing; building runs the program's own code, and for graphs from
elsewhere is done in a worker process only. Corpora never compile, lower or measure anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch

from fusewise.schedule.errors import CorpusError


@dataclass(frozen=True)
class GraphSample:
    """A program with the inputs to run it on."""

    #: Unique within the corpus: ``layer_norm/7-3``.
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
    #: Equal for programs that are the same graph on the same shapes; "" where nobody looked.
    fingerprint: str = ""


class CorpusSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to open a corpus; travels to worker processes and other machines."""

    #: A name that :func:`fusewise.datasets.corpora.open_corpus` knows.
    name: str
    #: A checkout or a program, for corpora that are read from one; "" otherwise.
    path: str = ""
    #: Factor on sizes: 1 suits a few CPU cores, a GPU wants 16 or more.
    scale: float = 1.0
    #: Families to draw from; none for all.
    families: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What its programs are told apart by from those of the same names at other sizes."""
        return f"{self.name}@{self.scale:g}" if self.scale != 1.0 else self.name


class Corpus(Protocol):
    """Something that graphs come from."""

    @property
    def name(self) -> str:
        """Short name, stored as the source of its graphs."""
        ...

    @property
    def licence(self) -> str:
        """SPDX identifier of what its programs are under; "" where each has its own."""
        ...

    def names(self, seed: int) -> Iterator[str]:
        """Names to give to :meth:`build`, equal for equal seeds, without end where programs are
        drawn. Builds and runs nothing.

        Raises:
            CorpusError: the corpus is not there; says how to get it.
        """
        ...

    def build(self, name: str) -> Iterator[GraphSample]:
        """The program of that name, on the CPU; a large one is given as several pieces.

        Raises:
            CorpusError: it cannot be built; says why.
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
