"""What came of a possible fusion, in the one word that terminal, JSON and page have for it.

Every pair has one outcome, so that counts of them add up to all pairs.
"""

from __future__ import annotations

from enum import StrEnum

from fusewise.compiler.inductor.refusals import Refusal


class Outcome(StrEnum):
    """What came of a pair; of several that would do, the first holds."""

    #: Inductor fused it.
    TAKEN = "taken"
    #: A rule of the user's forbids it, whatever Inductor thinks of it.
    RULE = "rule"
    #: Inductor says that it is illegal, also where other fusions brought both sides together.
    REFUSED = "refused"
    #: Legal, and the schedule that is explained has the sides in one kernel by other fusions.
    TOGETHER = "together"
    #: Legal, apart, and would gain by prediction.
    MISSED = "missed"
    #: Legal, apart, and would gain nothing.
    APART = "apart"


def outcome_of(
    *, taken: bool, legal: bool, reason: str, together: bool, predicted_gain_us: float
) -> Outcome:
    """What came of a pair.

    Args:
        taken: whether Inductor fused it and no rule forbids that.
        legal: whether Inductor says that it may be.
        reason: code of the ground on which it was not taken.
        together: whether the schedule that is explained has both sides in one kernel.
        predicted_gain_us: microseconds that fusing it alone would gain.
    """
    if taken:
        return Outcome.TAKEN
    if reason == Refusal.RULE:
        return Outcome.RULE
    if not legal:
        return Outcome.REFUSED
    if together:
        return Outcome.TOGETHER
    return Outcome.MISSED if predicted_gain_us > 0 else Outcome.APART
