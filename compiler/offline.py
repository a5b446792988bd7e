"""Offline search: each graph of a program, under many choices, by measured trials.

Where the pipeline takes one look at a graph within a user's compile, this goes through lowering and
codegen choices for as long as it is given, and ends with one contest of the best of all trials.
Applies nothing: what it finds goes into the store and into a plan file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.interrupts import Interrupts
from fusewise.compiler.options import Options
from fusewise.compiler.plan_files import new_plan_file
from fusewise.compiler.searched import Effort, SearchedGraph
from fusewise.compiler.session import Session
from fusewise.compiler.trials import GraphSearch
from fusewise.compiler.visiting import size_of, visit_graphs
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.plan_file import PlanFile


@dataclass(frozen=True)
class Standing:
    """How far a search has come, for who waits for it."""

    #: Graph in hand, from 1, and how many there are.
    graph: int
    graphs: int
    kind: str
    #: What is done next, in words.
    doing: str
    #: Trials that are done, and wanted, of this graph.
    done: int
    trials: int
    measured: int
    #: Microseconds of Inductor's own schedule and of the best so far; None until measured.
    default_us: float | None
    best_us: float | None
    #: What had been predicted for the best; None where it was not.
    predicted_us: float | None
    #: Most bytes that Inductor's own and the best need at one time; None where that is not asked.
    default_bytes: int | None
    best_bytes: int | None
    #: Seconds that are left for all graphs.
    left_s: float


@dataclass(frozen=True)
class SearchedProgram:
    """What was found for all graphs of a program."""

    program: str
    graphs: tuple[SearchedGraph, ...]
    #: Whether the user ended it before its time.
    interrupted: bool

    def plan_file(self) -> PlanFile:
        """The schedules to replay the program by."""
        return new_plan_file(self.program, [graph.planned for graph in self.graphs])

    def front(self) -> list[PlanFile]:
        """Other plan files, the first with the fastest of each graph, the last with the leanest.

        Empty but for the objective ``pareto``. Where a graph has fewer trades of time against
        memory than another, its leanest stands in the later files.
        """
        most = max((len(graph.front) for graph in self.graphs), default=0)
        return [
            new_plan_file(
                self.program,
                [
                    graph.front[min(at, len(graph.front) - 1)].planned
                    if graph.front
                    else graph.planned
                    for graph in self.graphs
                ],
            )
            for at in range(most)
        ]


def search_program(
    sample: GraphSample, effort: Effort, watch: Callable[[Standing], None] = lambda _: None
) -> SearchedProgram:
    """Search every graph of a program, forward, backward or inference, and remember the outcome.

    A training sample is compiled with its backward, any other without gradients. An interrupt
    (Ctrl-C) ends the search with the best that was found until then.

    Args:
        sample: the program.
        effort: its limits, and the store.
        watch: told after each trial how far it has come.

    Raises:
        CorpusError: the program does not run.
        OptionError: the study of that name is about other choices.
        StoreError, ModelError, UnsupportedError: the store, model or device cannot be used.
    """
    session = Session(
        options=Options(
            top_k=effort.top_k, store=effort.store, model=effort.model, rules=effort.rules
        ),
        inductor_options={},
        observed=(),
    )
    sizes: list[int] = []

    def count(graph: GraphCompile) -> Any:
        sizes.append(size_of(graph))
        return graph.compile(None, None)

    # How many graphs share the budget is only known once all were compiled.
    visit_graphs(sample, session, count)
    with Interrupts() as interrupts:
        search = _ProgramSearch(sample, session, effort, watch, sizes, interrupts)
        try:
            visit_graphs(sample, session, search.graph)
        except KeyboardInterrupt:
            search.interrupted = True
    session.store.close()
    session.store.ingest()
    return SearchedProgram(sample.name, tuple(search.found.values()), search.interrupted)


class _ProgramSearch:
    """The graphs of one program, one after the other."""

    def __init__(
        self,
        sample: GraphSample,
        session: Session,
        effort: Effort,
        watch: Callable[[Standing], None],
        sizes: Sequence[int],
        interrupts: Interrupts,
    ) -> None:
        self._interrupts = interrupts
        self._sample = sample
        self._session = session
        self._effort = effort
        self._watch = watch
        self._waiting = list(sizes)
        self._count = len(sizes)
        self._seen = 0
        self._end = time.monotonic() + effort.budget_s
        #: By key: a graph that occurs twice is searched once.
        self.found: dict[str, SearchedGraph] = {}
        self.interrupted = False

    def graph(self, graph: GraphCompile) -> Any:
        """Search one graph; gives it compiled by Inductor."""
        self._seen += 1
        size = size_of(graph)
        share = size / max(size, sum(self._waiting))
        self._waiting = self._waiting[1:]
        seconds = max(0.0, self._end - time.monotonic()) * share
        search = GraphSearch(self._session, graph, self._sample, self._effort, seconds)
        if search.key.key in self.found:
            return graph.compile(None, None)
        try:
            output = self._search(search, graph.kind, seconds)
        except KeyboardInterrupt:
            # It came before there was anything to keep; the graph is not left out for that.
            self.interrupted = True
            search = GraphSearch(self._session, graph, self._sample, self._effort, seconds)
            output = self._search(search, graph.kind, seconds)
        self.interrupted = self.interrupted or search.interrupted
        self.found[search.key.key] = search.result()
        return output

    def _search(self, search: GraphSearch, kind: str, seconds: float) -> Any:
        effort = self._effort

        def told(doing: str) -> None:
            if self._interrupts.came and not (search.interrupted or self.interrupted):
                # It was raised where nobody could take it.
                raise KeyboardInterrupt
            own, best = search.own, search.best
            self._watch(
                Standing(
                    graph=self._seen,
                    graphs=max(self._count, self._seen),
                    kind=kind,
                    doing=doing,
                    done=len(search.trials),
                    trials=effort.trials,
                    measured=search.measured,
                    default_us=own.measured_us if own is not None else None,
                    best_us=best.measured_us if best is not None else None,
                    predicted_us=best.predicted_us if best is not None else None,
                    default_bytes=own.peak_bytes if own is not None else None,
                    best_bytes=best.peak_bytes if best is not None else None,
                    left_s=max(0.0, self._end - time.monotonic()),
                )
            )

        if self.interrupted:
            return search.run(told, reason="the search was ended", hurried=True)
        if effort.budget_s == 0:
            return search.run(told, reason="the budget is 0")
        return search.run(told, reason=None if seconds else "the time was up", hurried=not seconds)
