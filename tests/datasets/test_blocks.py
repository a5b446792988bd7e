from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fusewise.datasets.blocks import blocks, leaves
from fusewise.schedule.errors import CorpusError


class Layer(nn.Module):
    def __init__(self, width: int, rate: float = 0.0, shift: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(rate)
        self.shift = shift

    def forward(self, x: Tensor, mask: Tensor | None = None, *, gain: float = 1.0) -> Tensor:
        h = x.roll(self.shift, 1)
        h = self.drop(self.down(torch.relu(self.up(self.norm(h))))) * gain
        return x + (h if mask is None else h * mask[..., None])


class Net(nn.Module):
    def __init__(self, layers: int = 4, shift: int = 0) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 8)
        self.stages = nn.ModuleList(
            nn.Sequential(*[Layer(width, 0.1 * i, shift * i) for i in range(layers)])
            for width in (8, 16)
        )
        self.widen = nn.Linear(8, 16)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages[0](self.stem(x))
        out: Tensor = self.head(self.stages[1](self.widen(h)))
        return out


def test_each_distinct_block_is_given_once_with_its_shapes() -> None:
    net = Net().train()
    found = blocks(net, (torch.randn(5, 7, 3),), {}, largest=6)
    assert [block.path for block in found] == ["stages.0.0", "stages.1.0", "head"]
    assert [block.args[0].shape for block in found] == [(5, 7, 8), (5, 7, 16), (5, 7, 16)]
    assert len({block.fingerprint for block in found}) == 3
    for block in found:
        assert block.args[0].requires_grad
        block.module(*block.args, **block.kwargs).sum().backward()
        assert block.args[0].grad is not None
    assert not any(part._forward_pre_hooks for part in net.modules())


def test_settings_tell_blocks_apart_and_rates_do_not() -> None:
    x = torch.randn(2, 4, 3)
    assert len(blocks(Net(shift=1), (x,), {}, largest=6)) == 2 * 4 + 1
    first, again = (blocks(Net(), (x,), {}, largest=6) for _ in range(2))
    assert [block.fingerprint for block in first] == [block.fingerprint for block in again]
    other = blocks(Net(), (x[:1],), {}, largest=6)
    assert not {b.fingerprint for b in first} & {b.fingerprint for b in other}


def test_a_small_model_is_one_block() -> None:
    layer = Layer(8).eval()
    mask = torch.ones(2, 4, dtype=torch.bool)
    (block,) = blocks(layer, (torch.randn(2, 4, 8), mask), {"gain": 0.5})
    assert block.path == "" and block.module is layer and block.kwargs == {"gain": 0.5}
    assert not block.args[0].requires_grad
    assert block.args[1].dtype == torch.bool
    assert leaves(layer) == 4


def test_memory_formats_and_expanded_inputs_are_kept() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Layer(8)
            self.outer = Layer(8)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.transpose(0, 1)) + self.outer(x[:1].expand(5, -1, -1))
            return out

    found = blocks(Two(), (torch.randn(5, 5, 8),), {}, largest=4)
    assert found[0].args[0].stride() == (8, 40, 1)
    assert found[1].args[0].shape == (5, 5, 8)
    found[1].args[0].sum().backward()


def test_lists_are_given_as_they_were_when_passed() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(_Joined(8 * (i + 1)) for i in range(3))

        def forward(self, x: Tensor) -> Tensor:
            found = [x]
            for layer in self.layers:
                found.append(layer(found))
            return found[-1]

    made = blocks(Dense(), (torch.randn(2, 8),), {}, largest=2)
    assert [len(block.args[0]) for block in made] == [1, 2, 3]
    for block in made:
        block.module(*block.args)


class _Joined(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 8)

    def forward(self, parts: list[Tensor]) -> Tensor:
        found: Tensor = self.out(self.norm(torch.cat(parts, -1)))
        return found


def test_blocks_that_keep_what_they_computed_are_left_out() -> None:
    class Keeping(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            self.places = torch.arange(8)
            out: Tensor = super().forward(x) + self.places
            return out

    net = nn.Sequential(Keeping(8), Layer(8))
    assert [b.path for b in blocks(net, (torch.randn(1, 2, 8),), {}, largest=4)] == ["1"]


def test_what_cannot_be_cut_is_told() -> None:
    class Valued(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * int(x.sum().item())

    with pytest.raises(CorpusError, match="does not run on fake tensors"):
        blocks(nn.Sequential(Layer(8), Valued()), (torch.randn(1, 2, 8),), {}, largest=4)
    with pytest.raises(CorpusError, match="no block"):
        blocks(nn.Linear(3, 3), (torch.randn(1, 3),), {})
