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

Varlen = Callable[..., Any]  # flash_attn_varlen_func, or one of its signature


def causal_varlen(
    varlen: Varlen,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float,
) -> Tensor:
    """Causal attention of packed prompts through `varlen`; see `AttentionBackend.prefill`."""
    out = varlen(
        query,
        key,
        value,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_seqlen,
        max_seqlen_k=max_seqlen,
        softmax_scale=scale,
        causal=True,
    )
    return out[0] if isinstance(out, tuple) else out


def fa3_operator(query: Tensor, key: Tensor, value: Tensor, causal: bool, **named: Any) -> Tensor:
    """FlashAttention-3's registered operator, by its schema's names; one split, so that the sums
    have one order."""
    out = torch.ops.flash_attn_3.fwd(query, key, value, is_causal=causal, num_splits=1, **named)
    return out[0]


@dataclass
class FlashPlan:
    seqlen: Seqlen
    block_tables: Tensor
    max_q: int
    max_k: int


class FlashAttention:
    """See the module's contract. `fa3` is FlashAttention-3's prefill, where `select` found that it
    runs."""

    name = "flash"
    block_multiple = 256
    capturable = True
    reads_in_place = False
    orders_output = False

    def __init__(self, fa3: Varlen | None = None, block_size: int = 256) -> None:
        import flash_attn

        self.block_size = block_size
        self._varlen = flash_attn.flash_attn_varlen_func
        self._with_cache = flash_attn.flash_attn_with_kvcache
        self._fa3 = fa3

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
        if seqlen.has_prefix:  # keys come from the cache: prefix and new tokens alike
            return self._varlen(
                query,
                cache[0],
                cache[1],
                cu_seqlens_q=seqlen.cu_seqlen_q,
                cu_seqlens_k=seqlen.cu_seqlen_k,
                max_seqlen_q=plan.max_q,
                max_seqlen_k=plan.max_k,
                block_table=plan.block_tables,
                softmax_scale=scale,
                causal=True,
            )
        assert seqlen.cu_seqlen_q is not None
        varlen = self._fa3 or self._varlen
        return causal_varlen(varlen, query, key, value, seqlen.cu_seqlen_q, plan.max_q, scale)

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: FlashPlan,
        scale: float,
        place: Tensor | None = None,
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
