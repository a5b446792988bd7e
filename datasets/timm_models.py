"""The corpus of timm's models: image models without weights, cut into their distinct blocks.

A family is a module of the library (``timm/resnet``). Nothing is downloaded. The library is
optional and only imported when names or models are asked for.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from fusewise.datasets.blocks import Block, blocks
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.drawn import chosen_families
from fusewise.schedule.errors import CorpusError

_SUBJECT: Final = "timm corpus"
#: How timm's names say that a variant is small. Only those are drawn where a family has some: the
#: blocks of others differ in width, and building their weights takes long.
_SMALL = re.compile(
    r"(^|_)(atto|femto|pico|nano|micro|tiny|xx?tiny|mini|small|x{0,2}s\d*|ti?\d*|[bml][01]|0\d\d)(_|$)"
    # Layers, as in resnet18d and vgg11_bn.
    r"|^[a-z]+[1-3]\d[a-z]{0,2}(_|$)"
)
#: Those for large images, and those that timm tests itself with.
_LEFT_OUT = re.compile(
    r"^test_|_(3\d\d|4\d\d|5\d\d|\d{4})$|large|huge|giant|enormous|base|so\d+m|_\d+b(_|$)"
)
#: Sides of images. Half of them are multiples of _STEP, as images are resized to for most models,
#: and half are any, as photographs have: then few extents inside of the model are even.
_LEAST_SIDE, _MOST_SIDE, _STEP = 96, 512, 32
_BATCH, _MOST_BATCH = 4, 64
_MOST_BLOCKS: Final = 12
_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_DTYPE_WEIGHTS: Final = (0.4, 0.45, 0.15)


class TimmCorpus:
    """Models of timm, one small variant of each family in turn, each as its distinct blocks.

    Args:
        scale: factor on the batch; 1 suits a few CPU cores, a GPU wants 16.
        families: modules of timm to draw from, looked up when names are asked for; none for all.
    """

    name = "timm"
    licence = "Apache-2.0"

    def __init__(self, *, scale: float = 1.0, families: Sequence[str] = ()) -> None:
        self.scale = scale
        self.families = tuple(families)

    def names(self, seed: int) -> Iterator[str]:
        """``resnet/resnet18/7-0`` and so on, the families in turn, without end.

        Raises:
            CorpusError: timm is not installed, or a family is none of its modules.
        """
        timm = _timm()
        families = chosen_families(self.families, timm.list_modules(), self.name)
        variants = {family: _variants(timm, family) for family in families}
        return self._names(seed, [family for family in families if variants[family]], variants)

    @staticmethod
    def _names(seed: int, families: list[str], variants: dict[str, list[str]]) -> Iterator[str]:
        for number in itertools.count():
            family = families[number % len(families)]
            model = random.Random(f"{family}/{seed}-{number}").choice(variants[family])
            yield f"{family}/{model}/{seed}-{number}"

    def build(self, name: str) -> Iterator[GraphSample]:
        """The distinct blocks of the model of that name; equal names and scales give equal blocks.

        Raises:
            CorpusError: timm is not installed or has no such model, the model cannot be cut, or the
                name is of another form.
        """
        family, _, rest = name.partition("/")
        model, _, number = rest.partition("/")
        if not number:
            raise CorpusError(
                f"{name!r} does not name a program",
                subject=_SUBJECT,
                remedy="write it as FAMILY/MODEL/SEED-NUMBER, e.g. resnet/resnet18/0-1",
            )
        source = random.Random(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.getrandbits(62))
            parts = _built(_timm(), model, source, self.scale)
        if len(parts) > _MOST_BLOCKS:
            # In the order in which they are called; of densely connected nets each is another.
            chosen = sorted(source.sample(range(len(parts)), _MOST_BLOCKS))
            parts = [parts[number] for number in chosen]
        for part in parts:
            yield GraphSample(
                name=f"{name}#{part.path}",
                family=f"{self.name}/{family}",
                module=part.module,
                args=part.args,
                kwargs=part.kwargs,
                training=part.module.training and _trains(part.module, part.args),
                licence=self.licence,
                fingerprint=part.fingerprint,
            )


def _built(timm: ModuleType, model: str, source: random.Random, scale: float) -> list[Block]:
    """The model's blocks, for images of a drawn size or else of the size that it is made for."""
    settings = timm.get_pretrained_cfg(model) or timm.models.PretrainedCfg()
    channels, *made_for = settings.input_size
    sizes = [_drawn_size(settings, source), tuple(made_for)]
    share = source.triangular(0, 1, 0.85)
    dtype = source.choices(_DTYPES, _DTYPE_WEIGHTS)[0]
    training, channels_last = source.random() < 0.5, source.random() < 0.5  # noqa: PLR2004
    for number, (height, width) in enumerate(sizes):
        # Of large images fewer fit.
        most = min(_MOST_BATCH, _BATCH * scale) * min(1.0, 224**2 / (height * width))
        # Batch norm refuses statistics of a single value.
        batch = max(2 if training else 1, int(max(1.0, most) ** share))
        images = torch.randn(batch, channels, height, width, dtype=dtype)
        try:
            told = {}
            if settings.fixed_input_size:
                told["img_size"] = height if height == width else (height, width)
            module = _made(timm, model, told)
            module = module.to(dtype).train(training).requires_grad_(training)
            if channels_last:
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                images = images.contiguous(memory_format=torch.channels_last)
            return blocks(module, (images,), {})
        except CorpusError:
            if number + 1 == len(sizes):
                raise
    raise AssertionError("unreachable: the last size returns or raises")


def _drawn_size(settings: Any, source: random.Random) -> tuple[int, int]:
    """Height and width; square where the model is made for one size, which then is a whole one."""
    least = max(_LEAST_SIDE, *(settings.min_input_size or (0,)))
    most = max(least, _MOST_SIDE)

    def side() -> int:
        drawn = int(least * (most / least) ** source.random())
        whole = settings.fixed_input_size or source.random() < 0.5  # noqa: PLR2004
        return max(least, drawn // _STEP * _STEP) if whole else drawn

    height = side()
    square = settings.fixed_input_size or source.random() < 0.5  # noqa: PLR2004
    return height, height if square else side()


def _made(timm: ModuleType, model: str, options: Mapping[str, Any]) -> nn.Module:
    try:
        module: nn.Module = timm.create_model(model, pretrained=False, **options)
    except Exception as error:
        raise CorpusError(
            f"timm {timm.__version__} cannot build {model}: {error}",
            subject=_SUBJECT,
            remedy="install another version of timm, or leave the family out",
        ) from error
    return module


def _variants(timm: ModuleType, family: str) -> list[str]:
    """The family's small models, or the first where no name says to be small."""
    known: list[str] = timm.list_models(module=family)
    fitting = [model for model in known if not _LEFT_OUT.search(model)] or known[:1]
    return [model for model in fitting if _SMALL.search(model)] or fitting[:1]


def _trains(module: nn.Module, args: tuple[Any, ...]) -> bool:
    tensors = [*module.parameters(), *(a for a in args if isinstance(a, torch.Tensor))]
    return any(tensor.requires_grad for tensor in tensors)


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise CorpusError(
            f"the timm library cannot be imported: {error}",
            subject=_SUBJECT,
            remedy="pip install timm",
        ) from error
    library: ModuleType = timm
    return library
