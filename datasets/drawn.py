"""Names of programs that are drawn: ``family/seed-number``, all that is needed to draw them again.

What corpora of drawn programs share, with how sizes are drawn. Knows nothing of what the programs
are.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence

from fusewise.schedule.errors import CorpusError


def chosen_families(wanted: Sequence[str], known: Collection[str], corpus: str) -> tuple[str, ...]:
    """``wanted``, or all of ``known`` where nothing is wanted; ``composed_*`` stands for all such.

    Raises:
        CorpusError: a wanted one is not known; names the nearest.
    """
    chosen: dict[str, None] = {}
    for family in wanted:
        found = fnmatch.filter(known, family) if "*" in family else []
        if not found:
            _check_known(family, known, corpus)
        chosen.update(dict.fromkeys(found or (family,)))
    return tuple(chosen or known)


def drawn_names(families: Iterable[str], seed: int) -> Iterator[str]:
    """``layer_norm/7-0``, ``rms_norm/7-1`` and so on, the families in turn, without end."""
    for number, family in enumerate(itertools.cycle(families)):
        yield f"{family}/{seed}-{number}"


def family_of(name: str, known: Collection[str], corpus: str) -> str:
    """The family that a drawn name begins with.

    Raises:
        CorpusError: the name has another form, or its family is not known.
    """
    family, slash, seed = name.rpartition("/")
    if not slash or not seed:
        raise CorpusError(
            f"{name!r} does not name a program",
            subject=f"{corpus} corpus",
            remedy="write it as FAMILY/SEED-NUMBER, e.g. softmax/0-1",
        )
    _check_known(family, known, corpus)
    return family


def spread(source: random.Random, low: float, high: float) -> int:
    """Of every order of magnitude, the larger ones more often: the smallest all take as long."""
    return int(low * (high / low) ** source.triangular(0, 1, 0.85))


def _check_known(family: str, known: Collection[str], corpus: str) -> None:
    if family not in known:
        near = difflib.get_close_matches(family, known, n=1)
        raise CorpusError(
            f"there is no family {family!r}" + (f", nearest is {near[0]!r}" if near else ""),
            subject=f"{corpus} corpus",
            remedy=f"use some of {', '.join(known)}",
        )
