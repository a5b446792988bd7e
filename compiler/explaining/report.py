"""What an explanation says, as data: the program, its graphs, their fusions and kernels.

Serialised as it is by ``fusewise explain --json``. Times are in microseconds, sizes in bytes.
Makes nothing up and asks nothing; the other files of this folder fill it.
"""

from __future__ import annotations

import msgspec

from fusewise.compiler.explaining.outcomes import Outcome
from fusewise.compiler.reports import RulesReport
from fusewise.costmodel.attribution import Attribution
from fusewise.schedule.inlining import InliningDecision


class ExplainedRewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A pass over the captured graph that changed it, or a whole stage of passes."""

    #: ``pre-grad``, ``joint`` or ``post-grad``.
    stage: str
    #: Inductor's name of the pass; "" for the stage as a whole.
    name: str
    #: Operators before and after.
    nodes_before: int
    nodes_after: int
    removed: dict[str, int]
    added: dict[str, int]


class ExplainedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler node."""

    name: str
    kind: str
    device: str
    #: Operators of the captured graph that it computes.
    operators: tuple[str, ...]
    #: Loop extents outside and inside of the reduction.
    loops: tuple[tuple[int, ...], tuple[int, ...]]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    #: ``file:line`` of the program, several with commas between; "" where unknown.
    source: str
    sources: tuple[str, ...]
    #: Modules of the program that it comes from, by path.
    modules: tuple[str, ...]
    signature: str


class ExplainedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """``consumer`` must run after ``producer``."""

    producer: str
    consumer: str
    buffer: str
    bytes: int
    #: Order only, no data.
    weak: bool


class ExplainedFusion(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of groups that Inductor looked at."""

    #: By Inductor's own names, those of its log.
    a: str
    b: str
    a_nodes: tuple[str, ...]
    b_nodes: tuple[str, ...]
    #: Most significant part first, by the names in ``score_parts`` of the graph.
    inductor_score: tuple[int, ...] | None
    #: Time of both less that of the fused one, and the 90 % interval of that.
    predicted_gain_us: float
    predicted_gain_low_us: float
    predicted_gain_high_us: float
    legal: bool
    #: Code of the ground on which it was not taken (docs/refusals.md); "" where it was. A rule of
    #: the user's that forbids it comes before all others.
    reason: str
    #: The same in words, with the values of the case.
    detail: str
    taken: bool
    #: Whether both are in one group in the end, in Inductor's plan and in the chosen one; None
    #: where the chosen schedule has other nodes.
    together: bool
    together_chosen: bool | None
    #: All of this in one word, by which pairs are counted.
    outcome: Outcome
    #: What came in between: groups by name.
    blocked_by: tuple[str, ...]
    #: Whether one side needs what the other makes.
    vertical: bool
    #: Rounds in which Inductor asked for it.
    rounds: tuple[int, ...]
    #: Whether it was only asked for as part of a larger question.
    part: bool = False
    #: Inductor's words as in its log: the names that it gave and the ground.
    logged: tuple[tuple[str, str, str], ...] = ()


class ExplainedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a plan: what becomes one kernel."""

    nodes: tuple[str, ...]
    #: Of the kernel alone, as ``measured_us`` is.
    predicted_us: float
    predicted_low_us: float
    predicted_high_us: float
    #: What predicted it: ``learned``, ``roofline``, ``measured`` or ``free``.
    predicted_by: str
    measured_us: float | None
    #: Name of the generated kernel, several with commas between; "" for a library call or where
    #: nothing runs.
    kernel: str
    source: str
    sources: tuple[str, ...]
    operators: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    #: What a program adds to the kernel: its call, memory for what it leaves, colder caches.
    around_us: float
    #: ``memory``, ``arithmetic``, ``launch``, ``library`` or ``nothing``.
    bound_by: str
    launch_us: float
    memory_us: float
    arithmetic_us: float
    #: Features in plain units; empty for library calls.
    features: dict[str, float]
    #: Why it was not timed, where it was to be.
    not_measured: str = ""


class ExplainedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as a whole."""

    #: Where it comes from: ``inductor``, ``rules``, ``store``, ``plan file`` or ``predicted``.
    origin: str
    schedule: str
    #: Its choices in a few words.
    choices: str
    predicted_us: float
    predicted_low_us: float
    predicted_high_us: float
    #: What of it lies beside the kernels: that of all groups, and what a graph takes by itself.
    around_us: float
    #: Sum of the measured kernels; None unless all were timed.
    measured_us: float | None = None


class ExplainedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that was considered, with the times of the whole graph."""

    #: Id of the schedule.
    schedule: str
    #: Its choices in a few words.
    choices: str
    origin: str
    groups: int
    #: Groups that Inductor's own plan does not have; empty where the lowering makes other nodes.
    own_groups: tuple[tuple[str, ...], ...]
    #: Whether it is Inductor's own, and whether it is the one that is explained.
    default: bool
    chosen: bool
    predicted_us: float | None
    predicted_low_us: float | None
    predicted_high_us: float | None
    measured_us: float | None
    spread: float | None
    rounds: int
    #: ``predicted``, ``measured`` or ``failed``.
    status: str
    #: Why it was taken or not.
    reason: str


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a counterfactual with what drives its prediction, its kernel's alone."""

    nodes: tuple[str, ...]
    predicted_us: float
    predicted_low_us: float
    predicted_high_us: float
    predicted_by: str
    #: As of :class:`ExplainedGroup`; a part of what is gained.
    around_us: float
    attribution: Attribution


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """One fusion, and this plan with it added or removed."""

    a: str
    b: str
    a_nodes: tuple[str, ...]
    b_nodes: tuple[str, ...]
    #: ``added`` where the plan has them apart, ``removed`` where it has them together.
    change: str
    #: Where the plan that is changed comes from.
    plan: str
    #: Whether the changed plan can be built, and why not.
    legal: bool
    reason: str
    detail: str
    #: What Inductor made of the pair; None where it came together by way of other pairs.
    fusion: ExplainedFusion | None
    #: The groups that are concerned, before and after the change.
    before: tuple[Side, ...]
    after: tuple[Side, ...]
    #: Of the whole graph, with the plan as it is and as it was changed.
    predicted_us: float
    predicted_changed_us: float
    #: What the change gains; its interval is that of the groups concerned.
    predicted_gain_us: float
    predicted_gain_low_us: float
    predicted_gain_high_us: float
    measured_us: float | None = None
    measured_changed_us: float | None = None
    #: 95 % intervals of the medians.
    measured_interval: tuple[float, float] | None = None
    measured_changed_interval: tuple[float, float] | None = None
    not_measured: str = ""


class ExplainedGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One graph: forward, backward or inference; or one within such a graph."""

    #: Name of a graph within the whole graph that was told of last, such as a branch; "" for a
    #: whole graph. Those within have no rewrites, inlining, candidates and rules of their own.
    name: str = ""
    #: Which part of the program it is, or is within.
    kind: str
    key: str
    key_parts: dict[str, str]
    device: str
    #: Cost model that predicted.
    model: str
    #: What passes changed, those on the way to this graph.
    rewrites: tuple[ExplainedRewrite, ...]
    #: What lowering stored or inlined, value by value.
    inlining: tuple[InliningDecision, ...]
    nodes: tuple[ExplainedNode, ...]
    edges: tuple[ExplainedEdge, ...]
    #: Names of the parts of ``inductor_score``.
    score_parts: tuple[str, ...]
    #: Possible fusions that Inductor found in each round.
    rounds: tuple[int, ...]
    possible_fusions: tuple[ExplainedFusion, ...]
    #: Of the chosen schedule.
    groups: tuple[ExplainedGroup, ...]
    plan: ExplainedPlan
    default_groups: tuple[ExplainedGroup, ...]
    default_plan: ExplainedPlan
    #: Nodes of the chosen schedule where its choices make others; empty where they are ``nodes``.
    chosen_nodes: tuple[ExplainedNode, ...] = ()
    #: Dependencies of ``chosen_nodes``.
    chosen_edges: tuple[ExplainedEdge, ...] = ()
    #: What the schedule was chosen among, Inductor's own first.
    candidates: tuple[ExplainedCandidate, ...] = ()
    why: Why | None = None
    #: Graphs within the graph, of branches and loops, by name, with how many operators each has:
    #: Inductor fuses in them by itself. Those that it makes kernels of are told after this one.
    within: dict[str, int] = {}
    #: What came of the user's rules; None where there are none.
    rules: RulesReport | None = None
    #: Why nothing was timed, where it was to be.
    not_measured: str = ""


class ExplainedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """All graphs of a program, each with those within it after it."""

    program: str
    fusewise: str
    torch: str
    graphs: tuple[ExplainedGraph, ...]

    def json(self) -> str:
        """As ``fusewise explain --json`` prints it."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def html(self) -> str:
        """As ``fusewise explain --html`` writes it: one page that needs nothing beside it.

        Raises:
            UnsupportedError: jinja2 is not installed.
        """
        from fusewise.compiler.explaining.html import page

        return page(self)
