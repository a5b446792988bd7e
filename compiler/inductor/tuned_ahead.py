"""The Triton kernels of a program compiled by Inductor's pool before those that tune are loaded.

A kernel that is tuned here is loaded in this process, which would compile it on one core of many.
Loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks, compile_told
from fusewise.compiler.inductor.found_blocks import tell_blocks
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.triton_ahead import pooled_kernels
from fusewise.compiler.inductor.tuning import only_generated
from fusewise.schedule.schedule import Choice

#: Seconds that the pool is waited for.
_COMPILING_S = 60.0


def compile_tuned(
    source: str, nodes: Mapping[str, frozenset[str]], blocks: Sequence[Choice]
) -> None:
    """Wait until the pool has compiled the kernels of a program that is about to be loaded.

    What may be tried beside Inductor's own block sizes is on its way by then.

    Args:
        source: the program.
        nodes: of its kernels, by name.
        blocks: block sizes that were found for it before, which its kernels take.
    """
    settings = changed_settings()
    told = tell_blocks(source, nodes, blocks)
    there = {kernel.name for kernel in told}
    with only_generated():
        compile_told(told)
        # The pool takes what comes first: the program waits for its own block sizes alone.
        own = pooled_kernels(source, settings, there)
        ask_for_blocks(source, settings)
        own.wait(_COMPILING_S)
