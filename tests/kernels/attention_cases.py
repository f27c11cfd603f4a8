"""Paged caches with poison where no kernel may look, and inputs as views of one QKV product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

POISON = float("nan")


@dataclass
class Paged:
    """Caches [num_blocks, block_size, Hkv, D] and a strided block table [S, max_blocks] int32."""

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    context_len: Tensor  # [S] int32

    def slots(self, sequence: int, first: int, last: int) -> Tensor:
        """Slots of tokens first .. last - 1."""
        n = torch.arange(first, last, device=self.block_table.device)
        size = self.k_cache.shape[1]
        return self.block_table[sequence].long()[n // size] * size + n % size


def make_paged(
    lengths: list[int], kv_heads: int, size: int, block_size: int, dtype: torch.dtype,
    device: str, seed: int = 0,
) -> Paged:
    """Contexts of the given lengths in scattered blocks; slots outside them are NaN."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length in lengths]
    num_blocks, widest = sum(counts) + 3, max([*counts, 1])
    order = torch.randperm(num_blocks - 1, generator=generator) + 1
    wide = torch.full((len(lengths), widest + 5), 2**30, dtype=torch.int32)
    table = wide[:, 2 : 2 + widest]
    caches = torch.full((2, num_blocks, block_size, kv_heads, size), POISON)
    used = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        blocks = order[used : used + count]
        used += count
        table[row, :count] = blocks.to(torch.int32)
        content = torch.randn(2, count * block_size, kv_heads, size, generator=generator)
        content[:, length:] = POISON
        caches[:, blocks] = content.view(2, count, block_size, kv_heads, size)
    caches = caches.to(device=device, dtype=dtype)
    wide = wide.to(device)
    return Paged(
        caches[0], caches[1], wide[:, 2 : 2 + widest],
        torch.tensor(lengths, dtype=torch.int32, device=device),
    )


def make_qkv(
    tokens: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype, device: str,
    seed: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, H, D], k and v [T, Hkv, D], views of one [T, (H + 2 Hkv) D]."""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * size, generator=generator)
    parts = fused.to(device=device, dtype=dtype).split(
        [heads * size, kv_heads * size, kv_heads * size], dim=1
    )
    q, k, v = (part.unflatten(1, (-1, size)) for part in parts)
    return q, k, v


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
