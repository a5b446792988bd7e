"""Workers that follow a script in place of real ones, and small programs to collect from."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fusewise.compiler.collecting.work import Finished, Item, PreparedGraph, Ready
from fusewise.datasets.corpus import CorpusSpec

#: A process that does what the next script says: one that is started after another takes the one
#: after, and the last is taken again and again. It imports little, so it is there at once.
_SCRIPTED = """
import os, pickle, signal, sys, time
from multiprocessing.connection import Connection


def main(descriptor):
    folder = os.environ["FUSEWISE_TEST_SCRIPTS"]
    with open(folder + "/scripts", "rb") as file:
        scripts = pickle.load(file)
    number = 0
    while True:
        try:
            os.mkdir(f"{folder}/{number}")
            break
        except FileExistsError:
            number += 1
    connection = Connection(descriptor)
    for action, value in scripts[min(number, len(scripts) - 1)]:
        if action == "receive":
            connection.recv_bytes()
        elif action == "send":
            connection.send_bytes(value)
        elif action == "half":
            os.write(connection.fileno(), (1000).to_bytes(4, "big") + b"half")
        elif action == "sleep":
            time.sleep(value)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "exit":
            os._exit(value)


if __name__ == "__main__":
    main(int(sys.argv[1]))
"""

_PROGRAMS = """
import os
import time

import torch
from torch import nn


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 24))

    def forward(self, x):
        return torch.softmax(x @ self.w, -1).square().sum()


def training():
    return Step(), (torch.randn(40, 16, requires_grad=True),)


def inference():
    # The last two have nothing in common but their size: on a GPU one launch may do both.
    def f(x, y, z, w):
        return torch.layer_norm(x + y, (32,)).tanh(), (x * y).sum(-1), z.exp(), w.sin()

    return f, tuple(torch.randn(24, 32) for _ in range(4))


def tiny():
    return (lambda x: x.sin() + 1), (torch.randn(40),)


def viewing():
    # No kernel comes of it.
    return (lambda x: x[1:].unsqueeze(0).expand(3, -1, -1)), (torch.randn(24, 32),)


def raising():
    def f(x):
        raise LookupError("no such weights")

    return f, (torch.randn(4),)


def ending():
    os._exit(7)


def hanging():
    while True:
        time.sleep(1)
"""

Script = Sequence[tuple[str, Any]]
RECEIVE = ("receive", None)
READY = ("send", pickle.dumps(Ready()))
FOREVER = ("sleep", 600)


class Scripts:
    """Gives scripted processes what they do, and finds them."""

    module = "scripted_process"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def give(self, *scripts: Script) -> None:
        """What the processes do, one after the other."""
        (self._folder / "scripts").write_bytes(pickle.dumps([list(script) for script in scripts]))

    def started(self) -> int:
        """How many have been."""
        return sum(path.is_dir() for path in self._folder.iterdir())

    def running(self) -> list[psutil.Process]:
        """Those that are there."""
        children = psutil.Process().children(recursive=True)
        return [child for child in children if self.module in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(autouse=True, scope="module")
def threads() -> Iterator[None]:
    """A station sets torch's threads for this process: put them back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """Scripted processes, as the module ``Scripts.module``."""
    modules, folder = tmp_path / "modules", tmp_path / "scripts"
    modules.mkdir()
    folder.mkdir()
    (modules / f"{Scripts.module}.py").write_text(_SCRIPTED)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("FUSEWISE_TEST_SCRIPTS", str(folder))
    return Scripts(folder)


def item(name: str = "a", corpus: str = "generated") -> Item:
    """An item that nobody builds."""
    return Item(CorpusSpec(name=corpus), name)


def prepared(of: Item) -> tuple[str, bytes]:
    """The script's action that sends a graph of an item."""
    graph: Any = PreparedGraph(of, of.name, "key", None, (), (), ())  # type: ignore[arg-type]
    return "send", pickle.dumps(graph)


def finished(of: Item, *failures: str) -> tuple[str, bytes]:
    """The script's action that tells of the end of an item."""
    return "send", pickle.dumps(Finished(of, 0, failures, ()))


def until(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Wait for something to become true, longer than a machine can be busy with other things."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Processes that have ``mark`` in their environment, dead ones left out."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and mark in process.environ().values() and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CorpusSpec]:
    """Gives the corpus of a program by its name."""
    path = tmp_path_factory.mktemp("programs") / "programs.py"
    path.write_text(_PROGRAMS)
    return lambda name: CorpusSpec(name="target", path=f"{path}:{name}")


class Acting:
    """What tests import by fixture: conftest is no module that can be imported by name."""

    RECEIVE, READY, FOREVER = RECEIVE, READY, FOREVER
    item = staticmethod(item)
    prepared = staticmethod(prepared)
    finished = staticmethod(finished)
    until = staticmethod(until)
    marked = staticmethod(marked)


@pytest.fixture(scope="session")
def acting() -> type[Acting]:
    """What scripts are made of, and how to wait for what comes of them."""
    return Acting
