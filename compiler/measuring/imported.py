"""Imports of a measuring process, with code that the user's cache keeps in one file.

On a slow file system, such as a container's or a network's, most of the time to import torch and
Inductor goes into looking for two thousand files and reading each; where Python keeps no byte code,
into compiling them. With the one file there is a look at each source and at each folder, and a
module is imported as ever where its source or folder is not as it was.
"""

from __future__ import annotations

import importlib.util
import linecache
import marshal
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from fusewise.compiler.measuring import kept_code
from fusewise.compiler.measuring.kept_code import Kept, KeptModule

#: Of the modules that a process imports, what it may lack in the file.
_LACKING = 0.05

#: Processes that write files when this one is gone: what they read from it ends then.
_writers: list[object] = []


class KeptLoader(SourceFileLoader):
    """Runs code that is kept the first time that it is asked for code."""

    def __init__(self, name: str, kept: KeptModule) -> None:
        super().__init__(name, kept.file)
        self._code: bytes | memoryview | None = kept.code

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code, as any loader of sources gives it."""
        code, self._code = self._code, None
        if code is None:
            return super().get_code(fullname)
        found: CodeType = marshal.loads(code)
        return found


class _Finder:
    """Finds what is kept where Python's own finder, which is asked next, would find its source."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._folders: dict[str, int] = {}
        self.taken: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to import a module that is kept as its source is; None for any other.

        What is in no package is found as ever, and only its code taken from here.
        """
        kept = self._kept.get(name)
        if kept is None:
            return None
        if path is None:
            spec = PathFinder.find_spec(name, path, target)
            if spec is None or spec.origin != kept.file or not kept.as_it_was():
                return spec
            spec.loader = KeptLoader(name, kept)
        else:
            package = kept.package
            if list(path) != [kept.folder] or not kept.as_it_was():
                return None
            # Python prefers packages and libraries to a source of that name.
            if not package and not self._same_folder(kept):
                return None
            spec = importlib.util.spec_from_file_location(
                name,
                kept.file,
                loader=KeptLoader(name, kept),
                submodule_search_locations=[package] if package else None,
            )
        self.taken.add(name)
        return spec

    def _same_folder(self, kept: KeptModule) -> bool:
        folder = kept.folder
        if folder not in self._folders:
            self._folders[folder] = Path(folder).stat().st_mtime_ns
        return self._folders[folder] == kept.folder_ns


@contextmanager
def kept_imports(folder: str) -> Iterator[None]:
    """Import with the code that is kept in ``folder``, and have kept what was not."""
    place = kept_code.place_in(folder)
    before = frozenset(sys.modules)
    finder = _Finder(kept_code.read(place))
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    try:
        with _files_stay():
            yield
    finally:
        sys.meta_path.remove(finder)
    sources = _sources(before)
    if len(sources.keys() - finder.taken) > _LACKING * len(sources):
        # Where no file or process can be made, the next one imports as ever, too.
        with suppress(OSError):
            _have_kept(place, sources)


def kept_folder() -> str:
    """Where code is kept for all stores: ``FUSEWISE_CACHE``, or the user's cache folder."""
    # Whoever is told the folder need not import this.
    import platformdirs

    place = os.environ.get("FUSEWISE_CACHE") or platformdirs.user_cache_dir("fusewise")
    return str(Path(os.path.expanduser(place)).absolute() / "imported")  # noqa: PTH111


@contextmanager
def _files_stay() -> Iterator[None]:
    """Look at no source again, and at each folder once, while modules are imported.

    Torch takes a stack for each operator that it registers, for which Python sees whether the files
    in it have changed, and asks which module a function is of, for which Python follows each link
    on the way to each source that there is: together three in four of all looks at files.
    """
    check: Callable[..., None] = linecache.checkcache
    real: Callable[..., str] = os.path.realpath
    real_folder = cache(real)
    # What is imported may have these for good.
    importing = True

    def checked(filename: str | None = None) -> None:
        if not importing:
            check(filename)

    def followed(path: str, **how: bool) -> str:
        folder, name = os.path.split(path)
        if how or not importing or not os.path.isabs(path) or name in ("", os.curdir, os.pardir):  # noqa: PTH117
            return real(path, **how)
        file = os.path.join(real_folder(folder), name)  # noqa: PTH118
        return real(file) if os.path.islink(file) else file  # noqa: PTH114

    linecache.checkcache = checked
    os.path.realpath = followed  # type: ignore[assignment]
    try:
        yield
    finally:
        importing = False
        linecache.checkcache = check
        os.path.realpath = real  # type: ignore[assignment]


def _sources(before: frozenset[str]) -> dict[str, str]:
    """Sources of all modules that were imported since, in that order."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if name in before or spec is None or spec.name != name:
            continue
        if type(spec.loader) in (SourceFileLoader, KeptLoader) and "\n" not in spec.origin:
            found[name] = spec.origin
    return found


def _have_kept(place: Path, sources: Mapping[str, str]) -> None:
    """Have a process write the file when this one is gone, however that ends."""
    # Imported by then, and not before anything is kept.
    import subprocess
    import tempfile

    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place.parent) as told:
        told.write(os.fsencode("".join(f"{name} {file}\n" for name, file in sources.items())))
        told.seek(0)
        writer = subprocess.Popen(
            [sys.executable, "-P", "-m", kept_code.__name__, str(place), str(told.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[told.fileno()],
            start_new_session=True,
        )
    _writers.append(writer)
