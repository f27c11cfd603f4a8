"""Counter-based random numbers in plain torch: Philox-4x32-10 (Salmon et al. 2011), Gumbel noise.

32-bit words travel in int64 tensors as 0 .. 2^32 - 1. Shapes broadcast, and a word that is the same
for a whole row stays one number per row for as many rounds as it can. Nothing here keeps a state.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
LARGEST_UNIFORM = 1 - 2**-24  # the largest float32 below 1

# Dense noise is made in pieces of about this many counters, which stay in a core's cache.
_CPU_COUNTERS = 1 << 15


def philox_4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four output words, of the counter's broadcast shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
        low, high = c2 * MULTIPLIER_1, c0 * MULTIPLIER_0  # wrap: their 64 bits are what counts
        c0, c1, c2, c3 = (
            ((low >> 32) ^ (c1 ^ k0)).bitwise_and_(MASK),
            low.bitwise_and_(MASK),
            ((high >> 32) ^ (c3 ^ k1)).bitwise_and_(MASK),
            high.bitwise_and_(MASK),
        )
    return c0, c1, c2, c3


def gumbel_from_word(word: Tensor) -> Tensor:
    """g = -log(-log1p(-u)) in float32 with u = min((word + 0.5) * 2^-32, 1 - 2^-24).

    Its resolution is fine where g is large, and it is never infinite.
    """
    u = word.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_UNIFORM)
    return u.neg_().log1p_().neg_().log_().neg_()


def _words(position: Tensor, key: Tensor, quarter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """position [B], key [B, 2], quarter (v // 4) [B or 1, N] -> four words of [B, N]."""
    zero = torch.zeros((1, 1), dtype=torch.int64, device=quarter.device)
    k = key.to(torch.int64) & MASK
    counter = (position.to(torch.int64).unsqueeze(1) & MASK, quarter, zero, zero)
    return philox_4x32(counter, (k[:, :1], k[:, 1:]))


def gumbel_at(position: Tensor, key: Tensor, ids: Tensor) -> Tensor:
    """Noise of chosen entries: position [B], key [B, 2], ids [B, N] int64 -> float32 [B, N]."""
    first, second, third, fourth = _words(position, key, ids >> 2)
    word = ids & 3
    return gumbel_from_word(
        torch.where(
            word < 2, torch.where(word == 0, first, second), torch.where(word == 2, third, fourth)
        )
    )


def gumbel_all(position: Tensor, key: Tensor, vocab_size: int) -> Tensor:
    """Noise of every vocabulary entry: position [B], key [B, 2] -> float32 [B, vocab_size]."""
    rows, quarters = position.shape[0], -(-vocab_size // 4)
    out = torch.empty((rows, quarters, 4), dtype=torch.float32, device=position.device)
    whole = position.device.type != "cpu"
    width = quarters if whole else min(quarters, _CPU_COUNTERS)
    height = rows if whole else max(1, _CPU_COUNTERS // width)
    for column in range(0, quarters, max(width, 1)):
        quarter = torch.arange(column, min(column + width, quarters), device=position.device)
        for row in range(0, rows, max(height, 1)):
            piece = slice(row, row + height)
            words = _words(position[piece], key[piece], quarter.unsqueeze(0))
            for number, word in enumerate(words):
                out[piece, column : column + width, number] = gumbel_from_word(word)
    return out.view(rows, quarters * 4)[:, :vocab_size]
