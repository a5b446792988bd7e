"""From a sample to the graphs that Inductor would compile for it: forward, backward, inference.

Traces the program and takes its graphs; nothing of it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Never

import torch
import torch.fx
from torch._functorch import config as functorch_config

from fusewise.compiler.contest import has_collectives
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.measuring.inputs import Observed, observe
from fusewise.datasets.corpus import GraphSample


@dataclass(frozen=True)
class CapturedGraph:
    """One graph with what is known of the program's inputs."""

    graph: GraphCompile
    observed: Sequence[Observed | None]


class _CapturedError(BaseException):
    """Ends the call of a program once its graphs are there.

    Not an ``Exception``: the program itself must not catch it.
    """


def capture(sample: GraphSample, visit: Callable[[CapturedGraph], None]) -> None:
    """Show each graph of ``sample`` to ``visit``, a forward one before its backward.

    A program that Dynamo breaks into several graphs gives those up to the first that is run. Call
    it with gradients enabled for training samples only. Raises what tracing raises.
    """

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        observed = observe(example_inputs)

        def take(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
            graph = GraphCompile(gm, example_inputs, kwargs)
            computes = any(node.op == "call_function" for node in gm.graph.nodes)
            if computes and not has_collectives(gm):
                visit(CapturedGraph(graph, observed))
            return _end

        # The backward is otherwise compiled when it first runs.
        settings = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
        with functorch_config.patch(settings):
            return compile_whole(gm, example_inputs, take, {})

    torch._dynamo.reset()
    try:
        torch.compile(sample.module, backend=backend, dynamic=False)(*sample.args, **sample.kwargs)
    except _CapturedError:
        pass
    finally:
        torch._dynamo.reset()


def _end(_: list[Any]) -> Never:
    raise _CapturedError


# AOTAutograd passes arguments as one list to what has this mark.
_end._boxed_call = True  # type: ignore[attr-defined]
