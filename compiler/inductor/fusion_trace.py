"""Inductor's own fusion of a lowered graph, question by question.

Watches ``Scheduler.fuse_nodes`` and writes down each pair that it looks at in any round: what it
asked, what it was told, how it scored the pair, what it fused. Decides nothing, and makes nothing
up: a pair that Inductor does not look at is not in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.hooks import listening
from fusewise.compiler.inductor.plans import members, owners
from fusewise.compiler.inductor.refusals import Refusal, classify
from fusewise.compiler.inductor.wordless import wordless_ground

_Node = inductor_scheduler.BaseSchedulerNode
#: ``search``: for the list of possible fusions of a round; ``try``: when its turn in the list had
#: come; ``part``: as part of the question whether two larger groups may be fused.
Phase = Literal["search", "try", "part"]


@dataclass
class Asked:
    """One question whether two groups may be fused."""

    #: Round, from 1.
    round: int
    phase: Phase
    #: The sides by the names that they have in Inductor's log, and the graph's nodes in them.
    first: str
    second: str
    first_nodes: tuple[str, ...]
    second_nodes: tuple[str, ...]
    #: Whether the loops of one side might have been reordered for it.
    reorder: bool
    #: Whether the second side needs what the first makes, or the other way round.
    vertical: bool
    legal: bool = False
    #: Why not: the code, and Inductor's words or ours where it has none.
    reason: Refusal | None = None
    detail: str = ""
    #: Inductor's words as they are in its log, each with the two names.
    logged: list[tuple[str, str, str]] = field(default_factory=list)
    #: Inductor's score, most significant part first.
    score: tuple[int, ...] | None = None
    #: Groups through which a cycle would close; empty where none would.
    cycle: tuple[str, ...] = ()
    fused: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """Both names, in the order of the question."""
        return self.first, self.second


@dataclass(frozen=True)
class Fused:
    """A fusion that was made."""

    round: int
    #: How many questions had been asked by then.
    after: int
    first: str
    second: str
    nodes: tuple[str, ...]


@dataclass
class FusionTrace:
    """All that Inductor asked and did, in its order."""

    asked: list[Asked] = field(default_factory=list)
    fused: list[Fused] = field(default_factory=list)
    #: Possible fusions that each round found, as Inductor's log has them.
    found: list[int] = field(default_factory=list)
    #: Names of the parts of a score.
    score_parts: tuple[str, ...] = ()


class Tracing:
    """Writes down how Inductor fuses a graph, wherever that is being done."""

    def __init__(self) -> None:
        #: Of the last fusion that was watched.
        self.trace = FusionTrace()

    @contextmanager
    def watch(
        self, scheduler: inductor_scheduler.Scheduler, nodes: Sequence[_Node]
    ) -> Iterator[None]:
        """Watch the scheduler fuse its unfused ``nodes`` inside."""
        tracer = _Tracer(scheduler, nodes)
        self.trace = tracer.trace
        with listening(tracer.heard), tracer.watching():
            yield


class _Tracer:
    """Stands between a scheduler and its own methods."""

    def __init__(self, scheduler: inductor_scheduler.Scheduler, nodes: Sequence[_Node]) -> None:
        self._scheduler = scheduler
        self._owner = owners(nodes)
        self._round = 0
        self._searching = False
        #: Questions that are being answered, outermost first.
        self._open: list[Asked] = []
        self._latest: dict[tuple[str, str], Asked] = {}
        self._scores: dict[tuple[str, str], tuple[int, ...]] = {}
        self.trace = FusionTrace()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the scheduler inside."""
        scheduler: Any = self._scheduler
        stand_ins = {
            "fuse_nodes_once": self._fuse_nodes_once,
            "get_possible_fusions": self._get_possible_fusions,
            "score_fusion_key": self._score_fusion_key,
            "can_fuse": self._can_fuse,
            "will_fusion_create_cycle": self._will_fusion_create_cycle,
            "speedup_by_fusion": self._speedup_by_fusion,
            "fuse_two_nodes": self._fuse_two_nodes,
        }
        self._stock = {name: getattr(scheduler, name) for name in stand_ins}
        # Others may stand between as well, such as who records the plan.
        before = {name: vars(scheduler)[name] for name in stand_ins if name in vars(scheduler)}
        # Attributes of the instance shadow the methods, so nested checks come through here as well.
        for name, stand_in in stand_ins.items():
            setattr(scheduler, name, stand_in)
        try:
            yield
        finally:
            for name in stand_ins:
                delattr(scheduler, name)
            vars(scheduler).update(before)

    def heard(self, first: str, second: str, text: str) -> None:
        """Inductor refuses a pair in these words."""
        asked = self._open[-1] if self._open else self._latest.get((first, second))
        if asked is None:
            return
        asked.logged.append((first, second, text))
        if not self._open:
            # After its question was answered: a cycle, or a benchmark at compile time.
            asked.reason, asked.detail = classify(text), text

    def _fuse_nodes_once(self, nodes: list[_Node], *args: Any, **kwargs: Any) -> list[_Node]:
        self._round += 1
        result: list[_Node] = self._stock["fuse_nodes_once"](nodes, *args, **kwargs)
        return result

    def _get_possible_fusions(self, *args: Any, **kwargs: Any) -> Any:
        self._searching = True
        try:
            found = self._stock["get_possible_fusions"](*args, **kwargs)
        finally:
            self._searching = False
        self.trace.found.append(len(found))
        return found

    def _score_fusion_key(self, nodes: tuple[_Node, _Node]) -> Any:
        score = self._stock["score_fusion_key"](nodes)
        asked = self._latest.get((nodes[0].get_name(), nodes[1].get_name()))
        if asked is not None:
            asked.score = self._scores[asked.pair] = self._parts(score)
        return score

    def _parts(self, score: Any) -> tuple[int, ...]:
        # A dataclass in newer versions, a tuple in older ones.
        if dataclasses.is_dataclass(score):
            self.trace.score_parts = tuple(f.name for f in dataclasses.fields(score))
            return tuple(int(getattr(score, name)) for name in self.trace.score_parts)
        return tuple(int(part) for part in score)

    def _can_fuse(
        self, node1: _Node, node2: _Node, can_reorder: bool = False, *args: Any, **kwargs: Any
    ) -> bool:
        if node1 is node2:
            # Both sides of a possible fusion came into one group: nothing to be asked.
            return bool(self._stock["can_fuse"](node1, node2, can_reorder, *args, **kwargs))
        phase: Phase = "part" if self._open else "search" if self._searching else "try"
        asked = Asked(
            self._round,
            phase,
            node1.get_name(),
            node2.get_name(),
            members(node1, self._owner),
            members(node2, self._owner),
            can_reorder,
            bool(
                node1.get_operation_names() & node2.ancestors
                or node2.get_operation_names() & node1.ancestors
            ),
        )
        asked.score = self._scores.get(asked.pair)
        self.trace.asked.append(asked)
        self._latest[asked.pair] = asked
        self._open.append(asked)
        try:
            asked.legal = bool(self._stock["can_fuse"](node1, node2, can_reorder, *args, **kwargs))
        finally:
            self._open.pop()
        if not asked.legal:
            if asked.logged:
                asked.detail = asked.logged[-1][2]
                asked.reason = classify(asked.detail)
            else:
                asked.reason, asked.detail = wordless_ground(self._scheduler, node1, node2)
        if asked.score is None:
            # Inductor scores only what is in its list; the same rule says what others would get.
            score = V.choices.score_fusion(self._scheduler, node1, node2)
            asked.score = self._scores[asked.pair] = self._parts(score)
        return asked.legal

    def _will_fusion_create_cycle(self, node1: _Node, node2: _Node) -> bool:
        cycle = bool(self._stock["will_fusion_create_cycle"](node1, node2))
        asked = self._latest.get((node1.get_name(), node2.get_name()))
        if cycle and asked is not None:
            asked.cycle = _between(self._scheduler, node1, node2)
        return cycle

    def _speedup_by_fusion(self, node1: _Node, node2: _Node) -> Any:
        result = self._stock["speedup_by_fusion"](node1, node2)
        asked = self._latest.get((node1.get_name(), node2.get_name()))
        # A plain truth value in older versions; newer ones may still wait for a benchmark.
        fuses = getattr(result, "should_fuse", result)
        waits = getattr(result, "callable_fn", None) is not None
        if asked is not None and (waits or not fuses) and asked.reason is None:
            # Taken back below where it is fused after all.
            asked.reason, asked.detail = Refusal.SLOWER, "a benchmark found it slower"
        return result

    def _fuse_two_nodes(self, node1: _Node, node2: _Node, *args: Any, **kwargs: Any) -> _Node:
        pair = node1.get_name(), node2.get_name()
        fused: _Node = self._stock["fuse_two_nodes"](node1, node2, *args, **kwargs)
        self.trace.fused.append(
            Fused(self._round, len(self.trace.asked), *pair, members(fused, self._owner))
        )
        asked = self._latest.get(pair)
        if asked is not None:
            asked.fused, asked.reason, asked.detail = True, None, ""
        return fused


def _between(
    scheduler: inductor_scheduler.Scheduler, node1: _Node, node2: _Node
) -> tuple[str, ...]:
    """Groups that would have to run after one side and before the other."""
    ours = node1.get_operation_names() | node2.get_operation_names()
    reaches: dict[str, bool] = {}

    def comes_after_us(node: _Node) -> bool:
        name = node.get_name()
        if name not in reaches:
            # Set first: a cycle of groups would have been refused before.
            reaches[name] = False
            reaches[name] = bool(node.ancestors & ours) or any(
                comes_after_us(scheduler.name_to_fused_node[op])
                for op in node.ancestors
                if isinstance(scheduler.name_to_fused_node[op], FusedSchedulerNode)
                and scheduler.name_to_fused_node[op] is not node
            )
        return reaches[name]

    before = {
        scheduler.name_to_fused_node[op].get_name(): scheduler.name_to_fused_node[op]
        for op in (node1.ancestors | node2.ancestors) - ours
    }
    return tuple(name for name, node in before.items() if comes_after_us(node))
