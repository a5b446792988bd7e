"""What torch and Triton know of a GPU, for copies of this process, which cannot ask it.

Inductor asks the device a few things while it lowers a graph and writes its kernels; in a forked
process each of these fails. They are asked here before, and answered there from memory. Does no
work aside itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import torch
import torch.utils._triton
from torch._inductor import utils as inductor_utils

from fusewise.compiler.inductor.replacing import holding, once

_torch_c: Any = torch._C
_utils: Any = torch.utils._triton
#: What convolutions are computed by, by all that decides it; None where nobody wants to know.
_noted: ContextVar[dict[object, Any] | None] = ContextVar("fusewise_convolutions", default=None)


def gpu_in_use() -> int | None:
    """The current GPU, all of which that a copy may ask for is known then; None where none is."""
    if not torch.cuda.is_initialized():
        return None
    gpu = torch.cuda.current_device()
    torch.cuda.get_device_properties(gpu)
    # Inductor's estimates ask for it; in a copy it would find none and say 0.
    with suppress(Exception):
        inductor_utils.get_gpu_dram_gbps()
    # It is written into each kernel.
    with suppress(Exception):
        _utils.triton_hash_with_backend()
    return gpu


def answer_without_device(gpu: int) -> None:
    """Have this process, a copy, tell what is known of the GPU: as it is, it refuses to tell.

    What has to be asked of the device itself still fails, with an error of CUDA's.
    """
    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.current_device = lambda: gpu
    with suppress(ImportError, RuntimeError):
        from triton.runtime import driver

        # It has kept torch's function, not its name.
        driver.active.get_current_device = cuda.current_device


@contextmanager
def noting_convolutions() -> Iterator[None]:
    """Ask only once what each convolution of the compile in this context is computed by.

    The strides of what it gives hang on that.
    """
    _install()
    with holding(_noted, {}):
        yield


@once
def _install() -> None:
    select = _torch_c._select_conv_backend

    @functools.wraps(select)
    def selected(*args: Any, **kwargs: Any) -> Any:
        noted = _noted.get()
        if noted is None:
            return select(*args, **kwargs)
        asked = _asked(args, kwargs)
        if asked not in noted:
            noted[asked] = select(*args, **kwargs)
        return noted[asked]

    _torch_c._select_conv_backend = selected


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """All that a choice among the ways to compute a convolution goes by, within one compile."""
    named = tuple((name, _told(kwargs[name])) for name in sorted(kwargs))
    return torch.is_grad_enabled(), tuple(map(_told, args)), named


def _told(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        # Sizes that are symbols stand for one number each within a compile.
        sizes = str((tuple(value.shape), value.stride()))
        return value.dtype, value.device, value.requires_grad, value.layout, sizes
    return str(value)
