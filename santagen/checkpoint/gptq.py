"""GPTQ integers: unpacked exactly, and put back together as weights.

Per layer of K inputs and N outputs: qweight int32 [K*b/32, N], qzeros int32 [groups, N*b/32],
scales [groups, N], g_idx int32 [K] or none. The b-bit values lie as one little-endian bit stream
along K (qweight) or N (qzeros):

    3 bits   word 0: v0 v1 ... v9 | 2 bits of v10     word 1: 1 bit of v10, v11 ... v20 | 1 bit of
    v21 ...

    weight[n, k] = (q[k, n] - z[g_idx[k], n]) * scales[g_idx[k], n]

How z is stored: "v1" keeps z - 1 in each field, "v1-word" subtracted 1 from every field of a whole
32-bit word, borrows included (gptqmodel's asymmetric 2, 4 and 8 bit files), "v2" keeps z. Which one
it is, gptq_settings.py decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from santagen.checkpoint.gptq_checks import group_index
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.reader import TensorFiles

EXACT_AS_THEY_ARE = (torch.float16, torch.bfloat16)  # of scales, whose sums are float32
ELEMENTS_AT_ONCE = 2**20  # dequantised together: bounds the float copies beside the result


@dataclass(frozen=True)
class GPTQLinear:
    """The integers of one layer, or of this rank's slice of it, one value per element.

    codes uint8 [K, N], zeros uint8 [groups, N], scales float32 [groups, N], g_idx int64 [K]: the
    global group of each row. All groups of the layer are kept, whichever rows the slice holds; its
    first row is input `first_input`. `scales_dtype`, the file's, holds the scales exactly.
    """

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    g_idx: Tensor
    bits: int
    group_size: int
    first_input: int = 0
    scales_dtype: torch.dtype = torch.float32

    def columns(self, order: Tensor) -> GPTQLinear:
        """The outputs `order`, in that order."""
        parts = ("codes", "zeros", "scales")
        return replace(self, **{name: getattr(self, name).index_select(1, order) for name in parts})

    @property
    def act_order(self) -> bool:
        """Whether the groups are not simply consecutive inputs."""
        return not torch.equal(self.g_idx, self._in_order())

    def _in_order(self) -> Tensor:
        inputs = torch.arange(self.codes.shape[0], device=self.codes.device) + self.first_input
        return torch.zeros_like(inputs) if self.group_size == -1 else inputs // self.group_size

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [N, K], computed in float32 and rounded to `dtype` once."""
        rows, columns = self.codes.shape
        weight = torch.empty(columns, rows, dtype=dtype, device=self.codes.device)
        zeros = self.zeros.float()
        step = max(1, ELEMENTS_AT_ONCE // max(1, columns))
        for start in range(0, rows, step):
            some = slice(start, start + step)
            groups = self.g_idx[some]
            part = self.codes[some].float().sub_(zeros.index_select(0, groups))
            part.mul_(self.scales.index_select(0, groups))
            weight[:, some] = part.to(dtype).t()  # rounded before it is turned: a cheaper copy
        return weight


def unpack(packed: Tensor, bits: int) -> Tensor:
    """int32 [words, m] -> uint8 [words * 32 / bits, m], the bit stream running down the rows.

    `packed` may begin at any multiple of `period(bits)` values of a longer stream.
    """
    per, words = period(bits), period(bits) * bits // 32
    blocks = packed.view(-1, words, packed.shape[1])
    values = torch.empty(
        blocks.shape[0], per, packed.shape[1], dtype=torch.uint8, device=packed.device
    )
    mask = 2**bits - 1
    for j in range(per):
        word, shift = divmod(j * bits, 32)
        low = blocks[:, word] >> shift  # the sign bit is shifted in, and masked off
        if shift + bits > 32:
            kept = 32 - shift
            low.bitwise_and_(2**kept - 1).bitwise_or_(blocks[:, word + 1] << kept)
        values[:, j] = low.bitwise_and_(mask)
    return values.view(-1, packed.shape[1])


def period(bits: int) -> int:
    """How many values fill a whole number of words: 16, 32, 8 and 4 for 2, 3, 4 and 8 bits."""
    return 32 // gcd(bits, 32)


def unpack_zeros(qzeros: Tensor, bits: int, rule: str) -> Tensor:
    """qzeros [groups, N*b/32] -> zero points uint8 [groups, N], undoing the format's minus one."""
    if rule == "v1-word":
        ones = sum(1 << (bits * j) for j in range(32 // bits))
        qzeros = qzeros + ones  # wraps, as the writer did
    stored = unpack(qzeros.t().contiguous(), bits).t()
    return ((stored + 1) & (2**bits - 1) if rule == "v1" else stored).contiguous()


def read_layer(
    files: TensorFiles,
    prefix: str,
    settings: GPTQSettings,
    *,
    out: tuple[int, int] | None = None,
    inp: tuple[int, int] | None = None,
    device: torch.device | None = None,
) -> GPTQLinear:
    """Outputs `out` and inputs `inp` of a stored layer, unpacked on `device`.

    Only the words of qweight that hold them are read.
    """
    bits = settings.bits
    words, outputs = files.info(f"{prefix}.qweight").shape
    inputs = words * 32 // bits
    (first, last), columns = inp or (0, inputs), slice(*(out or (0, outputs)))
    per = period(bits)
    start, stop = first // per * per, -(-last // per) * per
    rows = slice(start * bits // 32, stop * bits // 32)
    packed = files.read(f"{prefix}.qweight", (rows, columns)).to(device)
    codes = unpack(packed, bits)[first - start : last - start]
    zeros = unpack_zeros(files.read(f"{prefix}.qzeros").to(device), bits, settings.zero_rule)
    scales = files.read(f"{prefix}.scales", (slice(None), columns))
    index = torch.from_numpy(group_index(files, prefix, inputs, settings)[first:last])
    return GPTQLinear(
        codes,
        zeros[:, columns].contiguous(),
        scales.to(device, torch.float32),
        index.to(device),
        bits,
        settings.group_size,
        first,
        scales.dtype if scales.dtype in EXACT_AS_THEY_ARE else torch.float32,
    )
