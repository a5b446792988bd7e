"""The pictures of the report, each as a PNG.

Draws numbers that others have worked out. Needs matplotlib, of the extra ``report``, which is
imported when the first is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.training.curve import CurvePoint
from fusewise.training.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODEL: Final = "#1f5fa8"
_OTHER: Final = "#c9803a"
_LINE: Final = "#777777"
_DPI: Final = 110
_MOST_BARS: Final = 30


def parity(measured: FloatArray, predicted: FloatArray, roofline: FloatArray) -> bytes:
    """Predicted against measured times [n] in microseconds, model and roofline."""
    figure, axes = _figure(6.0, 5.5)
    axes.scatter(measured, roofline, s=4, color=_OTHER, alpha=0.35, label="roofline", linewidths=0)
    axes.scatter(measured, predicted, s=4, color=_MODEL, alpha=0.5, label="model", linewidths=0)
    ends = np.array([measured.min(), measured.max()])
    axes.plot(ends, ends, color=_LINE, linewidth=1)
    for factor in (0.5, 2.0):
        axes.plot(ends, ends * factor, color=_LINE, linewidth=0.6, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="measured, µs", ylabel="predicted, µs")
    axes.legend(markerscale=3)
    return _png(figure)


def errors(model: Mapping[str, Scores], roofline: Mapping[str, Scores]) -> bytes:
    """Mean absolute percentage error of each stratum: of its kernels of 5 us and more, if any."""
    names = [name for name, scores in model.items() if _error(scores) is not None]
    names = sorted(names, key=lambda name: -model[name].n_kernels)[:_MOST_BARS]
    names = [name for name in model if name in names][::-1]
    figure, axes = _figure(7.0, 0.9 + 0.33 * max(len(names), 1))
    places = np.arange(len(names))
    for shift, color, label, found in (
        (0.2, _MODEL, "model", model),
        (-0.2, _OTHER, "roofline", roofline),
    ):
        values = [100.0 * (_error(found.get(name, Scores())) or 0.0) for name in names]
        axes.barh(places + shift, values, height=0.38, color=color, label=label)
    axes.set_yticks(places, [f"{name} ({model[name].n_kernels})" for name in names])
    axes.set_xlabel("mean absolute percentage error")
    axes.legend()
    return _png(figure)


def calibration(halves: FloatArray, sizes: Mapping[str, Scores]) -> bytes:
    """Whether intervals hold what they say.

    Args:
        halves: [n], log error of each kernel in half widths of its interval.
        sizes: scores by size.
    """
    figure = _canvas(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    widths = np.linspace(0.0, 2.0, 81)
    left.plot(widths, [float((halves <= width).mean()) for width in widths], color=_MODEL)
    left.plot([1.0], [0.9], "o", color=_OTHER, label="what the interval says")
    left.set(xlabel="half widths of the 90 % interval", ylabel="part of the kernels within")
    left.legend(loc="lower right")
    known = [(name, one) for name, one in sizes.items() if one.coverage90 is not None]
    places = np.arange(len(known))
    right.axhspan(0.87, 0.93, color=_OTHER, alpha=0.25)
    right.bar(places, [one.coverage90 or 0.0 for _, one in known], color=_MODEL)
    right.set_xticks(places, [name for name, _ in known], rotation=30, ha="right")
    right.set(ylabel="part inside the interval", ylim=(0.0, 1.0))
    return _png(figure)


def learning(curve: Sequence[CurvePoint]) -> bytes:
    """Error against number of kernels."""
    figure, axes = _figure(6.5, 4.0)
    for label, color, points in (
        ("from scratch", _OTHER, [(one.kernels, one.scratch) for one in curve]),
        ("adapted", _MODEL, [(one.kernels, one.adapted) for one in curve if one.adapted]),
    ):
        told = [(n, 100.0 * s.mape_5us) for n, s in points if s and s.mape_5us is not None]
        if told:
            axes.plot(*zip(*told, strict=True), "o-", color=color, label=label)
    axes.set_xscale("symlog", linthresh=100)
    axes.set(xlabel="kernels to train on", ylabel="MAPE of kernels ≥ 5 µs, %")
    axes.set_ylim(bottom=0.0)
    axes.legend()
    return _png(figure)


def importance(gains: Sequence[tuple[str, float]]) -> bytes:
    """Features by the part of the gain of all splits, the largest first."""
    shown = list(gains)[::-1]
    figure, axes = _figure(7.0, 0.8 + 0.26 * max(len(shown), 1))
    places = np.arange(len(shown))
    axes.barh(places, [100.0 * part for _, part in shown], color=_MODEL)
    axes.set_yticks(places, [name for name, _ in shown])
    axes.set_xlabel("% of the gain")
    return _png(figure)


def _error(scores: Scores) -> float | None:
    return scores.mape_small if scores.mape_5us is None else scores.mape_5us


def _canvas(width: float, height: float) -> Figure:
    """A figure that knows how to become pixels, without the windows of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _canvas(width, height)
    return figure, figure.subplots()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.tight_layout()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
