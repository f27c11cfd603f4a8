"""Writes K and V of new tokens into their cache slots. Importing this imports Triton."""

# Triton types a kernel's arguments at launch:
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 8  # tokens a program


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["slot_ptr"])
def _write_kernel(
    k_new_ptr, v_new_ptr, k_cache_ptr, v_cache_ptr, slot_ptr, tokens, k_new_row, k_new_head,
    v_new_row, v_new_head, k_block, k_token, k_head, v_block, v_token, v_head,
    BLOCK_SIZE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, TOKENS: tl.constexpr,
):
    """Grid [token tiles, Hkv]."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    d = tl.arange(0, D_PADDED)[None, :]
    slot = tl.load(slot_ptr + token, mask=token < tokens, other=-1)
    mask = (slot >= 0)[:, None] & (d < D)
    block = (slot // BLOCK_SIZE)[:, None]
    offset = (slot % BLOCK_SIZE)[:, None]
    row = token[:, None]
    k = tl.load(k_new_ptr + row * k_new_row + head * k_new_head + d, mask=mask)
    v = tl.load(v_new_ptr + row * v_new_row + head * v_new_head + d, mask=mask)
    tl.store(k_cache_ptr + block * k_block + offset * k_token + head * k_head + d, k, mask=mask)
    tl.store(v_cache_ptr + block * v_block + offset * v_token + head * v_head + d, v, mask=mask)


def write(k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """As kernels.paged_attention.write_kv."""
    tokens, kv_heads, size = k_new.shape
    assert k_new.stride(2) == v_new.stride(2) == k_cache.stride(3) == v_cache.stride(3) == 1
    if tokens == 0:
        return
    _write_kernel[triton.cdiv(tokens, _TOKENS), kv_heads](
        k_new, v_new, k_cache, v_cache, slots, tokens, k_new.stride(0), k_new.stride(1),
        v_new.stride(0), v_new.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        BLOCK_SIZE=k_cache.shape[1], D=size, D_PADDED=triton.next_power_of_2(size), TOKENS=_TOKENS,
        num_warps=4,
    )
