"""What mode predict would take of a graph that is measured, and when a contest leaves it at that.

Rests on the choice by prediction alone; nothing is generated or timed here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import msgspec

from fusewise.compiler.predicting import choose_predicted
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor, Survey, default_candidate
from fusewise.schedule.schedule import Candidate


class Foreseen:
    """What would be taken of a graph without a contest."""

    def __init__(
        self, report: GraphReport, surveys: Sequence[Survey], predictor: Predictor
    ) -> None:
        """``report``: of the graph; for the others see :func:`choose_predicted`."""
        self._report = report
        self._surveys = surveys
        self._predictor = predictor
        # Kernels that are tuned when they run are so whatever a contest takes.
        savings = {} if predictor.tunes else predictor.savings
        told, share = self._predicted(surveys, replace(predictor, tunes=False, savings=savings))
        #: Part of the graph's time that it is to save.
        self.share = share
        #: What would be taken, without the block sizes of kernels that are tuned when they run.
        self.chosen = _chosen(told)

    @cached_property
    def contested(self) -> bool:
        """Whether it is another lowering or plan, which may be slower than the prediction says.

        Mode measure takes none of these that was not timed. How single kernels are generated and
        launched is no such choice: that changes no work, or is timed where the kernels run.
        """
        return not self.chosen.schedule.same_but_kernels(default_candidate(self._surveys).schedule)

    @cached_property
    def sure(self) -> bool:
        """Whether it makes nothing slower, so that no contest has to be held for it."""
        return not self.contested and not self.share

    def take(self, seen: Collection[Candidate]) -> None:
        """Take what no contest is due for where the report says that the default is chosen.

        Args:
            seen: what was timed, or cannot be.
        """
        report = self._report
        default = report.default
        assert report.chosen is not None and default is not None
        if report.chosen.schedule != default.schedule:
            return
        if self.chosen.schedule in [candidate.schedule for candidate in seen]:
            return
        own = replace(self._surveys[0], candidates=(default_candidate(self._surveys),))
        told, _ = self._predicted([own], self._predictor)
        if _chosen(told).schedule == default.schedule:
            return
        before = {c.schedule: c for c in report.candidates}
        found = {c.schedule: c for c in told.candidates}
        # What was timed is told as it was timed.
        kept = [
            msgspec.structs.replace(before.get(c.schedule, c), accepted=c.accepted)
            for c in found.values()
        ]
        report.candidates = [*kept, *(c for c in before.values() if c.schedule not in found)]
        report.chosen = next(candidate for candidate in report.candidates if candidate.accepted)
        report.instead, report.source = told.instead, told.source

    def _predicted(
        self, surveys: Sequence[Survey], predictor: Predictor
    ) -> tuple[GraphReport, float]:
        told = GraphReport(self._report.kind, self._report.mode)
        return told, choose_predicted(told, surveys, predictor)


def _chosen(report: GraphReport) -> Candidate:
    assert report.chosen is not None
    return report.chosen
