from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fusewise.datasets.configured import CONFIGURED, ConfiguredCorpus
from fusewise.datasets.corpus import Corpus, GraphSample, scalar_loss
from fusewise.datasets.generated import FAMILIES, GeneratedCorpus
from fusewise.datasets.target import TargetCorpus, load_target
from fusewise.schedule.errors import CorpusError

SMALL = 0.01


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors(part)]
    return []


def run(sample: GraphSample) -> list[torch.Tensor]:
    """Outputs, after a backward where the sample is trained; all must be finite."""
    outputs = sample.module(*sample.args, **sample.kwargs)
    if sample.training:
        scalar_loss(outputs).backward()
        inputs = [*tensors([sample.args, sample.kwargs])]
        if isinstance(sample.module, torch.nn.Module):
            inputs += sample.module.parameters()
        assert any(leaf.grad is not None for leaf in inputs if leaf.requires_grad)
    found = tensors(outputs)
    assert found
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_families_run_forward_and_backward(family: str) -> None:
    trained = set()
    for sample in GeneratedCorpus(scale=SMALL, families=[family]).samples(11, 8):
        assert sample.family == f"generated/{family}" and sample.licence
        run(sample)
        trained.add(sample.training)
    never = {"adam", "sgd", "quantise", "dequantise", "in_place"}
    assert trained == ({False} if family in never else {False, True})


def test_equal_seeds_give_equal_programs_and_leave_the_global_state() -> None:
    before = torch.random.get_rng_state()
    corpus = GeneratedCorpus(scale=SMALL)
    for first, second in zip(corpus.samples(3, 30), corpus.samples(3, 30), strict=True):
        assert first.name == second.name and first.training == second.training
        given = tensors(first.args), tensors(second.args)
        assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))
        if "dropout" not in first.family:
            assert all(map(torch.equal, run(first), run(second)))
    assert torch.equal(torch.random.get_rng_state(), before)
    one, other = next(corpus.samples(3, 1)), next(corpus.samples(4, 1))
    assert one.name != other.name


def test_samples_are_lazy_and_limited() -> None:
    corpus: Corpus = GeneratedCorpus(scale=SMALL)
    endless = corpus.samples(0, 10**9)
    assert [next(endless).family for _ in range(2)] == [
        f"generated/{family}" for family in list(FAMILIES)[:2]
    ]
    assert list(corpus.samples(0, 0)) == []


def test_scale_scales() -> None:
    def elements(scale: float) -> int:
        samples = GeneratedCorpus(scale=scale).samples(0, 30)
        return sum(tensor.numel() for sample in samples for tensor in tensors(sample.args))

    assert elements(0.1) > 3 * elements(SMALL)


def test_both_dtypes_occur() -> None:
    samples = GeneratedCorpus(scale=SMALL).samples(0, 60)
    dtypes = {tensor.dtype for sample in samples for tensor in tensors(sample.args)}
    assert {torch.float32, torch.bfloat16} <= dtypes


@pytest.mark.parametrize("corpus", [GeneratedCorpus, ConfiguredCorpus])
def test_unknown_families_are_refused(corpus: type) -> None:
    with pytest.raises(CorpusError, match="no family 'layer_form'"):
        corpus(families=["layer_form"])


def test_a_loss_of_nothing_differentiable_is_refused() -> None:
    with pytest.raises(CorpusError, match="requires a gradient"):
        scalar_loss({"a": [torch.ones(2)], "b": None})


@pytest.mark.parametrize("family", CONFIGURED)
def test_configured_models_run(family: str) -> None:
    pytest.importorskip("transformers")
    corpus: Corpus = ConfiguredCorpus(scale=0.25, families=[family])
    names = []
    for sample in corpus.samples(0, 3):
        assert sample.family == f"configured/{family}"
        run(sample)
        names.append(sample.name)
    assert len(set(names)) == 3


def test_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CorpusError, match="pip install transformers"):
        next(ConfiguredCorpus().samples(0, 1))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    path = tmp_path / "model.py"
    path.write_text(
        "import sys\n"
        "import torch\n"
        "from beside import WIDTH\n"
        "def model(): return torch.nn.Linear(WIDTH, 2), (torch.ones(3, WIDTH),)\n"
        "def frozen(): return model()[0].eval(), [torch.ones(3, 4)]\n"
        "def named(): return (lambda x, *, k: x * k), (torch.ones(3),), {'k': 2}\n"
        "def raises(): raise ValueError('no weights')\n"
        "def exits(): sys.exit(3)\n"
        "def single(): return torch.nn.Linear(4, 2), torch.ones(3, 4)\n"
        "def nothing(): pass\n"
        "def uncallable(): return 3, ()\n"
        "def unnamed(): return print, (), {3: 4}\n"
        "value = 3\n"
    )
    return path


def test_targets(target: Path) -> None:
    trained = load_target(f"{target}:model")
    assert trained.training and trained.family == "target/model:model"
    run(trained)
    assert not load_target(f"{target}:frozen").training
    (sample,) = TargetCorpus(f"{target}:named").samples(0, 5)
    assert torch.equal(run(sample)[0], torch.full((3,), 2.0))
    assert str(target.parent) not in sys.path


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("raises", r"raises\(\) raised ValueError: no weights"),
        ("exits", r"exits\(\) raised SystemExit: 3"),
        ("single", r"of type Tensor; a single argument is written \(x,\)"),
        ("nothing", r"nothing\(\) returned a value of type NoneType"),
        ("uncallable", r"the first that uncallable\(\) returned is a value of type int"),
        ("unnamed", r"the kwargs that unnamed\(\) returned"),
        ("value", "has no function 'value'"),
        ("missing", "has no function 'missing'"),
        ("", "does not name a file and a factory"),
        ("a b", "does not name a file and a factory"),
    ],
)
def test_bad_targets_are_named(target: Path, factory: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message) as caught:
        load_target(f"{target}:{factory}")
    assert caught.value.subject == f"{target}:{factory}"
    if factory in {"raises", "exits"}:
        assert isinstance(caught.value.__cause__, ValueError | SystemExit)


def test_bad_target_files_are_named(target: Path) -> None:
    for bad in ("model.py", "", ":model", str(target)):
        with pytest.raises(CorpusError, match="does not name a file"):
            load_target(bad)
    with pytest.raises(CorpusError, match="there is no file"):
        load_target(f"{target}x:model")
    broken = target.with_name("broken.py")
    broken.write_text("import nothing_of_that_name\n")
    with pytest.raises(CorpusError, match="ModuleNotFoundError") as caught:
        load_target(f"{broken}:model")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    text = target.with_name("notes.txt")
    text.write_text("notes")
    with pytest.raises(CorpusError, match="no Python file"):
        load_target(f"{text}:model")
