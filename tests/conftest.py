"""What holds for every test: no store and no cache of the user's, no GPU tests without a GPU."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Their checks are to say what differs, as those of tests do.
pytest.register_assert_rewrite("tests.compiler.captured", "tests.search.planned")
_home = pytest.StashKey[Path]()
#: Tells the processes of one run of the tests where they share profiles of devices. They share
#: Inductor's cache, too: what it probes of the compiler takes as long as ten small programs.
_DEVICES = "FUSEWISE_TEST_DEVICES"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests, and the processes they start, off the user's store and Inductor's cache."""
    home = Path(tempfile.mkdtemp(prefix="fusewise-tests-"))
    config.stash[_home] = home
    devices = home / "store" / "devices"
    if hasattr(config, "workerinput"):
        devices.parent.mkdir()
        devices.symlink_to(os.environ[_DEVICES])
    else:
        devices.mkdir(parents=True)
        os.environ[_DEVICES] = str(devices)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(home / "inductor")
        _link_fast(home / "linker")
        if not Path("/dev/nvidiactl").exists():
            # Every process that compiles starts another with torch in it, for Triton's kernels.
            os.environ["TORCH_WARM_POOL"] = "0"
        # Threads of OpenMP that spin hold the core that the one they wait for would have: with two
        # processes on two cores, what takes ten milliseconds takes a hundred.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["FUSEWISE_HOME"] = str(home / "store")
    os.environ["FUSEWISE_CACHE"] = str(home / "cache")


def _link_fast(folder: Path) -> None:
    """Have the compiler link with gold where that works, by the folder it looks into first.

    Most kernels here are so small that reading the symbols of torch, to link with it, takes GNU's
    other linker a third of the time to compile one. What is linked is the same.
    """
    gold, compiler = shutil.which("ld.gold"), shutil.which(os.environ.get("CXX", "g++"))
    if gold is None or compiler is None:
        return
    folder.mkdir()
    (folder / "ld").symlink_to(gold)
    others = os.environ.get("COMPILER_PATH")
    path = f"{folder}{os.pathsep}{others}" if others else str(folder)
    # Not every compiler tells gold where its libraries are.
    found = subprocess.run(
        [compiler, "-shared", "-fPIC", "-fopenmp", "-x", "c++", "-", "-o", str(folder / "a.so")],
        input="#include <string>\nstd::string text(int n) { return std::to_string(n); }\n",
        env={**os.environ, "COMPILER_PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 0:
        os.environ["COMPILER_PATH"] = path


def pytest_collection_finish() -> None:
    """Spare the tests what torch tells of each step of a compile, and much looking for garbage.

    It tells where anybody listens, and pytest listens to all loggers that pass nothing on. To tell
    how long guards take, it empties the processor's caches at each compile. Looking for garbage
    goes through all of torch, which stays, again and again while it compiles.
    """
    logging.getLogger("torch.__trace").propagate = True
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folders of this session, and leave to Python what it clears up at its end."""
    gc.unfreeze()
    shutil.rmtree(config.stash[_home], ignore_errors=True)


@pytest.fixture(scope="session")
def profiled() -> Path:
    """The device profiles that all processes of a run share, with this machine's devices."""
    import torch
    from filelock import FileLock

    from fusewise.costmodel.device import device_profile

    folder = Path(os.environ[_DEVICES])
    with FileLock(folder.with_name("devices.lock")):
        for name in ("cpu", "cuda:0") if torch.cuda.is_available() else ("cpu",):
            device_profile(torch.device(name), folder.parent)
    return folder


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts are raised, here and in processes that are started meanwhile.

    What a shell without job control starts in the background ignores them otherwise.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def uninterruptible() -> Iterator[None]:
    """Interrupts are ignored, here and in processes that are started meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``gpu`` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
