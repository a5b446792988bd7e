"""Workloads that nobody chose: programs of a corpus that ``fusewise collect`` collects from.

Naming them runs nothing. A program from elsewhere is only built in the process of its own that it
is measured in.
"""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fusewise.datasets.corpora import on_device, open_corpus
from fusewise.datasets.corpus import CorpusSpec, GraphSample, scalar_loss
from workloads.program import NAMES, Case, Program, Workload, copied


@dataclass(frozen=True)
class Drawn:
    """A program of a corpus by its name."""

    corpus: CorpusSpec
    name: str

    def described(self) -> dict[str, str]:
        """What is known of it before it is built: no kind, family or dtype."""
        return {"name": self.name, "kind": "", "family": "", "dtype": ""}

    def case(self) -> Case:
        """The program, or one of its pieces, which one depends on the name alone.

        Raises:
            CorpusError: it cannot be built; says why.
        """
        pieces = list(open_corpus(self.corpus).build(self.name))
        sample = pieces[zlib.crc32(self.name.encode()) % len(pieces)]

        def build(device: torch.device, _: torch.dtype) -> Program:
            own = dataclasses.replace(
                sample,
                module=copy.deepcopy(sample.module),
                args=pytree.tree_map_only(Tensor, copied, sample.args),
                kwargs=pytree.tree_map_only(Tensor, copied, sample.kwargs),
            )
            own = on_device(own, device)
            return Program(_Step(own), (own.args, own.kwargs), own.training)

        dtype = _dtype(sample)
        kind = "training" if sample.training else "inference"
        return Case(Workload(self.name, kind, sample.family, build, (dtype,)), dtype)


def draw(corpus: CorpusSpec, count: int, seed: int) -> Sequence[Drawn]:
    """The first ``count`` programs that the corpus names; fewer where it has no more.

    Raises:
        CorpusError: there is no such corpus, or it is not there; says how to get it.
    """
    return [Drawn(corpus, name) for name in islice(open_corpus(corpus).names(seed), count)]


class _Step(nn.Module):
    """The sample's module, and where it is trained the loss of what it gives."""

    def __init__(self, sample: GraphSample) -> None:
        super().__init__()
        self.function = sample.module
        self.trained = sample.training

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module gives, or a loss of it."""
        found = self.function(*args, **kwargs)
        return scalar_loss(found) if self.trained else found


def _dtype(sample: GraphSample) -> torch.dtype:
    """The narrowest that the program computes in, of those that results are held to."""
    tensors = [v for v in pytree.tree_leaves((sample.args, sample.kwargs)) if isinstance(v, Tensor)]
    if isinstance(sample.module, nn.Module):
        tensors += [*sample.module.parameters(), *sample.module.buffers()]
    found = {tensor.dtype for tensor in tensors}
    return min((dtype for dtype in NAMES if dtype in found), key=_bits, default=torch.float32)


def _bits(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits
