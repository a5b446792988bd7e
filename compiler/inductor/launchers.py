"""One Triton kernel with several block sizes: loading it with them, and launching it to be timed.

Takes no times and chooses nothing. The kernel itself stays as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusewise.compiler.inductor.block_sizes import config_of
from fusewise.schedule.block_sizes import BlockSizes

log = logging.getLogger(__name__)

#: Inductor's own limit of registers that are spilled, where a kernel's metadata have none.
_SPILLED = 16
#: What a kernel changes is copied before it is timed, up to this.
_MOST_COPIED_BYTES = 1 << 28
#: How names of arguments begin that a kernel writes.
_RESULTS = ("out_ptr", "in_out_ptr")
#: Elements of a result that are compared at most.
_MOST_COMPARED = 1 << 24
#: Relative difference (L2) that another order of summing makes at most, by bytes of an element, and
#: the part of integers that may differ.
_ROUNDING = {1: 0.3, 2: 0.02, 4: 1e-3, 8: 1e-6}
_OTHER_INTEGERS = 1e-3


def load_sizes(kernel: Any, like: Any, sizes: BlockSizes) -> Any | None:
    """A launcher of the kernel with some block sizes; None where the device cannot hold them.

    Compiles it where that is not in the cache on disk.

    Args:
        kernel: as Inductor has it in a loaded program.
        like: a configuration of it.
        sizes: block sizes.
    """
    if kernel.fn.fn is None:
        # It was compiled in another process.
        kernel.fn = kernel._reload_kernel().fn
    try:
        with kernel.lock:
            return kernel._precompile_config(config_of(sizes, like)).make_launcher()
    except Exception:
        # A block may need more registers or memory than there are.
        log.debug("%s cannot have %s", kernel.fn.__name__, sizes, exc_info=True)
        return None


def launch_of(launcher: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """A launch on the current stream, which under graph capture is not the program's."""

    def launch() -> None:
        launcher(*args, **kwargs, stream=torch.cuda.current_stream().cuda_stream)

    return launch


def spills(kernel: Any, launcher: Any) -> bool:
    """Whether Inductor would leave a launcher out without timing it."""
    most = kernel.inductor_meta.get("spill_threshold", _SPILLED)
    return bool((launcher.n_spills or 0) > most)


def can_be_repeated(kernel: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel can be launched again and again on copies of what it changes."""
    if kwargs.get("with_profiler") or kernel.device_props.type != "cuda" or kernel.custom_kernel:
        return False
    named = {**dict(zip(kernel.fn.arg_names, args, strict=False)), **kwargs}
    changed = [named[name] for name in kernel.mutated_arg_names if name in named]
    return (
        not kernel.reset_to_zero_arg_names
        # Indices that were overwritten would send a second launch out of bounds.
        and all(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in changed)
        and sum(v.untyped_storage().nbytes() for v in changed) <= _MOST_COPIED_BYTES
    )


def agree(kernel: Any, one: Any, other: Any, args: Any, kwargs: Any) -> bool:
    """Whether two launchers of a kernel write the same, but for rounding.

    Each runs on copies of its own of what the kernel changes; what it only writes it writes in
    place. Integers may differ where a value is rounded to one.
    """
    names = [name for name in kernel.fn.arg_names if _is_written(kernel, name)]
    written = []
    with torch.no_grad():
        for launcher in (one, other):
            copies, named = kernel.clone_args(*args, **kwargs)
            told = {**dict(zip(kernel.fn.arg_names, copies, strict=False)), **named}
            results = [told[name] for name in names if isinstance(told.get(name), torch.Tensor)]
            if not results:
                return True
            launch_of(launcher, copies, named)()
            # What comes next is written to the same place.
            written.append([_sample(result) for result in results])
        return all(_close(a, b) for a, b in zip(*written, strict=True))


def _is_written(kernel: Any, name: str) -> bool:
    return name.startswith(_RESULTS) or name in kernel.mutated_arg_names


def _sample(result: torch.Tensor) -> torch.Tensor:
    """Elements of a tensor, all over its memory, copied."""
    memory = result.untyped_storage().nbytes() // result.itemsize - result.storage_offset()
    step = max(1, -(-memory // _MOST_COMPARED))
    return result.as_strided((-(-memory // step),), (step,)).clone()


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return bool((a != b).float().mean() <= _OTHER_INTEGERS)
    wide_a, wide_b = a.double(), b.double()
    # Where there is no number, there is none in the other either.
    if not torch.equal(wide_a.isfinite(), wide_b.isfinite()):
        return False
    finite = wide_a.isfinite()
    difference = (wide_a - wide_b)[finite].norm()
    return bool(difference <= _ROUNDING[a.itemsize] * wide_a[finite].norm())
