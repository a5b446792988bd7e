"""Metadata of a sample's inputs and weights, and tensors made from it.

The files are Python classes of plain assignments. They are parsed, never executed.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Larger draws repeat a block of this many elements: drawing takes longer than compiling
#: otherwise, and neither time nor correctness of a kernel depends on fresh values.
_BLOCK = 1 << 20
#: Parameters of a mask with huge entries are no parameters of a distribution.
_HUGE = 1e30


class Unloadable(Exception):  # noqa: N818 - a reason, which the corpus turns into an error
    """Why a sample or a piece of it cannot be used; the corpus names the sample."""


@dataclass(frozen=True)
class TensorMeta:
    """What is known of one argument of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    data: tuple[Any, ...] | None = None


def read_meta(folder: Path) -> dict[str, TensorMeta]:
    """Metadata of all arguments by name.

    Raises:
        Unloadable: a file is missing, or holds anything but classes of literals.
    """
    found: dict[str, TensorMeta] = {}
    for name in ("input_meta.py", "weight_meta.py"):
        path = folder / name
        if path.is_file():
            for entry in ast.parse(path.read_text(encoding="utf-8")).body:
                meta = _entry(entry)
                found[meta.name] = meta
        elif name == "weight_meta.py":
            raise Unloadable("it has no weight_meta.py")
    return found


def _entry(entry: ast.stmt) -> TensorMeta:
    if not isinstance(entry, ast.ClassDef):
        raise Unloadable(f"its metadata holds {ast.unparse(entry)[:80]!r}, which is no class")
    fields: dict[str, Any] = {}
    for line in entry.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            fields[line.targets[0].id] = _literal(line.value)
        elif not isinstance(line, ast.Pass):
            raise Unloadable(f"its metadata holds {ast.unparse(line)[:80]!r}, which is no value")
    try:
        dtype = getattr(torch, str(fields["dtype"]).removeprefix("torch."))
        shape = tuple(int(size) for size in fields["shape"])
        name = str(fields["name"])
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise Unloadable(f"its metadata {entry.name!r} is incomplete: {error!r}") from error
    if not isinstance(dtype, torch.dtype) or any(size < 0 for size in shape):
        raise Unloadable(f"its metadata {entry.name!r} has no valid dtype and shape")
    data = fields.get("data")
    return TensorMeta(
        name=name,
        shape=shape,
        dtype=dtype,
        mean=fields.get("mean"),
        std=fields.get("std"),
        low=fields.get("min_val"),
        high=fields.get("max_val"),
        data=tuple(data) if isinstance(data, list | tuple) else None,
    )


def _literal(value: ast.expr) -> Any:
    match value:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            return float(text)
        case ast.Name(id="inf" | "nan" as text):
            return float(text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_literal(operand)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_literal(part) for part in parts]
    try:
        return ast.literal_eval(value)
    except ValueError as error:
        raise Unloadable(f"its metadata holds {ast.unparse(value)[:80]!r}") from error


def draw(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    """A tensor of that shape and dtype, with about that distribution, on the CPU."""
    dtype, count = meta.dtype, math.prod(meta.shape)
    if meta.data is not None and len(meta.data) == count:
        values = torch.tensor(meta.data, dtype=dtype)
        if "eps" in meta.name and count == 1 and dtype.is_floating_point and not values.any():
            values.fill_(1e-6)  # written with three to six decimals: 1e-12 was read as 0
        return values.reshape(meta.shape)
    block = min(count, _BLOCK)
    if dtype is torch.bool:
        values = torch.randint(0, 2, (block,), generator=generator).bool()
    elif dtype.is_complex:
        values = torch.randn(block, generator=generator, dtype=dtype)
    elif dtype.is_floating_point:
        values = _floats(meta, block, generator)
    else:
        low = 0 if meta.low is None else int(meta.low)
        high = max(low, 1) if meta.high is None else max(low, int(meta.high))
        values = torch.randint(low, high + 1, (block,), generator=generator, dtype=dtype)
    if block < count:
        values = values.repeat(-(-count // block))[:count]
    return values.reshape(meta.shape)


def _is_matrix(meta: TensorMeta) -> bool:
    """Whether it is a parameter that others are multiplied with and summed up."""
    return "_parameters_" in meta.name and sum(size > 1 for size in meta.shape) > 1


def _floats(meta: TensorMeta, count: int, generator: torch.Generator) -> torch.Tensor:
    # Weights that are drawn have nothing that makes up for their mean: what they are multiplied
    # with, positive behind a ReLU, would come out of one sign, and be all 0 behind the next.
    mean = 0.0 if meta.mean is None or _is_matrix(meta) else float(meta.mean)
    std = 0.02 if meta.std is None else float(meta.std)
    if not (abs(mean) < _HUGE and abs(std) < _HUGE):
        return torch.zeros(count, dtype=meta.dtype)
    wide = torch.float64 if meta.dtype is torch.float64 else torch.float32
    values = torch.randn(count, generator=generator, dtype=wide)
    if meta.low is not None and meta.low >= 0 and mean > 0 and std > 0:
        # Variances and the like: log-normal of that mean and spread, since normal ones are
        # negative now and then.
        spread = math.log1p((std / mean) ** 2)
        values = torch.exp(values * math.sqrt(spread) + math.log(mean) - spread / 2)
    else:
        values = values * std + mean
    if "running_var" in meta.name:
        values = values.abs() + 1e-3
    if meta.low is not None or meta.high is not None:
        values = values.clamp(meta.low, meta.high)
    limits = torch.finfo(meta.dtype)
    return values.clamp(limits.min, limits.max).to(meta.dtype)
