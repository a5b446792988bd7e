"""What every process would find out again about the C++ compiler, found out once for all of them.

Compiles only Inductor's own probes; no kernel is built here.
"""

from __future__ import annotations

from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa


def probed_vectors() -> dict[str, str]:
    """Variables for processes that are to trust this one's probes of vector instructions.

    Each process of Inductor builds and loads a library for each instruction set, one process at a
    time under a file lock: many that start together wait for minutes, and one that stands still
    with the lock holds up all others. Empty where a probe failed: each is then on its own.
    """
    with inductor_config.patch({"cpp.vec_isa_ok": True}):
        offered = list(map(str, cpu_vec_isa.valid_vec_isa_list.__wrapped__()))
    working = list(map(str, cpu_vec_isa.valid_vec_isa_list()))
    return {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if working == offered else {}
