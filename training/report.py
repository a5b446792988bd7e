"""The report: one HTML file that needs nothing beside it, with pictures inside.

Needs the extra ``report`` (jinja2 and matplotlib), which is asked for before anything is trained.
Trains and measures nothing.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.trained import TrainedModel
from fusewise.schedule.errors import OptionError
from fusewise.training.block_training import BlockReport
from fusewise.training.contenders import Guess, Model
from fusewise.training.evaluate import Judge
from fusewise.training.fit import Trained
from fusewise.training.kernel_story import KernelStory, NodeStory, nodes_told, sample_of, worst_rows
from fusewise.training.score_table import BLOCK_COLUMNS, block_rows, score_rows, untimed_told
from fusewise.training.scores import Scores

_NEEDED: Final = ("jinja2", "matplotlib")
_FEATURES: Final = 25


def check_extra() -> None:
    """Refuse early what would fail late.

    Raises:
        OptionError: a library that the report needs is not installed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"needs {' and '.join(missing)}",
            subject="--report",
            remedy="pip install 'fusewise[report]'",
        )


def write_report(trained: Trained, sources: Mapping[str, str], path: Path) -> None:
    """Write the report of a training or evaluation to ``path``.

    Args:
        trained: what is told of.
        sources: names of the programs that graphs are of, by graph key.
        path: of the HTML file.

    Raises:
        OptionError: a library is missing, or the file cannot be written.
    """
    check_extra()
    import jinja2

    template = resources.files("fusewise.training").joinpath("report_template.txt")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    html = environment.from_string(template.read_text("utf-8")).render(_told(trained, sources))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"{path} cannot be written: {error.strerror}",
            subject="--report",
            remedy="choose a folder that you may write to",
        ) from error


def _told(trained: Trained, sources: Mapping[str, str]) -> dict[str, Any]:
    from fusewise.training import plots

    report, judge = trained.report, trained.judge
    measured = judge.kernels.samples.median_us
    guess = _guess(judge, trained.judged)
    roofline = _guess(judge, Roofline(judge.profile))
    pictures = {
        "parity": plots.parity(measured, guess.us, roofline.us),
        "calibration": plots.calibration(_halves(measured, guess), report.model.by_size),
    }
    for name in ("by_class", "by_size", "by_family"):
        pictures[name] = plots.errors(getattr(report.model, name), getattr(report.roofline, name))
    if len(report.curve) > 1:
        pictures["learning"] = plots.learning(report.curve)
    gains = importance(trained.judged)
    if gains:
        pictures["importance"] = plots.importance(gains[:_FEATURES])
    contenders: list[Scores] = [report.model, report.roofline, *report.baselines.values()]
    return {
        "report": report,
        "names": ["model", "roofline", *(name.replace("_", " ") for name in report.baselines)],
        "rows": score_rows(contenders),
        "strata": {
            title: [
                (name, [cells for _, cells in score_rows([scores, report_of(name)])])
                for name, scores in found.items()
            ]
            for title, found, report_of in (
                ("family", report.model.by_family, _of(report.roofline.by_family)),
                ("size", report.model.by_size, _of(report.roofline.by_size)),
                ("class", report.model.by_class, _of(report.roofline.by_class)),
            )
        },
        "columns": [title for title, _ in score_rows([report.model])],
        "block_columns": BLOCK_COLUMNS,
        "blocks": _blocks(report.blocks),
        "pictures": {name: base64.b64encode(png).decode() for name, png in pictures.items()},
        "worst": _worst(judge, guess, roofline, sources),
    }


def importance(model: CostModel) -> list[tuple[str, float]]:
    """Features of a trained model by their part of the gain of all splits, the largest first."""
    if not isinstance(model, TrainedModel):
        return []
    import lightgbm

    booster = lightgbm.Booster(model_str=model.trees)
    gains = np.asarray(booster.feature_importance("gain"), dtype=np.float64)
    parts = gains / max(gains.sum(), 1e-30)
    told = sorted(zip(booster.feature_name(), parts.tolist(), strict=True), key=lambda x: -x[1])
    return [(name, part) for name, part in told if part > 0.0]


def _guess(judge: Judge, model: CostModel) -> Guess:
    return Model(model, judge.profile, judge.extern_us).kernels(judge.kernels)


def _halves(measured: FloatArray, guess: Guess) -> FloatArray:
    """Log errors in half widths of the interval: on the side that the time lies on."""
    assert guess.low_us is not None and guess.high_us is not None, "models give intervals"
    error = np.log(measured / guess.us)
    width = np.where(error > 0.0, np.log(guess.high_us / guess.us), np.log(guess.us / guess.low_us))
    halves: FloatArray = np.abs(error) / np.maximum(width, 1e-9)
    return halves


def _worst(
    judge: Judge, guess: Guess, roofline: Guess, sources: Mapping[str, str]
) -> list[KernelStory]:
    judged, samples = judge.kernels, judge.kernels.samples
    assert guess.low_us is not None and guess.high_us is not None and guess.flagged is not None
    stories = []
    for row in worst_rows(judged, guess.us):
        key = str(samples.graph_key[row])
        nodes: tuple[NodeStory, ...] = ()
        more = 0
        if key in judged.problems:
            nodes, more = nodes_told(judged.problems[key], samples.nodes[row])
        stories.append(
            KernelStory(
                family=judged.families[row],
                sample=sample_of(sources, key),
                kernel_class=judged.classes[row],
                measured_us=float(samples.median_us[row]),
                predicted_us=float(guess.us[row]),
                low_us=float(guess.low_us[row]),
                high_us=float(guess.high_us[row]),
                roofline_us=float(roofline.us[row]),
                flagged=bool(guess.flagged[row]),
                nodes=nodes,
                more=more,
            )
        )
    return stories


def _blocks(found: BlockReport | None) -> list[tuple[str, list[list[str]], list[str]]]:
    """Title, rows and what else is told, for kernels that decide a program's time and for all."""
    if found is None:
        return []
    return [
        (title, block_rows(judgement), untimed_told(judgement))
        for title, judgement in (
            ("kernels of 3 µs and more", found.large),
            ("kernels of all sizes", found.all),
        )
        if judgement is not None
    ]


def _of(found: Mapping[str, Scores]) -> Any:
    return lambda name: found.get(name, Scores())
