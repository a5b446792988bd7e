"""Explaining a whole program: each of its graphs where Inductor compiles it.

Puts the parts of the explanation together. The program is run once, its graphs operator by operator
as they were captured, so that nothing has to be compiled for them; a backward graph comes with the
strides that Inductor gives what the forward graph keeps for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.utils import make_boxed_func

import fusewise
from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.graph import GraphExplainer, Wish
from fusewise.compiler.explaining.report import (
    ExplainedGraph,
    ExplainedProgram,
    ExplainedRewrite,
)
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.rewrites import Rewrite, rewrites
from fusewise.compiler.options import Options, split_options
from fusewise.compiler.session import Session
from fusewise.compiler.visiting import visit_graphs
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.store import default_store_path
from fusewise.datasets.target import trains
from fusewise.schedule.errors import OptionError, PlanError
from fusewise.schedule.rules import Rule, RuleSet


def explain_program(
    sample: GraphSample, wish: Wish, watch: Callable[[str], None] = lambda _: None
) -> ExplainedProgram:
    """Explain every graph of a program, forward, backward or inference.

    Args:
        sample: the program.
        wish: what is asked.
        watch: told what is being done.

    Raises:
        CorpusError: the program does not run.
        PlanError: the plan file is of another program, or the fusion that is asked for does not
            exist in any graph.
        StoreError, ModelError, UnsupportedError: the store, model or device cannot be used.
    """
    session = Session(
        options=Options(store=wish.store, model=wish.model, plan=wish.plan, rules=wish.rules),
        inductor_options={},
        observed=(),
    )
    explainer = _Explainer(session, wish, watch)
    with rewrites() as explainer.heard:
        visit_graphs(sample, session, explainer.graph)
    if wish.kinds and not explainer.found:
        raise PlanError(
            f"the program has no {' or '.join(wish.kinds)} graph",
            subject=sample.name,
            remedy=f"its graphs are {', '.join(explainer.kinds) or 'none'}",
        )
    if wish.why is not None and all(graph.why is None for graph in explainer.found):
        assert explainer.unresolved is not None, "each graph was asked for the fusion"
        raise explainer.unresolved
    return ExplainedProgram(
        program=sample.name,
        fusewise=fusewise.__version__,
        torch=str(torch.__version__),
        graphs=tuple(explainer.found),
    )


def explain_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    measure: bool = False,
    why: tuple[str, str] | None = None,
    plan: str | Path | None = None,
    rules: Rule | RuleSet | Sequence[Rule] | str | Path | None = None,
    predicted: bool = False,
) -> ExplainedProgram:
    """:func:`explain_program` of a call, with your own store; see :func:`fusewise.explain`."""
    _check_flags(measure=measure, predicted=predicted)
    # As they are read where a program is compiled.
    given, _, _ = split_options(None, {"fusewise.plan": plan, "fusewise.rules": rules}, ())
    name = getattr(function, "__name__", None) or type(function).__name__
    sample = GraphSample(
        name=name,
        family=f"explained/{name}",
        module=function,
        args=tuple(args),
        kwargs=dict(kwargs),
        training=trains(function),
    )
    wish = Wish(
        store=default_store_path(),
        plan=given.plan,
        measure=measure,
        predicted=predicted,
        rules=given.rules,
        why=None if why is None else _question(why),
    )
    return explain_program(sample, wish)


def _check_flags(**given: object) -> None:
    """Refuse what is neither: a number would be taken for a wish by its being 0 or not."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise OptionError(
                f"value {value!r} of {type(value).__name__}",
                subject=f"argument {name} of explain",
                remedy="give True or False",
            )


def _question(why: object) -> Question:
    match why:
        case (str(first), str(second)):
            return Question(first, second)
    raise PlanError(
        f"{why!r} does not name two sides",
        subject="why",
        remedy='give two nodes or groups: ("op2", "op5")',
    )


def has_inner_graphs(gm: torch.fx.GraphModule) -> bool:
    """Whether an operator of the graph runs graphs of its own: branches, loops."""
    return any(isinstance(child, torch.fx.GraphModule) for child in gm.children())


class _Explainer:
    """The graphs of one program, one after the other."""

    def __init__(self, session: Session, wish: Wish, watch: Callable[[str], None]) -> None:
        self._session = session
        self._wish = wish
        self._watch = watch
        self.found: list[ExplainedGraph] = []
        self.kinds: list[str] = []
        #: What passes did since it was emptied last.
        self.heard: list[Rewrite] = []
        #: What was done to the program before it fell into graphs.
        self._shared: list[Rewrite] = []
        #: Why the last graph has no fusion of the kind that is asked for.
        self.unresolved: PlanError | None = None

    def graph(self, graph: GraphCompile) -> Any:
        """Explain one graph; gives it compiled by Inductor."""
        self.kinds.append(graph.kind)
        if graph.kind != "backward" or self.heard:
            self._shared = list(self.heard)
        self.heard.clear()
        output = None
        if not self._wish.kinds or graph.kind in self._wish.kinds:
            output = self._explained(graph)
        if output is None:
            self._watch(f"{graph.kind}: compiling")
            output = graph.compile(None, None)
        self.heard.clear()
        return output

    def _explained(self, graph: GraphCompile) -> Any | None:
        """Explain a graph where Inductor lowers it; its code where that was compiled for it."""
        explainer = GraphExplainer(self._session, self._wish, graph, self._passes, self._watch)
        runs_captured = not has_inner_graphs(graph.gm)
        failures: list[Exception] = []
        found: list[ExplainedGraph] = []

        def look() -> bool:
            try:
                found.extend(explainer.explained())
            except Exception as error:  # noqa: BLE001 - Inductor would wrap it; it is raised below
                failures.append(error)
                return False
            self._watch(f"{graph.kind}: compiling")
            return not runs_captured

        output = None
        if self._session.options.rules is None:
            output = graph.compile_after(look, measured=False, cached=False)
        if failures:
            raise failures[0]
        if not found:
            # Where nothing waited, or rules are to have their way before there is a lowering.
            found.extend(explainer.explained())
            # A backward graph is compiled for strides that only a compile tells.
            runs_captured &= graph.kind != "forward"
        self.found.extend(found)
        self.unresolved = explainer.unresolved or self.unresolved
        return make_boxed_func(graph.gm.forward) if runs_captured else output

    def _passes(self) -> tuple[ExplainedRewrite, ...]:
        """What changed the graph in hand on its way; call it after the first lowering."""
        # Other lowerings of the same graph may have come after the first.
        ends = (at for at, r in enumerate(self.heard) if r.stage == "post-grad" and not r.name)
        first = self.heard[: next(ends, len(self.heard)) + 1]
        told = [r for r in (*self._shared, *first) if r.changed or not r.name]
        return tuple(
            ExplainedRewrite(
                stage=rewrite.stage,
                name=rewrite.name,
                nodes_before=rewrite.nodes_before,
                nodes_after=rewrite.nodes_after,
                removed=dict(rewrite.removed),
                added=dict(rewrite.added),
            )
            for rewrite in told
        )
