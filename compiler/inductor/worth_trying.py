"""Which block sizes of a kernel are worth trying, and what they are expected to save.

The best predicted where there is a model of block sizes, the nearest to Inductor's own elsewhere.
Loads a kernel's source, compiles and runs nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.block_sizes import (
    can_be_tried,
    found_by_steps,
    load_kernel,
    nearest,
    sizes_of,
    with_several,
    without_steps,
)
from fusewise.compiler.inductor.replacing import holding
from fusewise.costmodel.block_model import BlockModel, Ranking
from fusewise.schedule.block_sizes import BlockSizes

log = logging.getLogger(__name__)

#: Block sizes that a model is asked about, the nearest to Inductor's own, and that are tried of
#: these: the best of all is mostly among the first few predicted.
_ASKED_ABOUT: Final = 96
_TRIED: Final = 6

#: By the id of the model and the source: a kernel is asked about more than once in a compile.
_rankings: OrderedDict[tuple[str, str], Ranking | None] = OrderedDict()
#: Kernels whose rankings are remembered.
_REMEMBERED: Final = 256

_model: ContextVar[BlockModel | None] = ContextVar("fusewise_block_model", default=None)


@contextmanager
def ranked_by(model: BlockModel | None) -> Iterator[None]:
    """Have a model say which block sizes are worth trying in this context; None for no model."""
    with holding(_model, model):
        yield


def most_ranked() -> int | None:
    """How many block sizes of a kernel are tried where a model says which; None without one."""
    return None if _model.get() is None else _TRIED


def kernel_of(name: str, code: str) -> Any:
    """The kernel of a source, uncompiled; see :func:`load_kernel`."""
    _, path = PyCodeCache.write(code)
    return load_kernel(path, name)


def nearby(kernel: Any, name: str, code: str, most: int) -> list[BlockSizes]:
    """:func:`nearest` of a kernel, with what Inductor starts from where it tries several."""
    return nearest(kernel, kernel_of(name, with_several(code)).configs or (), most)


def worth_trying(path: str, name: str, code: str, most: int) -> list[BlockSizes]:
    """Block sizes to try for a kernel, Inductor's own first; none where it is tuned already.

    Args:
        path: the file of its source.
        name: of the kernel.
        code: its source.
        most: how many, more only if Inductor itself has more.
    """
    try:
        kernel = load_kernel(path, name)
        # Found in an earlier run: nothing is left to be tried.
        known = any(found_by_steps(config) for config in kernel.configs or ())
        if known or not can_be_tried(kernel):
            return []
        ranking = _ranking(kernel, code, name)
        if ranking is None:
            return nearby(kernel, name, code, most)
        own = [sizes_of(config) for config in kernel.configs]
        best = [sizes for sizes in ranking.sizes if sizes not in own]
        return [*own, *best[: max(0, most - len(own))]]
    except Exception:
        # Whoever loads the program tunes the kernel as Inductor does.
        log.debug("no block sizes for %s", name, exc_info=True)
        return []


def expected_saving(name: str, code: str) -> float | None:
    """Part of a kernel's time that other block sizes are expected to save.

    None if that is not known, or it cannot have others.

    Args:
        name: of the kernel.
        code: its source.
    """
    if _model.get() is None:
        return None
    try:
        kernel = kernel_of(name, code)
        ranking = _ranking(kernel, code, name) if can_be_tried(kernel) else None
    except Exception:
        log.debug("no block sizes for %s", name, exc_info=True)
        return None
    return None if ranking is None else max(0.0, 1.0 - min(ranking.ratios))


def _ranking(kernel: Any, code: str, name: str) -> Ranking | None:
    model = _model.get()
    if model is None:
        return None
    plain = without_steps(code)
    key = (model.id, plain)
    if key not in _rankings:
        near = nearby(kernel, name, plain, _ASKED_ABOUT)
        _rankings[key] = model.ranked(plain, near, len(kernel.configs))
        while len(_rankings) > _REMEMBERED:
            _rankings.popitem(last=False)
    return _rankings[key]
