"""Running a program with each of its graphs shown to a visitor before it is compiled.

The way in for everything that looks at a whole program offline: searching, explaining, applying a
plan file. Chooses nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config

from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.session import Session
from fusewise.datasets.corpus import GraphSample, scalar_loss
from fusewise.schedule.errors import CorpusError, FusewiseError


def visit_graphs(
    sample: GraphSample, session: Session, visit: Callable[[GraphCompile], Any]
) -> None:
    """Run ``sample`` compiled, each graph as ``visit`` compiles it.

    A training sample is compiled with its backward, any other without gradients. Graphs that
    compute nothing are not shown.

    Args:
        sample: the program.
        session: gets the inputs of each part of the program that Dynamo captures.
        visit: is given a graph and gives it compiled.

    Raises:
        CorpusError: the program does not run.
        FusewiseError: as ``visit`` raises it; the program is run to its end before.
    """
    backend = _Backend(session, visit)
    torch._dynamo.reset()
    try:
        with torch.set_grad_enabled(sample.training), _told_once():
            outputs = torch.compile(sample.module, backend=backend)(*sample.args, **sample.kwargs)
            if sample.training:
                scalar_loss(outputs).backward()
    except FusewiseError:
        raise
    except Exception as error:
        cause = _raised(error)
        if isinstance(cause, FusewiseError):
            # Ours, wrapped by Inductor on its way through.
            raise cause from error
        lines = str(cause).strip().splitlines()
        raise CorpusError(
            f"it does not run compiled: {type(cause).__name__}: {lines[0] if lines else ''}",
            subject=sample.name,
            remedy="run it without torch.compile, and with its stock backend, to see why",
        ) from error
    finally:
        torch._dynamo.reset()
    if backend.error is not None:
        raise backend.error


@contextmanager
def _told_once() -> Iterator[None]:
    """Have torch not log, with a trace, an error of an operator that it raises as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def is_other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("failed while attempting to run meta")

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def _raised(error: BaseException) -> BaseException:
    """What was raised at first: what Dynamo makes of it only says that something was."""
    cause: BaseException = getattr(error, "inner_exception", error)
    while type(cause).__module__.startswith("torch._dynamo"):
        before = cause.__cause__ or cause.__context__
        if before is None:
            break
        cause = before
    return cause


def size_of(graph: GraphCompile) -> int:
    """Operators of a captured graph."""
    return sum(node.op == "call_function" for node in graph.gm.graph.nodes)


class _Backend:
    """Hands every graph of a program to ``visit``, which gives what Inductor would."""

    def __init__(self, session: Session, visit: Callable[[GraphCompile], Any]) -> None:
        self._session = session
        self._visit = visit
        #: Raised once the program is through: Dynamo would make another error of it.
        self.error: FusewiseError | None = None

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        self._session.observed = observe(example_inputs)
        self._session.forward_key = None
        # AOTAutograd's own cache would answer before a graph is seen here.
        with functorch_config.patch(enable_autograd_cache=False):
            options = self._session.inductor_options
            return compile_whole(gm, example_inputs, self._graph, options)

    def _graph(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        session = self._session
        graph = GraphCompile(
            gm, example_inputs, kwargs, session.inductor_options, session.options.rules
        )
        if self.error is None and size_of(graph):
            try:
                return self._visit(graph)
            except FusewiseError as error:
                self.error = error
        return graph.compile(None, None)
