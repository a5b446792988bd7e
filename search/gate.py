"""Acceptance: which measured candidate, if any, may take the place of the default.

A candidate has to be as good numerically and faster beyond the noise. Everything rests on one
interleaved measurement; nothing is measured here.

The statistics: times are paired by round and divided by the default's, since drift hits both
alike. The median of these ratios has an interval by order statistics, which assumes only that
rounds are independent (see :func:`fusewise.search.samples.median_interval`). A candidate is faster
if the upper end is below 1 - margin. With several candidates the fastest of them by chance would
pass too often, so the level is divided by their number (Bonferroni): the chance that any candidate
passes that is no better than the margin is at most half of 1 - confidence. Slow programs leave time
for a few rounds only; then what is less than half of the default's time in every round passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate
from fusewise.search.interleave import plainly_faster, ratios
from fusewise.search.samples import Summary, summary

#: By how much, relative, a candidate has to be faster.
MARGIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the gate says of one candidate."""

    accepted: bool
    #: In words, with the figures it rests on.
    reason: str
    #: Median of its time over the default's, with the interval it was judged by; None where it
    #: was not measured.
    ratio: Summary | None
    #: Whether it ran and is as good numerically, however fast it is.
    sound: bool


@dataclass(frozen=True, slots=True)
class GateResult:
    """The rulings, the default's first, and which candidate to use."""

    #: Index of the fastest accepted candidate; 0, the default, where none is.
    chosen: int
    rulings: tuple[Ruling, ...]

    def mark(
        self, candidates: Sequence[Candidate], times_us: Sequence[Sequence[float]]
    ) -> tuple[Candidate, ...]:
        """``candidates`` with what was measured and ruled written into them."""
        marked = []
        for i, candidate in enumerate(candidates):
            ruling = self.rulings[i]
            if not times_us[i]:
                marked.append(msgspec.structs.replace(candidate, reason=ruling.reason))
                continue
            timing = summary(times_us[i])
            marked.append(
                msgspec.structs.replace(
                    candidate,
                    measured_us=timing.median,
                    spread=timing.spread,
                    rounds=timing.count,
                    status="measured",
                    accepted=ruling.accepted,
                    reason=ruling.reason,
                )
            )
        return tuple(marked)


def judge(
    times: Sequence[Sequence[float]],
    errors: Sequence[Sequence[float]],
    *,
    resolutions: Sequence[float],
    margin: float = MARGIN,
    confidence: float = 0.95,
) -> GateResult:
    """Judge candidates against the default, which is entry 0.

    Args:
        times: for each candidate its time in each round of one interleaved run, round 0 first;
            empty for one that could not be measured.
        errors: for each candidate the relative error of each output against a high-precision
            reference; empty where it could not be run.
        resolutions: relative spacing of each output's dtype (2**-8 for bfloat16): what an error
            may grow by for no reason but rounding.
        margin: by how much, relative, a candidate has to be faster.
        confidence: see the module's text.

    Raises:
        MeasureError: the default was not measured, or times and errors do not match.
    """
    if len(times) != len(errors) or not times or not times[0]:
        raise MeasureError(
            f"{len(times)} candidates with times and {len(errors)} with errors, "
            f"the default with {len(times[0]) if times else 0} rounds",
            subject="acceptance",
            remedy="measure the default in the same interleaved run, as the first",
        )
    allowed = _allowed(errors[0], resolutions)
    sound = [i for i in range(1, len(times)) if times[i] and _excess(errors[i], allowed) is None]
    level = 1 - (1 - confidence) / max(1, len(sound))
    rulings = [
        Ruling(True, "the compiler's own schedule", summary([1.0] * len(times[0])), True),
        *(
            _rule(taken, times[0], own, allowed=allowed, margin=margin, level=level)
            for taken, own in zip(times[1:], errors[1:], strict=True)
        ),
    ]
    accepted = [
        (ruling.ratio.median, i)
        for i, ruling in enumerate(rulings)
        if i and ruling.accepted and ruling.ratio is not None
    ]
    return GateResult(min(accepted)[1] if accepted else 0, tuple(rulings))


def as_good(errors: Sequence[Sequence[float]], resolutions: Sequence[float]) -> list[bool]:
    """For each candidate whether its errors are no more than what those of entry 0 allow.

    What is not cannot be accepted, however fast it is. See :func:`judge` for the arguments.
    """
    allowed = _allowed(errors[0], resolutions)
    return [True, *(_excess(own, allowed) is None for own in errors[1:])]


def outputs_off(
    own: Sequence[float], default: Sequence[float], resolutions: Sequence[float]
) -> list[int]:
    """Outputs whose errors are more than what the default's allow; see :func:`judge`."""
    allowed = _allowed(default, resolutions)
    return [
        output
        for output, (error, most) in enumerate(zip(own, allowed, strict=True))
        if math.isfinite(most) and not error <= most
    ]


def _allowed(default: Sequence[float], resolutions: Sequence[float]) -> list[float]:
    return [2 * error + grain for error, grain in zip(default, resolutions, strict=True)]


def _rule(
    times: Sequence[float],
    default: Sequence[float],
    errors: Sequence[float],
    *,
    allowed: Sequence[float],
    margin: float,
    level: float,
) -> Ruling:
    if not times:
        return Ruling(False, "was not measured", None, False)
    by_round = ratios(times, default)
    ratio = summary(by_round, confidence=level)
    excess = _excess(errors, allowed)
    if excess is not None:
        return Ruling(False, excess, ratio, False)
    figures = f"{ratio.median:.3f} of the default's time in {ratio.count} rounds"
    if not math.isfinite(ratio.high):
        if plainly_faster(by_round):
            return Ruling(True, f"{figures}, {max(by_round):.3f} in the slowest", ratio, True)
        return Ruling(False, f"{figures}, too few to tell from noise", ratio, True)
    interval = f"{level:.1%} interval {ratio.low:.3f} to {ratio.high:.3f}"
    if ratio.high < 1 - margin:
        return Ruling(True, f"{figures}, {interval}", ratio, True)
    if ratio.median >= 1:
        return Ruling(False, f"not faster: {figures}, {interval}", ratio, True)
    text = f"not faster by {margin:.0%} beyond noise: {figures}, {interval}"
    return Ruling(False, text, ratio, True)


def _excess(errors: Sequence[float], allowed: Sequence[float]) -> str | None:
    """Why the errors are more than what the default's allow; None where they are not."""
    if len(errors) != len(allowed):
        return f"{len(errors)} outputs were compared, the default has {len(allowed)}"
    for output, (error, most) in enumerate(zip(errors, allowed, strict=True)):
        if not math.isfinite(most):
            # Where the default overflows and the reference does not, so may the candidate.
            continue
        # Written so that an error that is no number is refused.
        if not error <= most:
            return (
                f"error {error:.2e} of output {output} is above {most:.2e}, what the default allows"
            )
    return None
