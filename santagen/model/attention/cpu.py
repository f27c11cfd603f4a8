"""Attention on the CPU: block by block, so that a row's bits never depend on the rows beside it.

Work is cut into pairs (query tile, cache block). A tile is one token in decode and up to TILE
tokens of one sequence in prefill; with H query heads on one K/V head its rows are tokens x heads.
Every pair is one product of fixed inner sizes, whose rows come out with the same bits in any
number that is a multiple of ROW_MULTIPLE; the pairs of a tile are then joined in block order, one
addition each.

    sequence of 150 tokens, blocks of 64, tiles of 64:     block 0   block 1   block 2
                                            tile 0          causal
                                            tile 1           full     causal
                                            tile 2           full      full     causal

So prefill = decode = prefill over a cached prefix, to the bit. Keys lie transposed in their blocks
([head_dim, block_size]): the score product then runs at twice the speed. Does not run on CUDA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from santagen.kernels.cpu_linear import VECTORS, cpu_activation
from santagen.model.attention.base import CacheShape, KVCache, Seqlen

TILE = 64
ROW_MULTIPLE = 4  # products of fewer or odd rows take other code paths, with other rounding
MAX_PAIRS = 192  # pairs computed at once in prefill: bounds the score matrix
VIEW_SHARE = 0.6  # decode reads the cache in place when this share of the block range is wanted
EXP2_GRAIN = 32768  # see cpu_activation
LOG2_E = math.log2(math.e)  # softmax is taken to base 2: torch.exp is up to 40 times slower where
# arguments are -inf or results denormal, torch.exp2 is not


class Scratch:
    """Buffers that the products of a forward write to, one after the other: fresh pages are
    dear."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor of `shape`; the next call of the same name may overwrite it."""
        count, buffer = math.prod(shape), self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = like.new_empty(count)
        return buffer[:count].view(shape)


@dataclass
class TileGroup:
    """Tiles computed together. P pairs, N tiles, M tokens a tile, J blocks of the longest tile."""

    tokens: Tensor | None  # [N, M] index into the packed query tokens, padding repeats one of the
    # tile's; None in decode, where tile n is token n
    keep: Tensor | None  # [N, M] bool: which of them are real; None when all are
    pair_tile: Tensor  # [P]
    pair_block: Tensor | slice  # [P] cache block, or a range of blocks in place
    extra_block: Tensor | None  # blocks read again for other owners, after the range
    mask: Tensor  # of the first pairs, [masked, 1, M, 1, block_size] bool, True = not visible; in
    # decode what to add to the scores of every pair, [P, 1, 1, block_size], 0 or -inf
    joined: Tensor  # [N, J] pair of each tile and block step, the first one's where there is none
    bags: Tensor  # the pairs of tile 0 in block order, then those of tile 1, ...
    bag_starts: Tensor  # [N]
    scratch: Scratch  # one for all groups and layers of a forward


class CpuAttention:
    """See the module's contract. Any head dim, any number of K/V heads, float32 or lower."""

    name = "torch"
    block_multiple = 8
    capturable = False
    reads_in_place = True

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
        assert seqlen.kv_lengths is not None
        block_size = self.block_size
        kv_lengths = seqlen.kv_lengths.long()
        if decode:
            last = kv_lengths - 1
            position, tables = last.unsqueeze(1), block_tables.long()
            return [_group(None, position, None, tables, block_size, Scratch())]
        assert seqlen.cu_seqlen_q is not None and seqlen.max_q is not None
        width = 1 if seqlen.max_q == 1 else TILE
        sequence, start = _tiles(seqlen.input_lengths.long(), width)
        length = (seqlen.input_lengths.long()[sequence] - start).clamp(max=width)  # [tiles]
        step = torch.arange(width)
        keep = step < length.unsqueeze(1)
        inside = torch.minimum(step.expand(len(start), -1), (length - 1).unsqueeze(1))
        tokens = seqlen.cu_seqlen_q.long()[sequence].unsqueeze(1) + start.unsqueeze(1) + inside
        position = seqlen.cache_lengths.long()[sequence].unsqueeze(1) + start.unsqueeze(1) + inside
        tables = block_tables.long()[sequence]
        blocks = position[:, -1] // block_size + 1
        groups, begin, pairs, scratch = [], 0, 0, Scratch()
        for tile, count in enumerate([*blocks.tolist(), MAX_PAIRS + 1]):
            if (pairs + count > MAX_PAIRS and tile > begin) or tile == len(blocks):
                part = slice(begin, tile)
                cut = (tokens[part], position[part], keep[part], tables[part])
                groups.append(_group(*cut, block_size, scratch))
                begin, pairs = tile, 0
            pairs += count
        return groups

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


def _tiles(lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(sequence, first token within it) of every tile of `width` tokens."""
    counts = (lengths + width - 1) // width
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    first = torch.cumsum(counts, 0) - counts
    return sequence, (torch.arange(len(sequence)) - first[sequence]) * width


def _group(
    tokens: Tensor | None,
    position: Tensor,
    keep: Tensor | None,
    tables: Tensor,
    block_size: int,
    scratch: Scratch,
) -> TileGroup:
    """position: [tiles, M] absolute; tables: [tiles, max_blocks]. tokens None: decode."""
    decode = tokens is None
    blocks = position[:, -1] // block_size + 1  # [tiles]
    longest = int(blocks.max())
    real = torch.arange(longest) < blocks.unsqueeze(1)  # [tiles, J]
    tile, number = real.nonzero(as_tuple=True)  # of every wanted pair
    wanted = tables[tile, number]
    # A pair needs a mask where its block reaches past the first token of the tile.
    needs = (number + 1) * block_size - 1 > position[tile, 0]
    if decode:
        order, pair_block, extra = _in_place(wanted)
    else:
        order, extra = torch.cat([needs.nonzero(), (~needs).nonzero()]).squeeze(1), None
        pair_block = wanted[order]
    computed = order >= 0
    where = torch.empty(len(tile), dtype=torch.long)  # of every wanted pair among the computed ones
    where[order[computed]] = computed.nonzero().squeeze(1)
    starts = torch.cumsum(blocks, 0) - blocks
    joined = where[starts].unsqueeze(1).repeat(1, longest)
    joined[real] = where
    keys = number[needs].unsqueeze(1) * block_size + torch.arange(block_size)  # [masked, bs]
    mask = keys.unsqueeze(1) > position[tile[needs]].unsqueeze(2)
    if decode:
        bias = torch.zeros(len(order), block_size)
        bias[where[needs]] = torch.zeros(mask.shape[0], block_size).masked_fill_(
            mask.squeeze(1), -torch.inf
        )
        mask = bias.view(-1, 1, 1, block_size)
    else:
        mask = mask.unsqueeze(1).unsqueeze(3)
    pair_tile = tile[order.clamp(min=0)]
    return TileGroup(
        tokens, keep, pair_tile, pair_block, extra, mask, joined, where, starts, scratch
    )


def _in_place(block: Tensor) -> tuple[Tensor, Tensor | slice, Tensor | None]:
    """Order the wanted pairs by where their blocks lie, so that decode reads the cache uncopied.

    Returns (order: which pair each computed one is, -1 for a block nobody asked for; the blocks;
    the blocks of second and later owners).
    """
    low, high = int(block.min()), int(block.max()) + 1
    pairs = torch.arange(len(block))
    owner = torch.full((high - low,), -1)
    owner[block - low] = pairs  # the last owner stays
    first = owner[block - low] == pairs
    if int(first.sum()) < VIEW_SHARE * (high - low):
        return pairs, block, None
    again = (~first).nonzero().squeeze(1)
    order = torch.cat([owner, again])
    return order, slice(low, high), block[again] if len(again) else None


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
    kv_heads, (heads, dim) = key_cache.shape[1], query.shape[1:]
    per_kv = heads // kv_heads
    dtype, query = query.dtype, query.float() * (scale * LOG2_E)
    tiled = query.unsqueeze(1) if group.tokens is None else query[group.tokens]
    tiles, width = tiled.shape[:2]
    pairs, rows = len(group.pair_tile), width * per_kv
    # [tiles, kv heads, M x heads of that kv head, D], rows padded for the product
    tiled = tiled.view(tiles, width, kv_heads, per_kv, dim)
    tiled = tiled.transpose(1, 2).reshape(tiles, kv_heads, rows, dim)
    size = value_cache.shape[2]
    multiple = max(ROW_MULTIPLE, VECTORS // math.gcd(VECTORS, size))
    padded = -(-rows // multiple) * multiple
    if padded != rows:
        tiled = torch.nn.functional.pad(tiled, (0, 0, 0, padded - rows))
    paired = tiled.index_select(0, group.pair_tile).flatten(0, 1)
    scores = group.scratch.take("scores", query, pairs * kv_heads, padded, size)
    partial = group.scratch.take("partial", query, pairs * kv_heads, padded, dim)
    torch.bmm(paired, _blocks(key_cache, group).float(), out=scores)
    scores = scores.view(pairs, kv_heads, padded, size)
    if group.tokens is None:
        scores.add_(group.mask)
    else:  # the masked pairs come first
        masked = scores[: len(group.mask), :, :rows].unflatten(2, (width, per_kv))
        masked.masked_fill_(group.mask, -torch.inf)
    # Every row's own maximum, over all its blocks: its first block always has a visible key.
    highest = scores.amax(-1, keepdim=True)[group.joined].amax(1)  # [tiles, kv heads, rows, 1]
    scores.sub_(highest.index_select(0, group.pair_tile))
    cpu_activation(torch.exp2_, scores.view(-1, VECTORS), EXP2_GRAIN)
    total = scores.sum(-1, keepdim=True)
    torch.bmm(scores.flatten(0, 1), _blocks(value_cache, group).float(), out=partial)
    # Each tile's pairs, added in block order. A block that was computed for nobody may hold
    # anything: it is in no bag.
    shape = (tiles, kv_heads, padded)
    out = embedding_bag(group.bags, partial.view(pairs, -1), group.bag_starts, mode="sum")
    norm = embedding_bag(group.bags, total.view(pairs, -1), group.bag_starts, mode="sum")
    out = out.view(*shape, dim).div_(norm.view(*shape, 1))[:, :, :rows]
    out = out.reshape(tiles, kv_heads, width, per_kv, dim).transpose(1, 2)
    return out.reshape(tiles, width, heads, dim).to(dtype)
