"""Draws one token per row from float32 logits: one definition for every device, batch and order.

    l = logit / temperature                                  (the repetition penalty comes before)
    top_k  keeps the k first of (l descending, v ascending)
    top_p  keeps, of those, each entry with a mass before it < float64(top_p) * float64(their mass)
    min_p  keeps l >= max(l) + log(min_p), added in float32
    token  = arg-max of l + gumbel(key, position, v) over what is kept; ties go to the smaller v

A mass is round(exp(l - max) * 2^40), halves to even, and is summed as int64: no sum depends on its
order. A temperature of 0 (anything below 2^-60, where noise can't show) is greedy and ignores the
filters. top_k <= 0 or >= V, top_p >= 1 and min_p <= 0 are off. A row whose largest logit is not
finite, or that holds a NaN, draws -1.

This file is the plain torch form, which is also the CPU's sampler. `sample` takes the Triton kernel
on CUDA (kernels.sampling_triton), which draws the same tokens without a sort.
"""

from __future__ import annotations

import torch
from torch import Tensor

from santagen.kernels.philox import gumbel_all, gumbel_at
from santagen.kernels.triton_support import has_triton

GREEDY_BELOW = 2.0**-60
MASS_SCALE = 2.0**40
_PREFIX = 128  # how many of the largest logits are tried before a whole row is sorted


def sample(
    logits: Tensor,
    position: Tensor,
    key: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    allowed: Tensor | None = None,
    any_random: bool = True,
    any_top_k: bool = True,
    any_top_p: bool = True,
    any_min_p: bool = True,
) -> Tensor:
    """The drawn ids [B] int64, or -1 for a row whose logits are not finite.

    logits [B, V] float32 (rows may be strided); position [B]: absolute position of the token being
    drawn; key [B, 2]: the two 32-bit words of random_key.row_key, as int64 or int32 bits;
    temperature, top_p, min_p [B] float32; top_k [B] int32; all may be strided. allowed [V] bool:
    ids that have a token; others don't exist. any_*: False promises that no row uses that setting,
    which saves work. On CUDA with Triton nothing waits for the device.
    """
    arguments = (logits, position, key, temperature, top_k, top_p, min_p)
    if logits.device.type == "cuda" and has_triton():
        from santagen.kernels.sampling_triton import sample_triton

        return sample_triton(
            *arguments, allowed=allowed, any_random=any_random, any_top_k=any_top_k,
            any_top_p=any_top_p, any_min_p=any_min_p,
        )
    return sample_reference(
        *arguments, allowed=allowed, any_random=any_random, any_top_k=any_top_k,
        any_top_p=any_top_p, any_min_p=any_min_p,
    )


def sample_reference(
    logits: Tensor,
    position: Tensor,
    key: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    allowed: Tensor | None = None,
    any_random: bool = True,
    any_top_k: bool = True,
    any_top_p: bool = True,
    any_min_p: bool = True,
) -> Tensor:
    """`sample` in plain torch. On CUDA it waits for the device."""
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    largest, token = _largest(logits)
    if any_random:
        off = torch.zeros_like(temperature, dtype=torch.bool)
        filtered = (
            (((top_k > 0) & (top_k < logits.shape[1])) if any_top_k else off)
            | ((top_p < 1) if any_top_p else off)
            | ((min_p > 0) if any_min_p else off)
        )
        random = (temperature >= GREEDY_BELOW) & largest.isfinite()
        for rows, draw in ((random & ~filtered, _draw_all), (random & filtered, _draw_filtered)):
            chosen = rows.nonzero().squeeze(1)
            if len(chosen):
                settings = (t[chosen] for t in (position, key, top_k, top_p, min_p))
                scaled = logits[chosen].div_(temperature[chosen].unsqueeze(1))
                token[chosen] = draw(scaled, *settings)
    return token.masked_fill_(~largest.isfinite(), -1)


def _largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(largest [B], its id [B]): a NaN is the largest; the first of equals wins."""
    if logits.device.type != "cpu":
        return logits.max(dim=-1)
    token = torch.from_numpy(logits.numpy().argmax(axis=-1))  # four times as fast as torch's
    return logits.gather(1, token.unsqueeze(1)).squeeze(1), token


def _draw_all(
    scaled: Tensor, position: Tensor, key: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The draw over whole rows; `scaled` [B, V] is overwritten."""
    return scaled.add_(gumbel_all(position, key, scaled.shape[1])).argmax(dim=-1)


def _draw_filtered(
    scaled: Tensor, position: Tensor, key: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The draw over what is kept: from the largest logits, then whole rows where those don't do."""
    largest = scaled.amax(dim=-1, keepdim=True)
    whole = _mass(scaled, largest).sum(dim=-1) if bool((top_p < 1).any()) else None
    vocab_size = scaled.shape[1]
    token = torch.empty_like(position, dtype=torch.int64)
    rows = torch.arange(len(scaled), device=scaled.device)
    for width in (_PREFIX, vocab_size):
        values, ids = _ranked(scaled[rows], min(width, vocab_size))
        settings = (position[rows], key[rows], top_k[rows], top_p[rows], min_p[rows])
        total = None if whole is None else whole[rows]
        drawn, settled = _draw_ranked(values, ids, *settings, total, vocab_size)
        token[rows] = drawn
        rows = rows[~settled]
        if not len(rows):
            break
    return token


def _mass(scaled: Tensor, largest: Tensor) -> Tensor:
    return (scaled - largest).exp_().mul_(MASS_SCALE).round_().to(torch.int64)


def _ranked(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` first by rank (equals of the last may be any of the row's)."""
    if width == scaled.shape[1]:
        return torch.sort(scaled, dim=-1, descending=True, stable=True)
    values, ids = torch.topk(scaled, width, dim=-1)
    ids, order = torch.sort(ids, dim=-1)
    values, order = torch.sort(values.gather(1, order), dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _draw_ranked(
    values: Tensor,
    ids: Tensor,
    position: Tensor,
    key: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    whole: Tensor | None,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """(token [B], settled [B]) from ranked entries [B, N]; settled: nothing beyond N could matter.

    `whole` [B] is the mass of the whole row, or None where no row has a top_p.
    """
    width = values.shape[1]
    ranks = torch.arange(width, device=values.device)
    largest = values[:, :1]
    limit = torch.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size).unsqueeze(1)
    kept = (ranks < limit) & (values > -torch.inf)
    complete = torch.tensor(width == vocab_size, device=values.device)
    if whole is not None:
        mass = _mass(values, largest).masked_fill_(~kept, 0)
        before = mass.cumsum(dim=-1)
        total = torch.where(limit.squeeze(1) < vocab_size, before[:, -1], whole)
        # the mass of a top_k set that reaches past N isn't known here
        unknown = (limit.squeeze(1) < vocab_size) & ~complete & kept[:, -1]
        threshold = top_p.double() * total.double()
        inside = (before - mass).double() < threshold.unsqueeze(1)
        inside[:, 0] = True
        kept &= inside | (top_p >= 1).unsqueeze(1)
    else:
        unknown = torch.zeros_like(position, dtype=torch.bool)
    lowest = torch.where(min_p > 0, largest.squeeze(1) + min_p.log(), -torch.inf)
    kept &= values >= lowest.unsqueeze(1)
    count = kept.sum(dim=-1, keepdim=True)  # what is kept is a prefix, and never empty
    last = values.gather(1, (count - 1).clamp_(min=0))
    settled = complete | ((last.squeeze(1) > values[:, -1]) & ~unknown)
    width = int(count.max())
    values, ids, kept = values[:, :width], ids[:, :width], kept[:, :width]
    if width > vocab_size // 4:
        noise = gumbel_all(position, key, vocab_size).gather(1, ids)
    else:
        noise = gumbel_at(position, key, ids)
    score = (values + noise).masked_fill_(~kept, -torch.inf)
    best = score == score.amax(dim=-1, keepdim=True)
    return torch.where(best, ids, vocab_size).amin(dim=-1), settled


def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Logits [B, V]; those of seen ids are divided by penalty [B] if positive, else multiplied.

    seen [B, ceil(V / 32)] int32: bit v % 32 of word v // 32 says whether id v was seen. On CUDA
    with Triton the given logits are overwritten; their rows must not overlap.
    """
    if logits.device.type == "cuda" and has_triton():
        from santagen.kernels.penalty_triton import penalise

        return penalise(logits, seen, penalty)
    return apply_repetition_penalty_reference(logits, seen, penalty)


def apply_repetition_penalty_reference(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """`apply_repetition_penalty` in plain torch, into a new tensor."""
    vocab_size = logits.shape[1]
    shift = torch.arange(32, dtype=torch.int32, device=seen.device)
    bits = ((seen.unsqueeze(-1) >> shift) & 1).flatten(1)[:, :vocab_size].bool()
    factor = penalty.unsqueeze(1)
    return torch.where(bits, torch.where(logits > 0, logits / factor, logits * factor), logits)


def mark_seen(seen: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Set the bits of tokens [n] int64 in rows [n] (distinct) of seen [., ceil(V / 32)]."""
    word = tokens >> 5
    bit = (torch.ones_like(tokens) << (tokens & 31)).to(torch.int32)
    seen[rows, word] = seen[rows, word] | bit
