"""Recommendation after DLRM (Naumov et al. 2019): 26 tables of embeddings, dense features, MLPs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, integers, normal, placed

_TABLES = 26


class _Dlrm(nn.Module):
    """Bags of embeddings, pairwise products, and an MLP on top."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(_TABLES))
        for table in self.tables:
            # Of the default's size, sums of products would drive every probability to 0 or 1.
            nn.init.normal_(table.weight, std=0.1)
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (_TABLES + 1) * _TABLES // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.tril_indices(_TABLES + 1, _TABLES + 1, -1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """dense [n, 13], ids [tables, n, bag]; click probability [n]."""
        x = self.bottom(dense)
        # A bag is the sum of its rows.
        bags = [table(ids[i]).sum(1) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *bags], dim=1)
        products = stacked @ stacked.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, crossed], dim=1))).squeeze(1)


class _Clicks(nn.Module):
    """The same with a loss."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.model = _Dlrm(rows, width)

    def forward(self, dense: Tensor, ids: Tensor, clicked: Tensor) -> Tensor:
        """clicked [n]; the loss."""
        return functional.binary_cross_entropy(self.model(dense, ids).float(), clicked)


def _inputs(
    device: torch.device, dtype: torch.dtype, n: int, rows: int, bag: int
) -> tuple[Tensor, Tensor]:
    dense = normal(n, 13, device=device, dtype=dtype)
    return dense, integers(rows, _TABLES, n, bag, device=device)


def _inference(device: torch.device, dtype: torch.dtype) -> Program:
    n, rows, width, bag = by_device(device, cpu=(2048, 1000, 16, 4), gpu=(8192, 100_000, 64, 4))
    model = placed(_Dlrm(rows, width), device, dtype, "inference")
    return Program(model, _inputs(device, dtype, n, rows, bag))


def _training(device: torch.device, dtype: torch.dtype) -> Program:
    n, rows, width, bag = by_device(device, cpu=(512, 1000, 16, 2), gpu=(4096, 20_000, 32, 2))
    model = placed(_Clicks(rows, width), device, dtype, "training")
    clicked = integers(2, n, device=device).to(FP32)
    return Program(model, (*_inputs(device, dtype, n, rows, bag), clicked), backward=True)


WORKLOADS = (
    Workload("dlrm", "inference", "recommendation", _inference),
    Workload("dlrm_step", "training", "recommendation", _training, (FP32,)),
)
