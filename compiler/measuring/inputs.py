"""Inputs to measure on: like the caller's, without sending the caller's tensors.

What decides a kernel's time is shape, layout and, for integers that index, the values; what
decides whether an error can be judged is that nothing is NaN. So integers travel as they are and
floating-point tensors as range, mean and spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from fusewise.schedule.errors import MeasureError

#: Elements looked at to describe a floating-point tensor.
_SAMPLE = 32768
#: Larger integer tensors are described by their range.
_MOST_VALUES = 1 << 24


@dataclass(frozen=True)
class Observed:
    """What is kept of one tensor that the caller passed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float
    high: float
    mean: float
    std: float
    #: The integers themselves, on the CPU; None for floating point and for very large tensors.
    values: torch.Tensor | None = None


@dataclass(frozen=True)
class TensorInput:
    """How to make one tensor input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    observed: Observed | None = None
    #: Name of a value of the forward graph that this input was saved from.
    saved: str | None = None


#: A tensor to make, or a number (or None) to pass as it is.
Input = TensorInput | int | float | bool | None


def observe(example_inputs: Sequence[Any]) -> list[Observed | None]:
    """Describe the caller's real tensors; None for what is no tensor or has no data yet."""
    with unset_fake_temporarily(), torch.no_grad():
        return [
            _observe(value)
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
            else None
            for value in example_inputs
        ]


def _observe(tensor: torch.Tensor) -> Observed | None:
    if (
        tensor.layout is not torch.strided
        or tensor.device.type == "meta"
        or tensor.dtype.is_complex
        or tensor.numel() == 0
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    ):
        return None
    shape = tuple(tensor.shape)
    if not tensor.dtype.is_floating_point:
        values = tensor.detach().to("cpu", copy=True)
        low, high = float(values.min()), float(values.max())
        keep = values if values.numel() <= _MOST_VALUES else None
        return Observed(shape, tensor.dtype, low, high, 0.0, 0.0, keep)
    flat = tensor.detach().as_strided((min(_SAMPLE, _dense_length(tensor)),), (1,))
    sample = flat.to("cpu", torch.float64)
    sample = sample[torch.isfinite(sample)]
    if sample.numel() == 0:
        return None
    std = float(sample.std()) if sample.numel() > 1 else 0.0
    return Observed(
        shape, tensor.dtype, float(sample.min()), float(sample.max()), float(sample.mean()), std
    )


def _dense_length(tensor: torch.Tensor) -> int:
    """Elements of the storage that follow the tensor's first one, up to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def specify(
    example_inputs: Sequence[Any],
    names: Sequence[str],
    observed: Sequence[Observed | None],
    saved: Mapping[str, Any] | frozenset[str] = frozenset(),
    made_up: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[Input, ...]:
    """Say how to make the inputs of a graph.

    Args:
        example_inputs: what the graph is compiled for; may be fake and of symbolic size.
        names: the graph's own names of its inputs.
        observed: of the whole program's inputs, in its order; matched by position where shapes
            agree and by shape and dtype elsewhere.
        saved: names of values that a forward graph keeps for this one.
        made_up: lowest and highest of the integers to fill inputs of these names with of which
            nothing else is known.

    Raises:
        MeasureError: an input that cannot be made here; names it.
    """
    remaining = list(observed)
    made_up = made_up or {}
    result: list[Input] = []
    for i, (name, value) in enumerate(zip(names, example_inputs, strict=True)):
        if not isinstance(value, torch.Tensor):
            result.append(_number(name, value))
            continue
        if value.layout is not torch.strided or value.device.type not in ("cpu", "cuda"):
            raise MeasureError(
                f"{value.layout} tensor on {value.device}",
                subject=f"input {name}",
                remedy="mode predict chooses without measuring",
            )
        shape = tuple(_size(name, n) for n in value.shape)
        seen = _match(remaining, i, shape, value.dtype)
        if seen is None and name in made_up:
            low, high = made_up[name]
            seen = Observed(shape, value.dtype, low, high, 0.0, 0.0)
        result.append(
            TensorInput(
                shape=shape,
                stride=tuple(_size(name, n) for n in value.stride()),
                dtype=value.dtype,
                device=str(value.device),
                observed=seen,
                saved=name if name in saved else None,
            )
        )
    return tuple(result)


def _match(
    remaining: list[Observed | None], position: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Observed | None:
    order = [position, *(j for j in range(len(remaining)) if j != position)]
    for j in order:
        seen = remaining[j] if j < len(remaining) else None
        if seen is not None and seen.shape == shape and seen.dtype == dtype:
            remaining[j] = None
            return seen
    return None


def _number(name: str, value: Any) -> int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, torch.SymInt):
        return _size(name, value)
    raise MeasureError(
        f"value of type {type(value).__name__}",
        subject=f"input {name}",
        remedy="mode predict chooses without measuring",
    )


def _size(name: str, value: int | torch.SymInt) -> int:
    known = known_size(value)
    if known is None:
        raise MeasureError(
            f"its size {value} depends on data",
            subject=f"input {name}",
            remedy="mode predict chooses without measuring",
        )
    return known


def known_size(value: int | torch.SymInt) -> int | None:
    """A size, of a symbolic one that of the example; None where it depends on data."""
    if isinstance(value, int):
        return value
    known = value.node.hint if value.node.has_hint() else None
    return None if known is None else int(known)


def build(
    inputs: Sequence[Input], saved: Mapping[str, torch.Tensor], seed: int = 0
) -> list[torch.Tensor | int | float | bool | None]:
    """Make the inputs; the same seed gives the same values on the same device."""
    generators: dict[str, torch.Generator] = {}

    def generator(device: str) -> torch.Generator:
        # Large tensors take seconds to draw on the CPU.
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        return generators[device]

    return [
        _tensor(value, saved, generator(value.device)) if isinstance(value, TensorInput) else value
        for value in inputs
    ]


def _tensor(
    spec: TensorInput, saved: Mapping[str, torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    kept = saved.get(spec.saved) if spec.saved else None
    length = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
    if 0 in spec.shape:
        length = 0
    storage = torch.empty(length, dtype=spec.dtype, device=spec.device)
    result = storage.as_strided(spec.shape, spec.stride)
    values = spec.observed.values if spec.observed is not None else None
    if kept is not None and kept.shape == result.shape and kept.dtype == result.dtype:
        values = kept
    if values is not None:
        # Along an expanded dimension all elements are one, which is written once.
        distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in result.stride())
        result[distinct].copy_(values[distinct])
    elif length:
        storage.copy_(_random(spec, length, generator))
    return result


def _random(spec: TensorInput, length: int, generator: torch.Generator) -> torch.Tensor:
    seen = spec.observed
    device = generator.device
    if spec.dtype is torch.bool:
        return torch.rand(length, generator=generator, device=device) < 0.5  # noqa: PLR2004
    if not (spec.dtype.is_floating_point or spec.dtype.is_complex):
        # Zero and one are in range of whatever the integers index.
        low, high = (int(seen.low), int(seen.high)) if seen else (0, 1)
        return torch.randint(
            low, high + 1, (length,), generator=generator, dtype=torch.int64, device=device
        )
    values = torch.randn(length, generator=generator, device=device)
    if seen is None or not math.isfinite(seen.std):
        return values
    values = values.mul_(seen.std).add_(seen.mean)
    return values.clamp_(seen.low, seen.high)
