"""Graphs within a graph, such as the branches of ``torch.cond``, as they are explained.

Inductor fuses them by itself whatever is chosen for the graph around them; a choice about how that
is lowered holds within as well, so both lowerings are looked at. Generates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewise.compiler.explaining.kernels import View
from fusewise.compiler.explaining.looking import Looked, Looker, Seen
from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.fusion_trace import FusionTrace
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.schedule.schedule import Schedule


class InnerLooks:
    """What was seen of the graphs within one graph, each in the moment in which it is fused."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        #: By name, in the order in which their code is generated.
        self.looked: dict[str, Looked] = {}
        #: Under the chosen schedule's own choices.
        self._seen: dict[str, Seen] = {}

    def look(self, name: str, live: LiveGraph, trace: FusionTrace) -> None:
        """Look at a graph as Inductor lowers it by itself."""
        default = self._looker.seen(live, Schedule(), "inductor")
        self.looked[name] = self._looker.look(live, trace, default, default)

    def look_at_chosen(self, chosen: View) -> Callable[[str, LiveGraph, FusionTrace], None]:
        """What looks at a graph under the choices of the chosen schedule."""
        choices = (*chosen.schedule.lowering, *chosen.schedule.codegen)
        schedule = schedule_of(choices, None)

        def look(name: str, live: LiveGraph, _: FusionTrace) -> None:
            if choices:
                self._seen[name] = self._looker.seen(live, schedule, chosen.origin)

        return look

    def chosen(self, name: str) -> Seen:
        """A graph as the chosen schedule has it."""
        return self._seen.get(name, self.looked[name].default)

    @property
    def views(self) -> Mapping[str, View]:
        """Inductor's own plans."""
        return {name: looked.default.view for name, looked in self.looked.items()}

    @property
    def chosen_views(self) -> Mapping[str, View]:
        """The plans under the chosen schedule."""
        return {name: self.chosen(name).view for name in self.looked}
