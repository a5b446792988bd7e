"""A compile to the end inside another one of the same graph, which waits and may yet go on.

What Inductor and AOTAutograd keep once for all compiles under way is put aside meanwhile. Decides
nothing, and compiles nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import IRNode
from torch._inductor.triton_bundler import TritonBundler
from torch._inductor.utils import set_tracing_context_output_strides
from torch._inductor.virtualized import NullHandler, V
from torch.fx.experimental.symbolic_shapes import SymExprPrinter, free_unbacked_symbols

from fusewise.schedule.schedule import Schedule

#: Where Inductor collects the kernels of the compile that is under way, as far as it has these.
_BUNDLE: Final = ("_entries", "_static_autotuners", "_winners")


@dataclass(frozen=True)
class Ahead:
    """A schedule compiled before it was known whether it is the one that is wanted."""

    schedule: Schedule
    #: Inductor's output code.
    output: Any
    #: Strides of its outputs, which AOTAutograd is told of where it is taken.
    strides: tuple[Any, ...]
    #: What Inductor counted, lookups in its caches for one, which counts where it is taken.
    counted: Counter[str]

    def take(self) -> Any:
        """The output code, which is what the graph is compiled to."""
        forget_strides()
        context = TracingContext.try_get()
        if context is not None and context.output_strides is not None:
            context.output_strides.extend(self.strides)
        counters["inductor"].update(self.counted)
        return self.output


@contextmanager
def apart() -> Iterator[None]:
    """Let a compile in here be none of the business of the one that waits.

    Strides of outputs and what was counted are left behind: :func:`told_strides`,
    :func:`told_counts`. Inductor stores what the compile that waits counts with its code, and
    counts it again wherever that code comes out of its cache.
    """
    bundler: Any = TritonBundler
    lowering: Any = V
    tuning = getattr(lowering, "set_distributed_autotune_state", None)
    kept = {name: getattr(bundler, name) for name in _BUNDLE if hasattr(bundler, name)}
    counted, counters["inductor"] = counters["inductor"], Counter()
    bundler.end_compile()
    try:
        with nullcontext() if tuning is None else tuning(NullHandler()):
            yield
    finally:
        for name, value in kept.items():
            setattr(bundler, name, value)
        counters["inductor"] = counted
        # The compile that waits tells its own.
        forget_strides()


def told_strides() -> tuple[Any, ...]:
    """Strides of outputs that AOTAutograd was told of by the last compile."""
    context = TracingContext.try_get()
    return () if context is None else tuple(context.output_strides or ())


def tell_strides(graph: GraphLowering, example_inputs: Sequence[Any]) -> None:
    """Tell AOTAutograd the strides of a lowered graph's outputs, as the end of its compile does."""
    forget_strides()
    if TracingContext.try_get() is None:
        return
    told: Any = SimpleNamespace(output_strides=output_strides(graph))
    set_tracing_context_output_strides(example_inputs, told)


def output_strides(graph: GraphLowering) -> list[tuple[str, ...] | None]:
    """Strides of a lowered graph's outputs as Inductor writes them down before it schedules it.

    None stands for those of an output that is no tensor, or that depend on what is in another.
    """
    text = SymExprPrinter().doprint
    return [
        tuple(text(stride) for stride in output.get_layout().stride) if _known(output) else None
        for output in graph.graph_outputs or ()
    ]


def _known(output: Any) -> bool:
    """Whether an output is a tensor with strides that do not depend on what is in another."""
    if not (isinstance(output, IRNode) and output.has_tensor_output()):
        return False
    return not free_unbacked_symbols(output.get_stride())


def told_counts() -> Counter[str]:
    """What Inductor counted since :func:`apart` began."""
    return counters["inductor"]


def forget_strides() -> None:
    """Have the next compile's strides of outputs be the only ones: Inductor appends them."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides:
        context.output_strides.clear()
