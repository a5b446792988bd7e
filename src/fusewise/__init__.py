"""fusewise: a ``torch.compile`` backend that decides fusion by search, a cost model and timing.

``torch.compile(model, backend="fusewise")`` is all it takes; :func:`reports` tells what happened.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from fusewise.compiler.ablating.program import Effort
    from fusewise.compiler.ablating.result import Ablation
    from fusewise.compiler.explaining.report import ExplainedProgram
    from fusewise.compiler.reports import GraphReport
    from fusewise.schedule.plan_file import PlanFile
    from fusewise.schedule.rules import Rule, RuleSet

__version__ = "0.1.0"
__all__ = ["__version__", "ablate", "aoti_compile_and_package", "explain", "reports", "rules"]


def ablate(
    function: Callable[..., Any], *args: Any, effort: Effort | None = None, **kwargs: Any
) -> Ablation:
    """What each stage of the compiler is worth to ``function(*args, **kwargs)``, measured.

    See :func:`fusewise.compiler.ablating.program.ablate`.
    """
    from fusewise.compiler.ablating.program import ablate as measure

    return measure(function, *args, effort=effort, **kwargs)


def aoti_compile_and_package(
    exported: torch.export.ExportedProgram,
    *,
    plan: str | os.PathLike[str] | PlanFile | None = None,
    package_path: str | os.PathLike[str] | None = None,
    inductor_configs: Mapping[str, Any] | None = None,
    store: str | os.PathLike[str] | None = None,
    model: str | None = None,
) -> str:
    """Compile an exported program into an AOTInductor package by a plan; the package's path.

    See :func:`fusewise.compiler.aot.aoti_compile_and_package` and ``docs/aot.md``.
    """
    from fusewise.compiler.aot import aoti_compile_and_package as package

    return package(
        exported,
        plan=plan,
        package_path=package_path,
        inductor_configs=inductor_configs,
        store=store,
        model=model,
    )


def explain(
    function: Callable[..., Any],
    *args: Any,
    measure: bool = False,
    why: tuple[str, str] | None = None,
    plan: str | Path | None = None,
    rules: Rule | RuleSet | Sequence[Rule] | str | Path | None = None,
    predicted: bool = False,
    **kwargs: Any,
) -> ExplainedProgram:
    """Every possible fusion of ``function(*args, **kwargs)``, its kernels, and why they are so.

    The same as ``fusewise explain --json``, as data, which its ``html()`` makes a page of: see
    ``docs/explain.md``. A module in training mode is compiled with its backward, anything else
    without gradients.

    Args:
        function: a module or any other callable; it is compiled and run once.
        args: its arguments.
        measure: whether to time each kernel.
        why: names of two nodes or groups whose fusion is looked at closely.
        plan: path of a plan file to explain; None for the schedules in the store.
        rules: rules that hold for it, as made with :mod:`fusewise.rules`, or the path of a file.
        predicted: whether, where no schedule is given or stored, the plan that is predicted to be
            best is searched for and explained.
        kwargs: its keyword arguments.

    Raises:
        FusewiseError: the program does not run compiled, there is no such fusion, plan or rule, or
            an argument has a value that cannot be.
    """
    from fusewise.compiler.explaining.program import explain_call

    return explain_call(
        function,
        args,
        kwargs,
        measure=measure,
        why=why,
        plan=plan,
        rules=rules,
        predicted=predicted,
    )


def reports() -> list[GraphReport]:
    """One report for each graph compiled in this process with the backend, oldest first."""
    # torch is imported by whoever compiles, not by whoever asks for the version.
    from fusewise.compiler.reports import reports as all_reports

    return all_reports()


# Not for type checkers, to whom every name would then be one of the package's.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """``fusewise.rules`` without an import of its own."""
        if name == "rules":
            return importlib.import_module("fusewise.rules")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
