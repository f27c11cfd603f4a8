"""Attention on the CPU: block by block, so that a row's bits never depend on the rows beside it.

Work is cut into pairs (query tile, cache block) by cpu_tiles. With H query heads on one K/V head
the rows of a tile are tokens x heads. Every pair is one product of fixed inner sizes, whose rows
come out with the same bits in any number that is a multiple of ROW_MULTIPLE; the pairs of a tile
are then joined in block order, one addition each. So prefill = decode = prefill over a cached
prefix, to the bit.

Keys lie transposed in their blocks ([head_dim, block_size]): the score product then runs at twice
the speed. Does not run on CUDA.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from santagen.kernels.cpu_linear import VECTORS, cpu_activation
from santagen.model.attention.base import CacheShape, KVCache, Seqlen
from santagen.model.attention.cpu_tiles import TileGroup, plan_decode, plan_prefill

ROW_MULTIPLE = 4  # products of fewer or odd rows take other code paths, with other rounding
EXP2_GRAIN = 32768  # see cpu_activation
LOG2_E = math.log2(math.e)  # softmax is taken to base 2: torch.exp is up to 40 times slower where
# arguments are -inf or results denormal, torch.exp2 is not


class CpuAttention:
    """See the module's contract. Any head dim, any number of K/V heads, float32 or lower."""

    name = "torch"
    block_multiple = 8
    capturable = False
    reads_in_place = True
    orders_output = False

    def __init__(self, block_size: int = 64) -> None:
        self.block_size = block_size
        self._slots: Tensor | None = None
        self._runs: tuple[Tensor, Tensor] | None = None
        self._places = (torch.empty(0), torch.empty(0))  # block and offset of the slots

    def allocate(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
        lead = (shape.n_layer, shape.num_blocks, shape.n_kv_head)
        key = lazy_zeros((*lead, shape.head_dim, shape.block_size), dtype)
        value = lazy_zeros((*lead, shape.block_size, shape.head_dim), dtype)
        return key, value

    def plan(
        self, seqlen: Seqlen, block_tables: Tensor, max_s: int, decode: bool
    ) -> list[TileGroup]:
        if not decode:
            return plan_prefill(seqlen, block_tables, self.block_size)
        assert seqlen.kv_lengths is not None
        return [plan_decode(seqlen.kv_lengths, block_tables, self.block_size)]

    def write(self, cache: KVCache, key: Tensor, value: Tensor, slots: Tensor) -> None:
        key_cache, value_cache = cache  # [blocks, kv heads, D, bs], [blocks, kv heads, bs, D]
        block_size = key_cache.shape[-1]
        if slots is not self._slots:  # the same for every layer of a forward
            self._slots, self._runs = slots, _runs(slots, block_size)
            self._places = slots // block_size, slots % block_size
        if self._runs is None:
            block, offset = self._places
            key_cache[block, :, :, offset] = key
            value_cache[block, :, offset] = value
            return
        blocks, tokens = self._runs
        keys, values = (  # [blocks, bs, kv heads, D]
            new.index_select(0, tokens.view(-1)).unflatten(0, tokens.shape) for new in (key, value)
        )
        key_cache.index_copy_(0, blocks, keys.permute(0, 2, 3, 1))
        value_cache.index_copy_(0, blocks, values.transpose(1, 2))

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        plan: list[TileGroup],
        scale: float,
    ) -> Tensor:
        out = torch.empty_like(query)
        for group in plan:
            result = _attend(query, cache, group, scale)
            assert group.keep is not None and group.tokens is not None
            out[group.tokens[group.keep]] = result[group.keep]
        return out

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVCache,
        slots: Tensor,
        plan: list[TileGroup],
        scale: float,
        place: Tensor | None = None,
    ) -> Tensor:
        self.write(cache, key, value, slots)
        return _attend(query, cache, plan[0], scale).squeeze(1)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no time and no memory until they are written (torch.zeros fills every
    page)."""
    count = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)


def _runs(slots: Tensor, block_size: int) -> tuple[Tensor, Tensor] | None:
    """(blocks [n], tokens [n, block_size]) where the new tokens fill blocks from their starts.

    A block that is not filled is given its last token again: nobody reads these slots before they
    are written. Whole blocks are transposed in the cache lines' order, several times faster than
    token by token. None where some run starts inside a block, as in decode.
    """
    starts = torch.ones_like(slots, dtype=torch.bool)
    starts[1:] = (slots[1:] != slots[:-1] + 1) | (slots[1:] % block_size == 0)
    first = starts.nonzero().squeeze(1)
    if 2 * len(first) > len(slots) or bool((slots[first] % block_size).any()):
        return None
    length = torch.diff(first, append=torch.tensor([len(slots)]))
    step = torch.minimum(torch.arange(block_size), length.unsqueeze(1) - 1)
    return slots[first] // block_size, first.unsqueeze(1) + step


def _blocks(cache: Tensor, group: TileGroup) -> Tensor:
    """The wanted blocks, [P x kv heads, ...]: in place where they lie together, copied where
    not."""
    if isinstance(group.pair_block, slice):
        blocks = cache[group.pair_block]
        if group.extra_block is not None:
            blocks = torch.cat([blocks, cache[group.extra_block]])
    else:
        blocks = cache.index_select(0, group.pair_block)
    return blocks.flatten(0, 1)


def _attend(query: Tensor, cache: KVCache, group: TileGroup, scale: float) -> Tensor:
    """Softmax attention of every tile of the group: [tiles, M, heads, head_dim].

    In float32 whatever the cache holds: scores of this family go past what float16 has.
    """
    key_cache, value_cache = cache
    kv_heads, size = value_cache.shape[1:3]
    tiled = _tiled(query.float() * (scale * LOG2_E), group, kv_heads)
    tiles, _, rows, dim = tiled.shape
    multiple = max(ROW_MULTIPLE, VECTORS // math.gcd(VECTORS, size))
    padded = -(-rows // multiple) * multiple
    if padded != rows:
        tiled = torch.nn.functional.pad(tiled, (0, 0, 0, padded - rows))
    paired = tiled.index_select(0, group.pair_tile).flatten(0, 1)
    pairs = len(group.pair_tile)
    scores = group.scratch.take("scores", paired, pairs * kv_heads, padded, size)
    partial = group.scratch.take("partial", paired, pairs * kv_heads, padded, dim)
    torch.bmm(paired, _blocks(key_cache, group).float(), out=scores)
    total = _exponentials(scores.view(pairs, kv_heads, padded, size), rows, group)
    torch.bmm(scores, _blocks(value_cache, group).float(), out=partial)
    # Each tile's pairs, added in block order. A block that was computed for nobody may hold
    # anything: it is in no bag.
    shape = (tiles, kv_heads, padded)
    out = embedding_bag(group.bags, partial.view(pairs, -1), group.bag_starts, mode="sum")
    norm = embedding_bag(group.bags, total.view(pairs, -1), group.bag_starts, mode="sum")
    out = out.view(*shape, dim).div_(norm.view(*shape, 1))[:, :, :rows]
    width = _width(group)
    out = out.reshape(tiles, kv_heads, width, rows // width, dim).transpose(1, 2)
    return out.reshape(tiles, width, -1, dim).to(query.dtype)


def _width(group: TileGroup) -> int:
    return 1 if group.tokens is None else group.tokens.shape[1]


def _tiled(query: Tensor, group: TileGroup, kv_heads: int) -> Tensor:
    """The queries by tile, [tiles, kv heads, M x heads of that kv head, head_dim]."""
    tiled = query.unsqueeze(1) if group.tokens is None else query[group.tokens]
    tiled = tiled.unflatten(2, (kv_heads, -1)).transpose(1, 2)
    return tiled.flatten(2, 3)


def _exponentials(scores: Tensor, rows: int, group: TileGroup) -> Tensor:
    """Turn the scores [pairs, kv heads, padded rows, block_size] into 2 ** (score - the highest of
    its row), 0 where the key is not visible; returns each row's sum, [pairs, kv heads, ..., 1]."""
    if group.tokens is None:
        scores.add_(group.mask)
    else:  # the masked pairs come first
        width = _width(group)
        masked = scores[: len(group.mask), :, :rows].unflatten(2, (width, rows // width))
        masked.masked_fill_(group.mask, -torch.inf)
    # Every row's own maximum, over all its blocks: its first block always has a visible key.
    highest = scores.amax(-1, keepdim=True)[group.joined].amax(1)  # [tiles, kv heads, rows, 1]
    scores.sub_(highest.index_select(0, group.pair_tile))
    cpu_activation(torch.exp2_, scores.view(-1, VECTORS), EXP2_GRAIN)
    return scores.sum(-1, keepdim=True)
