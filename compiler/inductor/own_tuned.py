"""Inductor's own program with some of its kernels tuned step by step, made from its text.

Whether a kernel is tuned only stands in what Inductor notes beside its code, so that a program that
is there need not be scheduled and generated once more. Knows nothing of schedules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from torch._inductor import config as inductor_config
from torch._inductor.codecache import code_hash, get_path

from fusewise.compiler.inductor.kernel_nodes import Launch

#: A kernel in a program, as ``TritonScheduling.define_kernel`` writes it.
_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.triton\('\w+', '''\n(?P<code>.*?)\n''', device_str='\w+'\)$",
    re.MULTILINE | re.DOTALL,
)


def tuned_program(source: str, launches: Sequence[Launch], nodes: Collection[str]) -> str | None:
    """A program as Inductor would have written it with the kernels of some nodes tuned.

    To be asked for under the settings that the program was generated under.

    Args:
        source: the program.
        launches: of its kernels.
        nodes: of kernels that are tuned, a node of each or more.

    Returns:
        The program, of as many lines; None where more would change: a node has no kernel, or a code
        is launched for others besides that are not tuned, which would become two.
    """
    wanted = set(nodes)
    tuned = {launch.kernel for launch in launches if launch.nodes & wanted}
    others = {launch.kernel for launch in launches if not launch.nodes & wanted}
    if tuned & others or wanted - {node for launch in launches for node in launch.nodes}:
        return None
    plain = _noted()
    with inductor_config.patch(coordinate_descent_tuning=True):
        stepped = _noted()
    written: set[str] = set()
    paths: dict[str, str] = {}

    def write(kernel: re.Match[str]) -> str:
        name, code = kernel["name"], kernel["code"]
        if name not in tuned or code.count(plain) != 1:
            return kernel[0]
        written.add(name)
        changed = code.replace(plain, stepped)
        paths[_path(code)] = _path(changed)
        return kernel[0].replace(code, changed)

    program = _KERNEL.sub(write, source)
    for before, after in paths.items():
        program = program.replace(f"# kernel path: {before}\n", f"# kernel path: {after}\n")
    return program if written == tuned else None


def _noted() -> str:
    """What Inductor notes beside the code of every kernel under the settings in force."""
    # Not needed on a CPU.
    from torch._inductor.codegen.triton import TritonKernel

    return repr(TritonKernel.inductor_meta_common())[1:-1]


def _path(code: str) -> str:
    """The file that Inductor writes the code of a kernel to, which it tells in a comment."""
    path: str = get_path(code_hash(code.strip()), "py")[2]
    return path
