"""Which kernels are like those that a model was trained on: what they do, and how large they are.

Trees answer whatever they are asked: a kernel of a kind that they never saw gets the time of some
other kind. What a kernel does is told here by a signature of yes-or-no questions over its features
(does it reduce, gather, store atomically, ...), and its size by a few features within each kind.
Nothing here predicts a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.feature_table import COLUMN, FEATURES
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.operations import CLASSES

Rows = npt.NDArray[np.intp]
Codes = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]

#: Questions that tell kinds of kernels apart: whether one of these features is there.
_KIND: Final = (
    ("reductions",),
    ("outer_reductions",),
    ("passes",),
    ("scans",),
    ("other_nodes",),
    ("read_gather", "read_opaque"),
    ("written_atomic", "written_other"),
    ("read_strided", "written_strided"),
)
#: Questions that tell patterns apart within a kind.
_PATTERN: Final = (
    ("across_bytes",),
    ("read_strided",),
    ("written_strided",),
    ("cached",),
    ("column_run",),
    ("read_broadcast",),
)
#: Questions of which each answer must have been seen, whatever the kernel does beside it.
_EACH: Final = (
    *((name,) for name in CLASSES),
    ("plain_reductions",),
    ("index_reductions",),
    ("fused_reductions",),
    ("narrow",),
    ("half",),
    ("wide",),
    ("flops",),
)
_QUESTIONS: Final = (*_KIND, *_PATTERN, *_EACH)
#: Above this a feature is there; 0 for all others.
_USUAL: Final = {"passes": 1.0}
#: What is less above it is the last bit of a logarithm; the least that kernels have is 3e-7.
_LAST_BIT: Final = 1e-9
_COLUMNS: Final = sorted({COLUMN[name] for names in _QUESTIONS for name in names})
_NAMES: Final = [FEATURES[at].name for at in _COLUMNS]
_ABOVE: Final = np.array([_USUAL.get(name, 0.0) + _LAST_BIT for name in _NAMES])
#: Which question each of these columns answers yes to, as bits: shape [columns, questions].
_ANSWERS: Final = np.array(
    [[name in names for names in _QUESTIONS] for name in _NAMES], dtype=np.float64
)
_BITS: Final = np.left_shift(np.int64(1), np.arange(len(_QUESTIONS), dtype=np.int64))
_KIND_MASK: Final = int(_BITS[: len(_KIND)].sum())
_PATTERN_MASK: Final = int(_BITS[: len(_KIND) + len(_PATTERN)].sum())
_EACH_MASK: Final = int(_BITS.sum()) - _PATTERN_MASK

#: What tells one CPU of several from another, and the bits that its numbers are told in: what was
#: learned of a pattern on one says little of the other.
_PLACE: Final = [COLUMN["device_threads"], COLUMN["device_cores"]]
_PLACE_BITS: Final = 12
_IS_CUDA: Final = COLUMN["is_cuda"]

#: What the size of a kernel is told by; the log of its roofline comes last.
_SIZES: Final = [COLUMN["iterations"], COLUMN["distinct"]]
#: Kernels, and families, that something must have been seen in to be known.
_LEAST_ROWS: Final = 3
_LEAST_LABELS: Final = 2
#: Of so many kernels of a kind one may be larger than what is known.
_BEYOND: Final = 10
#: How far outside of the training range a feature may lie, by unit; logs as the caller says.
_MARGIN: Final = {"share": 0.1, "flag": 0.0}
_OTHER_MARGIN: Final = 1.0
_OTHER_PART: Final = 0.25
#: For device rates, which differ by less from one probe of a device to the next.
DEVICE_MARGIN: Final = 0.4
#: The columns that tell one device from another.
DEVICE: Final = [i for name, i in COLUMN.items() if name == "is_cuda" or name[:7] == "device_"]


class Familiar(msgspec.Struct, frozen=True, eq=False, dict=True):
    """What a model has seen of kernels. Codes are sums of the bits of questions answered yes."""

    #: Range of each feature within which the trees may be asked, length F.
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    #: Kinds that were seen, ascending, length k; and the range of each size in each of them.
    kinds: tuple[int, ...]
    smallest: tuple[tuple[float, ...], ...]
    largest: tuple[tuple[float, ...], ...]
    #: Patterns that were seen often enough, each with the CPU that it was seen on, ascending.
    patterns: tuple[int, ...]
    #: Questions that every kernel answered yes, and no.
    always: int
    never: int

    def covers(self, features: FloatArray, log_base: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether kernels are like those trained on, shape [n].

        ``features`` [n, F] with the natural logs of their roofline times [n] in microseconds.
        """
        codes = signatures(features)
        low, high = self._range
        known: npt.NDArray[np.bool_] = np.asarray(((features >= low) & (features <= high)).all(1))
        known &= _among(_placed(codes, features), np.array(self.patterns, dtype=np.int64))
        known &= (codes & self.always) == self.always
        known &= (codes & self.never) == 0
        kinds = np.array(self.kinds, dtype=np.int64)
        if not len(kinds):
            return np.zeros(len(features), dtype=bool)
        # Of an unknown kind no pattern is known either; it only must not index beyond the end.
        at = _at(kinds, codes & _KIND_MASK)
        sizes = _sizes(features, log_base)
        fits = (sizes >= np.array(self.smallest)[at]) & (sizes <= np.array(self.largest)[at])
        known &= fits.all(axis=1)
        return known

    def known_device(self, features: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether rows of ``features`` [n, F] are of a device like those trained on, shape [n]."""
        device = features[:, DEVICE]
        low, high = self._range
        return np.asarray(((device >= low[DEVICE]) & (device <= high[DEVICE])).all(axis=1))

    @cached_property
    def _range(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.lowest), np.array(self.highest)


def _among(codes: Codes, known: Codes) -> npt.NDArray[np.bool_]:
    """Which of ``codes`` [n] are among those ``known``, which ascend."""
    if not len(known):
        return np.zeros(len(codes), dtype=bool)
    return np.asarray(known[_at(known, codes)] == codes)


def _at(known: Codes, codes: Codes) -> Rows:
    """Where each of ``codes`` [n] stands among those ``known``, which ascend, if it is there."""
    return np.minimum(np.searchsorted(known, codes), len(known) - 1)


def signatures(features: FloatArray) -> Codes:
    """Code of what each kernel of ``features`` [n, F] does, shape [n]."""
    there = (features[:, _COLUMNS] > _ABOVE).astype(np.float64)
    return np.asarray(((there @ _ANSWERS) > 0.0) @ _BITS, dtype=np.int64)


def _placed(codes: Codes, features: FloatArray) -> Codes:
    """The patterns in ``codes`` [n], told apart by the CPU that each was met on; [n]."""
    numbers = np.minimum(np.exp2(features[:, _PLACE]) - 1.0, (1 << _PLACE_BITS) - 1.0)
    numbers = np.where(features[:, [_IS_CUDA]] > 0, 0.0, np.rint(numbers)).astype(np.int64)
    place = (numbers[:, 0] << _PLACE_BITS) | numbers[:, 1]
    return np.asarray((codes & _PATTERN_MASK) | (place << len(_QUESTIONS)), dtype=np.int64)


def kinds_of(features: FloatArray) -> Codes:
    """Code of the kind of each kernel of ``features`` [n, F], shape [n]."""
    return signatures(features) & np.int64(_KIND_MASK)


def familiarise(
    features: FloatArray,
    log_base: FloatArray,
    labels: Labels,
    folds: Sequence[tuple[Rows, Rows]],
    *,
    margin: float,
    false_alarms: float,
) -> Familiar:
    """What is known from kernels with ``features`` [n, F].

    How often a pattern must have been seen is set by kernels of families held out: as often as
    lets no more than ``false_alarms`` of them be taken for strange.

    Args:
        features: of all kernels to train on.
        log_base: [n], natural log of their roofline times in microseconds.
        labels: [n], the family or graph of each.
        folds: row numbers to learn from, and held out; no label stands on both sides.
        margin: doublings that a size may lie outside of what was seen.
        false_alarms: see above, between 0 and 1.
    """
    numbers = np.unique(np.asarray(labels, dtype=str), return_inverse=True)[1]
    seen: list[FloatArray] = []
    for fitted, held in folds:
        some = _learn(features[fitted], log_base[fitted], numbers[fitted], _LEAST_ROWS, margin)
        codes, counts = np.unique(
            _placed(signatures(features[fitted]), features[fitted]), return_counts=True
        )
        mine = _placed(signatures(features[held]), features[held])
        at = _at(codes, mine)
        support = np.where(codes[at] == mine, counts[at], 0.0)
        support[~some.covers(features[held], log_base[held])] = 0.0
        seen.append(support)
    return _learn(features, log_base, numbers, _needed(np.concatenate(seen), false_alarms), margin)


def _needed(support: FloatArray, false_alarms: float) -> int:
    """How many kernels a pattern needs, so that at most that part of held-out ones have fewer."""
    values = np.sort(support)
    allowed = int(np.floor(false_alarms * len(values)))
    # Kernels below the first one that is not allowed to alarm are flagged, it and its equals not.
    return max(_LEAST_ROWS, int(values[min(allowed, len(values) - 1)]))


def _learn(
    features: FloatArray, log_base: FloatArray, labels: Rows, least: int, margin: float
) -> Familiar:
    codes = signatures(features)
    kinds, smallest, largest = [], [], []
    sizes = _sizes(features, log_base)
    every = codes & _KIND_MASK
    # Of one family or graph alone nothing else can be asked for.
    least_labels = min(_LEAST_LABELS, len(np.unique(labels)))
    for kind in np.unique(every).tolist():
        rows = every == kind
        kinds.append(kind)
        columns, mine = sizes[rows].T, labels[rows]
        smallest.append(tuple(-_reached(-c, mine, least_labels) - margin for c in columns))
        largest.append(tuple(_reached(c, mine, least_labels) + margin for c in columns))
    patterns = _often(_placed(codes, features), labels, least, least_labels)
    always = never = 0
    for bit in _BITS[len(_KIND) + len(_PATTERN) :].tolist():
        answers = set(_often(codes & bit, labels, _LEAST_ROWS, least_labels))
        always |= bit if 0 not in answers else 0
        never |= bit if bit not in answers else 0
    low, high = features.min(axis=0), features.max(axis=0)
    around = np.array([_margin(feature.unit, margin) for feature in FEATURES])
    counted = np.array([feature.unit.split()[0] in ("count", "bytes") for feature in FEATURES])
    around = np.where(counted, np.maximum(around, _OTHER_PART * (high - low)), around)
    around[DEVICE] = np.minimum(around[DEVICE], DEVICE_MARGIN)
    return Familiar(
        lowest=tuple((low - around).tolist()),
        highest=tuple((high + around).tolist()),
        kinds=tuple(kinds),
        smallest=tuple(smallest),
        largest=tuple(largest),
        patterns=patterns,
        always=always,
        never=never,
    )


def _reached(values: FloatArray, labels: Rows, families: int) -> float:
    """The greatest of ``values`` [n] that enough kernels, of enough labels [n], come up to.

    A tenth of them at the most is left beyond it: of few kernels each one counts.
    """
    order = np.argsort(-values, kind="stable")
    first = np.sort(np.unique(labels[order], return_index=True)[1])
    at = max(len(values) // _BEYOND, 1)
    if len(first) >= families:
        at = min(at, max(_LEAST_ROWS, int(first[families - 1]) + 1))
    return float(values[order[at - 1]])


def _often(codes: Codes, labels: Rows, rows: int, families: int) -> tuple[int, ...]:
    """Codes that occur in that many rows and under that many labels, ascending."""
    values, at, counts = np.unique(codes, return_inverse=True, return_counts=True)
    span = int(labels.max()) + 1
    under = np.bincount(np.unique(at * span + labels) // span, minlength=len(values))
    kept: list[int] = values[(counts >= rows) & (under >= families)].tolist()
    return tuple(kept)


def _sizes(features: FloatArray, log_base: FloatArray) -> FloatArray:
    """Doublings of each size, shape [n, sizes]."""
    return np.column_stack([features[:, _SIZES], log_base / np.log(2.0)])


def _margin(unit: str, margin: float) -> float:
    first = unit.split(maxsplit=1)[0]
    return margin if first == "log2" else _MARGIN.get(first, _OTHER_MARGIN)
