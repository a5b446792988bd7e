"""Inline or store: what becomes of each value that a graph computes, decided before fusion.

A value that is stored becomes a node of the problem; one that is inlined is computed again in
every kernel that needs it. The compiler decides by thresholds, a schedule may decide for each
value: a lowering choice ``node:<name> = store`` or ``= inline``, which is a :class:`Choice` like
any other. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

from fusewise.schedule.errors import PlanError
from fusewise.schedule.schedule import NODE, Choice

Verdict = Literal["store", "inline"]

#: Why a value was stored or inlined; :data:`RULES` says what each means.
Rule = Literal[
    "cheap",
    "schedule",
    "heavy_operation",
    "many_operations",
    "many_reads",
    "accumulated_reads",
    "read_often",
    "reads_nothing",
    "output",
    "own",
    "operand",
    "overwritten",
    "layout",
    "too_large",
]

#: What each rule says of a value.
RULES: Final[Mapping[Rule, str]] = {
    "cheap": "no rule wants it stored",
    "schedule": "the schedule says so",
    "heavy_operation": "it has several users, and takes an operation such as exp",
    "many_operations": "it takes many operations to compute",
    "many_reads": "it has several users, and takes many reads to compute",
    "accumulated_reads": "what was inlined into it reads a lot",
    "read_often": "a user reads each element more than once, or will need it in memory",
    "reads_nothing": "it reads nothing, so its users always compute it",
    "output": "it is an output of the graph",
    "own": "its operator always stores what it computes",
    "operand": "a user needs it in memory",
    "overwritten": "what it reads is overwritten later",
    "layout": "its strides have to be those of the captured graph",
    "too_large": "its expression is too large to be inlined",
}

#: Rules that a schedule may overrule; what the others store has to be stored.
OPTIONAL: Final[frozenset[Rule]] = frozenset(
    {
        "cheap",
        "schedule",
        "heavy_operation",
        "many_operations",
        "many_reads",
        "accumulated_reads",
        "read_often",
    }
)


class InliningDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one value of a graph, and why. Sizes are size hints."""

    #: Name of its node in the graph that is lowered (the captured one after rewriting).
    node: str
    #: The operator that computes it, such as ``aten.relu.default``.
    operator: str
    kind: Literal["pointwise", "reduction", "scan", "sort"]
    outcome: Verdict
    rule: Rule
    #: Buffer that it is stored in; "" where it is inlined.
    buffer: str
    #: Nodes whose stored values compute it again, in the order of the graph. A stored value has
    #: some where they came before what needs it stored.
    inlined_into: tuple[str, ...]
    #: Operations for one element, reads and those of what is inlined into it included.
    ops: int
    #: Reads for one element, counted alike.
    reads: int
    #: Bytes of the value, were it stored.
    bytes: int
    #: Distinct bytes that computing it once reads.
    read_bytes: int
    #: Elements of the value, times the elements that each reduces.
    iterations: int = 0
    #: Names of its operations, each once.
    operations: tuple[str, ...] = ()

    @property
    def optional(self) -> bool:
        """Whether the rule is one that a schedule may overrule."""
        return self.rule in OPTIONAL

    @property
    def alternative(self) -> Verdict | None:
        """What a schedule could decide in its place; None where nothing else is possible.

        What has to be stored can be stored earlier, for those who computed it before that. What a
        schedule decides already has none.
        """
        if self.rule == "schedule":
            return None
        if self.outcome == "store" and self.optional:
            return "inline"
        return "store" if self.inlined_into and self.reads else None

    @property
    def computed(self) -> int:
        """In how many places it is computed; 0 where nobody needs it."""
        return len(self.inlined_into) + (self.outcome == "store")


def node_choice(node: str, verdict: Verdict) -> Choice:
    """The lowering choice that stores or inlines the value of a node."""
    return Choice(f"{NODE}{node}", verdict)


def node_choices(verdicts: Mapping[str, Verdict]) -> tuple[Choice, ...]:
    """One choice for each node, in the order of their names."""
    return tuple(node_choice(node, verdicts[node]) for node in sorted(verdicts))


def verdicts(choices: Iterable[Choice]) -> dict[str, Verdict]:
    """What the choices about single nodes among ``choices`` say, by node.

    Raises:
        PlanError: a choice has another value, or names no node, or one is decided twice.
    """
    found: dict[str, Verdict] = {}
    for choice in choices:
        if not choice.name.startswith(NODE):
            continue
        node = choice.name.removeprefix(NODE)
        for verdict in get_args(Verdict):
            if choice.value == verdict and node and node not in found:
                found[node] = verdict
                break
        else:
            why = "is decided twice" if node in found else f"is no choice: {choice.value!r}"
            raise PlanError(
                f"{choice.name!r} {why}",
                subject="schedule",
                remedy=f"give each node once, as {' or '.join(get_args(Verdict))}",
            )
    return found
