"""Corpora by name: how they are opened, drawn from in turn, and their programs put on a device.

Opening a corpus imports nothing that is large or optional; its names or programs do, when they
are asked for.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from fusewise.datasets.corpus import Corpus, CorpusSpec, GraphSample
from fusewise.schedule.errors import CorpusError


def _generated(spec: CorpusSpec) -> Corpus:
    from fusewise.datasets.generated.corpus import GeneratedCorpus

    return GeneratedCorpus(scale=spec.scale, families=spec.families)


def _transformers(spec: CorpusSpec) -> Corpus:
    from fusewise.datasets.transformers_models.corpus import TransformersCorpus

    return TransformersCorpus(scale=spec.scale, families=spec.families)


def _timm(spec: CorpusSpec) -> Corpus:
    from fusewise.datasets.timm_models import TimmCorpus

    return TimmCorpus(scale=spec.scale, families=spec.families)


def _graphnet(spec: CorpusSpec) -> Corpus:
    from fusewise.datasets.graphnet.corpus import GraphNetCorpus

    return GraphNetCorpus(spec.path, scale=spec.scale, families=spec.families)


def _target(spec: CorpusSpec) -> Corpus:
    from fusewise.datasets.target import TargetCorpus

    return TargetCorpus(spec.path)


#: Every corpus by name. Add a function here and it can be collected from.
CORPORA: Final[dict[str, Callable[[CorpusSpec], Corpus]]] = {
    "generated": _generated,
    "transformers": _transformers,
    "timm": _timm,
    "graphnet": _graphnet,
    "target": _target,
}


def open_corpus(spec: CorpusSpec) -> Corpus:
    """The corpus that ``spec`` describes.

    Raises:
        CorpusError: there is no corpus of that name (says the nearest), or not as described.
    """
    if spec.name not in CORPORA:
        near = difflib.get_close_matches(spec.name, CORPORA, n=1)
        raise CorpusError(
            f"there is no corpus {spec.name!r}" + (f", nearest is {near[0]!r}" if near else ""),
            subject="corpus",
            remedy=f"use one of {', '.join(CORPORA)}",
        )
    return CORPORA[spec.name](spec)


def in_turn(specs: Sequence[CorpusSpec], seed: int) -> Iterator[tuple[CorpusSpec, str]]:
    """Names of programs, one of each corpus after the other; a corpus that ends drops out.

    Raises:
        CorpusError: a corpus cannot be opened, or is not there.
    """
    streams = [(spec, open_corpus(spec).names(seed)) for spec in specs]
    while streams:
        for stream in list(streams):
            spec, names = stream
            name = next(names, None)
            if name is None:
                streams.remove(stream)
            else:
                yield spec, name


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
