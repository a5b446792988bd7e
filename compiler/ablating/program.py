"""The ablation of a program: each of its graphs under every stage, timed against Inductor as it is.

Applies nothing and stores nothing; what it finds is handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fusewise
from fusewise.compiler.ablating.capture import Capture
from fusewise.compiler.ablating.contest import GraphContest
from fusewise.compiler.ablating.result import Ablation, GraphAblation, whole_program
from fusewise.compiler.ablating.worker import StageProcess
from fusewise.compiler.contest import has_collectives
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.settings import inductor_settings
from fusewise.compiler.inductor.stages import STAGE, settings_of
from fusewise.compiler.options import Options
from fusewise.compiler.session import Session, device_of, many_ranks
from fusewise.compiler.visiting import size_of, visit_graphs
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.store import default_store_path
from fusewise.datasets.target import trains
from fusewise.schedule.errors import FusewiseError, OptionError, UnsupportedError

#: Stages beside those of Inductor: the default a second time, fusewise's choice, no compiler.
OTHERS = ("default", "learned", "uncompiled")
#: Every stage, in the order in which they are told.
STAGE_NAMES = (*STAGE, *OTHERS)


@dataclass(frozen=True)
class Effort:
    """How well to measure, and what fusewise's own choice is made with."""

    store: Path = field(default_factory=default_store_path)
    #: Name or path of the cost model; None for the newest one that fits the device.
    model: str | None = None
    #: Seconds of timing for each graph, all stages together.
    seconds: float = 10.0
    #: Candidates of fusewise's own that are timed along.
    top_k: int = 4
    #: Seconds for searching them in each graph.
    search_s: float = 15.0
    #: A mode of ``torch.compile`` such as ``max-autotune-no-cudagraphs``; None for the default.
    mode: str | None = None
    #: Stages to measure; ``everything`` always is.
    stages: Sequence[str] = STAGE_NAMES


def ablate(
    function: Callable[..., Any], *args: Any, effort: Effort | None = None, **kwargs: Any
) -> Ablation:
    """Measure what each stage of the compiler is worth to a call of ``function``.

    Args:
        function: a module or callable, uncompiled. A module in training mode is compiled with its
            backward, anything else without gradients.
        args: what it is called on; stays as it is but for what the program itself overwrites.
        effort: how well to measure, and which stages; None for all, 10 s a graph.
        kwargs: as ``args``.

    Raises:
        FusewiseError: as :func:`ablate_program` says.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    sample = GraphSample(
        name=name,
        family=f"call/{name}",
        module=function,
        args=args,
        kwargs=kwargs,
        training=trains(function),
    )
    return ablate_program(sample, effort or Effort())


def ablate_program(
    sample: GraphSample, effort: Effort, watch: Callable[[str], None] = lambda _: None
) -> Ablation:
    """Measure what each stage of the compiler is worth to a program.

    A training sample is compiled with its backward, any other without gradients. All stages of a
    graph are timed in one interleaved run, on a GPU by replaying CUDA graphs.

    Args:
        sample: the program.
        effort: how well to measure, and which stages.
        watch: told what is being done, for who waits for it.

    Raises:
        CorpusError: the program does not run, or computes nothing.
        OptionError: there is no stage or mode of that name.
        MeasureError: a graph's inputs cannot be made, or the measuring process does not answer.
        UnsupportedError: it runs on several devices or in several processes.
        StoreError, ModelError: the store or model cannot be used.
    """
    for name in effort.stages:
        if name not in STAGE_NAMES:
            raise OptionError(
                f"there is no stage {name!r}",
                subject="ablation",
                remedy=f"use {', '.join(STAGE_NAMES)}",
            )
    if many_ranks():
        raise UnsupportedError(
            "several processes would each time their part",
            subject="ablation",
            remedy="ablate in one process",
        )
    runner = _Runner(sample, effort, watch)
    try:
        graphs = runner.run()
    finally:
        runner.close()
    if not graphs:
        raise UnsupportedError(
            "no graph of it computes anything",
            subject=sample.name,
            remedy="name a program that torch.compile captures something of",
        )
    return Ablation(
        target=sample.name,
        training=sample.training,
        device=graphs[0].device,
        stages=whole_program(graphs),
        graphs=graphs,
        torch=str(torch.__version__),
        fusewise=fusewise.__version__,
    )


class _Runner:
    """Goes through a program twice: captured without rewrites, then as it is."""

    def __init__(self, sample: GraphSample, effort: Effort, watch: Callable[[str], None]) -> None:
        self._sample = sample
        self._effort = effort
        self._watch = watch
        self._options = inductor_settings(effort.mode, {})
        #: By device.
        self._processes: dict[str, StageProcess] = {}
        #: Captures without rewrites by kind, in their order; or why there are none.
        self._rewritten: dict[str, list[Capture]] = {}
        self._why = ""
        self._sessions: list[Session] = []
        self._graphs: list[GraphAblation] = []

    def run(self) -> tuple[GraphAblation, ...]:
        """All graphs, in the order in which they are compiled."""
        if "no_rewrites" in self._effort.stages:
            self._watch("capturing without rewrites")
            stage = STAGE["no_rewrites"]
            session = self._session({**self._options, **settings_of(stage)})
            try:
                visit_graphs(self._sample, session, lambda graph: self._capture(graph, session))
            except FusewiseError as error:
                self._why = str(error)
        session = self._session(self._options)
        visit_graphs(self._sample, session, lambda graph: self._graph(graph, session))
        return tuple(self._graphs)

    def close(self) -> None:
        """Let go of the measuring process and the store."""
        for process in self._processes.values():
            process.kill()
        for session in self._sessions:
            session.store.close()

    def _session(self, options: dict[str, Any]) -> Session:
        effort = self._effort
        session = Session(
            options=Options(top_k=effort.top_k, store=effort.store, model=effort.model),
            inductor_options=options,
            observed=(),
        )
        self._sessions.append(session)
        return session

    def _capture(self, graph: GraphCompile, session: Session) -> Any:
        captured = self._rewritten.setdefault(graph.kind, [])
        captured.append(Capture.of(graph, session, f"no_rewrites {graph.kind} {len(captured)}"))
        return graph.compile(None, None)

    def _graph(self, graph: GraphCompile, session: Session) -> Any:
        if has_collectives(graph.gm):
            raise UnsupportedError(
                "it talks to other processes",
                subject=f"{graph.kind} graph",
                remedy="ablate a program of one process",
            )
        count = sum(done.kind == graph.kind for done in self._graphs)
        self._watch(f"{graph.kind} graph {count + 1}, {size_of(graph)} operators")
        device = str(device_of(graph.gm, graph.example_inputs))
        if device not in self._processes:
            self._processes[device] = StageProcess(device)
        captures = self._rewritten.get(graph.kind, [])
        contest = GraphContest(
            graph,
            session,
            self._processes[device],
            stages=self._effort.stages,
            seconds=self._effort.seconds,
            search_s=self._effort.search_s,
            rewritten=captures[count] if count < len(captures) else None,
            why_not_rewritten=self._why or "it has no such graph without rewrites",
        )
        self._graphs.append(contest.run(self._watch))
        return graph.compile(None, None)
