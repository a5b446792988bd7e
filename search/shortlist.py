"""The shortlist: which predicted candidates are worth compiling and timing.

Predictions err alike on plans that are alike, so near-copies of the predicted best tell little.
Nothing is predicted or measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fusewise.schedule.schedule import Candidate

#: Predicted slowdown, relative to the best, that being unlike all chosen so far makes up for.
_DIVERSITY: Final = 0.1
#: Distance of two plans with the same groups, put together in another order. Costs cannot tell
#: them apart and measured times can, so they count as quite unlike.
_ORDER_DISTANCE: Final = 0.3
#: Differing groups, as a share, at which two plans count as entirely unlike.
_UNLIKE: Final = 0.3


def shortlist(
    default: Candidate, candidates: Iterable[Candidate], keep: int
) -> tuple[Candidate, ...]:
    """Up to ``keep`` distinct candidates: the default, the predicted best, then a mixture.

    Further ones are picked by maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998):
    each time the one with the least predicted time plus a penalty for its likeness to the nearest
    of those picked already. Without a prediction a candidate comes after all that have one. Ties
    go by schedule id, so the order of ``candidates`` does not matter.

    Args:
        default: the compiler's own schedule; always first, whatever is predicted for it.
        candidates: from any number of searches; doubles and the default are left out.
        keep: candidates in all, at least 1.
    """
    chosen = [default]
    distinct = {c.schedule: c for c in sorted(candidates, key=_rank, reverse=True)}
    distinct.pop(default.schedule, None)
    rest = sorted(distinct.values(), key=_rank)
    if not rest:
        return (default,)
    scale = rest[0].predicted_us or 1.0
    apart = {c.schedule: distance(c, default) for c in rest}

    def price(candidate: Candidate) -> tuple[float, tuple[float, str]]:
        us = candidate.predicted_us
        relative = float("inf") if us is None else us / scale
        return relative - _DIVERSITY * apart[candidate.schedule], _rank(candidate)

    while rest and len(chosen) < keep:
        picked = rest[0] if len(chosen) == 1 else min(rest, key=price)
        rest.remove(picked)
        chosen.append(picked)
        for other in rest:
            apart[other.schedule] = min(apart[other.schedule], distance(other, picked))
    return tuple(chosen)


def distance(a: Candidate, b: Candidate) -> float:
    """How unlike two candidates are, from 0 for the same to 1.

    Under other lowering choices nodes of the same name are not the same nodes, so such candidates
    are entirely unlike; so are other codegen choices. Else it is the share of groups that only
    one of them has.
    """
    first, second = a.schedule, b.schedule
    if first == second:
        return 0.0
    if first.lowering != second.lowering or first.codegen != second.codegen:
        return 1.0
    if first.plan is None or second.plan is None:
        return 1.0
    groups_a = {frozenset(group) for group in first.plan.groups}
    groups_b = {frozenset(group) for group in second.plan.groups}
    if groups_a == groups_b:
        return _ORDER_DISTANCE
    differing = len(groups_a ^ groups_b) / len(groups_a | groups_b)
    return min(1.0, differing / _UNLIKE)


def _rank(candidate: Candidate) -> tuple[float, str]:
    us = candidate.predicted_us
    return (float("inf") if us is None else us, candidate.schedule.id)
