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
    decode_tile_config,
    paged_mqa_decode,
    paged_prefill,
    write_kv,
)
from santagen.model.attention.base import CacheShape, KVCache, Seqlen, allocate_paged
from santagen.model.attention.flash import Varlen, causal_varlen

INVARIANT_SPLITS = 4  # programs that share a context, whatever the batch


@dataclass
class TritonPlan:
    lengths: Tensor  # [S] int32 tokens of each context, the new ones included
    cu_seqlen_q: Tensor | None
    block_tables: Tensor
    max_q: int
    num_splits: int
    counters: Tensor | None
    has_prefix: bool
    cache_lengths: Tensor | None = None
    per_token: tuple[Tensor, Tensor, Tensor] | None = None  # made by the first layer's prefill


class TritonAttention:
    """See the module's contract. `varlen` takes over the prefill of prompts without a cached
    prefix.

    `invariant`: a row's bits depend on no other row. Every prompt token is then computed as a
    decode step of its own, in one launch, with one way of sharing a context.
    """

    name = "triton"
    block_multiple = 16
    capturable = True
    reads_in_place = False
    orders_output = True

    def __init__(
        self, block_size: int = 64, varlen: Varlen | None = None, invariant: bool = False
    ) -> None:
        self.block_size, self._varlen, self.invariant = block_size, varlen, invariant
        # Graphs hold on to the arrays they were captured with: none is ever freed.
        self._counters: list[Tensor] = []

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
            return TritonPlan(
                lengths, seqlen.cu_seqlen_q, block_tables, max_q, 1, None, prefix,
                seqlen.cache_lengths,
            )  # fmt: skip
        # by the table's width, not by max_s: a graph and an eager step then share alike
        sequences, longest = len(lengths), block_tables.shape[1] * self.block_size
        splits = INVARIANT_SPLITS
        if not self.invariant:
            splits = choose_num_splits(sequences, self._kv_heads, longest, self._processors)
        counters = None
        if splits > 1:
            counters = self._zeros(sequences * self._kv_heads, lengths.device)
        return TritonPlan(lengths, None, block_tables, 1, splits, counters, False)

    def _zeros(self, count: int, device: torch.device) -> Tensor:
        """At least `count` counters that launches leave at zero; one array serves all launches of
        the stream."""
        last = self._counters[-1] if self._counters else None
        if last is None or len(last) < count:
            size = max(1024, 1 << (count - 1).bit_length())
            last = torch.zeros(size, dtype=torch.int32, device=device)
            self._counters.append(last)  # another thread of the warm-up may append a shorter one
        return last

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
        if self.invariant:
            return self._prefill_by_token(query, key, value, cache, plan, scale)
        if self._varlen is not None and not plan.has_prefix:
            lengths = (plan.cu_seqlen_q, plan.max_q)
            return causal_varlen(self._varlen, query, key, value, *lengths, scale)
        return paged_prefill(
            query, *cache, plan.block_tables, plan.cu_seqlen_q, plan.lengths, plan.max_q, scale
        )

    def _prefill_by_token(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        plan: TritonPlan,
        scale: float,
    ) -> Tensor:
        if plan.per_token is None:
            assert plan.cu_seqlen_q is not None and plan.cache_lengths is not None
            token = torch.arange(len(query), device=query.device)
            sequence = torch.searchsorted(plan.cu_seqlen_q[1:].long(), token, right=True)
            context = token - plan.cu_seqlen_q[sequence] + plan.cache_lengths[sequence] + 1
            tables = plan.block_tables.index_select(0, sequence)
            nowhere = torch.full_like(token, -1)  # K and V are in the cache already
            plan.per_token = context.int(), tables, nowhere
        lengths, tables, slots = plan.per_token
        counters = self._zeros(len(query) * self._kv_heads, query.device)
        by_token = TritonPlan(lengths, None, tables, 1, INVARIANT_SPLITS, counters, False)
        return self.decode(query, key, value, cache, slots, by_token, scale)

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: TritonPlan,
        scale: float,
        place: Tensor | None = None,
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
            config=self._config(query, cache) if self.invariant else None,
            place=place,
        )

    @staticmethod
    def _config(query: Tensor, cache: KVCache) -> tuple[int, int, int]:
        """The tile of many programs, for any number."""
        group = query.shape[1] // cache[0].shape[2]
        return decode_tile_config(query.dtype, group, programs=1 << 20)
