"""The decode kernels of kernels.paged_attention. Importing this imports Triton.

The G = H / Hkv query heads of a KV head are the rows of one small product, so K and V are read
once. A program walks its share of a context tile by tile with a running softmax. The shares of a
context are combined by the program that finishes last, found by counting, or by a second kernel.
The new token starts the running softmax of share 0, straight from the QKV product, and never comes
back from the cache in this step.
"""

# Triton types a kernel's arguments at launch, and decides constant conditions by themselves:
# mypy: allow-untyped-defs
# ruff: noqa: SIM102

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from santagen.kernels.triton_support import early_launch

LOG2_E = 1.4426950408889634
MAX_SPLITS = 64
COUNTED_GROUP = 16


@triton.jit
def block_of(table_ptr, first, stop, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The block of the tile at `first`: one number if a tile lies in one block, else per token."""
    if BLOCK_SIZE % BLOCK_N == 0:
        return tl.load(table_ptr + first // BLOCK_SIZE, mask=first < stop, other=0).to(tl.int64)
    else:
        n = first + tl.arange(0, BLOCK_N)
        return tl.load(table_ptr + n // BLOCK_SIZE, mask=n < stop, other=0).to(tl.int64)


# one compilation serves every number of shares
@triton.jit(do_not_specialize=["splits"])
def _decode_kernel(
    out_ptr, part_ptr, lse_ptr, counter_ptr, q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, length_ptr,
    k_new_ptr, v_new_ptr, slot_ptr, scale_log2, out_row, out_head, q_row, q_head, k_block, k_token,
    k_head, v_block, v_token, v_head, table_row, k_new_row, k_new_head, v_new_row, v_new_head,
    place_ptr, splits, GROUP, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, GROUP_PADDED: tl.constexpr, D_PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr, FUSED: tl.constexpr, COUNTED: tl.constexpr, HAS_PLACE: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [B, Hkv, splits]. Float32 part [B, H, splits, D], lse [B, H, splits]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group = tl.arange(0, GROUP_PADDED)
    d = tl.arange(0, D_PADDED)
    heads = kv_head * GROUP + group
    in_group = group < GROUP
    mask = in_group[:, None] & (d < D)[None, :]

    length = tl.load(length_ptr + row)
    cached = length
    if FUSED:
        cached = tl.maximum(length - 1, 0)
    share = tl.maximum(tl.cdiv(tl.cdiv(cached, splits), BLOCK_N), 1) * BLOCK_N
    start = split * share
    stop = tl.minimum(start + share, cached)

    q = tl.load(q_ptr + row * q_row + heads[:, None] * q_head + d[None, :], mask=mask, other=0.0)
    top = tl.full((GROUP_PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PADDED,), tl.float32)
    acc = tl.zeros((GROUP_PADDED, D_PADDED), tl.float32)
    if FUSED:
        if (split == 0) & (length > 0):
            k_new_ptr += row * k_new_row + kv_head * k_new_head
            v_new_ptr += row * v_new_row + kv_head * v_new_head
            k_new = tl.load(k_new_ptr + d, mask=d < D, other=0.0)
            v_new = tl.load(v_new_ptr + d, mask=d < D, other=0.0)
            top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale_log2
            total += 1.0
            acc += v_new.to(tl.float32)[None, :]
            slot = tl.load(slot_ptr + row)
            if slot >= 0:
                k_at = k_cache_ptr + (slot // BLOCK_SIZE) * k_block + (slot % BLOCK_SIZE) * k_token
                v_at = v_cache_ptr + (slot // BLOCK_SIZE) * v_block + (slot % BLOCK_SIZE) * v_token
                tl.store(k_at + kv_head * k_head + d, k_new, mask=d < D)
                tl.store(v_at + kv_head * v_head + d, v_new, mask=d < D)

    k_cache_ptr += kv_head * k_head
    v_cache_ptr += kv_head * v_head
    table_ptr += row * table_row
    # The next tile's block is fetched a tile early, so that K and V loads wait for no other load.
    block = block_of(table_ptr, start, stop, BLOCK_SIZE, BLOCK_N)
    for first in range(start, stop, BLOCK_N):
        next_block = block_of(table_ptr, first + BLOCK_N, stop, BLOCK_SIZE, BLOCK_N)
        n = first + tl.arange(0, BLOCK_N)
        inside = n < stop
        if BLOCK_SIZE % BLOCK_N == 0:
            offset = first % BLOCK_SIZE + tl.arange(0, BLOCK_N)
        else:
            offset = n % BLOCK_SIZE
        k_rows = block * k_block + offset * k_token
        v_rows = block * v_block + offset * v_token
        block = next_block
        tile = inside[:, None] & (d < D)[None, :]
        k = tl.load(k_cache_ptr + k_rows[:, None] + d[None, :], mask=tile, other=0.0)
        v = tl.load(v_cache_ptr + v_rows[:, None] + d[None, :], mask=tile, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        score = tl.where(inside[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top

    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    if HAS_PLACE:
        at = tl.load(place_ptr + heads[:, None] * D + d[None, :], mask=mask, other=0)
    else:
        at = heads[:, None] * out_head + d[None, :]
    out_at = out_ptr + row * out_row + at
    if not SPLIT:
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        lse = tl.where(total > 0, top + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        parts = (row * tl.num_programs(1) * GROUP + heads) * splits
        tl.store(lse_ptr + parts + split, lse, mask=in_group)
        part_at = part_ptr + parts[:, None] * D + d[None, :]
        tl.store(part_at + split * D, acc, mask=mask & (total > 0)[:, None])
        active = tl.maximum(tl.cdiv(cached, share), 1)
        if COUNTED:
            if split < active:
                counter_ptr += row * tl.num_programs(1) + kv_head
                tl.debug_barrier()  # every thread's stores come before the count
                if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == active - 1:
                    tl.store(counter_ptr, 0)  # for the next launch
                    acc = _combine(
                        part_at, lse_ptr + parts, active, in_group, mask, MAX_SPLITS, D
                    )
                    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _combine(
    part_at, lse_at, active, in_group, mask, MAX_SPLITS: tl.constexpr, D: tl.constexpr
):
    """The `active` first shares of a group's heads. The first-level cache may hold older ones."""
    split = tl.arange(0, MAX_SPLITS)
    lse = tl.load(
        lse_at[:, None] + split[None, :], mask=in_group[:, None] & (split < active)[None, :],
        other=float("-inf"), cache_modifier=".cg",
    )
    top = tl.maximum(tl.max(lse, 1), -1e30)  # finite where there is no share at all
    total = tl.sum(tl.exp2(lse - top[:, None]), 1)
    acc = tl.zeros(mask.shape, tl.float32)
    for number in tl.range(0, active, loop_unroll_factor=4):
        one = tl.load(lse_at + number, mask=in_group, other=float("-inf"), cache_modifier=".cg")
        weight = tl.exp2(one - top)
        used = mask & (weight > 0)[:, None]
        part = tl.load(part_at + number * D, mask=used, other=0.0, cache_modifier=".cg")
        acc += part * weight[:, None]
    return acc / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit(do_not_specialize=["splits"])
def _combine_kernel(
    out_ptr, part_ptr, lse_ptr, place_ptr, out_row, out_head, splits, MAX_SPLITS: tl.constexpr,
    D: tl.constexpr, D_PADDED: tl.constexpr, HAS_PLACE: tl.constexpr, EARLY: tl.constexpr,
):
    """Grid [B, H]: the shares of one head, weighted by their softmax sums; no share gives 0."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, MAX_SPLITS)
    d = tl.arange(0, D_PADDED)
    parts = (row * tl.num_programs(1) + head) * splits + split
    lse = tl.load(lse_ptr + parts, mask=split < splits, other=float("-inf"))
    used = lse > float("-inf")
    top = tl.max(lse, 0)
    weight = tl.where(used, tl.exp2(lse - top), 0.0)
    part = tl.load(
        part_ptr + parts[:, None] * D + d[None, :], mask=used[:, None] & (d < D)[None, :], other=0.0
    )
    total = tl.sum(weight, 0)
    acc = tl.sum(part * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    at = head * out_head + d
    if HAS_PLACE:
        at = tl.load(place_ptr + head * D + d, mask=d < D, other=0)
    tl.store(out_ptr + row * out_row + at, acc.to(out_ptr.dtype.element_ty), mask=d < D)


def tile_config(dtype: torch.dtype, group: int, programs: int) -> tuple[int, int, int]:
    """(BLOCK_N, num_warps, num_stages) of a launch of this many programs.

    Many programs: small tiles, so that four fit on a multiprocessor. Few: large tiles in flight.
    """
    if dtype == torch.float32:
        return 32, 4, 2
    if group > 16:
        return 32, 4, 3
    return (32, 4, 4) if programs >= 512 else (64, 4, 3)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_len: Tensor,
    scale: float,
    out: Tensor | None,
    k_new: Tensor | None,
    v_new: Tensor | None,
    slot: Tensor | None,
    num_splits: int,
    counters: Tensor | None = None,
    config: tuple[int, int, int] | None = None,
    place: Tensor | None = None,
) -> Tensor:
    """As kernels.paged_attention.paged_mqa_decode. `config` overrides tile_config."""
    rows, heads, size = q.shape
    block_size, kv_heads = k_cache.shape[1:3]
    assert heads % kv_heads == 0 and block_size % 16 == 0 and 1 <= num_splits <= MAX_SPLITS
    assert q.stride(2) == k_cache.stride(3) == v_cache.stride(3) == block_table.stride(1) == 1
    if out is None:
        out = torch.empty((rows, heads, size), dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    fused = k_new is not None
    if k_new is None or v_new is None or slot is None:
        k_new, v_new, slot = k_cache[0], v_cache[0], context_len  # not read
    assert k_new.stride(2) == v_new.stride(2) == 1
    group = heads // kv_heads
    block_n, warps, stages = config or tile_config(q.dtype, group, rows * kv_heads * num_splits)
    if block_size % block_n and block_n % block_size:
        block_n = 16
    part, lse = out, context_len  # not touched without splits
    if num_splits > 1:
        shape = (rows, heads, num_splits, size)
        part = torch.empty(shape, dtype=torch.float32, device=q.device)
        lse = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    # one program combines all heads of a group: many of them do not fit its registers
    counted = num_splits > 1 and counters is not None and group <= COUNTED_GROUP
    assert counters is None or counters.numel() >= rows * kv_heads
    assert place is None or (out.is_contiguous() and place.shape == (heads * size,))
    places = context_len if place is None else place  # not read without
    _decode_kernel[rows, kv_heads, num_splits](
        out, part, lse, counters if counted else context_len, q, k_cache, v_cache, block_table,
        context_len, k_new, v_new, slot, scale * LOG2_E, out.stride(0), out.stride(1),
        q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        block_table.stride(0), k_new.stride(0), k_new.stride(1),
        v_new.stride(0), v_new.stride(1), places, num_splits, group,
        SPLIT=num_splits > 1, MAX_SPLITS=MAX_SPLITS,
        BLOCK_SIZE=block_size, D=size,
        GROUP_PADDED=max(16, triton.next_power_of_2(group)),
        D_PADDED=max(16, triton.next_power_of_2(size)), BLOCK_N=block_n,
        FUSED=fused, COUNTED=counted, HAS_PLACE=place is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=warps, num_stages=stages, **early_launch(q.device),
    )
    if num_splits > 1 and not counted:
        _combine_kernel[rows, heads](
            out, part, lse, places, out.stride(0), out.stride(1), num_splits, MAX_SPLITS=MAX_SPLITS,
            D=size, D_PADDED=triton.next_power_of_2(size), HAS_PLACE=place is not None,
            num_warps=4, **early_launch(q.device),
        )
    return out
