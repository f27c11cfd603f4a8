"""The kernel of kernels.row_linear. Importing this imports Triton."""

# Triton types a kernel's arguments at launch, and decides constant conditions by themselves:
# mypy: allow-untyped-defs
# ruff: noqa: SIM102

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from santagen.kernels.activation_triton import gelu_tanh
from santagen.kernels.layer_norm_triton import standardise
from santagen.kernels.row_linear import MAX_NUMBERS, Norm
from santagen.kernels.triton_support import early_launch


@triton.jit
def _row_linear_kernel(
    y_ptr, sum_ptr, x_ptr, residual_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, eps, outputs,
    K: tl.constexpr, NORM: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
    GELU: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [tiles of outputs]. With NORM one tile holds all of K. Weights come before the wait."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    rows = weight_ptr + n.to(tl.int64)[:, None] * K
    valid = (n < outputs)[:, None]
    acc = tl.zeros((BLOCK_N,), tl.float32)
    if NORM:
        inside = k < K
        weight = tl.load(rows + k[None, :], mask=valid & inside[None, :], other=0.0)
        scale = tl.load(scale_ptr + k, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + k, mask=inside, other=0.0).to(tl.float32)
        if EARLY:
            gdc_wait()
        total = tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
        if HAS_RESIDUAL:
            total += tl.load(residual_ptr + k, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(y_ptr.dtype.element_ty)
        if HAS_RESIDUAL:
            if tl.program_id(0) == 0:
                tl.store(sum_ptr + k, rounded, mask=inside)
        normed = standardise(rounded.to(tl.float32), inside, K, eps) * scale + shift
        normed = normed.to(y_ptr.dtype.element_ty).to(tl.float32)
        acc = tl.sum(weight.to(tl.float32) * normed[None, :], 1)
    else:
        partial = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
        for first in tl.static_range(0, K, BLOCK_K):
            inside = first + k < K
            weight = tl.load(rows + (first + k)[None, :], mask=valid & inside[None, :], other=0.0)
            if EARLY and first == 0:
                gdc_wait()
            x = tl.load(x_ptr + first + k, mask=inside, other=0.0).to(tl.float32)
            partial += weight.to(tl.float32) * x[None, :]
        acc = tl.sum(partial, 1)
    if EARLY:
        gdc_launch_dependents()  # not sooner: its programs would take the place of these
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
    if GELU:
        acc = gelu_tanh(acc)
    tl.store(y_ptr + n, acc.to(y_ptr.dtype.element_ty), mask=n < outputs)


def tile_config(outputs: int, width: int, normed: bool) -> tuple[int, int, int]:
    """(BLOCK_N, BLOCK_K, num_warps): about 128 bytes of weights a thread in flight."""
    if outputs * width > MAX_NUMBERS and not normed:
        return (4, 2048, 4) if width > 4096 else (2, 4096, 4)
    block_k = triton.next_power_of_2(width) if normed else min(triton.next_power_of_2(width), 4096)
    block_n = max(1, min(8192 // block_k, triton.next_power_of_2(max(outputs // 528, 1))))
    return block_n, block_k, min(8, max(2, block_n * block_k // 2048))


def launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    norm: Norm | None,
    config: tuple[int, int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """As kernels.row_linear.row_linear; `config` overrides tile_config."""
    outputs, width = weight.shape
    residual, scale, shift, eps = norm if norm is not None else (None, x, x, 0.0)
    assert x.shape == (1, width) and x.stride(1) == 1 and weight.is_contiguous()
    assert residual is None or (residual.shape == x.shape and residual.stride(1) == 1)
    y = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = torch.empty_like(x) if residual is not None else x
    block_n, block_k, warps = config or tile_config(outputs, width, norm is not None)
    _row_linear_kernel[triton.cdiv(outputs, block_n),](
        y, total, x, x if residual is None else residual, scale, shift, weight,
        x if bias is None else bias, eps, outputs,
        K=width, NORM=norm is not None, HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None, GELU=gelu, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps,
        **early_launch(x.device),
    )
    return y, total
