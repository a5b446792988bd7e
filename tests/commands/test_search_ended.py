"""A search that is ended from outside, by signals as a terminal or a scheduler sends them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from fusewise.datasets.store import Store
from fusewise.schedule.plan_file import read_plan_file

Invoke = Callable[..., Result]

#: Seconds to wait for a trial to end, and for the process to.
_PATIENCE_S = 200


@contextmanager
def _searching(target: str, home: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A search that has more to do than it will be given time for, in a group of its own."""
    arguments = ["--store", str(home / "s.duckdb"), "--name", "ended", "--trials", "200"]
    limits = ["--budget", "20m", "--top-k", "1", "--json", *more]
    # PYTHONPATH, since the measuring process is not to look where this one was started.
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "fusewise.commands.main",
            "search",
            target,
            *arguments,
            *limits,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _trials(home: Path) -> int:
    """Trials that the study has on disk."""
    path = home / "studies.db"
    if not path.is_file():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as studies:
        try:
            found = studies.execute(
                "SELECT count(*) FROM trial_user_attributes WHERE key = 'fusewise.candidate'"
            )
        except sqlite3.OperationalError:
            # Optuna is about to make its tables.
            return 0
        return int(found.fetchone()[0])


def _wait_for_trials(process: subprocess.Popen[str], home: Path, wanted: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while _trials(home) < wanted:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_and_resumed(invoke: Invoke, targets: Path, profiled: Path, tmp_path: Path) -> None:
    target = f"{targets}:inference"
    (tmp_path / "devices").symlink_to(profiled)
    with _searching(target, tmp_path) as process:
        _wait_for_trials(process, tmp_path, 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_PATIENCE_S)
    done = _trials(tmp_path)
    with Store.open(tmp_path / "s.duckdb") as store:
        store.ingest()
        measured = len(store.rows("measurements"))
    assert measured >= 2

    plan = tmp_path / "plan.json"
    limits = ("--trials", done + 1, "--budget", "20s", "--top-k", 1)
    result = invoke(
        "search", target, "--store", tmp_path / "s.duckdb", "--name", "ended", *limits,
        "--out", plan, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (graph,) = json.loads(result.stdout)["graphs"]
    # The one that was under way when it was killed has come to nothing.
    assert _trials(tmp_path) == done + 1
    assert 2 <= graph["trials"] <= done + 1
    assert graph["default_us"] > 0 and graph["not_measured"] is None
    assert read_plan_file(plan).graphs[0].schedule.id == graph["schedule"]
    with Store.open(tmp_path / "s.duckdb", read_only=True) as store:
        assert len(store.rows("measurements")) > measured


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_from_the_terminal(targets: Path, profiled: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    (tmp_path / "devices").symlink_to(profiled)
    with _searching(f"{targets}:inference", tmp_path, "--out", str(plan)) as process:
        _wait_for_trials(process, tmp_path, 1)
        # A terminal sends it to all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    told = json.loads(stdout)
    assert told["interrupted"]
    (graph,) = told["graphs"]
    assert graph["trials"] >= 1 and graph["default_us"] > 0
    (planned,) = read_plan_file(plan).graphs
    assert planned.schedule.id == graph["schedule"]
    with Store.open(tmp_path / "s.duckdb", read_only=True) as store:
        decided = store.rows("decisions")
    assert [row.schedule_id for row in decided] == [graph["schedule"]]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.usefixtures("uninterruptible")
def test_a_search_in_the_background_is_not_ended_by_an_interrupt(
    targets: Path, profiled: Path, tmp_path: Path
) -> None:
    """A shell without job control, or nohup for hang-ups, has it ignore what the terminal sends."""
    (tmp_path / "devices").symlink_to(profiled)
    with _searching(f"{targets}:inference", tmp_path, "--trials", "3") as process:
        _wait_for_trials(process, tmp_path, 1)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, stderr
    told = json.loads(stdout)
    assert not told["interrupted"]
    (graph,) = told["graphs"]
    assert graph["trials"] == 3 and graph["not_measured"] is None
