"""From Inductor's questions to what became of each possible fusion, and what it would gain.

Reads the trace; asks Inductor nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusewise.compiler.explaining.outcomes import outcome_of
from fusewise.compiler.explaining.report import ExplainedFusion
from fusewise.compiler.inductor.fusion_trace import Asked, Fused, FusionTrace
from fusewise.compiler.inductor.refusals import Refusal
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import mask_of
from fusewise.search.rules import Refused, Rulings


@dataclass(frozen=True)
class Fate:
    """What became of a pair."""

    legal: bool
    taken: bool
    reason: Refusal | None
    detail: str = ""
    blocked_by: tuple[str, ...] = ()


def explain_fusions(
    trace: FusionTrace,
    default: Plan,
    chosen: Plan | None,
    cost: PlanCost,
    rulings: Rulings | None = None,
) -> tuple[ExplainedFusion, ...]:
    """Every pair that Inductor looked at, in the order in which it first did.

    Args:
        trace: of Inductor's own fusion.
        default: the plan that came of it.
        chosen: the chosen plan of the same nodes; None where it has others.
        cost: predicts times of groups of these nodes.
        rulings: the user's rules on them; what they forbid is not taken, whatever Inductor did.
    """
    pairs: dict[tuple[str, str], list[Asked]] = {}
    for asked in trace.asked:
        pairs.setdefault(asked.pair, []).append(asked)
    gains = _gains([questions[0] for questions in pairs.values()], cost)
    fates = Fates(trace)
    default_of, chosen_of = default.group_of(), chosen.group_of() if chosen else None
    found = []
    for questions, gain in zip(pairs.values(), gains, strict=True):
        first, fate = questions[0], fates.of(questions)
        nodes = (*first.first_nodes, *first.second_nodes)
        together = _together(default_of, nodes)
        if rulings is not None:
            fate = _ruled(fate, nodes, rulings)
            if chosen is not None and chosen_of is not None and not _together(chosen_of, nodes):
                fate = _ruled_by_now(fate, nodes, chosen, rulings)
        if together and fate.reason is Refusal.FUSED_ELSEWHERE:
            fate = replace(fate, reason=Refusal.ALREADY_TOGETHER)
        together_chosen = None if chosen_of is None else _together(chosen_of, nodes)
        logged = dict.fromkeys(entry for asked in questions for entry in asked.logged)
        found.append(
            ExplainedFusion(
                a=first.first,
                b=first.second,
                a_nodes=first.first_nodes,
                b_nodes=first.second_nodes,
                inductor_score=next((q.score for q in reversed(questions) if q.score), None),
                predicted_gain_us=gain[0],
                predicted_gain_low_us=gain[1],
                predicted_gain_high_us=gain[2],
                legal=fate.legal,
                reason=str(fate.reason or ""),
                detail=fate.detail,
                taken=fate.taken,
                together=together,
                together_chosen=together_chosen,
                outcome=outcome_of(
                    taken=fate.taken,
                    legal=fate.legal,
                    reason=fate.reason or "",
                    together=together if together_chosen is None else together_chosen,
                    predicted_gain_us=gain[0],
                ),
                blocked_by=fate.blocked_by,
                vertical=first.vertical,
                rounds=tuple(dict.fromkeys(asked.round for asked in questions)),
                part=all(asked.phase == "part" for asked in questions),
                logged=tuple(logged),
            )
        )
    return tuple(found)


class Fates:
    """What became of each pair of a trace."""

    def __init__(self, trace: FusionTrace) -> None:
        self._fused: dict[int, list[Fused]] = {}
        for made in trace.fused:
            self._fused.setdefault(made.round, []).append(made)
        #: By round and a node of the first side, in their order: what was tried in its turn.
        self._tried: dict[tuple[int, str], list[Asked]] = {}
        self._scores: dict[tuple[str, str], tuple[int, ...]] = {}
        for asked in trace.asked:
            if asked.phase == "try":
                for name in asked.first_nodes:
                    self._tried.setdefault((asked.round, name), []).append(asked)
            if asked.score is not None:
                self._scores[asked.pair] = asked.score

    def of(self, questions: Sequence[Asked]) -> Fate:
        """What became of a pair, from all questions about it in their order."""
        if any(asked.fused for asked in questions):
            return Fate(legal=True, taken=True, reason=None)
        last = questions[-1]
        if not any(asked.legal for asked in questions):
            return Fate(False, False, last.reason, last.detail)
        if not last.legal:
            # What was done since made it illegal.
            return Fate(True, False, last.reason, last.detail)
        if last.cycle:
            through = ", ".join(last.cycle)
            return Fate(True, False, Refusal.CYCLE, f"a cycle through {through}", last.cycle)
        # A benchmark at compile time may have spoken before the pair was asked for once more.
        grounds = [asked for asked in questions if asked.legal and asked.reason is not None]
        if grounds:
            return Fate(True, False, grounds[-1].reason, grounds[-1].detail)
        return self._overtaken(last)

    def _overtaken(self, asked: Asked) -> Fate:
        """A legal pair in the list of its round that was another when its turn came."""
        first, second = set(asked.first_nodes), set(asked.second_nodes)
        fusions = self._fused.get(asked.round, [])
        for made in fusions:
            nodes = set(made.nodes)
            if first | second <= nodes:
                text = f"{made.first} and {made.second} were fused, which brought both together"
                return Fate(True, False, Refusal.ALREADY_TOGETHER, text, (made.first, made.second))
            if first <= nodes or second <= nodes:
                break
        else:
            return Fate(True, False, Refusal.LOWER_PRIORITY, "others of a higher kind came first")
        came_first = self._with_score(made)
        by = made.first if made.second in asked.pair else made.second
        if any(first | second <= set(other.nodes) for other in fusions):
            text = f"{came_first} came first; others brought both together"
            return Fate(True, False, Refusal.ALREADY_TOGETHER, text, (by,))
        tried = self._tried_instead(asked, first, second)
        if tried is None:
            return Fate(True, False, Refusal.FUSED_ELSEWHERE, f"{came_first} came first", (by,))
        why = f"a cycle through {', '.join(tried.cycle)}" if tried.cycle else tried.detail
        text = f"{came_first} came first; then {tried.first} with {tried.second}: {why}"
        return Fate(True, False, Refusal.FUSED_ELSEWHERE, text, (by, *tried.cycle))

    def _tried_instead(self, asked: Asked, first: set[str], second: set[str]) -> Asked | None:
        """The question that was asked when the pair's turn had come, about what it had become."""
        for other in self._tried.get((asked.round, asked.first_nodes[0]), []):
            if (
                other.pair != asked.pair
                and first <= set(other.first_nodes)
                and second <= set(other.second_nodes)
            ):
                return other
        return None

    def _with_score(self, made: Fused) -> str:
        score = self._scores.get((made.first, made.second))
        text = f"{made.first} with {made.second}"
        return text if score is None else f"{text} (score {'/'.join(map(str, score))})"


def _ruled(fate: Fate, nodes: Sequence[str], rulings: Rulings) -> Fate:
    """The fate under rules: forbidden where one says so, of the sides or within one of them."""
    refused = _refused(nodes, rulings)
    return fate if refused is None else Fate(fate.legal, False, Refusal.RULE, refused.detail)


def _ruled_by_now(fate: Fate, nodes: Sequence[str], chosen: Plan, rulings: Rulings) -> Fate:
    """The fate of a legal pair whose sides the chosen plan has in groups of more.

    The rule that forbids to join these is what keeps the pair apart, whatever came of it without.
    """
    if not fate.legal or fate.reason is Refusal.RULE:
        return fate
    group_of = chosen.group_of()
    around = [chosen.groups[i] for i in dict.fromkeys(group_of[name] for name in nodes)]
    refused = _refused([name for group in around for name in group], rulings)
    if refused is None:
        return fate
    by = tuple("_".join(group) for group in around if not set(group) <= set(nodes))
    text = f"{refused.detail}, with {' and '.join(by)}"
    return Fate(True, False, Refusal.RULE, text, by)


def _refused(nodes: Sequence[str], rulings: Rulings) -> Refused | None:
    index = rulings.problem.index
    return rulings.refused(mask_of(index[name] for name in nodes))


def _together(group_of: Mapping[str, int], nodes: Sequence[str]) -> bool:
    return len({group_of[name] for name in nodes}) == 1


def _gains(pairs: Sequence[Asked], cost: PlanCost) -> list[tuple[float, float, float]]:
    """Time of both sides less that of the fused group, with the ends of its 90 % interval.

    The ends take each interval at its worst, so the interval is wider than 90 % if anything.
    """
    groups = [
        group
        for pair in pairs
        for group in (
            pair.first_nodes,
            pair.second_nodes,
            (*pair.first_nodes, *pair.second_nodes),
        )
    ]
    if not groups:
        return []
    times = cost.score(groups)
    us, low, high = (part.reshape(-1, 3) for part in (times.us, times.low_us, times.high_us))
    return [
        (
            float(us[i, 0] + us[i, 1] - us[i, 2]),
            float(low[i, 0] + low[i, 1] - high[i, 2]),
            float(high[i, 0] + high[i, 1] - low[i, 2]),
        )
        for i in range(len(pairs))
    ]
