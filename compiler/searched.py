"""What an offline search is told, and what it gives back for each graph. Only data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fusewise.compiler.reports import GraphReport
from fusewise.compiler.trying import Foreseen
from fusewise.schedule.plan_file import PlannedGraph
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Candidate
from fusewise.search.objective import Objective


@dataclass(frozen=True)
class Effort:
    """How long and where to search."""

    store: Path
    #: Name or path of the cost model; None for the newest one that fits the device.
    model: str | None = None
    #: Trials of each graph, earlier sittings included.
    trials: int = 20
    #: Candidates to measure in each trial, and in the last contest.
    top_k: int = 4
    #: Seconds for all graphs together.
    budget_s: float = 600.0
    #: Under which the studies are kept beside the store, to go on with later; None keeps nothing.
    name: str | None = None
    seed: int = 0
    #: Rules of the user's, which hold in every candidate.
    rules: RuleSet | None = None
    #: What is made small.
    objective: Objective = "time"


@dataclass(frozen=True)
class FrontPoint:
    """One of the best trades of time against memory."""

    candidate: Candidate
    planned: PlannedGraph


@dataclass(frozen=True)
class SearchedGraph:
    """What was found for one graph."""

    #: Its candidates are those of the last contest, Inductor's own first.
    report: GraphReport
    #: The graph as a plan file has it.
    planned: PlannedGraph
    #: Trials in all, those of earlier sittings included, and those that failed.
    trials: int
    failed: int
    #: Of these, the ones that were given up on by prediction.
    pruned: int
    #: Candidates that were timed in this sitting, Inductor's own left out.
    measured: int
    #: What was predicted for each candidate before it was measured.
    foreseen: tuple[Foreseen, ...] = ()
    #: For the objective ``pareto`` the candidates that none beats in both time and peak memory, the
    #: fastest first, each as a plan file has it; else empty.
    front: tuple[FrontPoint, ...] = ()
