"""How good a cost model is beside the roofline and what the compiler itself goes by.

Every contender is scored on the same kernels and schedules, over all of them and over each family,
size and kernel class. Which samples a model may be judged by is decided by whoever calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.roofline import Roofline
from fusewise.training.contenders import (
    Contender,
    Guess,
    InductorEstimate,
    Model,
    ScoreFusion,
)
from fusewise.training.judged import JudgedGraph, JudgedKernels, JudgedSchedules, rows_by
from fusewise.training.scores import (
    GraphScores,
    Judgement,
    Scores,
    kernel_scores,
    schedule_scores,
)
from fusewise.training.strata import CLASSES, SIZES


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its baselines on the same samples."""

    model: Judgement
    roofline: Judgement
    #: ``inductor_estimate`` and ``score_fusion``.
    baselines: dict[str, Judgement]
    #: Measured schedules that nobody could predict.
    skipped: int


class Judge:
    """Kernels and schedules to judge by; the baselines are scored once."""

    def __init__(
        self,
        kernels: JudgedKernels,
        schedules: JudgedSchedules,
        profile: DeviceProfile,
        extern_us: Mapping[str, float],
    ) -> None:
        """``extern_us``: measured microseconds of extern nodes by signature, for all contenders."""
        self.kernels = kernels
        self.schedules = schedules
        self.profile = profile
        self.extern_us = extern_us

    def evaluate(self, model: CostModel) -> Evaluation:
        """Scores of ``model``, of the roofline and of what Inductor goes by.

        Raises:
            ModelError: the samples' features are not the model's.
        """
        return Evaluation(
            model=self.score(model),
            roofline=self.score(Roofline(self.profile)),
            baselines={
                "inductor_estimate": self.judge(InductorEstimate(self.kernels, self.extern_us)),
                "score_fusion": self.judge(ScoreFusion()),
            },
            skipped=self.schedules.skipped,
        )

    def score(self, model: CostModel) -> Judgement:
        """Scores of one model alone.

        Raises:
            ModelError: the samples' features are not the model's.
        """
        return self.judge(Model(model, self.profile, self.extern_us))

    def judge(self, contender: Contender) -> Judgement:
        """Scores of anybody who guesses.

        Raises:
            ModelError: the samples' features are not those of the contender.
        """
        kernels = contender.kernels(self.kernels) if len(self.kernels) else None
        graphs = [(graph, _graph_scores(contender, graph)) for graph in self.schedules.graphs]
        judged = self.kernels
        overall = schedule_scores(
            self._kernels(kernels, range(len(judged))), [scores for _, scores in graphs]
        )
        return Judgement(
            **{name: getattr(overall, name) for name in Scores.__struct_fields__},
            by_family=self._strata(
                kernels, judged.families, [(graph.family, scores) for graph, scores in graphs]
            ),
            by_size=self._strata(
                kernels, judged.sizes, [(graph.size, scores) for graph, scores in graphs], SIZES
            ),
            by_class=self._strata(kernels, judged.classes, [], tuple(CLASSES)),
        )

    def _kernels(self, guess: Guess | None, rows: Sequence[int]) -> Scores:
        if guess is None or not len(rows):
            return Scores()
        at = np.asarray(rows, dtype=np.intp)
        samples = self.kernels.samples
        return kernel_scores(
            samples.median_us[at],
            guess.us[at],
            samples.graph_key[at],
            low_us=None if guess.low_us is None else guess.low_us[at],
            high_us=None if guess.high_us is None else guess.high_us[at],
            flagged=None if guess.flagged is None else guess.flagged[at],
        )

    def _strata(
        self,
        kernels: Guess | None,
        labels: Sequence[str],
        graphs: Sequence[tuple[str, GraphScores]],
        order: Sequence[str] = (),
    ) -> dict[str, Scores]:
        rows = rows_by(labels)
        names = {*rows, *(label for label, _ in graphs)}
        ordered = [name for name in order if name in names] or sorted(names)
        return {
            name: schedule_scores(
                self._kernels(kernels, rows.get(name, ())),
                [scores for label, scores in graphs if label == name],
            )
            for name in ordered
        }


def _graph_scores(contender: Contender, graph: JudgedGraph) -> GraphScores:
    guess = contender.schedules(graph)
    return GraphScores.of(
        graph.measured,
        guess.us,
        times=contender.times,
        low_us=guess.low_us,
        high_us=guess.high_us,
    )
