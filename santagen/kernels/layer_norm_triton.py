"""The kernel of kernels.layer_norm: one program a row. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from santagen.kernels.triton_support import early_launch

SCATTER_PARTS, SCATTERED_ROWS = 8, 16


@triton.jit
def standardise(total, mask, width, eps):
    """A float32 row, zero where `mask` is not set, brought to mean 0 and variance 1."""
    mean = tl.sum(total, 0) / width
    centred = tl.where(mask, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    return centred * scale


@triton.jit
def _layer_norm_kernel(
    normed_ptr, sum_ptr, x_ptr, residual_ptr, bias_of_x_ptr, weight_ptr, bias_ptr, place_ptr, eps,
    x_row, residual_row, width,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_PLACE: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [rows, parts]: a program knows its whole row, and writes its part of it."""
    if EARLY:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    mask = e < width
    own = mask
    if PARTS > 1:
        own = mask & (e // (BLOCK // PARTS) == tl.program_id(1))
    weight = tl.load(weight_ptr + e, mask=own, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + e, mask=own, other=0.0).to(tl.float32)
    at = e
    if HAS_PLACE:
        at = tl.load(place_ptr + e, mask=own, other=0)
    if EARLY:
        gdc_wait()
    total = tl.load(x_ptr + row * x_row + e, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_of_x_ptr + e, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_row + e, mask=mask, other=0.0)
        total += residual.to(tl.float32)
    rounded = total.to(normed_ptr.dtype.element_ty)
    if HAS_RESIDUAL or HAS_BIAS:
        tl.store(sum_ptr + row * width + e, rounded, mask=own)
    normed = standardise(rounded.to(tl.float32), mask, width, eps)
    normed = normed * weight + bias
    tl.store(normed_ptr + row * width + at, normed.to(normed_ptr.dtype.element_ty), mask=own)


def launch(
    x: Tensor,
    residual: Tensor | None,
    bias_of_x: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As kernels.layer_norm.add_layer_norm."""
    rows, width = x.shape
    assert width <= 8192 and x.stride(1) == 1 and weight.shape == bias.shape == (width,)
    assert residual is None or (residual.shape == x.shape and residual.stride(1) == 1)
    normed = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    changed = residual is not None or bias_of_x is not None
    total = torch.empty((rows, width), dtype=x.dtype, device=x.device) if changed else x
    if rows == 0:
        return normed, total
    block = triton.next_power_of_2(width)
    # Writes that are scattered over the row take one multiprocessor as long as all the rest.
    parts = min(SCATTER_PARTS, block) if place is not None and rows <= SCATTERED_ROWS else 1
    _layer_norm_kernel[rows, parts](
        normed, total, x, x if residual is None else residual,
        weight if bias_of_x is None else bias_of_x, weight, bias,
        weight if place is None else place, eps,
        x.stride(0), x.stride(0) if residual is None else residual.stride(0), width,
        HAS_RESIDUAL=residual is not None, HAS_BIAS=bias_of_x is not None,
        HAS_PLACE=place is not None, BLOCK=block, PARTS=parts,
        num_warps=min(max(block // 512, 1), 8), **early_launch(x.device),
    )
    return normed, total
