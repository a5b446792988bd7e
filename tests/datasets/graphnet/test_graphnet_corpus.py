"""The corpus as a whole: names, versions, errors and what a sample carries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewise.datasets.graphnet import GraphNetCorpus
from fusewise.datasets.graphnet.families import NEAR_TEST
from fusewise.schedule.errors import CorpusError

WriteSample = Callable[..., Path]


def _root(folder: Path) -> Path:
    return next(above for above in folder.parents if above.name == "checkout")


def _small(scale: int) -> str:
    return f"y = torch.relu(L_x_)\nz = y * {scale}.0\nreturn (z,)"


@pytest.mark.parametrize("inside", ["", "samples"])
def test_a_checkout_or_its_samples(write_sample: WriteSample, inside: str) -> None:
    root = _root(write_sample())
    assert len(list(GraphNetCorpus(root / inside).names(0))) == 1


def test_a_folder_that_is_no_checkout_says_how_to_get_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CorpusError, match="git clone https://github"):
            GraphNetCorpus(path)


def test_names_take_architectures_in_turn(write_sample: WriteSample) -> None:
    for i in range(6):
        write_sample(_small(100 + i), name=f"timm/resnet{i}")
    write_sample(_small(200), name="mmseg/ANN_R50")
    root = _root(write_sample(_small(201), name="timm/vit_s"))
    corpus = GraphNetCorpus(root)
    names = list(corpus.names(3))
    assert names == list(corpus.names(3))
    assert names != list(corpus.names(4))
    assert len(names) == 8
    first = {name.split("@")[0].split("/")[1][:3] for name in names[:3]}
    assert first == {"res", "ANN", "vit"}


def test_names_leave_out_repeated_and_reserved_models(write_sample: WriteSample) -> None:
    write_sample(_small(100).replace("L_x_", "L_a_"), {"L_a_": ([2, 8], "float32")}, name="timm/a")
    write_sample(_small(100), name="timm/b")
    write_sample(_small(101), name=min(NEAR_TEST))
    root = _root(write_sample(_small(102), name="timm/c"))
    names = {name.split("@")[0] for name in GraphNetCorpus(root).names(0)}
    assert names in ({"timm/a", "timm/c"}, {"timm/b", "timm/c"})


def test_families_choose(write_sample: WriteSample) -> None:
    for i, name in enumerate(("timm/resnet1", "timm/vit_s", "mmseg/resnet1")):
        root = _root(write_sample(_small(100 + i), name=name))

    def drawn(*families: str) -> set[str]:
        corpus = GraphNetCorpus(root, families=families)
        return {name.split("@")[0] for name in corpus.names(0)}

    assert drawn("timm") == {"timm/resnet1", "timm/vit_s"}
    assert drawn("graphnet/timm/resnet", "mmseg") == {"timm/resnet1", "mmseg/resnet1"}
    with pytest.raises(CorpusError, match="timm/res'"):
        drawn("timm/res")


def test_versions_are_drawn_from_seed_and_name(write_sample: WriteSample) -> None:
    for i in range(40):
        root = _root(write_sample(_small(100 + i), name=f"timm/m{i}x_{i}"))
    names = list(GraphNetCorpus(root, scale=4.0).names(0))
    versions = [name.rpartition("@")[2].split(",") for name in names]
    assert {dtype for dtype, _, _ in versions} == {"fp32", "bf16", "fp16"}
    assert {int(factor[1:]) for _, factor, _ in versions} <= {4, 8, 16, 32, 64}
    assert {mode for _, _, mode in versions} == {"train", "infer"}


@pytest.mark.parametrize("name", ["timm/toy10", "timm/toy10@fp64,x1,train", "../a@fp32,x1,train"])
def test_a_name_that_is_none_is_refused(write_sample: WriteSample, name: str) -> None:
    corpus = GraphNetCorpus(_root(write_sample()))
    with pytest.raises(CorpusError, match="form"):
        list(corpus.build(name))


def test_errors_name_the_sample_and_the_cause(write_sample: WriteSample) -> None:
    write_sample("y = open('f')\nreturn (y,)", name="timm/bad")
    write_sample("return (L_x_ + torch.ones(3),)", name="timm/worse")
    folder = write_sample(name="timm/bare")
    (folder / "weight_meta.py").unlink()
    corpus = GraphNetCorpus(_root(folder))
    for name, cause in {
        "bad": "open",
        "worse": "fails",
        "bare": "weight_meta",
        "none": "no such sample",
    }.items():
        with pytest.raises(CorpusError, match=f"timm/{name}.*{cause}"):
            list(corpus.build(f"timm/{name}@fp32,x1,infer"))


def test_a_refusal_tells_that_the_batch_could_not_grow(write_sample: WriteSample) -> None:
    sample = write_sample("return (torch.mm(L_x_, L_x_),)", {"L_x_": ([2, 2], "float32")})
    corpus = GraphNetCorpus(_root(sample))
    told = r"nothing to fuse; it keeps its own batch, since mm \(mm"
    with pytest.raises(CorpusError, match=told):
        list(corpus.build("timm/toy10@fp32,x4,infer"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_samples_run_and_repeat(
    write_sample: WriteSample, encoder: Callable[..., Any], dtype: str, mode: str
) -> None:
    root = _root(write_sample(*encoder(blocks=8), name="transformers-auto-model/toy"))
    name = f"transformers-auto-model/toy@{dtype},x4,{mode}"
    samples = list(GraphNetCorpus(root).build(name))
    assert 3 <= len(samples) <= 12
    assert len({sample.fingerprint for sample in samples}) == len(samples)
    assert [sample.name for sample in samples] == [f"{name}#{i}" for i in range(len(samples))]
    again = list(GraphNetCorpus(root).build(name))
    for sample, other in zip(samples, again, strict=True):
        assert sample.family == "graphnet/transformers-auto-model/toy"
        assert sample.fingerprint == other.fingerprint
        assert all(map(torch.equal, sample.args, other.args))
        assert sample.training <= (mode == "train")
        results = sample.module(*sample.args)
        assert isinstance(results, tuple)
        assert all(torch.isfinite(result).all() for result in results)


def test_pieces_make_tensors_on_the_device_of_their_inputs(write_sample: WriteSample) -> None:
    body = (
        "a = torch.arange(8, device=device(type='cuda', index=0))\n"
        "y = L_x_ * a\nz = y + y.exp()\nreturn (z,)"
    )
    corpus = GraphNetCorpus(_root(write_sample(body)))
    (sample, *_) = corpus.build("timm/toy10@fp32,x1,infer")
    (result,) = sample.module(*[arg.to("meta") for arg in sample.args])
    assert result.device.type == "meta"


def test_a_dtype_that_the_model_cannot_have_is_left(write_sample: WriteSample) -> None:
    body = "y = torch.linalg.inv(L_x_)\nz = y + 1.0\nw = z * y\nreturn (w,)"
    root = _root(write_sample(body, {"L_x_": ([3, 3], "float32")}))
    (sample, *_) = GraphNetCorpus(root).build("timm/toy10@bf16,x1,infer")
    assert sample.args[0].dtype in (torch.float32, torch.bfloat16)
