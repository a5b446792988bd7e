"""Models cut into their blocks: each distinct one with inputs of the shapes that it is called with.

A whole model of many layers is the same few kernels over and over, and takes long to compile. The
model is run once on fake tensors, which computes nothing, to see what its blocks are given. Only
cuts; never decides which models there are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from fusewise.schedule.errors import CorpusError

#: Modules without children in a block, at most: a transformer layer has some 15, a residual block
#: of a convolutional net some 10.
LARGEST_BLOCK: Final = 24

#: Rates differ from layer to layer and change no shape.
_RATE = re.compile(r"\b(drop_prob|p|inplace)=[\w.e-]+")
_NUMBER = re.compile(r"(idx|index|layer_id|number)$")
_PLAIN = (Tensor, int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Block:
    """A part of a model with inputs of the shapes that it has there."""

    #: Where it is in the model: ``layers.0``; "" is the whole model.
    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Equal for blocks that are the same program on the same shapes.
    fingerprint: str


def leaves(module: nn.Module) -> int:
    """Modules without children in ``module``, itself included."""
    return sum(1 for part in module.modules() if not any(True for _ in part.children()))


def blocks(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    largest: int = LARGEST_BLOCK,
) -> list[Block]:
    """The distinct blocks of ``module``, in the order in which they are first called.

    A part of more than ``largest`` leaves is cut into its children; what it does between them is
    lost. Parts that are a single layer of torch are left out. Their numbers are drawn from torch's
    global random state; integers are zeros, which are in range of whatever they index. Inputs
    require a gradient where they had one, or where the module is in training mode.

    Raises:
        CorpusError: the module cannot be run, or has no blocks that are called with plain values.
    """
    parts = dict(_parts(module, "", largest))
    calls = _recorded(module, parts, args, kwargs)
    found: dict[str, Block] = {}
    for path, (given, named) in calls.items():
        part = parts[path]
        if not all(_plain(value) for value in pytree.tree_leaves((given, named))):
            continue
        if _keeps_fake(part):
            continue
        fingerprint = _fingerprint(part, given, named)
        if fingerprint not in found:
            real = pytree.tree_map(lambda value: _real(value, module.training), [given, named])
            found[fingerprint] = Block(path, part, real[0], real[1], fingerprint)
    if not found:
        raise CorpusError(
            "no block of it is called with plain tensors",
            subject=type(module).__name__,
            remedy="leave it out, or give it as one program",
        )
    return list(found.values())


def _parts(module: nn.Module, path: str, largest: int) -> Iterator[tuple[str, nn.Module]]:
    """Parts to give as blocks, by path."""
    container = type(module).forward is nn.Module.forward or isinstance(
        module, nn.ModuleList | nn.ModuleDict
    )
    if not container and leaves(module) <= largest:
        if not (type(module).__module__.startswith("torch.nn.") and _is_leaf(module)):
            yield path, module
        return
    for name, child in module.named_children():
        yield from _parts(child, f"{path}.{name}" if path else name, largest)


def _is_leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


_Call = tuple[tuple[Any, ...], dict[str, Any]]


def _recorded(
    module: nn.Module,
    parts: Mapping[str, nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, _Call]:
    """What each part is called with first, on fake tensors, in the order of the calls."""
    calls: dict[str, _Call] = {}
    handles = []
    for path, part in parts.items():

        def record(
            _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], path: str = path
        ) -> None:
            if path not in calls:
                # Containers are copied: some models go on to append to the lists that they pass.
                calls[path] = pytree.tree_map(lambda value: value, (given, named))

        handles.append(part.register_forward_pre_hook(record, with_kwargs=True))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake_args, fake_kwargs = pytree.tree_map(
        lambda value: mode.from_tensor(value) if isinstance(value, Tensor) else value,
        (tuple(args), dict(kwargs)),
    )
    try:
        with mode, torch.no_grad():
            module(*fake_args, **fake_kwargs)
    except Exception as error:
        raise CorpusError(
            f"it does not run on fake tensors: {type(error).__name__}: {error}",
            subject=type(module).__name__,
            remedy="leave it out, or give it as one program",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _keeps_fake(module: nn.Module) -> bool:
    """Whether it keeps something that it computed, which on fake tensors is nothing."""
    return any(
        isinstance(value, FakeTensor)
        for part in module.modules()
        for value in (*vars(part).values(), *part.buffers(recurse=False))
    )


def _plain(value: object) -> bool:
    return isinstance(value, _PLAIN)


def _real(value: object, training: bool) -> object:
    """A real tensor of the same shape, strides and type; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    # Without writing to an element twice where the tensor was expanded.
    overlaps = 0 in value.stride() and value.numel() > 1
    extent = (
        value.shape
        if overlaps
        else (1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)),)
    )
    if 0 in value.shape:
        return torch.zeros(value.shape, dtype=value.dtype)
    if not value.dtype.is_floating_point:
        storage = torch.zeros(extent, dtype=value.dtype)
    else:
        storage = torch.randn(extent).to(value.dtype)
    if not overlaps:
        storage = storage.as_strided(value.shape, value.stride())
    wanted = value.dtype.is_floating_point and (training or value.requires_grad)
    return storage.detach().requires_grad_(wanted)


def _fingerprint(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Structure, shapes of weights, settings and shapes of inputs; never values of tensors."""
    told: list[object] = [module.training]
    for name, part in module.named_modules():
        settings = {
            key: value
            for key, value in vars(part).items()
            if not key.startswith("_")
            and not _NUMBER.search(key)
            and (isinstance(value, int | str) or _integers(value))
        }
        told.append((name, type(part).__qualname__, sorted(settings.items(), key=str)))
        told.append(_RATE.sub("", part.extra_repr()))
    for named in (module.named_parameters(), module.named_buffers()):
        told += [(name, tuple(t.shape), str(t.dtype)) for name, t in named]
    leaves_, form = pytree.tree_flatten((args, kwargs))
    told.append(str(form))
    for value in leaves_:
        if isinstance(value, Tensor):
            told.append((tuple(value.shape), value.stride(), str(value.dtype)))
        else:
            told.append(value)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _integers(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(part, int) for part in value)
