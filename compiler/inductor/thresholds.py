"""What a lowering went by: every figure that Inductor held against a threshold of its own.

A lowering under another threshold comes out the same where no figure lies between the two; so a
choice that could change nothing is known before anything is lowered under it. What is held against
what is told by the dispatchers of :mod:`~fusewise.compiler.inductor.inlining`; nothing here ever
touches a lowering.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.fx
from torch._inductor import config as inductor_config
from torch._inductor import ir

#: Settings that say whether fusions are refused for tiling, and whether loops are turned round.
TILING_SETTINGS = frozenset(
    {"triton.tiling_prevents_pointwise_fusion", "triton.tiling_prevents_reduction_fusion"}
)
ORDERING_SETTING = "loop_ordering_after_fusion"


class _Figure(NamedTuple):
    """One comparison: ``value > max(floor, threshold)``."""

    value: int
    floor: int
    threshold: int

    def answered(self, threshold: Any) -> bool:
        return self.value > max(self.floor, int(threshold))


#: Settings by what is held against them.
_ACCUMULATED = ("realize_acc_reads_threshold", "realize_cpu_acc_reads_threshold")
_REUSED = ("realize_reads_threshold",)
_OPERATIONS = ("realize_opcount_threshold", "realize_cpu_opcount_threshold")
_VARIANCES = ("cpp.use_two_step_variance_threshold",)
_ALL = (_ACCUMULATED, _REUSED, _OPERATIONS, _VARIANCES)
_COMPARED: dict[str, tuple[str, ...]] = {name: names for names in _ALL for name in names}
#: Operators that compute variances.
_OF_VARIANCE = frozenset({"aten.var.correction", "aten.var_mean.correction", "prims.var.default"})
_SPLIT, _CAT = "split_reductions", "force_pointwise_cat"


class Figures:
    """What was held against thresholds in the lowerings that an inlining records."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, ...], set[_Figure]] = {names: set() for names in _ALL}
        self._split = False
        self._joined = False

    def matter(self, patches: Mapping[str, Any]) -> bool:
        """Whether the lowering might have come out otherwise under other settings.

        Of a setting that is not watched nothing is known: it might.
        """
        return any(self._matters(name, value) for name, value in patches.items())

    def _matters(self, name: str, value: Any) -> bool:
        if name in _COMPARED:
            figures = self._figures[_COMPARED[name]]
            return any(f.answered(f.threshold) != f.answered(value) for f in figures)
        return {_SPLIT: self._split, _CAT: self._joined}.get(name, True)

    def note_graph(self, graph: torch.fx.Graph) -> None:
        """A graph is lowered, or one within it."""
        self._joined |= any(_may_join(str(node.target)) for node in graph.nodes)
        # Versions before decide without a setting.
        threshold = getattr(inductor_config.cpp, "use_two_step_variance_threshold", None)
        if threshold is not None:
            found = (_Figure(size, 0, int(threshold)) for size in _variances(graph))
            self._figures[_VARIANCES].update(found)

    def note_reads(self, box: ir.StorageBox) -> None:
        """Inductor asks whether a value reads too much by now."""
        if isinstance(box.data, ir.Pointwise):
            self._compared(_ACCUMULATED, box.data, box.num_reads())

    def note_reuse(self, box: ir.StorageBox, users: int) -> None:
        """Inductor asks whether to store a value for its users."""
        if users > 1 and isinstance(box.data, ir.Pointwise | ir.Reduction):
            self._compared(_REUSED, box.data, box.num_reads())

    def note_operations(self, loops: ir.Loops, floor: int) -> None:
        """Inductor asks whether a value takes too many operations, more than ``floor`` at that."""
        self._compared(_OPERATIONS, loops, loops.inner_fn_opcount().num_ops, floor)

    def note_parts(self, parts: Any) -> None:
        """Inductor decides into how many parts to cut a reduction."""
        self._split |= bool(parts != 1)

    def _compared(self, names: tuple[str, ...], data: Any, value: int, floor: int = 0) -> None:
        threshold = _in_force(names, data)
        self._figures[names].add(_Figure(value, floor, threshold))


def _in_force(names: tuple[str, ...], data: Any) -> int:
    """The threshold that holds for a value: newer versions have one of their own for the CPU."""
    config: Any = inductor_config
    general = getattr(config, names[0])
    if general is not None:
        return int(general)
    if ir.is_cpu(data):
        return int(getattr(config, names[1]))
    return int(getattr(config, f"_{names[0]}_default"))


def _variances(graph: torch.fx.Graph) -> Iterator[int]:
    """Over how many values each variance of a graph is on the CPU, where that is known."""
    for node in graph.nodes:
        if str(node.target) not in _OF_VARIANCE:
            continue
        taken, found = node.args[0].meta.get("val"), node.meta.get("val")
        result = found[0] if isinstance(found, tuple) else found
        if not isinstance(taken, torch.Tensor) or not isinstance(result, torch.Tensor):
            continue
        static = all(isinstance(size, int) for size in (*taken.shape, *result.shape))
        if taken.device.type == "cpu" and static and result.numel():
            yield taken.numel() // result.numel()


def _may_join(target: str) -> bool:
    return "cat" in target or "stack" in target
