"""Graphs of real programs, stores and fresh processes for the tests of compiling."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

from fusewise.compiler import notices, reports
from fusewise.compiler.inductor.toolchain import probed_vectors
from tests.compiler import captured as graphs
from tests.compiler.programs import PROGRAMS, Make

_SCRIPT = Path(__file__).with_name("fresh_process.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``graph_id`` every graph of every program on every device."""
    if "graph_id" not in metafunc.fixturenames:
        return
    values = []
    for program in PROGRAMS:
        training = program(Make("cpu", torch.float32)).training
        for kind in ("forward", "backward") if training else ("inference",):
            for device in ("cpu", "cuda"):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                name = f"{program.__name__}-{kind}-{device}"
                values.append(pytest.param((program.__name__, kind, device), id=name, marks=marks))
    metafunc.parametrize("graph_id", values)


@pytest.fixture
def graph(graph_id: tuple[str, str, str]) -> graphs.Captured:
    """One graph of one program."""
    name, kind, device = graph_id
    return next(g for g in graphs.captured(name, device) if g.kind == kind)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a program runs."""
    return str(request.param)


@pytest.fixture(scope="session")
def live() -> ModuleType:
    """Captured graphs of programs, and how to capture more."""
    return graphs


@pytest.fixture(scope="session")
def in_fresh_process() -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Runs requests one after the other in a process of their own: what it tells of each."""

    def run(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ran = subprocess.run(
            [sys.executable, "-P", str(_SCRIPT), json.dumps(requests)],
            env=os.environ | probed_vectors(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )
        return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def home(tmp_path: Path, profiled: Path) -> Path:
    """A folder for a store of its own, with the devices known."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "devices").symlink_to(profiled)
    return folder


@pytest.fixture
def store(home: Path) -> Path:
    """Where the store of a test is to be."""
    return home / "store.duckdb"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled, reported or told before."""
    torch._dynamo.reset()
    reports.clear_reports()
    notices._told.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Triton compiles for a device that is not there; where its cache is."""
    from torch._inductor.runtime import triton_helpers

    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def pool(no_device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor's pool of processes, which are copies of this one: they know of no device either."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with inductor_config.patch(compile_threads=2, worker_start_method="fork"):
        shutdown_compile_workers()
        AsyncCompile.wait_pool_ready()
        yield
        shutdown_compile_workers()


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(source: str) -> str:
        path = tmp_path / f"kernel{len(list(tmp_path.glob('*.py')))}.py"
        path.write_text(source)
        return str(path)

    return write


@pytest.fixture
def compile_with(store: Path) -> Callable[..., Any]:
    """``torch.compile`` with a store of the test's own."""

    def compile_it(function: Any, mode: str, **options: Any) -> Any:
        ours = {f"fusewise.{name}": value for name, value in options.items()}
        given = {"fusewise.mode": mode, "fusewise.store": store} | ours
        return torch.compile(function, backend="fusewise", options=given)

    return compile_it
