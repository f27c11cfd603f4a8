"""Attention through torch's scaled_dot_product_attention: any device, no optional package.

Sequences are padded to the longest of the batch, so it costs memory and time that the other
backends don't; it is the fallback on CUDA and the twin that tests hold the others to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.model.attention.base import CacheShape, KVCache, Seqlen, allocate_paged, write_slots


@dataclass
class SdpaPlan:
    tokens: Tensor  # [S, max_q] index into the packed queries
    keep: Tensor  # [S, max_q] bool
    slots: Tensor  # [S, max_k] cache slots of each sequence's context
    mask: Tensor  # [S, 1, max_q, max_k] bool, True = visible


class SdpaAttention:
    """See the module's contract."""

    name = "torch"
    block_multiple = 1
    capturable = False
    reads_in_place = False
    orders_output = False

    def __init__(self, block_size: int = 64) -> None:
        self.block_size = block_size

    def allocate(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
        return allocate_paged(shape, dtype, device)

    def plan(self, seqlen: Seqlen, block_tables: Tensor, max_s: int, decode: bool) -> SdpaPlan:
        assert seqlen.kv_lengths is not None
        device, block_size = block_tables.device, self.block_size
        lengths = seqlen.kv_lengths.long()
        if decode:
            new, first = torch.ones_like(lengths), torch.arange(len(lengths), device=device)
            max_q = 1
        else:
            assert seqlen.cu_seqlen_q is not None and seqlen.max_q is not None
            new, first, max_q = (
                seqlen.input_lengths.long(),
                seqlen.cu_seqlen_q[:-1].long(),
                seqlen.max_q,
            )
        step = torch.arange(max_q, device=device)
        inside = torch.minimum(step.expand(len(new), -1), (new - 1).unsqueeze(1))
        position = lengths.unsqueeze(1) - new.unsqueeze(1) + inside  # [S, max_q]
        keys = torch.arange(max_s, device=device)
        block = torch.minimum(keys.expand(len(lengths), -1), (lengths - 1).unsqueeze(1))
        slots = block_tables.long().gather(1, block // block_size) * block_size + block % block_size
        visible = keys <= position.unsqueeze(2)
        return SdpaPlan(
            first.unsqueeze(1) + inside, step < new.unsqueeze(1), slots, visible.unsqueeze(1)
        )

    def write(self, cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
        write_slots(cache, key, value, slots)

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        plan: SdpaPlan,
        scale: float,
    ) -> Tensor:
        padded = self._attend(query, cache, plan, scale)  # [S, max_q, heads, D]
        out = torch.empty_like(query)
        out[plan.tokens[plan.keep]] = padded[plan.keep]
        return out

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: SdpaPlan,
        scale: float,
        place: Tensor | None = None,
    ) -> Tensor:
        self.write(cache, key, value, slots)
        return self._attend(query, cache, plan, scale).squeeze(1)

    def _attend(self, query: Tensor, cache: KVCache, plan: SdpaPlan, scale: float) -> Tensor:
        heads, kv_heads = query.shape[1], cache[0].shape[2]
        key, value = (part.flatten(0, 1)[plan.slots].transpose(1, 2) for part in cache)
        # Copies on purpose: with expanded heads (stride 0), torch 2.11's memory-efficient kernel
        # gives wrong float32 results on CUDA for key lengths that are no multiple of 4.
        key = key.repeat_interleave(heads // kv_heads, dim=1)
        value = value.repeat_interleave(heads // kv_heads, dim=1)
        tiled = query[plan.tokens].transpose(1, 2)  # [S, heads, max_q, D]
        out = F.scaled_dot_product_attention(tiled, key, value, attn_mask=plan.mask, scale=scale)
        return out.transpose(1, 2)
