from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fusewise.datasets.corpora import open_corpus
from fusewise.datasets.corpus import CorpusSpec, GraphSample
from fusewise.datasets.timm_models import TimmCorpus
from fusewise.schedule.errors import CorpusError

Run = Callable[[GraphSample], list[Tensor]]
Tensors = Callable[[object], list[Tensor]]


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.relu(self.norm(self.convolution(x)))
        return out


class _Net(nn.Module):
    """One that takes images of any size, or of a multiple of ``wanted`` only."""

    def __init__(self, channels: int, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted
        self.stem = nn.Conv2d(3, channels, 4, 4)
        self.layers = nn.Sequential(*[_Residual(channels) for _ in range(16)])

    def forward(self, x: Tensor) -> Tensor:
        if any(side % self.wanted for side in x.shape[-2:]):
            raise ValueError(f"images of {self.wanted} are wanted")
        out: Tensor = self.layers(self.stem(x))
        return out


@dataclass
class _Settings:
    input_size: tuple[int, int, int] = (3, 224, 224)
    min_input_size: tuple[int, int, int] | None = None
    fixed_input_size: bool = False


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library like timm, of three families."""
    library = ModuleType("timm")
    models = {
        "resnet": ["resnet18", "resnet101", "test_resnet"],
        "vgg": ["vgg_large", "vgg_tiny", "vgg_tiny_384"],
        "maxim": ["maxim_base"],
    }
    settings = {
        "resnet18": _Settings(min_input_size=(3, 400, 400)),
        # It only says that it takes any size.
        "vgg_tiny": _Settings((3, 100, 100)),
        "maxim_base": _Settings((3, 96, 96), fixed_input_size=True),
    }
    library.__version__ = "0"  # type: ignore[attr-defined]
    library.list_modules = lambda: sorted(models)  # type: ignore[attr-defined]
    library.list_models = lambda module: models[module]  # type: ignore[attr-defined]
    library.get_pretrained_cfg = settings.get  # type: ignore[attr-defined]
    library.models = SimpleNamespace(PretrainedCfg=_Settings)  # type: ignore[attr-defined]

    def create_model(name: str, pretrained: bool, **options: int) -> nn.Module:
        assert not pretrained
        if name == "resnet34":
            raise RuntimeError("Unknown model (resnet34)")
        wanted = {"vgg_tiny": 100, "maxim_base": options.pop("img_size", 0)}
        assert not options
        return _Net(8, wanted.get(name, 1))

    library.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", library)
    return library


def test_names_take_small_variants_of_the_families_in_turn(timm: ModuleType) -> None:
    names = list(itertools.islice(TimmCorpus().names(3), 4))
    assert names == [
        "maxim/maxim_base/3-0",
        "resnet/resnet18/3-1",
        "vgg/vgg_tiny/3-2",
        "maxim/maxim_base/3-3",
    ]
    chosen = open_corpus(CorpusSpec(name="timm", families=("vgg",)))
    assert next(chosen.names(0)) == "vgg/vgg_tiny/0-0"
    with pytest.raises(CorpusError, match="no family 'resnets', nearest is 'resnet'"):
        TimmCorpus(families=("resnets",)).names(0)


@pytest.mark.parametrize("model", ["resnet/resnet18", "vgg/vgg_tiny", "maxim/maxim_base"])
def test_models_are_given_as_their_blocks(
    timm: ModuleType, model: str, run: Run, tensors: Tensors
) -> None:
    trained = set()
    for number in range(4):
        name = f"{model}/0-{number}"
        (first,), (second,) = (list(TimmCorpus(scale=0.5).build(name)) for _ in range(2))
        assert first.name == f"{name}#layers.0"
        assert first.family == f"timm/{model.split('/', maxsplit=1)[0]}"
        assert first.fingerprint == second.fingerprint != ""
        given = tensors(first.args), tensors(second.args)
        assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))
        assert first.args[0].shape[1] == 8
        run(first)
        trained.add(first.training)
    assert trained == {False, True}


def test_images_are_of_any_size_that_the_model_takes(timm: ModuleType) -> None:
    def sizes(model: str) -> list[tuple[int, int]]:
        """Heights and widths that the stem leaves a quarter of."""
        built = [next(TimmCorpus(scale=0.5).build(f"{model}/0-{n}")) for n in range(16)]
        return [tuple(sample.args[0].shape[2:]) for sample in built]

    free = sizes("resnet/resnet18")
    assert all(100 <= side <= 128 for size in free for side in size)
    assert len({height for height, _ in free}) > 4
    assert {height == width for height, width in free} == {False, True}
    assert set(sizes("vgg/vgg_tiny")) == {(25, 25)}
    told = sizes("maxim/maxim_base")
    assert len(set(told)) > 4
    assert all(height == width and height % 8 == 0 for height, width in told)


def test_what_cannot_be_built_is_told(timm: ModuleType) -> None:
    with pytest.raises(CorpusError, match="cannot build resnet34"):
        next(TimmCorpus().build("resnet/resnet34/0-0"))
    with pytest.raises(CorpusError, match="does not name a program"):
        next(TimmCorpus().build("resnet/0-0"))


def test_missing_timm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(CorpusError, match="pip install timm"):
        TimmCorpus().names(0)
    with pytest.raises(CorpusError, match="pip install timm"):
        next(TimmCorpus().build("resnet/resnet18/0-0"))


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("family", ["resnet", "vision_transformer"])
def test_real_models(family: str, run: Run) -> None:
    corpus = TimmCorpus(scale=0.5, families=(family,))
    samples = list(corpus.build(next(corpus.names(0))))
    assert 1 < len(samples) <= 12
    for sample in samples:
        run(sample)
