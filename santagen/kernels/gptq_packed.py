"""GPTQ integers in the layout that the products read: packed, in group order, one scale a tile.

    words      [tiles, N, tile * bits / width]   a program's tile of N rows is one piece of memory
    scalings   [tiles, N, 2]                     scale and zero point of the tile's group: one load

A tile is `tile` packed rows of one group. Its words hold `width / bits` planes: plane j, bits
[j * bits, (j + 1) * bits) of each word, is the tile's rows [j * depth, (j + 1) * depth), so that
taking a plane out needs a shift and a mask and no shuffle:

    word of 16 bits   | row d + 3 depth | row d + 2 depth | row d + depth | row d |     (4 bits)

Rows are sorted by group; where a group does not fill its last tile, rows whose code is the zero
point (a weight of 0) fill it. Exact: 3 bits are stored as 4, and 2 bits as 4 where that is
smaller. Knows no file format and multiplies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from santagen.kernels.gptq_layout import smallest_layout, word_bits

ZERO_UNIT = -0.015625  # -1 / 64: what the kernels make of codes; up to 255 of it are exact
ELEMENTS_AT_ONCE = 2**24  # packed together: bounds the copies beside the codes and the words


@dataclass(frozen=True)
class PackedWeight:
    """One weight [N, K] (its rows are outputs), or a rank's slice of it.

    words int16 or uint8: see above. scalings int16 [tiles, N, 2]: the bits of a scale of
    `scale_dtype`, and of its zero point times ZERO_UNIT as bfloat16; [tiles, N, 4] where a scale
    has 32 bits, the last one unused. `order` int32 [tiles * tile] is the input that each packed
    row belongs to (fillers name input 0); None where row k is input k and fillers come last.
    """

    words: Tensor
    scalings: Tensor
    scale_dtype: torch.dtype
    order: Tensor | None
    inputs: int
    bits: int
    tile: int

    @property
    def outputs(self) -> int:
        return self.words.shape[1]

    @property
    def packed_inputs(self) -> int:
        """K with the fillers."""
        return self.words.shape[0] * self.tile

    @property
    def nbytes(self) -> int:
        order = 0 if self.order is None else self.order.nbytes
        return self.words.nbytes + self.scalings.nbytes + order

    def dequantize(
        self, dtype: torch.dtype = torch.float32, start: int = 0, stop: int | None = None
    ) -> Tensor:
        """Outputs [start, stop) in packed order [outputs, packed inputs].

        Computed in float32 and rounded to `dtype` once.
        """
        words, scalings = self.words[:, start:stop], self.scalings[:, start:stop]
        tiles, outputs, depth = words.shape
        planes = self.tile // depth
        shape = (outputs, tiles, planes, depth)
        weight = torch.empty(shape, dtype=dtype, device=words.device)
        at = self.scale_dtype.itemsize // 2
        scale = scalings[..., :at].view(self.scale_dtype).float()
        zero = scalings[..., at : at + 1].view(torch.bfloat16).float() / ZERO_UNIT
        for j in range(planes):
            codes = (words >> (j * self.bits)) & (2**self.bits - 1)  # drops the sign, too
            weight[:, :, j] = codes.float().sub_(zero).mul_(scale).transpose(0, 1)
        return weight.view(outputs, self.packed_inputs)

    def arrange(self, x: Tensor) -> Tensor:
        """x [M, K] in the order of the packed rows, [M, packed inputs]."""
        if self.order is not None:
            return x.index_select(1, self.order)
        missing = self.packed_inputs - self.inputs
        return torch.nn.functional.pad(x, (0, missing)) if missing else x


def repack(
    codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor, bits: int
) -> PackedWeight:
    """codes uint8 [K, N], zeros uint8 and scales [groups, N], groups int64 [K]: each row's own.

    Every device's; nothing is rounded.
    """
    inputs, outputs = codes.shape
    counts = torch.bincount(groups, minlength=zeros.shape[0])
    stored, tile = smallest_layout(counts.tolist(), bits)
    source, filler, tile_group = _rows_by_group(groups, counts, tile)
    width = word_bits(stored, tile)
    planes = width // stored
    kind = torch.int16 if width == 16 else torch.uint8
    depth = tile // planes
    words = torch.empty(len(tile_group), outputs, depth, dtype=kind, device=codes.device)
    step = max(1, ELEMENTS_AT_ONCE // max(1, len(source)))
    for start in range(0, outputs, step):
        some = slice(start, start + step)
        rows = codes[:, some].index_select(0, source)
        rows[filler] = zeros[tile_group[filler // tile], some]
        parts = rows.view(len(tile_group), planes, depth, rows.shape[1])
        part = words[:, some].copy_(parts[:, 0].transpose(1, 2))
        for j in range(1, planes):  # in the words' own type, which the highest bits wrap around in
            part |= parts[:, j].transpose(1, 2).to(kind).bitwise_left_shift_(stored * j)
    in_order = bool((source[:inputs] == torch.arange(inputs, device=codes.device)).all())
    scalings = _scalings(scales, zeros).index_select(0, tile_group)
    order = None if in_order else source.int()
    return PackedWeight(words, scalings, scales.dtype, order, inputs, stored, tile)


def _scalings(scales: Tensor, zeros: Tensor) -> Tensor:
    """[groups, N] each -> int16 [groups, N, 2 or 4]."""
    scale = scales.unsqueeze(2).contiguous().view(torch.int16)
    zero = (zeros.float() * ZERO_UNIT).bfloat16().unsqueeze(2).view(torch.int16)
    missing = -(scale.shape[2] + 1) % 2
    return torch.cat([scale, zero, *[torch.zeros_like(zero)] * missing], dim=2)


def _rows_by_group(groups: Tensor, counts: Tensor, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """(input of each packed row, places of the fillers, group of each tile)."""
    device, inputs = groups.device, groups.shape[0]
    order = torch.argsort(groups, stable=True)
    by_group = groups[order]
    padded = (counts + tile - 1) // tile * tile
    rank = torch.arange(inputs, device=device) - (counts.cumsum(0) - counts)[by_group]
    place = (padded.cumsum(0) - padded)[by_group] + rank
    total = int(padded.sum())
    source = torch.zeros(total, dtype=torch.int64, device=device)
    source[place] = order
    free = torch.ones(total, dtype=torch.bool, device=device)
    free[place] = False
    numbers = torch.arange(counts.shape[0], device=device)
    return source, free.nonzero().flatten(), torch.repeat_interleave(numbers, padded // tile)
