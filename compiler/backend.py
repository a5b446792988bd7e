"""The ``torch.compile`` backend ``fusewise``.

Whatever goes wrong in here, the caller gets a compiled function: Inductor's own, and one warning
that names the cause. Errors of the caller's program pass through untouched.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fusewise.compiler.notices import warn_once
from fusewise.compiler.reports import GraphReport, add_report
from fusewise.schedule.errors import FusewiseError, UnsupportedError

#: Versions of torch whose Inductor is known here.
_SUPPORTED = ((2, 11), (2, 13))


def _is_supported() -> bool:
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    return _SUPPORTED[0] <= version <= _SUPPORTED[1]


def fusewise(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph with fusion decided by fusewise.

    Use it as ``torch.compile(model, backend="fusewise")``.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: the inputs it was captured with.
        mode: ``measure``, ``predict`` or ``replay``, or a mode of Inductor's such as
            ``max-autotune``.
        options: ``fusewise.mode``, ``fusewise.top_k``, ``fusewise.budget_s``, ``fusewise.store``,
            ``fusewise.model``, ``fusewise.plan``, ``fusewise.partial`` and ``fusewise.rules``; any
            other key goes to Inductor.
    """
    supported = _is_supported()
    try:
        if not supported:
            raise UnsupportedError(
                f"torch {torch.__version__} is not supported",
                subject="environment",
                remedy="use torch " + " to ".join(f"{a}.{b}" for a, b in _SUPPORTED),
            )
        from fusewise.compiler.pipeline import compile_program

        compiler = compile_program(example_inputs, mode=mode, options=options)
    except Exception as error:  # noqa: BLE001 - a user's program never fails because of us
        cause = str(error) or type(error).__name__
        warn_once(cause)
        add_report(GraphReport("program", mode or "", fallback=cause))
        return _inductor(gm, example_inputs, mode, options, supported=supported)
    compiled: Callable[..., Any] = compiler(gm, example_inputs)
    return compiled


def _inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None,
    options: Mapping[str, Any] | None,
    *,
    supported: bool,
) -> Callable[..., Any]:
    """Inductor with what of the options is Inductor's, and rules if they can be had."""
    from torch._dynamo import lookup_backend

    from fusewise.compiler.inductor.settings import inductor_settings, known_settings
    from fusewise.compiler.options import MODES, split_options

    known = known_settings()
    theirs = {
        name: value
        for key, value in (options or {}).items()
        if (name := key.replace("-", "_")) in known
    }
    patches = inductor_settings(None if mode in MODES else mode, theirs)
    given = (options or {}).get("fusewise.rules")
    if given is not None and supported:
        from fusewise.compiler.pipeline import compile_under_rules

        try:
            alone, _, _ = split_options(None, {"fusewise.rules": given}, known)
        except FusewiseError:
            # That is what was warned of.
            alone = None
        if alone is not None and alone.rules is not None:
            ruled: Callable[..., Any] = compile_under_rules(
                gm, example_inputs, alone.rules, patches
            )
            return ruled
    inductor: Callable[..., Callable[..., Any]] = lookup_backend("inductor")
    return inductor(gm, example_inputs, config_patches=patches)


if _is_supported():
    # torch imports this file when a function is handed to torch.compile. What compiling takes is
    # imported then as well, and not when the first call waits for it; what fails is told there.
    with contextlib.suppress(Exception):
        importlib.import_module("fusewise.compiler.pipeline")
