"""What every attention backend shares: the lengths of a batch, the cache, and one signature.

    write:    K and V of the new tokens -> their slots of the paged cache
    prefill:  packed prompts, causal; with a cached prefix the mask is aligned bottom-right
    decode:   one new token per sequence against its whole context, its K and V written first

A slot is block * block_size + offset. Block 0 belongs to nobody: padding and finished rows write
there. Backends own the memory layout of their cache; nothing outside reads it but block copies
along dim
1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

KVCache = tuple[Tensor, Tensor]


@dataclass
class Seqlen:
    """The lengths an attention kernel needs; S sequences, int32 on the model's device.

    input_lengths [S]: tokens of this forward; cache_lengths [S]: tokens already in the cache
    (prefix hits; in decode everything before the new token); cu_seqlen_q, cu_seqlen_k [S + 1]:
    their running sums (prefill only). `kv_lengths` [S] = input + cache. `max_q` and `has_prefix`
    are host knowledge; left out, they are read from the device.
    """

    input_lengths: Tensor
    cache_lengths: Tensor
    cu_seqlen_q: Tensor | None = None
    cu_seqlen_k: Tensor | None = None
    max_q: int | None = None
    has_prefix: bool | None = None
    kv_lengths: Tensor | None = None

    def __post_init__(self) -> None:
        if self.kv_lengths is None:
            self.kv_lengths = self.input_lengths + self.cache_lengths
        if self.max_q is None and self.cu_seqlen_q is not None:
            self.max_q = int(self.input_lengths.max())
        if self.has_prefix is None:
            self.has_prefix = self.cu_seqlen_q is not None and bool((self.cache_lengths > 0).any())


@dataclass(frozen=True)
class CacheShape:
    """The size of a paged cache: L layers of num_blocks blocks of block_size tokens."""

    n_layer: int
    num_blocks: int
    block_size: int
    n_kv_head: int
    head_dim: int


class AttentionBackend(Protocol):
    """One way to compute attention, for one cache; `plan` is made once per forward, for every
    layer."""

    name: str
    block_size: int  # tokens a cache block
    block_multiple: int  # what block_size has to be a multiple of
    capturable: (
        bool  # decode reads its lengths from device memory alone, so a CUDA graph may hold it
    )
    reads_in_place: bool  # decode is fastest where the live blocks lie together
    orders_output: bool  # decode takes `place`

    def allocate(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
        """Both caches of all layers, [n_layer, num_blocks, ...]."""
        ...

    def plan(self, seqlen: Seqlen, block_tables: Tensor, max_s: int, decode: bool) -> Any: ...

    def write(self, cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """key, value: [tokens, n_kv_head, head_dim]; slots: [tokens] int64."""
        ...

    def prefill(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache, plan: Any, scale: float
    ) -> Tensor:
        """query: [tokens, n_head, head_dim]; the new K/V are in the cache already. Returns its
        shape."""
        ...

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: Any,
        scale: float,
        place: Tensor | None = None,
    ) -> Tensor:
        """query: [sequences, n_head, head_dim]; key, value, slots of the new tokens as in `write`.
        Returns query's shape. place: a permutation [n_head * head_dim] int32; element e of a
        row's output is then put at place[e]."""
        ...


def write_slots(cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Scatter into caches of [num_blocks, block_size, n_kv_head, head_dim]."""
    key_cache, value_cache = cache
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


def allocate_paged(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
    """Two caches of [n_layer, num_blocks, block_size, n_kv_head, head_dim], zeroed (never NaN)."""
    size = (shape.n_layer, shape.num_blocks, shape.block_size, shape.n_kv_head, shape.head_dim)
    return torch.zeros(size, dtype=dtype, device=device), torch.zeros(
        size, dtype=dtype, device=device
    )
