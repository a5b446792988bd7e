"""What Inductor's passes over the captured graph changed before it was lowered.

Listens to the passes, pass by pass where Inductor names them, and counts operators before and
after. Changes nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch.fx
from torch._inductor import compile_fx as inductor_compile_fx
from torch.fx.passes import graph_transform_observer

from fusewise.compiler.inductor.replacing import holding, once

#: Where in the way of a graph: before autograd, on forward and backward together (or on an
#: inference graph), and on each graph by itself.
Stage = Literal["pre-grad", "joint", "post-grad"]
_STAGES: dict[str, Stage] = {
    "_recursive_pre_grad_passes": "pre-grad",
    "_recursive_joint_graph_passes": "joint",
    "_recursive_post_grad_passes": "post-grad",
}


@dataclass(frozen=True)
class Rewrite:
    """One pass that changed the graph, or a whole stage of passes."""

    stage: Stage
    #: Inductor's name of the pass; "" for the stage as a whole.
    name: str
    #: Operators of the graph before and after.
    nodes_before: int
    nodes_after: int
    #: Operators that are gone and that are new, with how many of each.
    removed: tuple[tuple[str, int], ...]
    added: tuple[tuple[str, int], ...]

    @property
    def changed(self) -> bool:
        """Whether the graph has other operators than before."""
        return bool(self.removed or self.added)


_heard: ContextVar[list[Rewrite] | None] = ContextVar("fusewise_rewrites", default=None)
_stage: ContextVar[Stage | None] = ContextVar("fusewise_rewrite_stage", default=None)


@contextmanager
def rewrites() -> Iterator[list[Rewrite]]:
    """Collect what passes change: every stage as a whole, and each named pass that did something.

    A pass comes before the stage that it is in.
    """
    _install()
    heard: list[Rewrite] = []
    with holding(_heard, heard):
        yield heard


@once
def _install() -> None:
    observer: Any = graph_transform_observer.GraphTransformObserver
    for method in ("apply_graph_pass", "apply_gm_pass"):
        setattr(observer, method, _pass_heard(getattr(observer, method)))
    for function, stage in _STAGES.items():
        # One of them may have another name in another version; then its passes still tell.
        original = getattr(inductor_compile_fx, function, None)
        if original is not None:
            setattr(inductor_compile_fx, function, _stage_heard(original, stage))


def _pass_heard(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, pass_fn: Any) -> Any:
        heard, stage = _heard.get(), _stage.get()
        if heard is None or stage is None:
            return original(self, pass_fn)
        before = _operators(self.gm)
        result = original(self, pass_fn)
        told = _told(stage, self.passname, before, _operators(self.gm))
        if told.changed:
            heard.append(told)
        return result

    return apply


def _stage_heard(original: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        heard = _heard.get()
        # It calls itself for subgraphs, which are part of the whole.
        if heard is None or _stage.get() is not None:
            return original(gm, *args, **kwargs)
        before = _operators(gm)
        with holding(_stage, stage):
            result = original(gm, *args, **kwargs)
        after = result if isinstance(result, torch.fx.GraphModule) else gm
        heard.append(_told(stage, "", before, _operators(after)))
        return result

    return run


def _operators(gm: torch.fx.GraphModule) -> Counter[str]:
    """Operators of a graph with how often each occurs."""
    return Counter(
        _name(gm, node)
        for node in gm.graph.nodes
        if node.op in {"call_function", "call_method", "call_module"}
    )


def _name(gm: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    if isinstance(node.target, str):
        child = dict(gm.named_modules()).get(node.target) if node.op == "call_module" else None
        return node.target if child is None else type(child).__name__
    return str(getattr(node.target, "__name__", None) or node.target)


def _told(stage: Stage, name: str, before: Counter[str], after: Counter[str]) -> Rewrite:
    return Rewrite(
        stage,
        name,
        before.total(),
        after.total(),
        tuple(sorted((before - after).items())),
        tuple(sorted((after - before).items())),
    )
