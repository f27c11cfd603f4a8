"""The kernel of kernels.invariant_linear. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from santagen.kernels.activation_triton import gelu_tanh

# One instruction's rows at least, so that every size runs on the same kind of tensor core product.
MIN_BLOCK_M = 64
BLOCK_K = 64  # one for all sizes: it is what the order of a sum depends on


@triton.jit
def _linear_kernel(
    y_ptr, x_ptr, weight_ptr, bias_ptr, rows, outputs, x_row, width,
    HAS_BIAS: tl.constexpr, GELU: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):
    """Grid [tiles], row tiles of a group first, so that they share the weights' tiles in cache."""
    tile = tl.program_id(0)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    group = GROUP_M * tl.cdiv(outputs, BLOCK_N)
    first = tile // group * GROUP_M
    size = tl.minimum(tiles_m - first, GROUP_M)
    m = ((first + tile % group % size) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tile % group // size * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    # Rows past the end read the last one: loads without a mask are faster, and nobody stores them.
    x_at = x_ptr + tl.minimum(m, rows - 1)[:, None] * x_row + k[None, :]
    weight_at = weight_ptr + tl.minimum(n, outputs - 1)[:, None] * width + k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, width, BLOCK_K):
        inside = (k < width - start)[None, :]
        x = tl.load(x_at, mask=inside, other=0.0)
        weight = tl.load(weight_at, mask=inside, other=0.0)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision=PRECISION)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    if GELU:
        acc = gelu_tanh(acc)
    y_at = y_ptr + m[:, None] * outputs + n[None, :]
    mask = (m < rows)[:, None] & (n < outputs)[None, :]
    tl.store(y_at, acc.to(y_ptr.dtype.element_ty), mask=mask)


def tile_config(rows: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """(BLOCK_M, BLOCK_N, num_warps, num_stages)."""
    if dtype == torch.float32:
        return MIN_BLOCK_M, 32, 4, 2
    if rows <= MIN_BLOCK_M:  # bound by memory: many programs
        return MIN_BLOCK_M, 16, 4, 6
    if rows <= 256:
        return MIN_BLOCK_M, 64, 4, 4
    return 128, 256, 8, 3


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool, out_dtype: torch.dtype
) -> Tensor:
    """As kernels.invariant_linear.invariant_linear."""
    rows, width = x.shape
    outputs = weight.shape[0]
    assert x.stride(1) == 1 and weight.is_contiguous() and weight.shape[1] == width
    y = torch.empty((rows, outputs), dtype=out_dtype, device=x.device)
    if rows == 0:
        return y
    block_m, block_n, warps, stages = tile_config(rows, x.dtype)
    _linear_kernel[triton.cdiv(rows, block_m) * triton.cdiv(outputs, block_n),](
        y, x, weight, x if bias is None else bias, rows, outputs, x.stride(0), width,
        HAS_BIAS=bias is not None, GELU=gelu,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K, GROUP_M=8,
        num_warps=warps, num_stages=stages,
    )
    return y
