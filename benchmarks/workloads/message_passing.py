"""Graph networks: messages gathered along edges and scattered back by addition."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from workloads.program import FP32, Program, Workload, by_device, integers, normal


def _convolution(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Graph convolution (Kipf and Welling 2017): mean over neighbours, linear, ReLU."""
    ones = torch.ones(target.shape[0], device=x.device)
    degree = torch.zeros(x.shape[0], device=x.device).index_add_(0, target, ones)
    scale = torch.rsqrt(degree.clamp(min=1))
    messages = x[source].float() * (scale[source] * scale[target]).unsqueeze(1)
    gathered = torch.zeros(x.shape, device=x.device).index_add_(0, target, messages)
    return functional.relu(gathered.to(x.dtype) @ weight + x)


def _graph(device: torch.device) -> tuple[int, int, int, Tensor, Tensor]:
    nodes, edges, width = by_device(device, cpu=(4096, 32768, 64), gpu=(100_000, 800_000, 64))
    source, target = (integers(nodes, edges, device=device) for _ in range(2))
    return nodes, edges, width, source, target


def _graph_convolution(device: torch.device, dtype: torch.dtype) -> Program:
    nodes, _, width, source, target = _graph(device)
    x = normal(nodes, width, device=device, dtype=dtype)
    weight = normal(width, width, device=device, dtype=dtype, scale=0.1)
    return Program(_convolution, (x, source, target, weight))


def _attention(x: Tensor, source: Tensor, target: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Graph attention (Veličković et al. 2018): a softmax over the edges into each node."""
    wide = x.float()
    score = functional.leaky_relu((wide @ left)[source] + (wide @ right)[target], 0.2)
    highest = torch.full((x.shape[0],), -1e9, device=x.device)
    highest = highest.scatter_reduce(0, target, score, "amax")
    weight = torch.exp(score - highest[target])
    total = torch.zeros(x.shape[0], device=x.device).index_add(0, target, weight)
    messages = wide[source] * (weight / (total[target] + 1e-9)).unsqueeze(1)
    return functional.elu(torch.zeros_like(wide).index_add(0, target, messages))


def _graph_attention(device: torch.device, dtype: torch.dtype) -> Program:
    nodes, _, width, source, target = _graph(device)
    x = normal(nodes, width, device=device, dtype=dtype)
    left, right = (normal(width, device=device, dtype=FP32, scale=0.1) for _ in range(2))
    return Program(_attention, (x, source, target, left, right))


def _pooled_loss(x: Tensor, graph: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Pooling of nodes into graphs, and a regression on the sums."""
    hidden = functional.silu(x @ weight).float()
    pooled = torch.zeros(target.shape[0], x.shape[1], device=x.device).index_add(0, graph, hidden)
    normalised = functional.layer_norm(pooled, pooled.shape[1:])
    return functional.mse_loss(functional.silu(normalised).mean(1), target)


def _pooling(device: torch.device, dtype: torch.dtype) -> Program:
    nodes, graphs, width = by_device(device, cpu=(16384, 64, 64), gpu=(200_000, 1024, 64))
    x = normal(nodes, width, device=device, dtype=dtype).requires_grad_()
    weight = normal(width, width, device=device, dtype=dtype, scale=0.1).requires_grad_()
    target = normal(graphs, device=device, dtype=FP32)
    args = (x, integers(graphs, nodes, device=device), weight, target)
    return Program(_pooled_loss, args, backward=True)


WORKLOADS = (
    Workload("graph_convolution", "inference", "graph", _graph_convolution),
    Workload("graph_attention", "inference", "graph", _graph_attention, (FP32,)),
    Workload("graph_pooling_step", "training", "graph", _pooling, (FP32,)),
)
