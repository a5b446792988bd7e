"""Code of imported modules that is kept in one file, between real processes."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fusewise.compiler.measuring import imported, kept_code

_START = "fusewise.compiler.measuring.start"
#: Prints the loader and the value of each module of a package, after what else is to be done.
_IMPORTS = """
import json, os, sys, time
from fusewise.compiler.measuring.imported import kept_imports
with kept_imports(sys.argv[1]):
    import many.all_of_them
found = {n: m for n, m in sys.modules.items() if n.startswith("many")}
result = {n: (type(m.__loader__).__name__, getattr(m, "VALUE", None)) for n, m in found.items()}
"""
_MODULES = 30
_KEPT, _AS_EVER = "KeptLoader", "SourceFileLoader"

_Import = Callable[..., dict[str, list[object]]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of so many modules, each with a value."""
    folder = tmp_path / "first" / "many"
    (folder / "inner").mkdir(parents=True)
    names = [f"m{i}" for i in range(_MODULES)] + ["inner.deep"]
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "data.txt").write_text("beside it\n")
    for name in names:
        (folder / f"{name.replace('.', '/')}.py").write_text(f"VALUE = {name!r}\n")
    lines = [f"import many.{name}\n" for name in names]
    (folder / "all_of_them.py").write_text("".join(lines))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the file is kept."""
    return kept_code.place_in(str(tmp_path / "kept"))


@pytest.fixture
def imports(package: Path, place: Path) -> _Import:
    """Import the package in a process; loader and value of each module, or what is printed."""

    def run(then: str = "print(json.dumps(result))", *first: Path) -> dict[str, list[object]]:
        path = [str(p) for p in (*first, package.parent)] + [p for p in sys.path if p]
        done = subprocess.run(
            [sys.executable, "-c", f"{_IMPORTS}\n{then}", str(place.parent)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert not done.stderr
        found: dict[str, list[object]] = json.loads(done.stdout)
        return found

    return run


def _wait_for(holds: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def _loaders(found: dict[str, list[object]]) -> set[object]:
    return {loader for loader, _ in found.values()}


def test_the_second_process_runs_what_the_first_had_kept(imports: _Import, place: Path) -> None:
    first = imports()
    assert _loaders(first) == {_AS_EVER}
    _wait_for(place.exists)
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    second = imports()
    assert _loaders(second) == {_KEPT}
    assert [(n, v) for n, (_, v) in first.items()] == [(n, v) for n, (_, v) in second.items()]


def test_a_measuring_process_starts_with_what_is_kept(tmp_path: Path, place: Path) -> None:
    (tmp_path / "serving.py").write_text(
        "import os, sys\n"
        "import torch\n"
        "def main(descriptor):\n"
        "    kinds = [type(m.__loader__).__name__ for n, m in sys.modules.items()\n"
        "             if n.startswith('torch.') and getattr(m, '__loader__', None)]\n"
        "    print(kinds.count('KeptLoader'), kinds.count('SourceFileLoader'))\n"
    )
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])

    def started() -> tuple[int, int]:
        # Whoever still had the pipe would be waited for.
        done = subprocess.run(
            [sys.executable, "-P", "-m", _START, "serving", "0", str(place.parent)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        kept, others = map(int, done.stdout.split())
        return kept, others

    none, sources = started()
    assert none == 0 and sources > 500
    _wait_for(place.exists)
    kept, others = started()
    assert kept + others == sources
    assert kept > 0.98 * sources


def test_nobody_waits_for_the_writer(imports: _Import, place: Path, tmp_path: Path) -> None:
    """A copy of the process, which lives on, has the writer go on waiting."""
    go = tmp_path / "go"
    imports(
        "print(json.dumps(result), flush=True)\n"
        "if os.fork() == 0:\n"
        "    os.closerange(0, 3)\n"
        f"    while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "    os._exit(0)\n"
    )
    time.sleep(0.3)
    assert not place.exists()
    go.touch()
    _wait_for(place.exists)


def test_a_changed_source_is_imported_as_ever(imports: _Import, package: Path, place: Path) -> None:
    imports()
    _wait_for(place.exists)
    (package / "m7.py").write_text("VALUE = 'new'\n")
    found = imports()
    assert found.pop("many.m7") == [_AS_EVER, "new"]
    assert _loaders(found) == {_KEPT}
    for i in range(_MODULES):
        (package / f"m{i}.py").write_text(f"VALUE = 'again {i}'\n")
    before = place.stat().st_ino
    found = imports()
    assert found["many.m9"] == [_AS_EVER, "again 9"]
    assert found["many.inner.deep"] == [_KEPT, "inner.deep"]
    _wait_for(lambda: place.stat().st_ino != before)
    found = imports()
    assert _loaders(found) == {_KEPT}
    assert found["many.m9"] == [_KEPT, "again 9"]


def test_what_python_would_find_first_is_imported(
    imports: _Import, package: Path, place: Path, tmp_path: Path
) -> None:
    imports()
    _wait_for(place.exists)
    (package / "m3").mkdir()
    (package / "m3" / "__init__.py").write_text("VALUE = 'a package'\n")
    assert imports()["many.m3"] == [_AS_EVER, "a package"]
    other = tmp_path / "second" / "many"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("VALUE = 'another one'\n")
    (other / "all_of_them.py").write_text("")
    found = imports("print(json.dumps(result))", other.parent)
    assert found == {
        "many": [_AS_EVER, "another one"],
        "many.all_of_them": [_AS_EVER, None],
    }


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "changed", "foreign", "open"])
def test_a_file_that_is_not_right_is_replaced(imports: _Import, place: Path, damage: str) -> None:
    imports()
    _wait_for(place.exists)
    whole = place.read_bytes()
    place.chmod(0o600)
    if damage == "open":
        place.chmod(0o666)
    else:
        middle = len(whole) // 2
        place.write_bytes(
            {
                "truncated": whole[:-1],
                "empty": b"",
                "garbage": os.urandom(5000),
                "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "foreign": whole.replace(sys.version.encode()[:6], b"9.99.9", 1),
            }[damage]
        )
    before = place.stat().st_ino
    assert not kept_code.read(place)
    assert _loaders(imports()) == {_AS_EVER}
    _wait_for(lambda: place.stat().st_ino != before)
    assert _loaders(imports()) == {_KEPT}


def test_a_file_of_somebody_else_is_not_run(
    imports: _Import, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports()
    _wait_for(place.exists)
    assert kept_code.read(place)
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    assert not kept_code.read(place)


def test_modules_are_as_ever(imports: _Import, package: Path, place: Path) -> None:
    (package / "m0.py").write_text("VALUE = 0\n\nclass Thing:\n    '''What it is.'''\n")
    asks = """
import importlib, importlib.resources, inspect, pickle
m = many.m0
print(json.dumps([
    inspect.getsource(m.Thing), inspect.getfile(m.Thing), m.__file__, m.__cached__, m.__package__,
    pickle.loads(pickle.dumps(m.Thing)) is m.Thing, m.Thing.__module__, m.__spec__.origin,
    many.inner.__path__, importlib.resources.files(many.inner).joinpath("data.txt").read_text(),
    m.__loader__.get_code("many.m0").co_filename, m.__loader__.is_package("many.m0"),
    importlib.reload(m).VALUE,
]))
"""
    first = imports(asks)
    _wait_for(place.exists)
    assert imports(asks) == first
    assert _loaders(imports()) == {_KEPT}


def test_writers_at_the_same_time_leave_a_good_file(package: Path, place: Path) -> None:
    place.parent.mkdir()
    files = {f"many.{f.stem}": str(f) for f in package.glob("m*.py")}
    lines = "".join(f"{name} {file}\n" for name, file in files.items())
    told = package / "told"
    told.write_text(lines)
    writers = []
    for _ in range(4):
        with told.open() as file:
            command = [sys.executable, "-m", kept_code.__name__, str(place), str(file.fileno())]
            writers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[file.fileno()])
            )
    assert not place.exists()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    kept = kept_code.read(place)
    assert kept.keys() == files.keys()
    assert all(module.as_it_was() for module in kept.values())
    assert {p.name for p in place.parent.iterdir()} == {place.name, f"{place.name}.lock"}


def test_what_cannot_be_written_is_no_error(imports: _Import, place: Path) -> None:
    place.parent.write_text("a file where the folder would be\n")
    assert _loaders(imports()) == {_AS_EVER}
    assert _loaders(imports()) == {_AS_EVER}


def test_what_takes_long_is_added_to(
    package: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.parent.mkdir()
    files = {f"many.{f.stem}": str(f) for f in package.glob("m*.py")}
    seconds = iter(range(1000))
    with monkeypatch.context() as slow:
        slow.setattr(kept_code.time, "monotonic", lambda: next(seconds))
        kept_code.add(place, files)
    some = kept_code.read(place)
    assert 5 < len(some) < len(files)
    kept_code.add(place, files)
    assert kept_code.read(place).keys() == files.keys()
    before = place.stat().st_ino
    kept_code.add(place, {next(iter(files)): next(iter(files.values()))})
    assert place.stat().st_ino == before


def test_links_are_followed_as_ever(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").touch()
    (real / "link").symlink_to("file")
    (tmp_path / "folder").symlink_to(real)
    paths = ["real/file", "real/link", "folder/file", "folder/link", "none", "folder/..", "."]
    asked = [str(tmp_path / p) for p in paths] + ["file", "", "/"]
    before = [os.path.realpath(p) for p in asked]
    own = os.path.realpath
    with imported._files_stay():
        cached = os.path.realpath
        assert cached is not own
        assert [cached(p) for p in asked] == before
    assert os.path.realpath is own
    (tmp_path / "folder").unlink()
    assert cached(str(tmp_path / "folder" / "file")) == str(tmp_path / "folder" / "file")


def test_stacks_show_sources_as_they_are_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text("first\n")
    name = str(file)
    own = linecache.checkcache
    assert linecache.getline(name, 1) == "first\n"
    file.write_text("another\n")
    with imported._files_stay():
        taken = linecache.checkcache
        taken(name)
        assert linecache.getline(name, 1) == "first\n"
    assert linecache.checkcache is own
    taken(name)
    assert linecache.getline(name, 1) == "another\n"


def test_code_is_kept_in_the_cache_that_is_told_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWISE_CACHE", str(tmp_path / "home"))
    assert Path(imported.kept_folder()).parent == tmp_path / "home"
    monkeypatch.delenv("FUSEWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Path(imported.kept_folder()).is_relative_to(tmp_path / "cache")
