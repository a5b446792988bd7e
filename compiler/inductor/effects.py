"""What a kernel does to each of its arguments, read from the code that Inductor generated.

Decides what calling it again and again would change. Never looks at a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

#: ``write``: to values that do not depend on what was there; ``update``: to ones that do.
Effect = Literal["read", "write", "update"]

_PARAMETERS = re.compile(r"\bkernel\s*\(([^)]*)\)\s*\{")
#: Adding to memory that a kernel did not set itself, in the forms that Inductor generates.
_ACCUMULATES = re.compile(r"atomic_add|transpose_mxn<[^>]*\btrue>|ptr\d+\[[^;\n]*\] \+=")


def cpp_effects(source: str) -> list[Effect] | None:
    """Effects of a C++ kernel on its arguments, in their order; None where they are not known."""
    found = _PARAMETERS.search(source)
    if found is None:
        return None
    accumulates = _ACCUMULATES.search(source) is not None
    effects: list[Effect] = []
    for parameter in found.group(1).split(","):
        if "*" not in parameter or re.search(r"\bconst\b", parameter):
            effects.append("read")
        elif accumulates or "in_out_ptr" in parameter:
            effects.append("update")
        else:
            effects.append("write")
    return effects


def triton_effects(kernel: Any) -> list[Effect] | None:
    """Effects of a Triton kernel of Inductor's; None where it was written by the user."""
    try:
        signature = kernel.triton_meta["signature"]
        mutated: Sequence[str] = kernel.mutated_arg_names
        accumulates = kernel.inductor_meta.get("atomic_add_found", True)
    except (AttributeError, KeyError, TypeError):
        return None
    names = [name for name, kind in signature.items() if kind != "constexpr"]
    if getattr(kernel, "custom_kernel", False) or not any("_ptr" in name for name in names):
        return None
    effects: list[Effect] = []
    for name in names:
        # An output is called mutated where it is an input of the program, too.
        if name.startswith("out_ptr") and not (accumulates and name in mutated):
            effects.append("write")
        else:
            changed = name.startswith("in_out_ptr") or name in mutated
            effects.append("update" if changed else "read")
    return effects
