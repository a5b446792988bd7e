"""Compilers for whole programs: each graph goes its way, and steps back where that fails.

``compile_program`` wraps Inductor's compile of one graph (forward, backward or inference); what is
chosen for it is decided in ``graph_way``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx
from torch._functorch import config as functorch_config

from fusewise.compiler.graph_way import GraphWay
from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.configurations import tune_ours_warm
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.settings import inductor_settings, known_settings
from fusewise.compiler.measuring import cuda_timing
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.met import Met, first_device
from fusewise.compiler.notices import tell_once, warn_once
from fusewise.compiler.options import split_options
from fusewise.compiler.reports import GraphReport, add_report
from fusewise.compiler.ruled import compile_by_rules
from fusewise.compiler.session import LEAST_OPERATORS, Session, many_ranks, operators
from fusewise.schedule.rules import RuleSet


def compile_program(
    example_inputs: Sequence[Any], *, mode: str | None, options: Mapping[str, Any] | None
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
    """A compiler for one captured program.

    Raises:
        FusewiseError: bad options; nothing was compiled.
    """
    ours, theirs, inductor_mode = split_options(mode, options, known_settings())
    session = Session(
        options=ours,
        inductor_options=inductor_settings(inductor_mode, theirs),
        observed=observe(example_inputs) if ours.mode == "measure" else (),
    )
    if ours.plan is not None:
        session.plan_file  # noqa: B018 - a bad plan file is told before anything is compiled

    def compiler(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        tune_ours_warm(cuda_timing.samples)
        if torch.cuda.is_initialized():
            use_pools_assembler()
        if ours.mode == "measure" and ours.plan is None:
            session.met = Met(ours.home, gm, inputs, session.inductor_options)
            measures = ours.top_k and ours.budget_s != 0 and not many_ranks()
            if measures and not session.met.before and operators(gm) >= LEAST_OPERATORS:
                # Its start takes seconds, which pass while the program is traced.
                measuring_process(first_device(inputs))
        session.open_store_ahead()
        session.spending.begin()
        # AOTAutograd's own cache would answer before our part is asked, and without our key.
        with functorch_config.patch(enable_autograd_cache=False):
            output = compile_whole(gm, inputs, _GraphCompiler(session), session.inductor_options)
        if session.rule_watch is not None:
            session.rule_watch.tell()
        return output

    return compiler


def compile_under_rules(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    rules: RuleSet,
    inductor_options: Mapping[str, Any],
) -> Any:
    """Inductor on a whole program, its own plans changed by rules and by nothing else."""

    def compile_graph(inner: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        graph = GraphCompile(inner, inputs, kwargs, inductor_options, rules)
        report = GraphReport(graph.kind, "")
        add_report(report)
        return _step_back(graph, report)

    with functorch_config.patch(enable_autograd_cache=False):
        return compile_whole(gm, example_inputs, compile_graph, inductor_options)


def _step_back(graph: GraphCompile, report: GraphReport) -> Any:
    """Inductor's own result, but for what rules want: those hold whatever else goes wrong."""
    rules = graph.rules
    if rules is not None and any(node.op == "call_function" for node in graph.gm.graph.nodes):
        try:
            output, report.chosen, report.rules = compile_by_rules(graph, rules)
        except Exception as error:  # noqa: BLE001 - a user's program never fails because of us
            names = ", ".join(rules.name(at) for at in range(len(rules.rules)))
            tell_once(f"not kept in the {graph.kind} graph: {names}: {error}")
        else:
            return output
    # An error of Inductor's own comes up again here, as it would without us.
    return graph.compile(None, None)


class _GraphCompiler:
    """Stands where Inductor compiles one graph."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
    ) -> Any:
        session, options = self._session, self._session.options
        graph = GraphCompile(gm, example_inputs, kwargs, session.inductor_options, options.rules)
        report = GraphReport(graph.kind, options.mode, store=str(options.store))
        add_report(report)
        if not any(node.op == "call_function" for node in gm.graph.nodes):
            report.fallback = "the graph computes nothing"
            return graph.compile(None, None)
        compiling = GraphWay(session, graph, report)
        try:
            return compiling.run()
        except Exception as error:  # noqa: BLE001 - a user's program never fails because of us
            cause = str(error) or type(error).__name__
            report.fallback = cause
            report.source = "inductor"
            report.chosen = report.default
            warn_once(cause)
            if compiling.default_output is not None:
                return compiling.default_output
            return _step_back(graph, report)
        finally:
            if session.rule_watch is not None:
                session.rule_watch.saw(graph.kind, gm, report.rules)
                if graph.kind == "backward":
                    # It may come long after the program was compiled.
                    session.rule_watch.tell()
