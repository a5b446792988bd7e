"""Programs that were compiled here before: a hint on whether anything is going to be measured.

Only then is the measuring process started before the graphs of a program are known, which takes
tracing that long. A wrong hint costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx


class Met:
    """One program, by what is known before its graphs are."""

    def __init__(
        self,
        home: Path,
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        settings: Mapping[str, Any],
    ) -> None:
        """Args:
        home: folder that the hints are kept under.
        gm: the program as it was captured.
        example_inputs: its inputs.
        settings: Inductor's.
        """
        inputs = [_described(value) for value in example_inputs]
        parts = [str(torch.__version__), gm.code, repr(inputs), repr(sorted(settings.items()))]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
        self._path = home / "met" / digest

    @property
    def before(self) -> bool:
        """Whether a decision on one of its graphs was stored."""
        return self._path.exists()

    def note(self) -> None:
        """Have it known from now on."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()


def _described(value: Any) -> object:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return str(value.dtype), str(value.device), tuple(map(str, (*value.shape, *value.stride())))


def first_device(example_inputs: Sequence[Any]) -> str:
    """The device that a program most likely runs on: the GPU of an input, else the CPU."""
    tensors = (value for value in example_inputs if isinstance(value, torch.Tensor))
    return next((str(t.device) for t in tensors if t.device.type == "cuda"), "cpu")
