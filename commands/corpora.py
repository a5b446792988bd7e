"""Corpora as the command line names them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fusewise.datasets.corpus import CorpusSpec
from fusewise.schedule.errors import CorpusError

#: Factor on the sizes of drawn programs. At 1 kernels take as long on a GPU as it takes to
#: launch them.
_SCALES: Final = {"cpu": 1.0, "cuda": 16.0}
#: Corpora that need nothing but a name.
_BY_NAME: Final = ("generated", "transformers", "timm")


def corpora_specs(
    names: Iterable[str], graphnet: Path | None, device_type: str
) -> list[CorpusSpec]:
    """What all ``--corpus`` and ``--graphnet`` name, in their order; see :func:`corpus_spec`.

    Raises:
        CorpusError: one of the names is neither a corpus nor a program.
    """
    specs = [corpus_spec(name, device_type) for name in names]
    return specs if graphnet is None else [*specs, graphnet_spec(graphnet, device_type)]


def corpus_spec(text: str, device_type: str) -> CorpusSpec:
    """What ``--corpus`` names: a corpus, or the one program that a ``FILE.py:FACTORY`` makes.

    Args:
        text: ``generated``, ``transformers`` or ``timm``, of which a colon may be followed by the
            families to draw from with commas between, or ``FILE.py:FACTORY``.
        device_type: ``cpu`` or ``cuda``; sets the sizes.

    Raises:
        CorpusError: it is neither; names the nearest corpus.
    """
    name, _, families = text.partition(":")
    if name in _BY_NAME:
        chosen = tuple(part.strip() for part in families.split(",") if part.strip())
        return CorpusSpec(name=name, scale=_SCALES[device_type], families=chosen)
    if ":" in text:
        return CorpusSpec(name="target", path=text)
    near = difflib.get_close_matches(text, _BY_NAME, n=1)
    raise CorpusError(
        f"there is no corpus {text!r}" + (f", nearest is {near[0]!r}" if near else ""),
        subject="--corpus",
        remedy=f"use {', '.join(_BY_NAME)}, or a program as FILE.py:FACTORY; "
        "a GraphNet checkout is given by --graphnet PATH",
    )


def graphnet_spec(path: Path, device_type: str) -> CorpusSpec:
    """What ``--graphnet PATH`` names: a checkout of GraphNet; looked into when it is opened."""
    full = path.expanduser().absolute()
    return CorpusSpec(name="graphnet", path=str(full), scale=_SCALES[device_type])
