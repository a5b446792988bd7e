"""A Triton kernel whose compiled variants do nothing, and take as long as they are said to."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fusewise.compiler.inductor.block_sizes import sizes_of
from fusewise.schedule.block_sizes import BlockSizes


class Timed:
    """A kernel whose compiled variants do nothing, and take as long as they are said to."""

    def __init__(self, kernel: Any, us: Callable[[BlockSizes], float]) -> None:
        self.kernel, self._us = kernel, us
        self.loaded: list[BlockSizes] = []
        kernel._precompile_config = self._compiled

    def _compiled(self, config: Any) -> Any:
        sizes = sizes_of(config)
        self.loaded.append(sizes)
        return SimpleNamespace(make_launcher=lambda: self.launcher(config))

    def launcher(self, config: Any) -> Any:
        sizes = sizes_of(config)
        if self._us(sizes) == math.inf:
            raise RuntimeError("out of resource: registers")

        def launch(*args: Any, stream: int) -> BlockSizes:
            del args, stream
            return sizes

        # What Inductor tells of them in its log, too.
        told = {"config": config, "n_spills": 0, "n_regs": 32, "shared": 0, "cache_hash": None}
        vars(launch).update(told)
        return launch

    def clock(self, call: Callable[[], Any]) -> Callable[[], float]:
        (launcher,) = (c.cell_contents for c in call.__closure__ or () if callable(c.cell_contents))
        us = self._us(sizes_of(launcher.config))
        return lambda: us

    def tuned(self, launcher: Any = None) -> Any:
        """What Inductor would launch it with; ``launcher``: what it launched before."""
        return self.kernel.coordinate_descent_tuning(
            launcher or self.launcher(self.kernel.configs[0])
        )
