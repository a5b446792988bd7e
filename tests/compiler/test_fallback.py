"""Whatever goes wrong in fusewise, the user has right results and one warning that tells why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pytest
import torch

import fusewise
from fusewise.compiler.inductor.toolchain import probed_vectors
from fusewise.compiler.measuring.client import MeasuringProcess, measuring_process
from fusewise.compiler.notices import FusewiseWarning
from fusewise.compiler.reports import GraphReport
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.feature_table import FEATURES
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import load_model, save_model
from fusewise.datasets.store import Store
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.schedule import Schedule

_SCRIPT = Path(__file__).with_name("fresh_process.py")


def small(x: Any, y: Any) -> Any:
    return torch.softmax(x * 2 + y, -1), (x - y).sum(0)


Compile = Callable[..., tuple[list[GraphReport], list[str]]]


@pytest.fixture
def compiled(store: Path, live: Any) -> Compile:
    """Compile and run :func:`small`, which must be right; reports and warnings of ours."""

    def compile_with(options: dict[str, Any], function: Any = small) -> Any:
        torch._dynamo.reset()
        known = len(fusewise.reports())
        options = {"fusewise.mode": "predict", "fusewise.store": store} | options
        x, y = torch.randn(10, 30), torch.randn(10, 30)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = torch.compile(function, backend="fusewise", options=options)(x, y)
        live.difference(got, function(x, y))
        ours = [str(w.message) for w in told if issubclass(w.category, FusewiseWarning)]
        return fusewise.reports()[known:], ours

    return compile_with


def check(compiled: Compile, options: dict[str, Any], *telling: str) -> None:
    """One warning with all of ``telling``, once; a report with the cause for every compile."""
    (report,), (warning,) = compiled(options)
    for text in telling:
        assert text in warning
    assert report.fallback is not None and report.fallback in warning
    assert report.source == "inductor"
    (again,), silence = compiled(options)
    assert (again.fallback, silence) == (report.fallback, [])


# What is wrong with the options is known before there is a graph.


@pytest.mark.parametrize(
    ("options", "telling"),
    [
        ({"fusewise.topk": 3}, ("'fusewise.topk'", "nearest is 'fusewise.top_k'")),
        ({"max_autotun": True}, ("'max_autotun'", "nearest is 'max_autotune'")),
        ({"fusewise.top_k": -3}, ("fusewise.top_k", "-3", "0 or more")),
        ({"fusewise.mode": "fast"}, ("fusewise.mode", "'fast'", "measure, predict, replay")),
        ({"fusewise.budget_s": "1m"}, ("fusewise.budget_s", "'1m'", "seconds")),
        ({"fusewise.plan": "nowhere.json"}, ("nowhere.json", "cannot be read", "--out")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_options_leave_the_program_to_inductor(
    compiled: Compile, options: dict[str, Any], telling: tuple[str, ...]
) -> None:
    _, (warning,) = compiled(options)
    for text in telling:
        assert text in warning
    assert compiled(options)[1] == []


def test_bad_options_leave_a_report(compiled: Compile) -> None:
    reports, (warning,) = compiled({"fusewise.topk": 3})
    assert [report.fallback in warning for report in reports if report.fallback] == [True]


def test_good_options_of_inductor_hold_beside_bad_ones(compiled: Compile) -> None:
    called = []

    def mark(graph: Any) -> None:
        called.append(graph)

    compiled({"fusewise.topk": 3, "post_grad_custom_pre_pass": mark})
    assert called


def test_unsupported_torch_is_left_alone(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    _, (warning,) = compiled({})
    assert "2.99.1" in warning and "2.11 to 2." in warning
    assert compiled({})[1] == []


# Plans.


def plan_file(store: Path, **changes: Any) -> PlanFile:
    """A file with Inductor's own schedule for the graphs of a store, some parts changed."""
    with Store.open(store) as opened:
        graphs = opened.rows("graphs")
    planned = [
        PlannedGraph(
            **{"kind": g.kind, "key_parts": g.parts, "device": "cpu", "schedule": Schedule()}
            | changes
        )
        for g in graphs
    ]
    return PlanFile(fusewise="1", torch="2", graphs=tuple(planned))


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        ("{ this is none", "it is no plan file"),
        ('{"schema": 2, "graphs": []}', "it is no plan file"),
        ('{"schema": 99, "fusewise": "9", "torch": "9", "graphs": []}', "schema 99"),
        ("", "it is no plan file"),
    ],
)
def test_plan_files_that_cannot_be_read(
    compiled: Compile, tmp_path: Path, text: str, telling: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    _, (warning,) = compiled({"fusewise.plan": path})
    assert telling in warning and "plan.json" in warning
    assert compiled({"fusewise.plan": path})[1] == []


def test_plan_file_of_another_program(compiled: Compile, store: Path, tmp_path: Path) -> None:
    compiled({}, lambda x, y: ((x * y).cos(), x.sum(0)))
    path = tmp_path / "plan.json"
    write_plan_file(path, plan_file(store))
    check(compiled, {"fusewise.plan": path}, "another program: differs in graph", "search again")
    assert fusewise.reports()[-1].mismatch == ("graph",)


def test_plan_file_without_such_a_graph(compiled: Compile, store: Path, tmp_path: Path) -> None:
    compiled({})
    path = tmp_path / "plan.json"
    write_plan_file(path, plan_file(store, kind="backward"))
    check(compiled, {"fusewise.plan": path}, "it has no inference graph", "plan.json")


def test_plan_that_does_not_fit_its_graph(
    compiled: Compile, store: Path, tmp_path: Path, live: Any
) -> None:
    compiled({})
    path = tmp_path / "plan.json"
    foreign = Schedule(plan=live.captured("adam_step")[0].surveyed.default)
    write_plan_file(path, plan_file(store, schedule=foreign))
    check(compiled, {"fusewise.plan": path}, "plan: it places", "made for this graph")
    assert fusewise.reports()[-1].chosen is None


def test_replay_of_what_was_never_compiled(compiled: Compile) -> None:
    options = {"fusewise.mode": "replay"}
    check(compiled, options, "no schedule is stored", "inference graph", "fusewise.plan")


# Stores and models.


def test_store_that_is_none(compiled: Compile, store: Path) -> None:
    store.write_bytes(b"no database at all" * 1000)
    check(compiled, {}, str(store))
    assert store.read_bytes() == b"no database at all" * 1000


def test_store_of_a_newer_schema(compiled: Compile, store: Path) -> None:
    Store.open(store).close()
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE schema_migrations SET version = 99 WHERE version = 1")
    check(compiled, {}, str(store), "schema version 99")


def test_store_in_a_folder_that_cannot_be_written(
    compiled: Compile, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "file").write_text("")
    check(compiled, {"fusewise.store": tmp_path / "file" / "store.duckdb"}, str(tmp_path / "file"))


@pytest.mark.parametrize("mode", ["measure", "predict", "replay"])
def test_store_that_is_no_file(compiled: Compile, tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "apart" / "runs"
    folder.mkdir(parents=True)
    options = {"fusewise.mode": mode, "fusewise.store": folder}
    _, (warning,) = compiled(options)
    assert f"{folder}: is a folder, not a regular file" in warning
    assert f"fusewise.store): give that of a file, such as {folder}/store.duckdb" in warning
    (report,), silence = compiled(options)
    assert report.fallback is not None and report.fallback in warning and silence == []
    _, (warning,) = compiled(options | {"fusewise.store": "/dev/null"})
    assert "/dev/null: is a device, not a regular file" in warning
    # Nothing was begun beside it either.
    assert list(folder.parent.iterdir()) == [folder] and not any(folder.iterdir())
    assert not Path("/dev/devices").exists()


def test_store_without_a_home(compiled: Compile) -> None:
    _, (warning,) = compiled({"fusewise.store": "~nobody-of-that-name/store.duckdb"})
    assert "fusewise.store" in warning


def test_folder_of_the_store_without_a_home(monkeypatch: pytest.MonkeyPatch, live: Any) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", "~nobody-of-that-name/home")
    x = torch.randn(3)
    with pytest.warns(FusewiseWarning, match="FUSEWISE_HOME"):
        live.difference(
            [torch.compile(lambda x: x.sin() + 1, backend="fusewise")(x)], [x.sin() + 1]
        )


def test_model_that_nobody_has(compiled: Compile) -> None:
    check(compiled, {"fusewise.model": "grand"}, "no model 'grand'", "roofline", "train-costmodel")


@pytest.fixture
def model_file(home: Path) -> Path:
    """A trained model for this device, under the name ``mine``."""
    profile = device_profile(torch.device("cpu"), home)
    rng = np.random.default_rng(0)
    model = LearnedCostModel(n_estimators=5, networks=0)
    model.fit(rng.uniform(1, 9, (80, len(FEATURES))), rng.uniform(1, 9, 80))
    manifest = Manifest(name="mine", id=model.model_.id, profile=profile)
    return save_model(SavedModel(model.model_, manifest), home)


def test_model_is_used_by_name(compiled: Compile, model_file: Path) -> None:
    (report,), told = compiled({"fusewise.model": "mine"})
    assert (report.model, report.source, told) == ("mine", "predicted", [])


def test_model_file_that_was_cut_short(compiled: Compile, model_file: Path) -> None:
    model_file.write_bytes(model_file.read_bytes()[:-200])
    check(compiled, {"fusewise.model": str(model_file)}, "mine.fusewise.json", "train")


def test_model_of_other_features(compiled: Compile, home: Path) -> None:
    profile = device_profile(torch.device("cpu"), home)
    rng = np.random.default_rng(0)
    model = LearnedCostModel(n_estimators=5, networks=0)
    model.fit(rng.uniform(1, 9, (80, len(FEATURES))), rng.uniform(1, 9, 80))
    other = Manifest(
        name="other", id=model.model_.id, profile=profile, features_digest="of other features"
    )
    save_model(SavedModel(model.model_, other), home)
    check(compiled, {"fusewise.model": "other"}, "feature", "other.fusewise.json")
    # Nobody asked for it here.
    assert compiled({})[0][0].model == load_model(None, profile, home).name != "other"


# Measuring.

MEASURE = {"fusewise.mode": "measure", "fusewise.top_k": 1, "fusewise.budget_s": 2}


def test_measuring_process_killed_in_the_middle(
    compiled: Compile, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = MeasuringProcess.measure
    killed = []

    def kill(process: MeasuringProcess) -> None:
        killed.append(process._process.pid)
        os.kill(process._process.pid, signal.SIGKILL)

    def measure_and_die(self: MeasuringProcess, *args: Any) -> Any:
        # The answer is not there yet, and the request is.
        os.kill(self._process.pid, signal.SIGSTOP)
        threading.Timer(0.3, kill, [self]).start()
        return measure(self, *args)

    monkeypatch.setattr(MeasuringProcess, "measure", measure_and_die)
    (report,), told = compiled(MEASURE)
    assert len(killed) == 1
    assert report.fallback is not None and "died" in report.fallback
    assert report.chosen == report.default and report.source == "inductor"
    assert len(told) == 1 and "died with exit status -9" in told[0]
    # It is nothing that anybody decided: the next one tries again.
    monkeypatch.undo()
    (report,), told = compiled(MEASURE)
    assert (report.source, report.fallback, told) == ("measured", None, [])


def test_measuring_process_that_died_before(compiled: Compile) -> None:
    # What kills it is mostly the making of inputs, for which there was no memory.
    process = measuring_process("cpu")
    os.kill(process._process.pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, [process._process.pid, signal.SIGKILL]).start()
    (report,), told = compiled(MEASURE)
    if report.fallback is not None:
        assert "no graph was prepared" not in report.fallback
        assert "died" in report.fallback and len(told) == 1
    assert measuring_process("cpu").alive


def test_measuring_process_that_hangs(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = MeasuringProcess.measure

    def stop_and_wait(self: MeasuringProcess, programs: Any, budget: Any, _: float) -> Any:
        os.kill(self._process.pid, signal.SIGSTOP)
        return measure(self, programs, budget, 0.2)

    monkeypatch.setattr(MeasuringProcess, "measure", stop_and_wait)
    (report,), told = compiled(MEASURE)
    assert report.fallback is not None and "no answer within" in report.fallback
    assert len(told) == 1 and "fusewise.budget_s" in told[0]


def test_process_killed_while_compiling_leaves_a_good_store(
    home: Path, store: Path, compiled: Compile
) -> None:
    request = {"program": "training", "options": {"fusewise.store": str(store)} | MEASURE}
    process = subprocess.Popen(
        [sys.executable, "-P", str(_SCRIPT), json.dumps([request])],
        env=os.environ | probed_vectors(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"compiling\n"
    children: list[psutil.Process] = []
    while not (store.exists() and children):
        children = psutil.Process(process.pid).children(recursive=True)
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1.0)
    process.kill()
    process.wait()
    process.stdout.close()
    with Store.open(store) as opened:
        assert opened.info().schema_version >= 1
    # Its measuring process does not outlive it.
    _, alive = psutil.wait_procs(children, timeout=100)
    assert alive == []
    (report,), told = compiled({})
    assert (report.source, told) == ("predicted", [])
    (report,), _ = compiled({})
    assert report.source == "store"


# What is the user's own is none of our business.


def test_errors_of_the_program_are_passed_on(compiled: Compile) -> None:
    class MineError(Exception):
        pass

    def raises(x: Any, y: Any) -> Any:
        x.add_(y)
        torch._dynamo.graph_break()
        raise MineError("of the user")

    with pytest.raises(MineError, match="of the user"):
        compiled({}, raises)


def _error(function: Any, backend: str, options: dict[str, Any]) -> tuple[type, str, list[str]]:
    """Class and text of what a program raises, and warnings of ours."""
    torch._dynamo.reset()
    program = torch.compile(function, backend=backend, options=options or None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises((RuntimeError, ArithmeticError)) as raised:
            program(torch.randn(4, 6), torch.tensor([1, 99]))
    ours = [str(w.message) for w in told if issubclass(w.category, FusewiseWarning)]
    return type(raised.value), str(raised.value), ours


@pytest.mark.parametrize(
    "function",
    [lambda x, ids: x[ids].sin(), lambda x, ids: x @ x * ids],
    ids=["index out of bounds", "shapes that do not fit"],
)
def test_errors_of_operators_are_those_of_inductor(store: Path, function: Any) -> None:
    theirs = _error(function, "inductor", {})
    ours = _error(function, "fusewise", {"fusewise.mode": "predict", "fusewise.store": store})
    assert ours[0] is theirs[0]
    assert ours[1].splitlines()[0] == theirs[1].splitlines()[0]
    assert ours[2] == []


def test_errors_of_inductor_are_inductors(store: Path) -> None:
    def fail(graph: Any) -> None:
        raise ArithmeticError("in a pass of the user's")

    def f(x: Any, ids: Any) -> Any:
        return x.sin() + 1

    options = {"post_grad_custom_pre_pass": fail}
    theirs = _error(f, "inductor", options)
    ours = _error(f, "fusewise", options | {"fusewise.mode": "predict", "fusewise.store": store})
    assert ours[0] is theirs[0]
    assert "in a pass of the user's" in ours[1]
