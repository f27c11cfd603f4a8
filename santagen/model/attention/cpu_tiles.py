"""Which query tile of a CPU forward meets which cache block: the plan that every layer works off.

A tile is one token in decode and up to TILE tokens of one sequence in prefill; each is paired with
every block that holds a key it sees. Pairs are put where their products are cheapest: in decode in
the order of the cache, which is then read in place, in prefill those that need a mask first. Counts
and indices only; `cpu` does the attention.

    sequence of 150 tokens, blocks of 64, tiles of 64:     block 0   block 1   block 2
                                            tile 0          causal
                                            tile 1           full     causal
                                            tile 2           full      full     causal
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from santagen.model.attention.base import Seqlen

TILE = 64
MAX_PAIRS = 192  # pairs computed at once in prefill: bounds the score matrix
VIEW_SHARE = 0.6  # decode reads the cache in place when this share of the block range is wanted


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


def plan_decode(kv_lengths: Tensor, block_tables: Tensor, block_size: int) -> TileGroup:
    """One token a sequence, the last of its kv_lengths [S]; block_tables: [S, max_blocks]."""
    last = (kv_lengths.long() - 1).unsqueeze(1)
    return _group(None, last, None, block_tables.long(), block_size, Scratch())


def plan_prefill(seqlen: Seqlen, block_tables: Tensor, block_size: int) -> list[TileGroup]:
    """Packed tokens, in groups of up to MAX_PAIRS pairs, or of one tile that has more."""
    assert seqlen.cu_seqlen_q is not None and seqlen.max_q is not None
    width = 1 if seqlen.max_q == 1 else TILE
    lengths = seqlen.input_lengths.long()
    sequence, start = _tiles(lengths, width)
    length = (lengths[sequence] - start).clamp(max=width)  # [tiles]
    step = torch.arange(width)
    keep = step < length.unsqueeze(1)
    inside = torch.minimum(step.expand(len(start), -1), (length - 1).unsqueeze(1))
    tokens = seqlen.cu_seqlen_q.long()[sequence].unsqueeze(1) + start.unsqueeze(1) + inside
    position = seqlen.cache_lengths.long()[sequence].unsqueeze(1) + start.unsqueeze(1) + inside
    tables = block_tables.long()[sequence]
    scratch = Scratch()
    return [
        _group(tokens[part], position[part], keep[part], tables[part], block_size, scratch)
        for part in _parts((position[:, -1] // block_size + 1).tolist())
    ]


def _tiles(lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(sequence, first token within it) of every tile of `width` tokens."""
    counts = (lengths + width - 1) // width
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    first = torch.cumsum(counts, 0) - counts
    return sequence, (torch.arange(len(sequence)) - first[sequence]) * width


def _parts(pairs: list[int]) -> list[slice]:
    """Ranges of tiles, which have so many pairs each, that are computed together."""
    parts, begin, total = [], 0, 0
    for tile, count in enumerate(pairs):
        if total + count > MAX_PAIRS and tile > begin:
            parts.append(slice(begin, tile))
            begin, total = tile, 0
        total += count
    return [*parts, slice(begin, len(pairs))]


def _group(
    tokens: Tensor | None,
    position: Tensor,
    keep: Tensor | None,
    tables: Tensor,
    block_size: int,
    scratch: Scratch,
) -> TileGroup:
    """position: [tiles, M] absolute; tables: [tiles, max_blocks]. tokens None: decode."""
    blocks = position[:, -1] // block_size + 1  # [tiles]
    real = torch.arange(int(blocks.max())) < blocks.unsqueeze(1)  # [tiles, J]
    tile, number = real.nonzero(as_tuple=True)  # of every wanted pair
    wanted = tables[tile, number]
    # A pair needs a mask where its block reaches past the first token of the tile.
    needs = (number + 1) * block_size - 1 > position[tile, 0]
    keys = number[needs].unsqueeze(1) * block_size + torch.arange(block_size)  # [masked, bs]
    hidden = keys.unsqueeze(1) > position[tile[needs]].unsqueeze(2)  # [masked, M, bs]
    if tokens is None:
        order, pair_block, extra = _in_place(wanted)
        where = _places(order, len(tile))
        mask = _bias(hidden.squeeze(1), where[needs], len(order))
    else:
        order, extra = torch.cat([needs.nonzero(), (~needs).nonzero()]).squeeze(1), None
        pair_block, where = wanted[order], _places(order, len(tile))
        mask = hidden.unsqueeze(1).unsqueeze(3)
    starts = torch.cumsum(blocks, 0) - blocks
    joined = where[starts].unsqueeze(1).repeat(1, real.shape[1])
    joined[real] = where
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


def _places(order: Tensor, count: int) -> Tensor:
    """Where each of `count` wanted pairs is among the computed ones, whose `order` this is."""
    computed = order >= 0
    where = torch.empty(count, dtype=torch.long)
    where[order[computed]] = computed.nonzero().squeeze(1)
    return where


def _bias(hidden: Tensor, where: Tensor, pairs: int) -> Tensor:
    """The mask of decode: -inf at the `hidden` keys [masked, block_size] of the pairs `where`."""
    bias = torch.zeros(pairs, hidden.shape[1])
    bias[where] = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return bias.view(pairs, 1, 1, -1)
