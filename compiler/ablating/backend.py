"""Inductor without one of its stages, as a backend of ``torch.compile``: for timing whole steps.

Measures nothing itself; forward, backward and inference graphs are all compiled without the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx
from torch._functorch import config as functorch_config

from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.stages import STAGE, compile_stage, settings_of
from fusewise.compiler.session import device_of
from fusewise.schedule.errors import OptionError

__all__ = ["STAGE", "stage_backend"]


def stage_backend(name: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
    """A backend that leaves a stage out.

    Raises:
        OptionError: there is no stage of that name.
    """
    if name not in STAGE:
        raise OptionError(
            f"there is no stage {name!r}", subject="ablation", remedy=f"use {', '.join(STAGE)}"
        )
    stage = STAGE[name]
    # Rewrites come before and after autograd as well, so their settings hold for all of it.
    options = {} if stage.rewrites else settings_of(stage)

    def compile_graph(
        gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
    ) -> Any:
        graph = GraphCompile(gm, example_inputs, kwargs, options)
        if not any(node.op == "call_function" for node in gm.graph.nodes):
            return graph.compile(None, None)
        return compile_stage(graph, stage, device_of(gm, example_inputs).type)

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        # AOTAutograd's own cache would answer with graphs that were compiled otherwise.
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_whole(gm, example_inputs, compile_graph, options)

    return backend
