"""Ahead-of-time packages by a plan: ``torch.export`` and AOTInductor, with fusion decided here.

A plan was found for the graph that ``torch.compile`` gets. The graph of an exported program
computes the same, and yet parts of its key are others: parameters are constants in it and no
inputs, the wrapper is C++, and settings of ahead-of-time compilation are on. So a plan is not
matched by these parts but by the nodes that lowering gives, each by the hash of all that decides
its code, and by versions, device and the settings outside of ahead-of-time compilation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.graph_key import GraphKey, graph_key
from fusewise.compiler.inductor.interceptors import Applier, LiveGraph
from fusewise.compiler.inductor.packaging import compile_and_package
from fusewise.compiler.inductor.renaming import is_signed
from fusewise.compiler.inductor.settings import (
    check_settings,
    outside_settings,
    settings_in_force,
)
from fusewise.compiler.looking import survey_all
from fusewise.compiler.options import Options
from fusewise.compiler.predicting import choose_predicted
from fusewise.compiler.reports import GraphReport, add_report
from fusewise.compiler.session import Session, device_of
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.gains import gains_of
from fusewise.datasets.store import default_store_path
from fusewise.schedule.errors import OptionError, PlanError
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, read_plan_file

#: Parts of a graph's key that say the same of an exported program as of a compiled one.
HOLDING_PARTS = ("versions", "device", "settings", "rules")


def aoti_compile_and_package(
    exported: torch.export.ExportedProgram,
    *,
    plan: str | os.PathLike[str] | PlanFile | None = None,
    package_path: str | os.PathLike[str] | None = None,
    inductor_configs: Mapping[str, Any] | None = None,
    store: str | os.PathLike[str] | None = None,
    model: str | None = None,
) -> str:
    """Compile an exported program into a package, by a plan that was found offline.

    Args:
        exported: what ``torch.export.export`` gave.
        plan: a plan file of the same program, or what was read from one; its schedule is applied
            as it is, or nothing is made. None has fusewise choose as in mode ``predict``.
        package_path: a path that ends in ``.pt2``; None for one beside Inductor's files.
        inductor_configs: Inductor's settings, as for ``torch._inductor.aoti_compile_and_package``;
            the plan has to be searched under the same ones.
        store: for what is known of the device; None for your own.
        model: cost model for ``plan=None``; None for the newest one that fits the device.

    Returns:
        Path of the package; ``torch._inductor.aoti_load_package`` loads it.

    Raises:
        PlanError: the plan is of another program or environment; names what differs first.
        OptionError: the package's path or a setting cannot be.
        ModelError, StoreError: the model or store cannot be used.
        UnsupportedError: the program runs on several devices.
    """
    if package_path is not None and not os.fspath(package_path).endswith(".pt2"):
        raise OptionError(
            f"{os.fspath(package_path)!r} does not end in .pt2",
            subject="package_path",
            remedy="name a .pt2 file",
        )
    configs = dict(inductor_configs or {})
    check_settings(configs)
    path = "plan" if isinstance(plan, PlanFile) or plan is None else f"plan file {plan}"
    file = plan if isinstance(plan, PlanFile) or plan is None else read_plan_file(plan)
    session = Session(
        options=Options(
            mode="predict" if file is None else "replay",
            store=default_store_path() if store is None else Path(store),
            model=model,
        ),
        inductor_options={},
        observed=(),
    )
    compiler = _Compiler(session, file, path, outside_settings(configs))
    # What was planned is the graph to which parameters are inputs.
    return compile_and_package(
        exported, compiler, package_path, configs, parameters_read=file is not None
    )


@dataclass(frozen=True)
class _Misfit:
    """Why a planned graph is not the exported one."""

    #: The smaller, the nearer it came.
    distance: int
    reason: str


class _Compiler:
    """Stands where Inductor compiles the exported graph."""

    def __init__(
        self, session: Session, plan: PlanFile | None, subject: str, settings: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._plan = plan
        self._subject = subject
        #: In force outside of ahead-of-time compilation.
        self._settings = settings

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
    ) -> Any:
        graph = GraphCompile(gm, example_inputs, kwargs)
        device = device_of(gm, example_inputs)
        predictor = self._session.predictor(device)
        key = self._key(graph, predictor)
        report = GraphReport(
            graph.kind,
            self._session.options.mode,
            device=str(device),
            key=key.key,
            model=predictor.model.name,
            store=str(self._session.options.store),
        )
        add_report(report)
        if self._plan is None:
            with report.phase("search"):
                surveys = survey_all(
                    graph,
                    predictor,
                    key=key.key,
                    kind=graph.kind,
                    budget_s=None,
                    gains=gains_of(predictor.model, predictor.profile.kind),
                    only=True,
                )
            report.nodes = len(surveys[0].problem.nodes)
            # Nothing stands in where what was chosen does not compile.
            choose_predicted(report, surveys, predictor, launches=False)
        else:
            with report.phase("search"):
                planned = self._planned(graph, key, self._plan)
            report.source = "plan file"
            report.nodes = len(planned.nodes)
            report.chosen = planned.candidate()
            report.candidates = [report.chosen]
        assert report.chosen is not None
        with report.phase("compile"):
            if report.chosen.origin == "default":
                return graph.compile(None, None)
            schedule = report.chosen.schedule
            return graph.compile(schedule, Applier(schedule.plan))

    def _key(self, graph: GraphCompile, predictor: Predictor) -> GraphKey:
        """The graph's key, its settings being those outside of ahead-of-time compilation."""
        with settings_in_force(self._settings):
            return graph_key(
                graph.gm,
                graph.example_inputs,
                graph.kwargs,
                predictor.profile.key,
                predictor.model.id,
            )

    def _planned(self, graph: GraphCompile, key: GraphKey, plan: PlanFile) -> PlannedGraph:
        misfits = []
        for planned in plan.graphs:
            misfit = _environment(planned, key) or self._nodes(graph, planned)
            if misfit is None:
                return planned
            misfits.append(misfit)
        nearest = min(misfits, key=lambda misfit: misfit.distance, default=None)
        why = "it has no graphs" if nearest is None else nearest.reason
        raise PlanError(
            f"it does not fit the exported program: {why}",
            subject=self._subject,
            remedy="search again for this program, in inference and without gradients, or give "
            "plan=None to have the schedule predicted",
        )

    def _nodes(self, graph: GraphCompile, planned: PlannedGraph) -> _Misfit | None:
        """How the exported graph, lowered as the plan says, differs from the plan's nodes."""
        found: list[_Misfit | None] = []
        schedule = planned.schedule
        graph.survey(
            (*schedule.lowering, *schedule.codegen),
            lambda live: found.append(_differing_node(planned, live)),
        )
        return found[0]


def _environment(planned: PlannedGraph, key: GraphKey) -> _Misfit | None:
    if planned.kind != "inference":
        return _Misfit(3, f"it is for a {planned.kind} graph, and a package is for inference")
    differs = [p for p in key.differs(planned.key_parts) if p in HOLDING_PARTS]
    return _Misfit(2, f"it differs in {', '.join(differs)}") if differs else None


def _differing_node(planned: PlannedGraph, live: LiveGraph) -> _Misfit | None:
    """The first node in which a lowered graph is not the planned one; None where all are equal."""
    before = {node.name: node for node in planned.nodes}
    if not planned.nodes or not all(node.signature for node in planned.nodes):
        return _Misfit(1, "it does not say what its nodes compute")
    problem = extract_problem(live.scheduler, live.nodes, key="", kind="inference")
    for scheduled, node in zip(live.nodes, problem.nodes, strict=True):
        known = before.pop(node.name, None)
        if known is None or not is_signed(scheduled, node, problem, known.signature):
            what = ", ".join(dict.fromkeys(node.origins)) or node.kind
            also = "computes something else in the plan" if known else "is not in the plan"
            return _Misfit(0, f"node {node.name} ({what}) {also}")
    if before:
        first = next(iter(before.values()))
        what = ", ".join(first.operations) or "of unknown operations"
        return _Misfit(0, f"node {first.name} ({what}) of the plan is not in the program")
    return None
