"""Which layout a packed GPTQ layer gets, and its size. Numbers only: needs no torch.

What the layout is, and how a layer is brought into it, is in gptq_packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TILES = (128, 64, 32, 16)  # rows that share a scale, at most
LEAST_DEPTH = 16  # rows of a plane: the depth of one step of a tensor core


def scaling_bytes(scale_bytes: int) -> int:
    """Of a scale and its zero point in one integer."""
    return 2 * scale_bytes


def smallest_layout(counts: list[int], bits: int) -> tuple[int, int]:
    """(bits stored, tile) of the fewest bytes for groups of these many rows; ties to the fewest
    fillers, which cost an order of the inputs, then to the larger tile."""

    def size(layout: tuple[int, int]) -> tuple[float, int, int]:
        stored, tile = layout
        rows = sum(-(-count // tile) * tile for count in counts)
        return rows * (stored / 8 + scaling_bytes(2) / tile), rows, -tile

    possible = [
        (stored, tile)
        for stored in (2, 4, 8)
        for tile in TILES
        if stored >= bits and tile * stored // 8 >= LEAST_DEPTH
    ]
    return min(possible, key=size)


def word_bits(stored: int, tile: int) -> int:
    """16 where the planes stay deep enough, else 8."""
    return 16 if stored < 8 and tile * stored // 16 >= LEAST_DEPTH else 8


@dataclass(frozen=True)
class PackedSize:
    """Of a layer: its inputs, those with the fillers, bytes of an output, and whether the inputs'
    own order is another."""

    inputs: int
    packed_inputs: int
    output_bytes: int
    ordered: bool

    @classmethod
    def of(cls, groups: np.ndarray, bits: int, scale_bytes: int) -> PackedSize:
        """groups [K]: each input's."""
        counts = np.bincount(groups)
        stored, tile = smallest_layout(counts.tolist(), bits)
        tiles = int((-(-counts // tile)).sum())
        filled = (counts[:-1] % tile == 0).all()  # no filler but at the end
        in_order = filled and (np.diff(groups) >= 0).all()
        output = tiles * tile * stored // 8 + tiles * scaling_bytes(scale_bytes)
        return cls(len(groups), tiles * tile, output, not in_order)
