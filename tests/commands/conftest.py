"""A runner for the commands, and small programs of a user's to name as targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusewise.commands.main import main

_TARGETS = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x, y):
        return (self.norm(x + y).tanh() * y).sum(-1) + x.mean(-1)


def inputs():
    torch.manual_seed(0)
    return torch.randn(32, 64), torch.randn(32, 64)


def inference():
    return Small().eval(), inputs()


def training():
    return Small().train(), inputs()


def failing():
    def call(x):
        raise ValueError("not today")

    return call, (torch.ones(3),)


def nothing():
    return None
"""

Invoke = Callable[..., Result]
Refused = Callable[..., None]


@pytest.fixture
def invoke() -> Invoke:
    """Run ``fusewise`` with the given arguments."""
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with factories."""
    path = tmp_path_factory.mktemp("targets") / "targets.py"
    path.write_text(_TARGETS)
    return path


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, profiled: Path) -> Path:
    """A folder for stores, with the devices known."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "devices").symlink_to(profiled)
    return folder


@pytest.fixture
def refused() -> Refused:
    """Check that a command ended with exit code 2 and one line that has all given words in it."""

    def check(result: Result, *words: str) -> None:
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        for word in words:
            assert word in lines[0]

    return check
