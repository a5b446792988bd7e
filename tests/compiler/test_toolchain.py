"""Probes of vector instructions: made once, trusted by children, which then need no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusewise.compiler.inductor.toolchain import probed_vectors

_TRUSTING = """
from fusewise.compiler.inductor.toolchain import trust_probes
from torch._inductor import cpu_vec_isa
trust_probes()
print(*cpu_vec_isa.valid_vec_isa_list(), sep=",")
"""


def _known_without_a_compiler(told: dict[str, str], cache: Path) -> str:
    """What a child takes for working that cannot build anything."""
    broken = {"PATH": "", "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    found = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.run(
        [sys.executable, "-P", "-c", _TRUSTING],
        env={**os.environ, **found, **broken, **told},
        capture_output=True,
        text=True,
        check=True,
    )
    return child.stdout.strip()


@pytest.fixture(scope="module")
def probed() -> dict[str, str]:
    return probed_vectors()


def test_a_child_trusts_what_was_probed(probed: dict[str, str], tmp_path: Path) -> None:
    (told,) = probed.values()
    assert _known_without_a_compiler(probed, tmp_path) == told


def test_a_child_that_was_told_nothing_needs_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _known_without_a_compiler({}, tmp_path)


def test_what_failed_is_not_tried_again(probed: dict[str, str], tmp_path: Path) -> None:
    (name,) = probed
    told = probed[name].split(",")
    if len(told) < 2:
        pytest.skip("this CPU has one set of vector instructions")
    assert _known_without_a_compiler({name: told[-1]}, tmp_path) == told[-1]
