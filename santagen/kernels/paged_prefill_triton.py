"""The prefill kernel of kernels.paged_attention. Importing this imports Triton.

The rows of a KV head's problem are (token, head of its group), tokens first, so that prompts of any
length fill whole tiles. Row r is query token r // G; it sees keys 0 .. context - queries + r // G.

    keys      0 1 2 3 4 5 6 7        a tile of rows walks the keys that all its rows see,
    rows  t0  x x x x x . . .        then, masked, those that some see
          t1  x x x x x x . .
          t2  x x x x x x x .
          t3  x x x x x x x x
"""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from santagen.kernels.paged_decode_triton import LOG2_E, block_of


@triton.jit
def _walk(
    q, top, total, acc, k_cache_ptr, v_cache_ptr, table_ptr, start, stop, last, scale_log2,
    k_block, k_token, v_block, v_token,
    MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):
    """The running softmax over keys [start, stop); row i sees keys up to last[i] where MASKED."""
    d = tl.arange(0, D_PADDED)
    block = block_of(table_ptr, start, stop, BLOCK_SIZE, BLOCK_N)
    for first in range(start, stop, BLOCK_N):
        next_block = block_of(table_ptr, first + BLOCK_N, stop, BLOCK_SIZE, BLOCK_N)
        n = first + tl.arange(0, BLOCK_N)
        if BLOCK_SIZE % BLOCK_N == 0:
            offset = first % BLOCK_SIZE + tl.arange(0, BLOCK_N)
        else:
            offset = n % BLOCK_SIZE
        k_rows = block * k_block + offset * k_token
        v_rows = block * v_block + offset * v_token
        block = next_block
        tile = (n < stop)[:, None] & (d < D)[None, :]
        k = tl.load(k_cache_ptr + k_rows[:, None] + d[None, :], mask=tile, other=0.0)
        v = tl.load(v_cache_ptr + v_rows[:, None] + d[None, :], mask=tile, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2
        if MASKED:
            score = tl.where(n[None, :] <= last[:, None], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    return top, total, acc


@triton.jit
def _prefill_kernel(
    out_ptr, q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, cu_ptr, length_ptr, scale_log2,
    out_row, out_head, q_row, q_head, k_block, k_token, k_head, v_block, v_token, v_head, table_row,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):
    """Grid [row tiles, S, Hkv]."""
    sequence = tl.program_id(1).to(tl.int64)
    kv_head = tl.program_id(2)
    begin = tl.load(cu_ptr + sequence)
    queries = tl.load(cu_ptr + sequence + 1) - begin
    length = tl.load(length_ptr + sequence)
    rows = queries * GROUP
    # the longest walks first
    first_row = (tl.cdiv(rows, BLOCK_M) - 1 - tl.program_id(0)) * BLOCK_M
    if first_row >= 0:
        r = first_row + tl.arange(0, BLOCK_M)
        d = tl.arange(0, D_PADDED)
        token = begin.to(tl.int64) + r // GROUP
        heads = kv_head * GROUP + r % GROUP
        mask = (r < rows)[:, None] & (d < D)[None, :]
        q_at = q_ptr + (token * q_row + heads * q_head)[:, None] + d[None, :]
        q = tl.load(q_at, mask=mask, other=0.0)
        cached = length - queries
        last = cached + tl.minimum(r, rows - 1) // GROUP
        open_stop = (cached + first_row // GROUP + 1) // BLOCK_N * BLOCK_N
        last_row = tl.minimum(first_row + BLOCK_M, rows) - 1
        stop = cached + last_row // GROUP + 1

        k_cache_ptr += kv_head * k_head
        v_cache_ptr += kv_head * v_head
        table_ptr += sequence * table_row
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, D_PADDED), tl.float32)
        top, total, acc = _walk(
            q, top, total, acc, k_cache_ptr, v_cache_ptr, table_ptr, 0, open_stop, last,
            scale_log2, k_block, k_token, v_block, v_token,
            False, BLOCK_SIZE, D, D_PADDED, BLOCK_N, PRECISION,
        )
        top, total, acc = _walk(
            q, top, total, acc, k_cache_ptr, v_cache_ptr, table_ptr, open_stop, stop, last,
            scale_log2, k_block, k_token, v_block, v_token,
            True, BLOCK_SIZE, D, D_PADDED, BLOCK_N, PRECISION,
        )
        out_at = out_ptr + (token * out_row + heads * out_head)[:, None] + d[None, :]
        tl.store(out_at, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


def prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    context_len: Tensor,
    max_q: int,
    scale: float,
    config: tuple[int, int, int, int] | None = None,
) -> Tensor:
    """As kernels.paged_attention.paged_prefill; `config`: BLOCK_M, BLOCK_N, warps, stages."""
    tokens, heads, size = q.shape
    block_size, kv_heads = k_cache.shape[1:3]
    sequences = context_len.shape[0]
    assert heads % kv_heads == 0 and block_size % 16 == 0
    assert q.stride(2) == k_cache.stride(3) == v_cache.stride(3) == block_table.stride(1) == 1
    out = torch.empty((tokens, heads, size), dtype=q.dtype, device=q.device)
    if tokens == 0 or sequences == 0:
        return out
    group = heads // kv_heads
    if config is None:
        config = (64, 32, 4, 2) if q.dtype == torch.float32 else (128, 64, 8, 3)
    block_m, block_n, warps, stages = config
    if block_size % block_n and block_n % block_size:
        block_n = 16
    _prefill_kernel[triton.cdiv(max_q * group, block_m), sequences, kv_heads](
        out, q, k_cache, v_cache, block_table, cu_seqlens_q, context_len, scale * LOG2_E,
        out.stride(0), out.stride(1), q.stride(0), q.stride(1), *k_cache.stride()[:3],
        *v_cache.stride()[:3], block_table.stride(0),
        GROUP=group, BLOCK_SIZE=block_size, D=size,
        D_PADDED=max(16, triton.next_power_of_2(size)), BLOCK_M=block_m, BLOCK_N=block_n,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=warps, num_stages=stages,
    )
    return out
