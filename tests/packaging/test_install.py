"""The wheel and the sdist, each installed into an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# By file and not by walking the packages, which would pass over a folder without __init__.py.
INSPECT = """
import importlib, json, pathlib, torch, fusewise
root = pathlib.Path(fusewise.__file__).parent
files = [p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc"]
links = [str(p) for p in root.rglob("*") if p.is_symlink()]
modules = {".".join(("fusewise", *p.with_suffix("").parts)) for p in files if p.suffix == ".py"}
for name in sorted(modules):
    importlib.import_module(name.removesuffix(".__init__"))
print(json.dumps({
    "root": str(root),
    "files": sorted(map(str, files)),
    "links": links,
    "backends": torch._dynamo.list_backends(exclude_tags=()),
}))
"""


def run(*command: str | Path) -> str:
    """What the command prints; its whole output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Built:
    """A copy of the sources and what was built from it."""

    sources: Path
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both files, from a copy: a build in the checkout would pick up what an old one left."""
    folder = tmp_path_factory.mktemp("built")
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    sources = shutil.copytree(checkout, folder / "sources", symlinks=True, ignore=ignored)
    # A published dataset, whether or not one comes with this version.
    published = sources / "datasets" / "published" / "sample"
    published.mkdir(parents=True)
    for name in ("manifest.json", "kernels.parquet", "CARD.md"):
        (published / name).write_text("{}")
    out = folder / "dist"
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"),
        *("--wheel", "--sdist", "--outdir", out, sources),
    )
    return Built(sources, next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


@dataclass(frozen=True)
class Installed:
    """An environment with fusewise in it, and what its Python says of it."""

    environment: Path
    facts: dict[str, Any]


@pytest.fixture(scope="module", params=["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def installed(
    request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """A fresh environment; fusewise is installed, all that it needs is borrowed from this one."""
    environment = tmp_path_factory.mktemp(request.param) / "venv"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    (site,) = (environment / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched last, and .pth files found there are not read: an editable
    # install of fusewise in the borrowed folder stays out of sight.
    paths = sysconfig.get_paths()
    (site / "borrowed.pth").write_text("\n".join({paths["purelib"], paths["platlib"]}))
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
        *("--no-index", "--no-deps", "--no-build-isolation", getattr(built, request.param)),
    )
    return Installed(environment, json.loads(run(python, "-I", "-c", INSPECT).splitlines()[-1]))


def test_every_file_is_installed_and_every_module_imports(
    built: Built, installed: Installed
) -> None:
    package = built.sources / "src" / "fusewise"
    expected = {
        str((Path(folder) / name).relative_to(package))
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name == "CARD.md" or not name.endswith(".md")
    }
    assert installed.facts["root"].startswith(str(installed.environment))
    assert set(installed.facts["files"]) == expected
    assert {"py.typed", "datasets/migrations/0001_tables.sql"} <= expected
    assert "datasets/published/sample/kernels.parquet" in expected


def test_files_are_real(installed: Installed) -> None:
    assert installed.facts["links"] == []


def test_backend_is_listed(installed: Installed) -> None:
    assert "fusewise" in installed.facts["backends"]


@pytest.mark.parametrize("script", ["fusewise", "train-costmodel"])
def test_scripts_say_how_they_are_used(installed: Installed, script: str) -> None:
    assert "Usage" in run(installed.environment / "bin" / script, "--help")


def test_wheel_holds_fusewise_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fusewise"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_sdist_holds_no_links_and_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert [m.name for m in members if not (m.isfile() or m.isdir())] == []
    tops = {m.name.split("/")[1] for m in members if "/" in m.name}
    assert tops == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "src"}
