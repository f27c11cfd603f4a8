"""The kernels of kernels.sum_layer_norm. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from santagen.kernels.layer_norm import MAX_WIDTH
from santagen.kernels.layer_norm_triton import standardise
from santagen.kernels.sum_layer_norm import FEW_ROWS, HALVES, PAIRS, Shared
from santagen.kernels.triton_support import early_launch


@triton.jit
def _numbers(words, like: tl.constexpr):
    """float32 [2 n] of n 32-bit words, each of two numbers of type `like`."""
    low = (words & 0xFFFF).to(tl.int16).to(like, bitcast=True)
    high = ((words >> 16) & 0xFFFF).to(tl.int16).to(like, bitcast=True)
    return tl.interleave(low.to(tl.float32), high.to(tl.float32))


@triton.jit
def _memory(address_ptr, kind: tl.constexpr):
    """A pointer to `kind` of the address that lies at address_ptr: the begin of an allocation."""
    return tl.multiple_of(tl.load(address_ptr).to(tl.pointer_type(kind)), 16)


@triton.jit
def _finish(
    summed, row, normed_ptr, sum_ptr, residual_ptr, weight_ptr, bias_ptr, place_ptr, eps,
    residual_row, width, HAS_RESIDUAL: tl.constexpr, HAS_PLACE: tl.constexpr, BLOCK: tl.constexpr,
):
    """Residual and LayerNorm of a row's sum."""
    e = tl.arange(0, BLOCK)
    mask = e < width
    kind = normed_ptr.dtype.element_ty
    total = summed.to(kind)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_row + e, mask=mask, other=0.0)
        total = (total.to(tl.float32) + residual.to(tl.float32)).to(kind)
    tl.store(sum_ptr + row * width + e, total, mask=mask)
    normed = standardise(tl.where(mask, total.to(tl.float32), 0.0), mask, width, eps)
    weight = tl.load(weight_ptr + e, mask=mask, other=0.0).to(tl.float32)
    normed = normed * weight + tl.load(bias_ptr + e, mask=mask, other=0.0).to(tl.float32)
    at = e
    if HAS_PLACE:
        at = tl.load(place_ptr + e, mask=mask, other=0)
    tl.store(normed_ptr + row * width + at, normed.to(kind), mask=mask)


@triton.jit
def _few_rows_kernel(
    normed_ptr, sum_ptr, words_ptr, residual_ptr, weight_ptr, bias_ptr, place_ptr, eps,
    residual_row, width, messages_ptr, messages_at_ptr, calls_ptr, rank,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, RANKS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_PLACE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [rows]. A message: the number of the call above, two numbers of the row below."""
    if EARLY:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK // 2)
    mask = p < width // 2
    if EARLY:
        gdc_wait()
    call = tl.load(calls_ptr + row) + 1
    words = tl.load(words_ptr + row * (width // 2) + p, mask=mask, other=0)
    place = ((call & 1) * ROWS + row) * RANKS * PAIRS + p
    message = (call.to(tl.int64) << 32) | (words.to(tl.int64) & 0xFFFFFFFF)
    for step in tl.static_range(1, RANKS):
        other = (rank + step) % RANKS
        there = _memory(messages_at_ptr + other, tl.int64)
        tl.store(there + place + rank * PAIRS, message, mask=mask)
    summed = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(RANKS):
        found = words
        if peer != rank:
            here = messages_ptr + place + peer * PAIRS
            got = tl.load(here, mask=mask, other=0, volatile=True)
            while tl.sum((mask & ((got >> 32).to(tl.int32) != call)).to(tl.int32), 0) > 0:
                got = tl.load(here, mask=mask, other=0, volatile=True)
            found = got.to(tl.int32)
        summed += _numbers(found, normed_ptr.dtype.element_ty)
    tl.store(calls_ptr + row, call)
    _finish(
        summed, row, normed_ptr, sum_ptr, residual_ptr, weight_ptr, bias_ptr, place_ptr, eps,
        residual_row, width, HAS_RESIDUAL, HAS_PLACE, BLOCK,
    )


@triton.jit
def _send_kernel(
    x_ptr, width, numbers_at_ptr, flags_at_ptr, calls_ptr, rank, rows,
    STRIDE: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Grid [rows]: a row into the memory of the others, then its flag. `rows`: a rank's places."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    mask = e < width
    call = tl.load(calls_ptr + row) + 1
    part = tl.load(x_ptr + row * width + e, mask=mask, other=0.0)
    place = (((call & 1) * RANKS + rank) * rows + row) * STRIDE + e
    for step in tl.static_range(1, RANKS):
        there = _memory(numbers_at_ptr + (rank + step) % RANKS, x_ptr.dtype.element_ty)
        tl.store(there + place, part, mask=mask)
    tl.debug_barrier()  # all of the row is on its way before its flag is
    for step in tl.static_range(1, RANKS):
        flags = _memory(flags_at_ptr + (rank + step) % RANKS, tl.int32)
        tl.atomic_xchg(flags + rank * rows + row, call, sem="release", scope="sys")


@triton.jit
def _receive_kernel(
    normed_ptr, sum_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, place_ptr, eps,
    residual_row, width, numbers_ptr, flags_ptr, calls_ptr, rank, rows,
    STRIDE: tl.constexpr, RANKS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    HAS_PLACE: tl.constexpr, BLOCK: tl.constexpr,
):
    """Grid [rows]. What it waits for was sent by kernels that wait for nothing."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    mask = e < width
    call = tl.load(calls_ptr + row) + 1
    for step in tl.static_range(1, RANKS):
        flag = flags_ptr + (rank + step) % RANKS * rows + row
        # a peer that is done may have told of its next call already
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - call < 0:
            pass
    tl.debug_barrier()
    summed = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(RANKS):
        here = x_ptr + row * width
        if peer != rank:
            here = numbers_ptr + (((call & 1) * RANKS + peer) * rows + row) * STRIDE
        # past L1, which may keep what lay there two calls ago
        part = tl.load(here + e, mask=mask, other=0.0, cache_modifier=".cg")
        summed += part.to(tl.float32)
    _finish(
        summed, row, normed_ptr, sum_ptr, residual_ptr, weight_ptr, bias_ptr, place_ptr, eps,
        residual_row, width, HAS_RESIDUAL, HAS_PLACE, BLOCK,
    )
    tl.store(calls_ptr + row, call)


def launch_few(
    shared: Shared,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As kernels.sum_layer_norm.sum_layer_norm, of up to FEW_ROWS rows."""
    rows, width = x.shape
    assert 0 < rows <= FEW_ROWS
    normed, total, block = _outputs(x, residual, weight, bias)
    _few_rows_kernel[rows,](
        normed, total, x.view(torch.int32), x if residual is None else residual, weight, bias,
        weight if place is None else place, eps,
        0 if residual is None else residual.stride(0), width,
        shared.messages, shared.messages_at, shared.few_calls, shared.rank,
        ROWS=FEW_ROWS, PAIRS=PAIRS, RANKS=shared.ranks, HAS_RESIDUAL=residual is not None,
        HAS_PLACE=place is not None, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
        **early_launch(x.device),
    )
    return normed, total


def launch_many(
    shared: Shared,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    place: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `launch_few`, of all the rows that there are flags for."""
    rows, width = x.shape
    most = shared.flags.shape[1]
    assert 0 < rows <= most
    normed, total, block = _outputs(x, residual, weight, bias)
    sizes: dict[str, Any] = {
        "STRIDE": MAX_WIDTH, "RANKS": shared.ranks, "BLOCK": block,
        "num_warps": min(max(block // 1024, 1), 8),
    }  # fmt: skip
    _send_kernel[rows,](
        x, width, shared.numbers_at, shared.flags_at, shared.many_calls, shared.rank, most, **sizes
    )
    _receive_kernel[rows,](
        normed, total, x, x if residual is None else residual, weight, bias,
        weight if place is None else place, eps,
        0 if residual is None else residual.stride(0), width,
        shared.numbers.view(x.dtype), shared.flags, shared.many_calls, shared.rank, most,
        HAS_RESIDUAL=residual is not None, HAS_PLACE=place is not None, **sizes,
    )
    return normed, total


def _outputs(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Room for both results, and the numbers of a row's block."""
    width = x.shape[1]
    assert width <= MAX_WIDTH and width % 2 == 0 and x.is_contiguous()
    assert x.dtype in HALVES and weight.shape == bias.shape == (width,)
    assert residual is None or (residual.shape == x.shape and residual.stride(1) == 1)
    return torch.empty_like(x), torch.empty_like(x), triton.next_power_of_2(width)
