"""Probes of vector instructions: made once, trusted by children, which then need no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fusewise.compiler.inductor.toolchain import probed_vectors

#: Tells of what it is told in turn, each time in a copy of itself: what was found is remembered.
_TRUSTING = """
import json, os, sys
from fusewise.compiler.inductor.toolchain import trust_probes
from torch._inductor import cpu_vec_isa


def tell(told):
    os.environ.update(told)
    trust_probes()
    print(*cpu_vec_isa.valid_vec_isa_list(), sep=",", flush=True)


for told in json.loads(sys.argv[1]):
    if os.fork() == 0:
        try:
            tell(told)
        except Exception as error:
            print(type(error).__name__, flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


def _known_without_a_compiler(told: list[dict[str, str]], cache: Path) -> list[str]:
    """What children take for working that cannot build anything, each by what it is told."""
    broken = {"PATH": "", "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    found = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.run(
        [sys.executable, "-P", "-c", _TRUSTING, json.dumps(told)],
        env={**os.environ, **found, **broken},
        capture_output=True,
        text=True,
        check=True,
    )
    return child.stdout.splitlines()


def test_a_child_trusts_what_was_probed_and_needs_a_compiler_for_the_rest(tmp_path: Path) -> None:
    probed = probed_vectors()
    ((name, told),) = probed.items()
    # What failed is not tried again.
    fewer = told.split(",")[-1]
    known = _known_without_a_compiler([{}, probed, {name: fewer}], tmp_path)
    assert known == ["InvalidCxxCompiler", told, fewer]
