"""Attention in santagen's own Triton kernels: decode over the paged cache with the write fused.

Prefill is FlashAttention-3's where that is given and no prefix is cached, else a Triton kernel too,
so this backend needs no optional package. Lengths and tables are read on the device. The kernels
and their twins are in kernels.paged_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from santagen.kernels.paged_attention import (
    choose_num_splits,
    paged_mqa_decode,
    paged_prefill,
    write_kv,
)
from santagen.model.attention.base import CacheShape, KVCache, Seqlen, allocate_paged
from santagen.model.attention.flash import Varlen, causal_varlen


@dataclass
class TritonPlan:
    lengths: Tensor  # [S] int32 tokens of each context, the new ones included
    cu_seqlen_q: Tensor | None
    block_tables: Tensor
    max_q: int
    num_splits: int
    counters: Tensor | None
    has_prefix: bool


class TritonAttention:
    """See the module's contract. `varlen` takes over the prefill of prompts without a cached
    prefix."""

    name = "triton"
    block_multiple = 16
    capturable = True

    def __init__(self, block_size: int = 64, varlen: Varlen | None = None) -> None:
        self.block_size, self._varlen = block_size, varlen
        self._counters: Tensor | None = None

    def allocate(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
        self._kv_heads = shape.n_kv_head
        self._processors = 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        return allocate_paged(shape, dtype, device)

    def plan(self, seqlen: Seqlen, block_tables: Tensor, max_s: int, decode: bool) -> TritonPlan:
        assert seqlen.kv_lengths is not None
        lengths = seqlen.kv_lengths
        if not decode:
            max_q, prefix = seqlen.max_q or max_s, bool(seqlen.has_prefix)
            return TritonPlan(lengths, seqlen.cu_seqlen_q, block_tables, max_q, 1, None, prefix)
        # by the table's width, not by max_s: a graph and an eager step then share alike
        sequences, longest = len(lengths), block_tables.shape[1] * self.block_size
        splits = choose_num_splits(sequences, self._kv_heads, longest, self._processors)
        counters = None
        if splits > 1:
            counters = self._zeros(sequences * self._kv_heads, lengths.device)
        return TritonPlan(lengths, None, block_tables, 1, splits, counters, False)

    def _zeros(self, count: int, device: torch.device) -> Tensor:
        """Counters that launches leave at zero; one array serves all launches of the stream."""
        if self._counters is None or len(self._counters) < count:
            self._counters = torch.zeros(max(count, 1024), dtype=torch.int32, device=device)
        return self._counters

    def write(self, cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
        write_kv(key, value, *cache, slots)

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        plan: TritonPlan,
        scale: float,
    ) -> Tensor:
        assert plan.cu_seqlen_q is not None
        if self._varlen is not None and not plan.has_prefix:
            lengths = (plan.cu_seqlen_q, plan.max_q)
            return causal_varlen(self._varlen, query, key, value, *lengths, scale)
        return paged_prefill(
            query, *cache, plan.block_tables, plan.cu_seqlen_q, plan.lengths, plan.max_q, scale
        )

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: TritonPlan,
        scale: float,
    ) -> Tensor:
        return paged_mqa_decode(
            query,
            *cache,
            plan.block_tables,
            plan.lengths,
            scale,
            k_new=key,
            v_new=value,
            slot=slots,
            num_splits=plan.num_splits,
            counters=plan.counters,
        )
