from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from types import ModuleType

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
    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, size, size), "fixed_input_size": size == 32}
        self.size = size
        self.stem = nn.Conv2d(3, channels, 4, 4)
        self.layers = nn.Sequential(*[_Residual(channels) for _ in range(16)])

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % self.size:
            raise ValueError(f"images of {self.size} are wanted")
        out: Tensor = self.layers(self.stem(x))
        return out


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library like timm, of two families."""
    library = ModuleType("timm")
    models = {
        "resnet": ["resnet18", "resnet101", "test_resnet"],
        "vgg": ["vgg_large", "vgg_tiny", "vgg_tiny_384"],
        "maxim": ["maxim_base"],
    }
    library.__version__ = "0"  # type: ignore[attr-defined]
    library.list_modules = lambda: sorted(models)  # type: ignore[attr-defined]
    library.list_models = lambda module: models[module]  # type: ignore[attr-defined]

    def create_model(name: str, pretrained: bool) -> nn.Module:
        assert not pretrained
        if name == "resnet34":
            raise RuntimeError("Unknown model (resnet34)")
        # One that takes any side, and one that only says so.
        return _Net(8, 32) if name == "resnet18" else _Net(8, 100)

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


@pytest.mark.parametrize("model", ["resnet/resnet18", "vgg/vgg_tiny"])
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
        assert first.args[0].shape[1:] == ((8, 8, 8) if "resnet" in model else (8, 25, 25))
        run(first)
        trained.add(first.training)
    assert trained == {False, True}


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
