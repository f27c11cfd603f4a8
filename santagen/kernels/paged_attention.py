"""Attention over a paged KV cache: decode with the cache write fused, causal prefill, cache write.

    cache    [num_blocks, block_size, Hkv, D]; token n of a sequence: block_table[n // block_size]
    slot     block * block_size + offset
    heads    query head h reads KV head h // (H / Hkv); multi-query attention is Hkv = 1

Each function is followed by its plain torch twin of the same signature. Lengths and block tables
are read on the device alone, and grids follow from shapes and the host's bounds, so CUDA graphs may
hold the kernels. Triton is imported when one is first launched.
"""

from __future__ import annotations

import torch
from torch import Tensor


def paged_mqa_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_len: Tensor,
    scale: float,
    out: Tensor | None = None,
    *,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    slot: Tensor | None = None,
    num_splits: int,
    counters: Tensor | None = None,
    config: tuple[int, int, int] | None = None,
    place: Tensor | None = None,
) -> Tensor:
    """One new token per sequence against its whole context; returns out [B, H, D].

    q [B, H, D]; block_table [B, max_blocks] int32, its rows may be strided; context_len [B] int32
    counts the new token; a row of 0 gives zeros and writes nothing. With k_new, v_new [B, Hkv, D]
    and slot [B] int64 the new token isn't in the cache yet: it is attended to from there and
    written to its slot (a negative slot is not written). q, k_new and v_new may be strided views,
    such as parts of a fused QKV product. num_splits: programs that share a sequence, see
    `choose_num_splits`. counters: B * Hkv or more int32 zeros, left zero, that launches on one
    stream may share; with them the shares are combined in the same launch. config: tile, warps and
    stages; fixed like num_splits, a row has the same bits in every batch. place: a permutation
    [H * D] int32; element e of a row's output is then put at place[e].
    """
    from santagen.kernels.paged_decode_triton import decode

    return decode(
        q, k_cache, v_cache, block_table, context_len, scale, out, k_new, v_new, slot, num_splits,
        counters, config, place,
    )


def decode_tile_config(dtype: torch.dtype, group: int, programs: int) -> tuple[int, int, int]:
    """The `config` that `paged_mqa_decode` takes by itself for a launch of this many programs."""
    from santagen.kernels.paged_decode_triton import tile_config

    return tile_config(dtype, group, programs)


def choose_num_splits(sequences: int, kv_heads: int, max_context: int, processors: int) -> int:
    """How many programs share a sequence's context: two a multiprocessor, none under 64 tokens."""
    programs = max(sequences * kv_heads, 1)
    if programs * 10 >= processors * 18:
        return 1
    return max(1, min(-(-2 * processors // programs), -(-max_context // 64), 64))


def paged_mqa_decode_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_len: Tensor,
    scale: float,
    out: Tensor | None = None,
    *,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    slot: Tensor | None = None,
    num_splits: int = 1,
    counters: Tensor | None = None,
    config: tuple[int, int, int] | None = None,
    place: Tensor | None = None,
) -> Tensor:
    """`paged_mqa_decode` in plain torch, in float32 inside. It waits for the device."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    for row, length in enumerate(context_len.tolist()):
        cached = length if k_new is None else length - 1
        if length == 0:
            out[row] = 0
            continue
        key, value = _context(k_cache, v_cache, block_table[row], cached)
        if k_new is not None and v_new is not None and slot is not None:
            key = torch.cat([key, k_new[row : row + 1]])
            value = torch.cat([value, v_new[row : row + 1]])
            if int(slot[row]) >= 0:
                own = slice(row, row + 1)
                write_kv_reference(k_new[own], v_new[own], k_cache, v_cache, slot[own])
        found = _attend(q[row : row + 1], key, value, scale)[0].to(out.dtype)
        if place is not None:
            found = torch.empty_like(found).flatten().index_copy_(0, place.long(), found.flatten())
        out[row] = found.view(out.shape[1:])
    return out


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    context_len: Tensor,
    max_q: int,
    scale: float,
) -> Tensor:
    """Causal attention of packed new tokens, aligned bottom-right; their K/V are in the cache.

    q [T, H, D]: sequence s owns rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] ([S + 1] int32), the
    last of its context_len[s] tokens. max_q bounds the longest. Returns [T, H, D].
    """
    from santagen.kernels.paged_prefill_triton import prefill

    return prefill(q, k_cache, v_cache, block_table, cu_seqlens_q, context_len, max_q, scale)


def paged_prefill_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    context_len: Tensor,
    max_q: int,
    scale: float,
) -> Tensor:
    """`paged_prefill` in plain torch, in float32 inside. It waits for the device."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    bounds = cu_seqlens_q.tolist()
    for row, length in enumerate(context_len.tolist()):
        tokens = slice(bounds[row], bounds[row + 1])
        key, value = _context(k_cache, v_cache, block_table[row], length)
        out[tokens] = _attend(q[tokens], key, value, scale).to(out.dtype)
    return out


def write_kv(
    k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """Put k_new, v_new [T, Hkv, D] into their slots [T] int64; negative slots are skipped."""
    from santagen.kernels.kv_write_triton import write

    write(k_new, v_new, k_cache, v_cache, slots)


def write_kv_reference(
    k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
) -> None:
    """`write_kv` in plain torch."""
    wanted = slots >= 0
    block, offset = slots[wanted] // k_cache.shape[1], slots[wanted] % k_cache.shape[1]
    k_cache[block, offset] = k_new[wanted]
    v_cache[block, offset] = v_new[wanted]


def _context(
    k_cache: Tensor, v_cache: Tensor, table: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """K and V [length, Hkv, D] of one sequence."""
    blocks = table[: -(-length // k_cache.shape[1])].long()
    return k_cache[blocks].flatten(0, 1)[:length], v_cache[blocks].flatten(0, 1)[:length]


def _attend(q: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Float32 [n, H, D]; q [n, H, D] are the last n tokens of key, value [length, Hkv, D]."""
    queries, heads, size = q.shape
    length, kv_heads = key.shape[:2]
    folded = q.float().view(queries, kv_heads, heads // kv_heads, size)
    score = torch.einsum("ihgd,jhd->hgij", folded, key.float()) * scale
    last = torch.arange(length - queries, length, device=q.device).unsqueeze(1)
    hidden = torch.arange(length, device=q.device) > last
    weight = score.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hgij,jhd->ihgd", weight, value.float()).reshape(queries, heads, size)
