"""Triton kernels as Inductor writes them, programs of them, and a model of block sizes."""

from __future__ import annotations

import lightgbm
import numpy as np

from fusewise.costmodel.block_model import BlockModel, BlockTrees
from fusewise.costmodel.block_table import BLOCK_FEATURES

_IMPORTS = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import ReductionHint, TileHint, DeviceProperties

GPU = DeviceProperties(
    type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, warp_size=32,
)
"""
_META = (
    "'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'num_load': 1, "
    "'num_reduction': {reductions}, 'max_autotune': False, 'max_autotune_pointwise': False, "
    "'coordinate_descent_tuning': True, 'force_disable_caches': False, 'kernel_name': '{name}', "
    "'autotune_local_cache': True, 'autotune_remote_cache': False, 'spill_threshold': 16"
)


def pointwise(name: str = "triton_poi") -> str:
    """The source of a kernel as Inductor writes it."""
    return (
        _IMPORTS
        + f"""
@triton_heuristics.pointwise(
    size_hints={{'x': 1048576}}, filename=__file__, min_elem_per_thread=0,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'XBLOCK': 'constexpr'}}, 'device': GPU, 'constants': {{}},
        'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {_META.format(reductions=0, name=name)}}},
)
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tl.store(out_ptr0 + (xindex), tl_math.exp(tl.load(in_ptr0 + (xindex), xmask)), xmask)
"""
    )


def persistent(rows: int = 4096, length: int = 1024) -> str:
    """A kernel whose blocks hold whole rows."""
    meta = _META.format(reductions=1, name="triton_per")
    return (
        _IMPORTS
        + f"""
@triton_heuristics.persistent_reduction(
    size_hints={{'x': {rows}, 'r0_': {length}}}, reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'r0_numel': 'i32', 'XBLOCK': 'constexpr'}}, 'device': GPU, 'constants': {{}},
        'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {meta}}},
)
@triton.jit
def triton_per(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr):
    R0_BLOCK: tl.constexpr = {length}
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    xmask = xindex < xnumel
    values = tl.load(in_ptr0 + (r0_index + {length} * xindex), xmask, other=0.0)
    tl.store(out_ptr0 + (xindex), tl.sum(values, 1)[:, None], xmask)
"""
    )


def looped(rows: int = 4096, length: int = 65536) -> str:
    """A kernel that goes through its rows in pieces."""
    meta = _META.format(reductions=1, name="triton_red")
    return (
        _IMPORTS
        + f"""
@triton_heuristics.reduction(
    size_hints={{'x': {rows}, 'r0_': {length}}}, reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}}, 'device': GPU,
        'constants': {{}}, 'configs': [{{(0,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {meta}}},
)
@triton.jit
def triton_red(
    in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr
):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    xmask = xindex < xnumel
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        total += tl.load(in_ptr0 + (r0_index + {length} * xindex), xmask, other=0.0)
    tl.store(out_ptr0 + (xindex), tl.sum(total, 1)[:, None], xmask)
"""
    )


def program(*codes: str) -> str:
    """A generated program with these kernels."""
    lines = ["async_compile = AsyncCompile()"]
    for code in codes:
        name = code.split("\ndef ")[1].split("(")[0]
        lines.append(f"{name} = async_compile.triton({name!r}, {code!r}, device_str='cuda')")
    return "\n".join(lines)


def by_warps(factor: float) -> BlockModel:
    """By which the number of warps is all that matters; above 0, few are fast."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(800, len(BLOCK_FEATURES)))
    at = [feature.name for feature in BLOCK_FEATURES].index("warps_change")
    rows[:, at] = generator.integers(-4, 5, 800)
    data = lightgbm.Dataset(rows, label=factor * rows[:, at])
    settings = {"num_threads": 1, "verbosity": -1, "seed": 0, "deterministic": True}
    trees = lightgbm.train(settings, data, num_boost_round=60).model_to_string()
    return BlockModel(BlockTrees(trees=str(trees), kernels=800))
