"""What one ``torch.compile`` call keeps between its graphs: options, inputs, model, store."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
import torch.distributed
import torch.fx

from fusewise.compiler.contest import has_collectives
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.measuring.inputs import Observed
from fusewise.compiler.measuring.room import lacks_room
from fusewise.compiler.met import Met
from fusewise.compiler.options import Options
from fusewise.compiler.rule_notices import RuleWatch
from fusewise.compiler.spending import Spending
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.device import device_key, device_profile
from fusewise.costmodel.registry import load_model
from fusewise.datasets.location import check_store_path, is_new
from fusewise.datasets.store import Store
from fusewise.schedule.errors import UnsupportedError
from fusewise.schedule.plan_file import PlanFile, read_plan_file

#: Operators from which on a program is expected to have something that is worth measuring.
LEAST_OPERATORS: Final = 2


@dataclass
class Session:
    """Shared by the forward and the backward graph of one program."""

    options: Options
    inductor_options: Mapping[str, Any]
    #: The caller's inputs, for measuring on their like.
    observed: Sequence[Observed | None]
    #: Key of the forward graph whose values were kept for the backward one.
    forward_key: str | None = None
    #: Whether the program was compiled before; None where nothing is going to be measured.
    met: Met | None = None
    #: What its graphs may take beside Inductor's own work.
    spending: Spending = field(init=False)
    #: Whether there was no store yet, so that nothing can be known from before.
    fresh: bool = field(init=False)
    _predictors: dict[str, Predictor] = field(default_factory=dict)
    _opening: Future[Store] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Nothing was spent yet.

        Raises:
            StoreError: there can be no store at the path, so nothing is to be kept beside it.
        """
        check_store_path(self.options.store)
        self.spending = Spending(self.options.budget_s)
        self.fresh = is_new(self.options.store)

    @cached_property
    def rule_watch(self) -> RuleWatch | None:
        """Which of the user's rules matched so far; None where there are none."""
        rules = self.options.rules
        return None if rules is None else RuleWatch(rules)

    @cached_property
    def store(self) -> Store:
        """The store, opened when first needed, if that was not begun before."""
        if self._opening is not None:
            return self._opening.result()
        return Store.open(self.options.store)

    def open_store_ahead(self) -> None:
        """Have the store opened while other things are done, where it is going to be needed.

        A program that was compiled before finds what was decided without it.
        """
        known = self.options.store.exists() and (self.met is None or self.met.before)
        if self._opening is None and not known:
            opener = ThreadPoolExecutor(1, thread_name_prefix="fusewise-store")
            self._opening = opener.submit(Store.open, self.options.store)
            opener.shutdown(wait=False)

    @cached_property
    def plan_file(self) -> PlanFile | None:
        """The plan file, if one was given."""
        return read_plan_file(self.options.plan) if self.options.plan is not None else None

    def predictor(self, device: torch.device) -> Predictor:
        """Cost model, profile and extern times for a device."""
        key = device_key(device)
        if key not in self._predictors:
            profile = device_profile(device, self.options.home)
            model = load_model(self.options.model, profile, self.options.home)
            self._predictors[key] = Predictor(model, profile, _ExternTimes(self, key))
        return self._predictors[key]


class _ExternTimes(Mapping[str, float]):
    """Microseconds of extern kernels on a device; the store is asked when they are first needed."""

    def __init__(self, session: Session, key: str) -> None:
        self._session, self._key = session, key

    @cached_property
    def _times(self) -> Mapping[str, float]:
        return {} if self._session.fresh else self._session.store.extern_times(self._key)

    def __getitem__(self, signature: str) -> float:
        return self._times[signature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)


def device_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> torch.device:
    """The device that a graph runs on: its one GPU if it uses one, else the CPU.

    Raises:
        UnsupportedError: it uses several GPUs, or a device that is neither.
    """
    found = {value.device for value in example_inputs if isinstance(value, torch.Tensor)}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            found.add(value.device)
    strange = sorted({d.type for d in found} - {"cpu", "cuda", "meta"})
    gpus = sorted((d for d in found if d.type == "cuda"), key=str)
    if strange or len(gpus) > 1:
        names = ", ".join(map(str, gpus)) if len(gpus) > 1 else strange[0]
        raise UnsupportedError(
            f"it runs on {names}",
            subject="graph",
            remedy="fusewise handles the CPU and one NVIDIA GPU",
        )
    return gpus[0] if gpus else torch.device("cpu")


def operators(gm: torch.fx.GraphModule) -> int:
    """Operators of a graph that compute something: views, and picking an output, do not."""
    return sum(
        node.op in ("call_function", "call_method", "call_module") and not _only_looks(node)
        for node in gm.graph.nodes
    )


def _only_looks(node: torch.fx.Node) -> bool:
    if node.target is operator.getitem or getattr(node.target, "is_view", False):
        return True
    # As Dynamo captured it, an operator is a method or a function that says nothing of itself.
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value._is_view()


def unmeasurable(graph: GraphCompile, session: Session) -> str | None:
    """Why no candidates of a graph are timed; None where they can be."""
    if session.options.top_k == 0:
        return "fusewise.top_k is 0"
    if session.options.budget_s == 0:
        return "fusewise.budget_s is 0"
    if many_ranks():
        return "several ranks have to choose the same"
    if has_collectives(graph.gm):
        return "the graph talks to other processes"
    if graph.kwargs.get("cpp_wrapper"):
        return "the program is wrapped in C++"
    device = device_of(graph.gm, graph.example_inputs)
    return lacks_room(graph.example_inputs, device, session.options.top_k)


def many_ranks() -> bool:
    """Whether this process is one of several that must all choose the same."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
