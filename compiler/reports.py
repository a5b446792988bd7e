"""What happened to each graph that was compiled in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from fusewise.schedule.schedule import Candidate


@dataclass(frozen=True)
class RuleReport:
    """What one rule was about in one graph."""

    #: Its place, from 1, and what it says.
    rule: str
    #: Nodes that compute something it selects; operations, for rules about the lowering.
    nodes: int
    #: Pairs of nodes that share data and that it speaks of.
    pairs: int
    #: Whether it selects anything; a rule about pairs on both sides.
    matched: bool


@dataclass(frozen=True)
class RulesReport:
    """What came of a user's rules in one graph."""

    rules: tuple[RuleReport, ...] = ()
    #: Rules that do not have their way because of others, each in words.
    conflicts: tuple[str, ...] = ()
    #: What could not be done, each beginning with the rule, with the ground.
    unkept: tuple[str, ...] = ()

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Rules that matched nothing."""
        return tuple(rule.rule for rule in self.rules if not rule.matched)


@dataclass
class GraphReport:
    """One compiled graph."""

    #: ``forward``, ``backward`` or ``inference``; ``program`` where it did not come that far.
    kind: str
    mode: str
    device: str = ""
    #: Key of the graph; "" where it was not got so far.
    key: str = ""
    nodes: int = 0
    #: Everything that was considered for measuring, Inductor's own first.
    candidates: list[Candidate] = field(default_factory=list)
    chosen: Candidate | None = None
    #: What is compiled if what was chosen does not compile; None for Inductor's own.
    instead: Candidate | None = None
    #: Where the choice came from: ``measured``, ``predicted``, ``store``, ``plan file`` or
    #: ``inductor`` where fusewise stepped back.
    source: str = "inductor"
    #: Cost model that predicted.
    model: str = ""
    #: Seconds by phase.
    seconds: dict[str, float] = field(default_factory=dict)
    #: Why fusewise stepped back, or measured nothing; None where it did not.
    fallback: str | None = None
    #: Choices that the graph cannot be lowered under, each with the ground.
    left_out: list[str] = field(default_factory=list)
    #: What was not tried since it could not pay, or for lack of time, in words.
    untried: list[str] = field(default_factory=list)
    #: What deciding cost beside Inductor's own work, in words; "" where nothing was decided.
    cost: str = ""
    #: Parts of the key that differ from the plan's, where a plan did not fit.
    mismatch: tuple[str, ...] = ()
    store: str = ""
    #: What came of the user's rules; None where there are none or it did not come that far.
    rules: RulesReport | None = None

    @property
    def default(self) -> Candidate | None:
        """Inductor's own schedule; under rules that change it, what they make of it."""
        return next((c for c in self.candidates if c.baseline), None)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``seconds[name]``."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start


_reports: list[GraphReport] = []
_lock = threading.Lock()


def add_report(report: GraphReport) -> None:
    """Keep a report for :func:`reports`."""
    with _lock:
        _reports.append(report)


def reports() -> list[GraphReport]:
    """One report for each graph compiled in this process, oldest first."""
    with _lock:
        return list(_reports)


def clear_reports() -> None:
    """Forget all reports."""
    with _lock:
        _reports.clear()
