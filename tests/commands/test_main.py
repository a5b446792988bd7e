from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import fusewise
from fusewise.commands.demo import main as demo
from fusewise.commands.main import main
from fusewise.commands.options import duration

COMMANDS = (
    (),
    ("collect",),
    ("search",),
    ("store",),
    ("store", "info"),
    ("store", "export"),
    ("store", "merge"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert f"fusewise {' '.join(command)}".strip() in result.output.partition("Example")[2]


def test_help_of_the_demo() -> None:
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
    assert "python -m fusewise.commands.demo" in result.output


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fusewise.commands.main import main\n"
        "for command in ([], ['collect'], ['search'], ['store'], ['store', 'info']):\n"
        "    assert CliRunner().invoke(main, [*command, '--help']).exit_code == 0\n"
        "assert not {'torch', 'duckdb', 'optuna', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert fusewise.__version__ in result.output


def test_unknown_command() -> None:
    result = CliRunner().invoke(main, ["colect"])
    assert result.exit_code == 2
    assert "colect" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2 ", 2)]
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "-5", "0", "5d", "1e3", "5 m s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration(text)
