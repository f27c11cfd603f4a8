"""Attention through the flash-attn package: FlashAttention-2, with FlashAttention-3 for prefill
where it is there.

Only public functions are called: flash_attn_varlen_func and flash_attn_with_kvcache.
FlashAttention-2 reads blocks of a multiple of 256 tokens. Needs CUDA and float16 or bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from santagen.model.attention.base import CacheShape, KVCache, Seqlen, allocate_paged, write_slots


@dataclass
class FlashPlan:
    seqlen: Seqlen
    block_tables: Tensor
    max_q: int
    max_k: int


class FlashAttention:
    """See the module's contract. `fa3_varlen` is FlashAttention-3's prefill, where `select` found
    that it runs."""

    name = "flash"
    block_multiple = 256
    capturable = True

    def __init__(self, block_size: int = 256, fa3_varlen: Callable[..., Any] | None = None) -> None:
        import flash_attn

        self.block_size = block_size
        self._varlen = flash_attn.flash_attn_varlen_func
        self._with_cache = flash_attn.flash_attn_with_kvcache
        self._fa3_varlen = fa3_varlen

    def allocate(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
        return allocate_paged(shape, dtype, device)

    def plan(self, seqlen: Seqlen, block_tables: Tensor, max_s: int, decode: bool) -> FlashPlan:
        return FlashPlan(seqlen, block_tables, 1 if decode else seqlen.max_q or max_s, max_s)

    def write(self, cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
        write_slots(cache, key, value, slots)

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        plan: FlashPlan,
        scale: float,
    ) -> Tensor:
        seqlen = plan.seqlen
        common: dict[str, Any] = {
            "cu_seqlens_q": seqlen.cu_seqlen_q,
            "max_seqlen_q": plan.max_q,
            "softmax_scale": scale,
            "causal": True,
        }
        if seqlen.has_prefix:  # keys come from the cache: prefix and new tokens alike
            return self._varlen(
                query,
                cache[0],
                cache[1],
                cu_seqlens_k=seqlen.cu_seqlen_k,
                max_seqlen_k=plan.max_k,
                block_table=plan.block_tables,
                **common,
            )
        common.update(cu_seqlens_k=seqlen.cu_seqlen_q, max_seqlen_k=plan.max_q)
        if self._fa3_varlen is None:
            return self._varlen(query, key, value, **common)
        out = self._fa3_varlen(query, key, value, **common)
        return out[0] if isinstance(out, tuple) else out

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: FlashPlan,
        scale: float,
    ) -> Tensor:
        self.write(cache, key, value, slots)
        out = self._with_cache(
            query.unsqueeze(1),
            cache[0],
            cache[1],
            cache_seqlens=plan.seqlen.kv_lengths,
            block_table=plan.block_tables,
            softmax_scale=scale,
            causal=True,
        )
        return out.squeeze(1)
