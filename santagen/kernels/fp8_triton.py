"""The kernels of kernels.fp8: one program a row. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from santagen.kernels.activation_triton import gelu_tanh
from santagen.kernels.fp8 import FLOAT8, LARGEST, SMALLEST
from santagen.kernels.layer_norm_triton import standardise

_LARGEST = tl.constexpr(LARGEST)
_SMALLEST = tl.constexpr(SMALLEST)
MAX_WIDTH = 32768


@triton.jit
def _store_quantized(q_ptr, scale_ptr, row, value, k, mask, width):
    scale = tl.maximum(tl.max(tl.abs(value), 0), _SMALLEST) / _LARGEST
    q = tl.minimum(tl.maximum(value / scale, -_LARGEST), _LARGEST)
    tl.store(q_ptr + row * width + k, q.to(q_ptr.dtype.element_ty), mask=mask)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _quantize_kernel(
    q_ptr, scale_ptr, x_ptr, x_row, width, GELU: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    mask = k < width
    value = tl.load(x_ptr + row * x_row + k, mask=mask, other=0.0).to(tl.float32)
    if GELU:
        value = gelu_tanh(value)
    _store_quantized(q_ptr, scale_ptr, row, value, k, mask, width)


@triton.jit
def _norm_quantize_kernel(
    q_ptr, scale_ptr, sum_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, eps, x_row, residual_row,
    width, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    mask = k < width
    total = tl.load(x_ptr + row * x_row + k, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += tl.load(
            residual_ptr + row * residual_row + k, mask=mask, other=0.0
        ).to(tl.float32)
        rounded = total.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * width + k, rounded, mask=mask)
        total = rounded.to(tl.float32)
    normed = standardise(total, mask, width, eps)
    weight = tl.load(weight_ptr + k, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + k, mask=mask, other=0.0).to(tl.float32)
    normed = (normed * weight + bias).to(sum_ptr.dtype.element_ty).to(tl.float32)
    _store_quantized(q_ptr, scale_ptr, row, normed, k, mask, width)


def _outputs(x: Tensor) -> tuple[Tensor, Tensor, int, int]:
    rows, width = x.shape
    assert x.stride(1) == 1 and width <= MAX_WIDTH
    q = torch.empty((rows, width), dtype=FLOAT8, device=x.device)
    scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    return q, scale, block, min(max(block // 512, 1), 16)


def launch_quantize(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    """As kernels.fp8.quantize_rows."""
    q, scale, block, warps = _outputs(x)
    if len(x):
        _quantize_kernel[len(x),](
            q, scale, x, x.stride(0), x.shape[1], GELU=gelu, BLOCK=block, num_warps=warps
        )
    return q, scale


def launch_norm_quantize(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As kernels.fp8.norm_quantize_rows."""
    q, scale, block, warps = _outputs(x)
    assert residual is None or residual.stride(1) == 1
    total = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(x):
        _norm_quantize_kernel[len(x),](
            q, scale, total, x, x if residual is None else residual, weight, bias, eps,
            x.stride(0), x.stride(0) if residual is None else residual.stride(0), x.shape[1],
            HAS_RESIDUAL=residual is not None, BLOCK=block, num_warps=warps,
        )
    return q, scale, total
