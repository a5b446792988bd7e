"""The GraphNet corpus: samples of a checkout in several versions, each cut into pieces.

A version is ``timm/resnet18@bf16,x16,train``: the sample, its dtype, a factor on its batch, and
whether gradients are wanted. Building one runs the sample's torch operations, on fake tensors
only, in the process that asks: a worker process, where a crash costs nothing else.
"""

from __future__ import annotations

import logging
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.graphnet.checkout import GET_IT, Checkout
from fusewise.datasets.graphnet.cutting import CutSize, cut
from fusewise.datasets.graphnet.fitting import Fitted, Most, fit
from fusewise.datasets.graphnet.meta import Unloadable, read_meta
from fusewise.datasets.graphnet.pieces import Piece
from fusewise.datasets.graphnet.program import Program
from fusewise.datasets.graphnet.source import parse
from fusewise.schedule.errors import CorpusError

log = logging.getLogger(__name__)

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_DTYPE_WEIGHTS = (40, 45, 15)
#: Factors on the batch at scale 1; captured models have a batch of one or two.
_FACTORS = (1, 2, 4, 8, 16)
_LARGEST_FACTOR = 1024
#: Bytes of the largest activation at scale 1, and at any: beyond, the factor is lowered.
_ACTIVATION = 16 << 20
_LARGEST_ACTIVATION = 512 << 20
#: Floating-point operations of a piece at scale 1. What they take is time of extern kernels,
#: which has nothing to do with fusion. CPUs without support for bf16 do some GFLOP/s in it.
_FLOPS = 4e9
_FLOPS_NARROW = 2e9
#: From this scale on it is for a GPU, where both take less than a memory-bound kernel does.
_GPU_SCALE = 4
_FLOPS_GPU = 16e9
_EXTERNS_OF_A_PIECE = 4
#: Pieces of fewer lowered operations have nothing to decide.
_LEAST_WEIGHT = 3
#: Bytes that the arguments of a piece may take at scale 1, and at any.
_INPUTS = 256 << 20
_LARGEST_INPUTS = 2 << 30
_VERSION = re.compile(r"(?P<dtype>fp32|bf16|fp16),x(?P<factor>[1-9]\d*),(?P<mode>train|infer)")


@dataclass(frozen=True)
class _Version:
    """A sample's name, taken apart."""

    sample: str
    dtype: str
    factor: int
    training: bool

    def __str__(self) -> str:
        mode = "train" if self.training else "infer"
        return f"{self.sample}@{self.dtype},x{self.factor},{mode}"

    @classmethod
    def draw(cls, sample: str, seed: int, scale: float) -> _Version:
        source = random.Random(f"{sample}/{seed}")
        (dtype,) = source.choices(list(_DTYPES), weights=_DTYPE_WEIGHTS)
        factor = round(source.choice(_FACTORS) * scale)
        return cls(
            sample, dtype, min(max(factor, 1), _LARGEST_FACTOR), source.choice((False, True))
        )

    @classmethod
    def parse(cls, name: str) -> _Version:
        sample, _, rest = name.rpartition("@")
        found = _VERSION.fullmatch(rest)
        if found is None or not sample or ".." in sample.split("/") or sample.startswith("/"):
            raise CorpusError(
                f"{name!r} is not of the form 'timm/resnet18@bf16,x16,train'",
                subject="GraphNet corpus",
                remedy="give a name that the corpus lists",
            )
        training = found["mode"] == "train"
        return cls(sample, found["dtype"], int(found["factor"]), training)


class GraphNetCorpus:
    """Pieces of the models in a checkout of GraphNet.

    Args:
        path: the checkout or its ``samples`` folder.
        scale: factor on the batch, and on the memory of the largest activation.
        families: collections (``timm``) or architectures (``timm/resnet``) to draw from, also in
            the form that samples carry them (``graphnet/timm/resnet``); None draws from all.
        pieces: how many pieces of one sample to give at most.

    Raises:
        CorpusError: ``path`` is no checkout, or a family is none of its families.
    """

    name = "graphnet"
    licence = "MIT"

    def __init__(
        self,
        path: str | Path,
        *,
        scale: float = 1.0,
        families: Sequence[str] | None = None,
        pieces: int = 12,
    ) -> None:
        self.checkout = Checkout(Path(path))
        self.scale = scale
        self.families = tuple(family.removeprefix("graphnet/") for family in families or ())
        self.pieces = pieces
        known = {_family(*item) for item in self.checkout.architectures.items()}
        for family in self.families:
            if not any(_is_below(each, family) for each in known):
                collections = sorted({each.split("/")[0] for each in known})
                raise CorpusError(
                    f"there is no family {family!r}",
                    subject="GraphNet corpus",
                    remedy=f"use collections ({', '.join(collections)}) or architectures of them",
                )

    def names(self, seed: int) -> Iterator[str]:
        """One version of each sample, architectures of all collections in turn; then ends.

        Samples that are near duplicates of one named before are left out. Includes the test
        collections, see :func:`fusewise.datasets.graphnet.is_test_collection`.
        """
        kinds = self.checkout.architectures
        for sample in self.checkout.in_turn(seed):
            family = _family(sample, kinds[sample])
            if not self.families or any(_is_below(family, each) for each in self.families):
                yield str(_Version.draw(sample, seed, self.scale))

    def build(self, name: str) -> Iterator[GraphSample]:
        """Distinct pieces of the sample, spread over its depth; some longer ones among them.

        Each has a tuple of tensors as its result and no parameters of its own. Where a model
        cannot follow the dtype or the batch of its version, it keeps its own.

        Raises:
            CorpusError: it cannot be read or cut; says why.
        """
        version = _Version.parse(name)
        kind = self.checkout.architectures.get(version.sample)
        if kind is None:
            raise CorpusError(
                "the checkout has no such sample",
                subject=f"GraphNet sample {version.sample!r}",
                remedy=f"give a name that the corpus lists, or {GET_IT}",
            )
        try:
            program = Program(self._fitted(version), training=version.training)
            scale = max(self.scale, 1.0)
            limits = Most(min(int(_INPUTS * scale), _LARGEST_INPUTS), int(_flops(version, scale)))
            if program.kept:
                log.info("%s keeps its own batch: %s", version, program.kept)
            chosen = _choose(program, random.Random(name), self.pieces, limits)
        except Unloadable as error:
            raise _refused(version, str(error)) from error
        except Exception as error:
            raise _refused(version, f"{type(error).__name__}: {error}"[:300]) from error
        for index, piece in enumerate(chosen):
            generator = torch.Generator().manual_seed(zlib.crc32(f"{name}#{index}".encode()))
            yield GraphSample(
                name=f"{name}#{index}",
                family=f"{self.name}/{_family(version.sample, kind)}",
                module=piece.module(),
                args=tuple(each.draw(generator) for each in piece.inputs),
                training=piece.training,
                licence=self.licence,
                fingerprint=piece.fingerprint,
            )

    def _fitted(self, version: _Version) -> Fitted:
        folder = self.checkout.samples / version.sample
        metas = read_meta(folder)
        text = (folder / "model.py").read_text(encoding="utf-8")
        scale = max(self.scale, 1.0)
        most = Most(
            bytes=min(int(_ACTIVATION * scale), _LARGEST_ACTIVATION),
            flops=int(_flops(version, scale) / _EXTERNS_OF_A_PIECE),
        )
        dtype = _DTYPES[version.dtype]
        try:
            return fit(parse(text), metas, dtype, version.factor, most)
        except Unloadable:
            if dtype is None:
                raise
            return fit(parse(text), metas, None, version.factor, most)


def _flops(version: _Version, scale: float) -> float:
    """Floating-point operations that a piece may take."""
    if scale >= _GPU_SCALE:
        return _FLOPS_GPU * scale
    return (_FLOPS if version.dtype == "fp32" else _FLOPS_NARROW) * scale


def _family(sample: str, kind: str) -> str:
    return f"{sample.split('/', maxsplit=1)[0]}/{kind}"


def _is_below(family: str, wanted: str) -> bool:
    return family == wanted or family.startswith(f"{wanted}/")


def _refused(version: _Version, cause: str) -> CorpusError:
    return CorpusError(
        cause,
        subject=f"GraphNet sample {version.sample!r}",
        remedy="leave it out; the other samples do not need it",
    )


def _choose(program: Program, source: random.Random, most: int, limits: Most) -> list[Piece]:
    """Up to ``most`` distinct pieces of two short cuts and, for one in six, a long one.

    Raises:
        Unloadable: there is none; says what most of them lacked.
    """
    long = max(most // 6, 1)
    sizes = [
        (CutSize(source.randint(8, 40), source.randint(0, 3)), (most - long + 1) // 2),
        (CutSize(source.randint(8, 40), source.randint(0, 3)), (most - long) // 2),
        (CutSize(source.randint(60, 150), 24, least=60), long),
    ]
    seen: set[str] = set()
    chosen: list[Piece] = []
    lacking: Counter[str] = Counter()
    for size, count in sizes:
        distinct = []
        for start, stop in cut(program.nodes, size):
            try:
                piece = program.piece(start, stop)
                _check_worth(piece, limits)
            except Unloadable as error:
                lacking[str(error)] += 1
                continue
            if piece.fingerprint not in seen:
                seen.add(piece.fingerprint)
                distinct.append(piece)
        chosen += _spread(distinct, count)
    if not chosen:
        why = "".join(f"; most: {reason}" for reason, _ in lacking.most_common(1))
        kept = f"; it keeps its own batch, since {program.kept}" if program.kept else ""
        raise Unloadable(f"no piece of it can be used{why}{kept}")
    return chosen


def _check_worth(piece: Piece, limits: Most) -> None:
    if piece.weight < _LEAST_WEIGHT:
        raise Unloadable("it has nothing to fuse")
    if piece.bytes > limits.bytes:
        raise Unloadable(f"its inputs take {piece.bytes >> 20} MiB, too many at this scale")
    if piece.flops > limits.flops:
        raise Unloadable(f"its products take {piece.flops / 1e9:.1f} GFLOP, too many at this scale")


def _spread(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """``count`` of them, evenly over their order."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[i * len(pieces) // count] for i in range(count)]
