"""Random sizes, dtypes, tensors and choices of one generated program.

Everything that a family draws comes from one seed here, so that equal seeds give equal programs.
Never touches torch's global random state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fusewise.datasets.drawn import spread

T = TypeVar("T")

#: Elements of the smallest main tensor, at any scale: kernels that do next to nothing occur on
#: every device.
_SMALLEST = 2**10
#: Bytes of the largest main tensor at scale 1: some 10 ms on a few CPU cores. 512 MB at scale 16.
_LARGEST_BYTES = 2**25
#: Drawn values are repeated in tensors of more elements, as drawing takes longer than running.
_MOST_DRAWN = 2**21

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DTYPE_WEIGHTS = (0.4, 0.45, 0.15)

#: Widths that models have: powers of two and not.
_WIDTHS = (16, 32, 40, 48, 64, 80, 96, 127, 128, 160, 192, 197, 256, 320, 384, 512, 640, 768)
_WIDE = (*_WIDTHS, 1000, 1024, 1280, 1536, 2048, 3072, 4096, 5120, 8192, 14336)


@dataclass(frozen=True)
class Program:
    """What a family makes: something to call and its arguments."""

    module: Callable[..., Any]
    args: tuple[Any, ...]
    training: bool = False


class Draw:
    """The random source of one program.

    Args:
        seed: any text; equal ones draw equally.
        scale: factor on the number of elements.
    """

    def __init__(self, seed: str, scale: float) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.scale = scale
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.dtype: torch.dtype = self.random.choices(_DTYPES, _DTYPE_WEIGHTS)[0]
        largest = max(64.0, _LARGEST_BYTES * scale / self.dtype.itemsize)
        smallest = min(_SMALLEST, largest / 4)
        #: Elements of the program's main tensor.
        self.numel = spread(self.random, smallest, largest)
        #: Whether a family that can be trained is.
        self.training = self.chance(0.5)

    def choice(self, options: Sequence[T]) -> T:
        """One of ``options``."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return self.random.randint(low, high)

    def log_between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, each order of magnitude as often."""
        return round(self._log_uniform(low, max(low, high)))

    def width(self, *, wide: bool = True) -> int:
        """Extent of an innermost dimension; at most the square root of numel times eight.

        As models have it, or any number.
        """
        most = max(16, int(8 * self.numel**0.5))
        known = [w for w in (_WIDE if wide else _WIDTHS) if w <= most]
        return self.log_between(known[0], known[-1]) if self.chance(0.5) else self.choice(known)

    def shape(self, rank: int, *, wide: bool = True) -> tuple[int, ...]:
        """A shape of about ``numel`` elements whose last dimension is a :meth:`width`."""
        last = self.width(wide=wide)
        left = max(1, self.numel // last)
        dims: list[int] = []
        for _ in range(rank - 2):
            dim = max(1, min(left, round(self._log_uniform(1, max(2.0, left**0.7)))))
            dims.append(dim)
            left = max(1, left // dim)
        if rank > 1:
            dims.append(left)
        return (*dims, last)

    def tensor(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        grad: bool | None = None,
        positive: bool = False,
    ) -> Tensor:
        """Standard normal values (their absolute, where ``positive``), or uniform bytes for ints.

        Requires a gradient where ``grad`` says so, and by default where the program is trained.
        """
        dtype = dtype or self.dtype
        if not dtype.is_floating_point:
            return self._repeated(
                shape, lambda n: torch.randint(-128, 128, (n,), generator=self.generator).to(dtype)
            )
        # Normal values are drawn in fp32 for all dtypes, so that a seed draws the same numbers.
        values = self._repeated(
            shape, lambda n: torch.randn(n, generator=self.generator), dtype, positive=positive
        )
        return values.requires_grad_(self.training if grad is None else grad)

    def image(
        self, shape: Sequence[int], *, grad: bool | None = None, turned: bool | None = None
    ) -> Tensor:
        """A :meth:`tensor` [N, C, H, W]; NHWC in memory where ``turned``, by default by chance."""
        x = self.tensor(shape, grad=grad)
        if turned is None:
            turned = not self.chance(0.5)
        if not turned:
            return x
        moved = x.detach().contiguous(memory_format=torch.channels_last)
        return moved.requires_grad_(x.requires_grad)

    def images(self, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """An :meth:`image` of each shape, all in one memory format, which is drawn."""
        turned = self.chance(0.5)
        return [self.image(shape, turned=turned) for shape in shapes]

    def indices(self, shape: Sequence[int], bound: int) -> Tensor:
        """Integers below ``bound``, int64."""
        return self._repeated(
            shape, lambda n: torch.randint(0, bound, (n,), generator=self.generator)
        )

    def mask(self, shape: Sequence[int], probability: float = 0.5) -> Tensor:
        """Booleans, True with that probability."""
        return self._repeated(
            shape, lambda n: torch.rand(n, generator=self.generator) < probability
        )

    def _repeated(
        self,
        shape: Sequence[int],
        values: Callable[[int], Tensor],
        dtype: torch.dtype | None = None,
        *,
        positive: bool = False,
    ) -> Tensor:
        """A tensor of up to so many drawn values, which are repeated where it has more."""
        numel = math.prod(shape)
        some = values(min(numel, _MOST_DRAWN))
        if positive:
            some = some.abs() + 0.1
        some = some if dtype is None else some.to(dtype)
        if numel > _MOST_DRAWN:
            some = some.repeat(-(-numel // _MOST_DRAWN))[:numel]
        return some.reshape(tuple(shape))

    def module(self, build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """A module built with its initial values drawn from here, in the program's dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random.getrandbits(62))
            module = build().to(self.dtype)
        return module.train(self.training).requires_grad_(self.training)

    def _log_uniform(self, low: float, high: float) -> float:
        return float(low * (high / low) ** self.random.random())
