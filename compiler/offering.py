"""What the study of one graph may choose from, and where it had best begin. Tries nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fusewise.compiler.alternatives import Alternative
from fusewise.compiler.inductor.choices import CHOICES
from fusewise.compiler.survey import Survey
from fusewise.compiler.trying import INDUCTOR
from fusewise.search.study import Choices, ChoiceSpace, ChoiceValue


def choice_space(device_type: str, offered: Sequence[Alternative] = ()) -> ChoiceSpace:
    """All choices that apply to a kind of device, Inductor's own value of each by default.

    ``offered`` are verdicts on single values of the graph, each taken for all its values or none.
    """
    values: dict[str, tuple[ChoiceValue, ...]] = {
        kind.name: (INDUCTOR, *kind.values) for kind in CHOICES if device_type in kind.devices
    }
    values |= {alike.name: (INDUCTOR, alike.choices[0].value) for alike in offered}
    return ChoiceSpace(values=values, default=dict.fromkeys(values, INDUCTOR))


def worth_trying(
    space: ChoiceSpace, offered: Sequence[Alternative], surveys: Sequence[Survey]
) -> list[Choices]:
    """Configurations to begin with after the default.

    Those that are predicted to gain come first, the best at the head, then each of ``offered`` by
    itself.

    Args:
        space: what may be chosen.
        offered: verdicts on single values, of which it has one choice each.
        surveys: the graph under Inductor's own choices, then under others.
    """
    first, *others = surveys
    gaining = sorted((s for s in others if s.best_us < first.best_us), key=lambda s: s.best_us)
    found: list[Choices] = []
    for one in gaining:
        left = set(one.choices)
        values: Choices = {}
        for alike in offered:
            if left.issuperset(alike.choices):
                left.difference_update(alike.choices)
                values[alike.name] = alike.choices[0].value
        values |= {choice.name: choice.value for choice in left}
        if values.keys() <= space.values.keys():
            found.append({**space.default, **values})
    verdicts = [{**space.default, a.name: a.choices[0].value} for a in offered]
    return [*found, *verdicts]
