"""The plot of an ablation: how long each stage takes, kernels and memory beside it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fusewise.schedule.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from fusewise.compiler.ablating.result import Ablation

#: Forms in which a plot can be written, by the file's suffix.
_SUFFIXES = (".png", ".svg")
_KINDS = {"inference": "#4c72b0", "forward": "#4c72b0", "backward": "#dd8452"}


def check_plot(path: Path) -> None:
    """Refuse a plot that could not be written.

    Raises:
        OptionError: the suffix or the folder is wrong.
        UnsupportedError: matplotlib is not installed.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise OptionError(
            f"{path.name!r} ends in none of {', '.join(_SUFFIXES)}",
            subject="option --plot",
            remedy="give a .png or .svg file",
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(
            f"there is no folder {str(path.parent)!r}",
            subject="option --plot",
            remedy="make it, or name another one",
        )
    if find_spec("matplotlib") is None:
        raise UnsupportedError(
            "matplotlib is not installed",
            subject="option --plot",
            remedy="pip install 'fusewise[report]'",
        )


def draw(found: Ablation, path: Path) -> None:
    """Draw the stages that were measured, the graphs of a program stacked.

    Raises:
        OptionError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    stages = [stage for stage in found.stages if stage.us is not None][::-1]
    names = [stage.name for stage in stages]
    figure = Figure(figsize=(11, 1.2 + 0.42 * len(stages)), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(3, 1, 1))
    left = [0.0] * len(stages)
    shown: set[str] = set()
    for graph in found.graphs:
        us = {s.name: s.us for s in graph.stages}
        own = us["everything"] or 0.0
        # A stage that does not apply to a graph leaves it as it is.
        widths = [own if (value := us.get(name)) is None else value for name in names]
        label = graph.kind if graph.kind not in shown else None
        shown.add(graph.kind)
        axes[0].barh(
            names, widths, left=left, label=label, color=_KINDS[graph.kind], edgecolor="white"
        )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, (stage, end) in enumerate(zip(stages, left, strict=True)):
        if stage.ratio is not None:
            axes[0].text(end, y, f" {stage.ratio:.2f}×", va="center", fontsize=8)
    everything = next(s.us for s in stages if s.name == "everything")
    axes[0].axvline(everything, color="black", linewidth=0.8, linestyle=":")
    axes[0].set_xlabel("µs")
    axes[0].margins(x=0.12)
    if len(shown) > 1:
        axes[0].legend(loc="best")
    axes[1].barh(names, [stage.kernels or 0 for stage in stages], color="#8c8c8c")
    axes[1].set_xlabel("kernels")
    mebibytes = [(stage.peak_bytes or 0) / 2**20 for stage in stages]
    axes[2].barh(names, mebibytes, color="#8c8c8c")
    axes[2].set_xlabel("peak, MiB")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    kind = "training" if found.training else "inference"
    figure.suptitle(f"{found.target}: {kind} on {found.device}", fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise OptionError(
            f"it cannot be written: {error.strerror}",
            subject=f"plot {path}",
            remedy="name another file",
        ) from error
