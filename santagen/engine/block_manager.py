"""Hands out the blocks of the paged KV cache: reference counts, a free list, and a table of shared
prefixes.

A block is free, referenced, or cached: no longer referenced, but still holding a whole block of
prompt tokens that a later prompt may share. Cached blocks are handed out last, the longest unused
first. Knows block numbers and tokens only; touches no memory of the device. Block 0 is never
handed out (see model.attention.base).

    prompt | block a | block b | rest |     prefix table: (parent entry, block's tokens) -> entry

Keys hold the tokens themselves, so a hit is never a matter of a hash alone.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

NULL_BLOCK = 0
_ROOT = 0

PrefixKey = tuple[int, tuple[int, ...]]


def prefix_order(prompts: Sequence[tuple[int, ...]], block_size: int) -> list[int]:
    """The prompts' places, those that share their first whole blocks beside each other.

    What shares nothing keeps its order; a family stands where its first member did, and so do the
    families within it that share more.
    """
    numbers: dict[PrefixKey, int] = {}  # (its parent's number, tokens of the block) -> number

    def path(tokens: tuple[int, ...]) -> tuple[int, ...]:
        """A number for each whole block's prefix, and one that no other prompt has."""
        found, parent = [], _ROOT
        for start in range(0, len(tokens) - block_size + 1, block_size):
            key = (parent, tokens[start : start + block_size])
            parent = numbers.setdefault(key, next(fresh))
            found.append(parent)
        return (*found, next(fresh))

    fresh = count(_ROOT + 1)
    paths = [path(tokens) for tokens in prompts]
    return sorted(range(len(prompts)), key=paths.__getitem__)


@dataclass(slots=True)
class _Entry:
    uid: int  # never reused, so a key under an evicted parent can't be found again
    block: int
    key: PrefixKey


class BlockManager:
    """Blocks 1 .. num_blocks - 1 of block_size tokens each."""

    def __init__(self, num_blocks: int, block_size: int, prefix_sharing: bool = True) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.prefix_sharing = prefix_sharing
        self._free = list(
            range(1, num_blocks)
        )  # a heap: low numbers first keep the live range dense
        self._refs = [0] * num_blocks
        self._table: dict[PrefixKey, _Entry] = {}
        self._entry_of: dict[int, _Entry] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._next_uid = _ROOT + 1
        self.referenced = 0  # how many blocks are

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    def allocate(self) -> int:
        """One block with one reference. The caller has checked `available`."""
        if self._free:
            block = heapq.heappop(self._free)
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        assert self._refs[block] == 0
        self._refs[block] = 1
        self.referenced += 1
        return block

    def share(self, block: int) -> int:
        """One more reference to a referenced or cached block."""
        if self._refs[block] == 0:
            del self._cached[block]
            self.referenced += 1
        self._refs[block] += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; the last one frees the block or leaves it cached."""
        for block in reversed(blocks):  # the end of a prefix goes before its start
            self._refs[block] -= 1
            assert self._refs[block] >= 0
            if self._refs[block]:
                continue
            self.referenced -= 1
            if block in self._entry_of:
                self._cached[block] = None
            else:
                heapq.heappush(self._free, block)

    def match_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Blocks that already hold the start of `tokens`, whole blocks, at least one token left
        over.

        The blocks are not referenced yet: `share` each before allocating anything.
        """
        found: list[int] = []
        if not self.prefix_sharing:
            return found
        parent, size = _ROOT, self.block_size
        for start in range(0, len(tokens) - size, size):
            entry = self._table.get((parent, tuple(tokens[start : start + size])))
            if entry is None:
                break
            found.append(entry.block)
            parent = entry.uid
        return found

    def register_prefix(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Offer the whole blocks of a prompt, whose K/V are (or are being) written, to later
        prompts."""
        if not self.prefix_sharing:
            return
        parent, size = _ROOT, self.block_size
        for index in range(len(tokens) // size):
            key = (parent, tuple(tokens[index * size : (index + 1) * size]))
            entry = self._table.get(key)
            if entry is None:
                if blocks[index] in self._entry_of:
                    return
                entry = _Entry(self._next_uid, blocks[index], key)
                self._next_uid += 1
                self._table[key] = entry
                self._entry_of[blocks[index]] = entry
            parent = entry.uid

    def compact(self) -> dict[int, int]:
        """Renumber the blocks so that the referenced ones come first.

        Returns {old number: new number} of every block whose contents have to move, all at once;
        tables that hold one must follow.
        """
        last = self.referenced
        high = [block for block in range(last + 1, self.num_blocks) if self._refs[block]]
        low = [block for block in range(1, last + 1) if not self._refs[block]]
        number = dict(zip(high, low, strict=True)) | dict(zip(low, high, strict=True))
        for old, new in zip(high, low, strict=True):
            self._refs[new], self._refs[old] = self._refs[old], 0
        contents = {old: new for old, new in number.items() if old > last or old in self._cached}
        self._free = [number.get(block, block) for block in self._free]
        heapq.heapify(self._free)
        self._cached = OrderedDict.fromkeys(number.get(block, block) for block in self._cached)
        self._entry_of = {number.get(b, b): entry for b, entry in self._entry_of.items()}
        for block, entry in self._entry_of.items():
            entry.block = block
        return contents

    def clear(self) -> None:
        """Forget every prefix; no block may be referenced."""
        assert not any(self._refs)
        self.reset()

    def reset(self) -> None:
        """All blocks are free again, whoever referenced them."""
        self._refs = [0] * self.num_blocks
        self.referenced = 0
        self._free = list(range(1, self.num_blocks))
        self._table.clear()
        self._entry_of.clear()
        self._cached.clear()

    def _forget(self, block: int) -> None:
        entry = self._entry_of.pop(block)
        del self._table[entry.key]

    def check_integrity(self, tables: Sequence[Sequence[int]]) -> None:
        """Every block is free, cached or referenced as often as `tables` say. For tests, after
        each step."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert counts == self._refs, "reference counts differ from the tables"
        assert self.referenced == sum(count > 0 for count in counts)
        for block in range(1, self.num_blocks):
            states = (block in free) + (block in self._cached) + (counts[block] > 0)
            assert states == 1, f"block {block} is in {states} states"
        assert NULL_BLOCK not in free and counts[NULL_BLOCK] == 0
        assert {entry.block for entry in self._table.values()} == set(self._entry_of)
        assert all(entry.block == block for block, entry in self._entry_of.items())
