"""The schedule: all that is needed to build the same code again, and the candidate that carries it.

The heuristic, the search, a user's rule and a plan file all yield a :class:`Schedule`, and one
function of the compiler room applies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from fusewise.schedule.plan import Plan

#: Version of the serialised form. A file of another version is refused, never guessed at.
SCHEMA = 2

#: How the name of a choice about one node of the graph begins; the node's name follows.
NODE: Final = "node:"

CandidateStatus = Literal["predicted", "measured", "failed"]


class Choice(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One named decision with its value, such as ``realize_reads_threshold = 16``."""

    name: str
    value: bool | int | float | str

    @property
    def of_part(self) -> bool:
        """Whether it is about a node or a kernel, ``<kind>:<name>``, and not about the graph."""
        return ":" in self.name


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lowering choices, plan and codegen choices of one graph.

    ``plan`` is None where the compiler's own fusion is to be used under the given choices.
    """

    lowering: tuple[Choice, ...] = ()
    plan: Plan | None = None
    codegen: tuple[Choice, ...] = ()

    @property
    def id(self) -> str:
        """Stable hash over everything in it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def same_but_kernels(self, other: Schedule) -> bool:
        """Whether another one is the same, or differs only in how single kernels are generated."""
        return (self.plan, self.lowering) == (other.plan, other.lowering)

    def describe(self) -> str:
        """The choices in a few words: ``realize_reads_threshold=16, 12 groups``."""
        parts = [f"{c.name}={c.value}" for c in (*self.lowering, *self.codegen)]
        if self.plan is not None:
            parts.append(f"{len(self.plan.groups)} groups")
        return ", ".join(parts) or "as the compiler"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with what is known of its time. Times are in microseconds for one run."""

    schedule: Schedule
    #: How it came about: ``default``, ``rules`` (the default as rules want it), ``beam``,
    #: ``neighbour``, ``plan file``...
    origin: str
    groups: int
    predicted_us: float | None = None
    #: 90 % interval of the prediction.
    predicted_low_us: float | None = None
    predicted_high_us: float | None = None
    measured_us: float | None = None
    #: Half the distance between the 25th and the 75th percentile over the median.
    spread: float | None = None
    #: Rounds that the median stands on.
    rounds: int = 0
    #: Error against the high-precision reference, relative (L2), worst output.
    error: float | None = None
    #: Most bytes allocated at one time, inputs included; None where it was not measured.
    peak_bytes: int | None = None
    #: What tuning came to: the block sizes of kernels, each by the choice to have it tuned.
    blocks: tuple[Choice, ...] = ()
    status: CandidateStatus = "predicted"
    #: Whether it may take the place of the default; the fastest that may is chosen.
    accepted: bool = False
    reason: str = ""

    @property
    def baseline(self) -> bool:
        """Whether it is what others are held to: the compiler's own, or that as rules want it."""
        return self.origin in {"default", "rules"}

    @property
    def schedule_id(self) -> str:
        """Id of its schedule."""
        return self.schedule.id


def problem_key(graph_key: str, lowering: Sequence[Choice]) -> str:
    """Key that the problem of a graph under some lowering choices is stored by.

    Another lowering has other nodes under the same names, so it is a problem of its own; without
    choices it is the graph's, whatever order they were made in. Choices about single nodes can be
    many, so only their hash is in it.
    """
    ordered = sorted(lowering, key=_name)
    of_nodes = [f"{c.name}={c.value}" for c in ordered if c.of_part]
    parts = [graph_key, *(f"{c.name}={c.value}" for c in ordered if not c.of_part)]
    if of_nodes:
        parts.append(f"nodes={hashlib.sha256(repr(of_nodes).encode()).hexdigest()[:16]}")
    return "-".join(parts)


def _name(choice: Choice) -> str:
    return choice.name
