"""Corpora by the names that the command line knows, drawn from in turn, on a device."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from fusewise.datasets.configured import ConfiguredCorpus
from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.generated.corpus import GeneratedCorpus
from fusewise.datasets.target import TargetCorpus
from fusewise.schedule.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Factor on the sizes of drawn programs. At 1 kernels take as long on a GPU as it takes to
#: launch them.
_SCALES = {"cpu": 1.0, "cuda": 16.0}

_NAMED: dict[str, Callable[[float], Corpus]] = {
    "generated": lambda scale: GeneratedCorpus(scale=scale),
    "transformers": lambda scale: ConfiguredCorpus(scale=scale),
}


def named_corpus(name: str, device: torch.device) -> Corpus:
    """The corpus of that name, or of the one program that a ``file.py:factory`` makes.

    Raises:
        CorpusError: there is no such corpus.
    """
    if name in _NAMED:
        return _NAMED[name](_SCALES[device.type])
    if ":" in name:
        return TargetCorpus(name)
    raise CorpusError(
        f"there is no corpus {name!r}",
        subject="--corpus",
        remedy=f"use {', '.join(_NAMED)}, or a program as FILE.py:FACTORY",
    )


def in_turn(
    corpora: Sequence[Corpus], *, seed: int, limit: int | None
) -> Iterator[tuple[Corpus, GraphSample]]:
    """Samples of the corpora one after the other, ``limit`` in all, without end for None.

    Raises:
        CorpusError: a corpus cannot be loaded.
    """
    most = sys.maxsize if limit is None else limit
    streams = [zip(itertools.repeat(c), c.samples(seed, most)) for c in corpora]
    given = 0
    while streams and given < most:
        for stream in list(streams):
            found = next(stream, None)
            if found is None:
                streams.remove(stream)
                continue
            yield found
            given += 1
            if given == most:
                return


def on_device(sample: GraphSample, device: torch.device) -> GraphSample:
    """The sample with its module, which is moved, and its arguments on ``device``."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == device.type:
            return value
        # A moved tensor is no leaf, and would not keep its gradient.
        return value.detach().to(device).requires_grad_(value.requires_grad)

    module = sample.module
    if isinstance(module, torch.nn.Module):
        module = module.to(device)
    args, kwargs = pytree.tree_map(moved, (sample.args, sample.kwargs))
    return dataclasses.replace(sample, module=module, args=args, kwargs=kwargs)
