"""The measuring process of a collection: what it makes of numbers that no model has."""

from __future__ import annotations

import subprocess
import sys

#: Instead of serving anybody it tells whether halves of denormal numbers, many enough for several
#: threads, are anything but 0.
_PROGRAM = """
import torch
from fusewise.compiler.collecting import measuring
from fusewise.compiler.measuring import serving

serving.main = lambda descriptor: 40 + bool((torch.full((1 << 18,), 1e-39) * 0.5).any())
raise SystemExit(measuring.main(0))
"""


def test_denormal_numbers_are_0_in_all_threads() -> None:
    assert subprocess.run([sys.executable, "-c", _PROGRAM], check=False).returncode == 40
