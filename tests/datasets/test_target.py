from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample
from fusewise.datasets.target import TargetCorpus, load_target
from fusewise.schedule.errors import CorpusError

Run = Callable[[GraphSample], list[torch.Tensor]]


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


def test_targets(target: Path, run: Run) -> None:
    trained = load_target(f"{target}:model")
    assert trained.training and trained.family == "target/model:model"
    run(trained)
    assert not load_target(f"{target}:frozen").training
    corpus: Corpus = TargetCorpus(f"{target}:named")
    (name,) = corpus.names(5)
    (sample,) = corpus.build(name)
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
