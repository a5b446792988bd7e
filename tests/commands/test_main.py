from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import fusewise
from fusewise.commands.demo import main as demo
from fusewise.commands.main import main
from fusewise.commands.options import duration, duration_or_none

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
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1.5h", 5400),
        (" 2 ", 2),
        ("14m30s", 870),
        ("1h30m", 5400),
        ("1h5m20s", 3920),
        ("1h20s", 3620),
        ("1.5h30m0.5s", 7200.5),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == duration_or_none(text) == seconds


@given(st.tuples(*[st.none() | st.integers(0, 10**6)] * 3))
def test_duration_of_any_units(numbers: tuple[int | None, ...]) -> None:
    parts = [(n, unit) for n, unit in zip(numbers, "hms", strict=True) if n is not None]
    text = "".join(f"{n}{unit}" for n, unit in parts)
    seconds = sum(n * {"h": 3600, "m": 60, "s": 1}[unit] for n, unit in parts)
    if parts:
        assert duration_or_none(text) == seconds
    if seconds:
        assert duration(text) == seconds
    else:
        with pytest.raises(click.BadParameter):
            duration(text)
    if len(parts) > 1:
        with pytest.raises(click.BadParameter):
            duration("".join(f"{n}{unit}" for n, unit in reversed(parts)))


_NO_DURATIONS = (
    *(
        "",
        " ",
        "ten",
        "-5",
        "5d",
        "1e3",
        "5 m s",
        "inf",
        "nan",
        "m5",
        "h",
        "30s14m",
        "5m5m",
        "1m1h",
    ),
    *("14m30", "1h-5m", "-1h5m", "1h 5m", "5.m", ".5h", "+5m", "5M", "٣m"),
)


@pytest.mark.parametrize("text", _NO_DURATIONS)
@pytest.mark.parametrize("parse", [duration, duration_or_none])
def test_no_duration(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(click.BadParameter) as told:
        parse(text)
    assert f"{text!r} is no duration" in told.value.message and "1h14m30s" in told.value.message


@pytest.mark.parametrize("parse", [duration, duration_or_none])
def test_a_duration_without_end(parse: Callable[[str], float]) -> None:
    with pytest.raises(click.BadParameter, match="no end"):
        parse("9" * 400)


@pytest.mark.parametrize("text", ["0", "0s", "0.0h", "0h0m0s"])
def test_no_time_at_all(text: str) -> None:
    assert duration_or_none(text) == 0
    with pytest.raises(click.BadParameter, match=f"'{text}'.*more than 0"):
        duration(text)


def test_a_bad_duration_is_told_with_its_option() -> None:
    result = CliRunner().invoke(main, ["collect", "--seconds", "30s14m"])
    assert result.exit_code == 2 and "--seconds" in result.stderr
    assert "'30s14m' is no duration" in result.stderr
