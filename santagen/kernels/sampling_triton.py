"""The sampler of kernels.sampling as Triton kernels, without a sort. Importing this imports Triton.

Every filter keeps a prefix of the ranking (l descending, v ascending), so a set of entries is a cut
(value, id): what ranks at or before it. The arg-max of l + noise over the whole row is the token
if it lies in every prefix, and to see that takes the mass before it, not an order:

    scan    largest l, and the candidate: the arg-max of l + noise       1 pass
    top_k   its cut, by counting between pivots that close in            3 to 6, only with top_k
    mass    of the top_k set, and of what ranks before the candidate     1, only with top_p
    settle  accept the candidate, or draw again within a smaller cut: a candidate out of top_p cuts
            off itself and all that ranks after it                       2 each, seldom

Many rows: one program a row does all of it. Few rows: several programs a row scan and sum, then one
settles. Settings are read on the device and nothing waits, so a CUDA graph may hold a draw.
"""

# Triton types a kernel's arguments at launch, and decides constant conditions by themselves:
# mypy: allow-untyped-defs
# ruff: noqa: SIM102

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from santagen.kernels.sampling_scan import (
    best_within,
    first_best,
    in_cut,
    mass_of,
    scaled_at,
    scan,
    top_k_cut,
)
from santagen.kernels.triton_support import interpreted

SPLIT_BELOW = 96  # rows; from here on one program a row fills the device
_SPLIT_PROGRAMS = 528  # wanted at once where rows are split: four a multiprocessor of an H200
# entries a tile, warps, registers a thread: two programs a multiprocessor
ROW_CONFIG = (2048, 16, 64)
_SPLIT_BLOCK, _SPLIT_WARPS = 1024, 4
MAX_SPLITS = tl.constexpr(128)  # 49,152 entries are 48 tiles


@triton.jit
def _load_row(
    logits_ptr, logits_stride, position_ptr, position_stride, key_ptr, key_stride, key_step,
    temperature_ptr, temperature_stride, row, RANDOM: tl.constexpr,
):
    """(row_ptr, temperature, its reciprocal, random, position, key words) of one row."""
    row_ptr = logits_ptr + row * logits_stride
    temperature = tl.full((), 1.0, tl.float32)
    random = temperature < 0.0
    position = tl.full((), 0, tl.uint32)
    k0 = position
    k1 = position
    if RANDOM:
        given = tl.load(temperature_ptr + row * temperature_stride)
        random = given >= 8.673617379884035e-19  # 2^-60
        temperature = tl.where(random, given, 1.0)
        position = tl.load(position_ptr + row * position_stride).to(tl.uint32)
        k0 = tl.load(key_ptr + row * key_stride).to(tl.uint32)
        k1 = tl.load(key_ptr + row * key_stride + key_step).to(tl.uint32)
    return row_ptr, temperature, tl.div_rn(1.0, temperature), random, position, k0, k1


@triton.jit
def _load_filters(
    top_k_ptr, top_k_stride, top_p_ptr, top_p_stride, min_p_ptr, min_p_stride, row,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr,
):
    top_k = tl.full((), 0, tl.int32)
    top_p = tl.full((), 1.0, tl.float32)
    min_p = tl.full((), 0.0, tl.float32)
    if TOP_K:
        top_k = tl.load(top_k_ptr + row * top_k_stride)
    if TOP_P:
        top_p = tl.load(top_p_ptr + row * top_p_stride)
    if MIN_P:
        min_p = tl.load(min_p_ptr + row * min_p_stride)
    return top_k, top_p, min_p


@triton.jit
def _settle(
    row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, vocab_size,
    largest, lowest, candidate, total, before, top_k, top_p, min_p,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, MASSES_KNOWN: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """The token of a random row, from its candidate; the masses are summed here unless known."""
    keep_l = tl.full((), float("-inf"), tl.float32)
    keep_v = tl.full((), 0, tl.int32) + vocab_size
    limited = top_p < 1.0
    known = tl.full((), MASSES_KNOWN, tl.int1)
    c_l = scaled_at(row_ptr, candidate, temperature, reciprocal, BY_FMA)
    if TOP_K:
        if (top_k > 0) & (top_k < vocab_size):
            keep_l, keep_v = top_k_cut(
                row_ptr, allowed_ptr, temperature, reciprocal, vocab_size, largest, lowest, top_k,
                HAS_ALLOWED, BY_FMA, BLOCK,
            )
            known = tl.full((), 0, tl.int1)
    if TOP_P:
        if limited & (known == 0):
            total, before = mass_of(
                row_ptr, allowed_ptr, temperature, reciprocal, 0, vocab_size, vocab_size, largest,
                keep_l, keep_v, c_l, candidate, HAS_ALLOWED, BY_FMA, BLOCK,
            )
    if MIN_P:
        if min_p > 0:
            floor = largest + tl.log(min_p)
            keep_v = tl.where(floor > keep_l, vocab_size, keep_v)
            keep_l = tl.maximum(floor, keep_l)
    threshold = top_p.to(tl.float64) * total.to(tl.float64)
    inside = in_cut(c_l, candidate, keep_l, keep_v)
    fits = (limited == 0) | (before == 0) | (before.to(tl.float64) < threshold)
    while (inside & fits) == 0:
        keep_l = tl.where(inside, c_l, keep_l)
        keep_v = tl.where(inside, candidate - 1, keep_v)
        candidate = best_within(
            row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, vocab_size,
            keep_l, keep_v, HAS_ALLOWED, BY_FMA, BLOCK,
        )
        c_l = scaled_at(row_ptr, candidate, temperature, reciprocal, BY_FMA)
        inside = tl.full((), 1, tl.int1)
        fits = tl.full((), 1, tl.int1)
        if TOP_P:
            if limited:
                _, before = mass_of(
                    row_ptr, allowed_ptr, temperature, reciprocal, 0, vocab_size, vocab_size,
                    largest, keep_l, keep_v, c_l, candidate, HAS_ALLOWED, BY_FMA, BLOCK,
                )
                fits = (before == 0) | (before.to(tl.float64) < threshold)
    return candidate


@triton.jit(do_not_specialize=["splits"])
def _row_kernel(
    token_ptr, logits_ptr, logits_stride, position_ptr, position_stride, key_ptr, key_stride,
    key_step, temperature_ptr, temperature_stride, top_k_ptr, top_k_stride, top_p_ptr, top_p_stride,
    min_p_ptr, min_p_stride, allowed_ptr, float_ptr, id_ptr, mass_ptr, vocab_size, splits,
    SPLIT: tl.constexpr, RANDOM: tl.constexpr, TOP_K: tl.constexpr,
    TOP_P: tl.constexpr, MIN_P: tl.constexpr, HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid [B]: a row's token. SPLIT takes up what the split kernels found."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr, temperature, reciprocal, random, position, k0, k1 = _load_row(
        logits_ptr, logits_stride, position_ptr, position_stride, key_ptr, key_stride, key_step,
        temperature_ptr, temperature_stride, row, RANDOM,
    )
    total = tl.full((), 0, tl.int64)
    before = tl.full((), 0, tl.int64)
    if not SPLIT:
        largest, lowest, _, candidate = scan(
            row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, 0, vocab_size,
            vocab_size, random, RANDOM, TOP_K, HAS_ALLOWED, BY_FMA, BLOCK,
        )
    else:
        largest, lowest, candidate = _gather(float_ptr, id_ptr, row, splits)
        if TOP_P:
            part = tl.arange(0, MAX_SPLITS)
            masses = mass_ptr + row * (2 * splits) + part
            total = tl.sum(tl.load(masses, mask=part < splits, other=0), 0)
            before = tl.sum(tl.load(masses + splits, mask=part < splits, other=0), 0)
    finite = tl.abs(largest) < float("inf")
    token = candidate
    if RANDOM and (TOP_K or TOP_P or MIN_P):
        if random & finite:
            top_k, top_p, min_p = _load_filters(
                top_k_ptr, top_k_stride, top_p_ptr, top_p_stride, min_p_ptr, min_p_stride, row,
                TOP_K, TOP_P, MIN_P,
            )
            token = _settle(
                row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, vocab_size,
                largest, lowest, candidate, total, before, top_k, top_p, min_p,
                TOP_K, TOP_P, MIN_P, SPLIT, HAS_ALLOWED, BY_FMA, BLOCK,
            )
    tl.store(token_ptr + row, tl.where(finite, token, -1).to(tl.int64))


@triton.jit
def _gather(float_ptr, id_ptr, row, splits):
    """(largest, lowest, candidate) from a row's parts: floats [B, 3, splits], ids [B, splits]."""
    part = tl.arange(0, MAX_SPLITS)
    mask = part < splits
    floats = float_ptr + row * (3 * splits) + part
    largest = tl.max(tl.load(floats, mask=mask, other=float("-inf")), 0)
    lowest = tl.min(tl.load(floats + splits, mask=mask, other=float("inf")), 0)
    score = tl.load(floats + 2 * splits, mask=mask, other=float("-inf"))
    ids = tl.load(id_ptr + row * splits + part, mask=mask, other=0x7FFFFFFF)
    return largest, lowest, first_best(score, ids)


@triton.jit(do_not_specialize=["splits", "segment"])
def _scan_kernel(
    float_ptr, id_ptr, logits_ptr, logits_stride, position_ptr, position_stride, key_ptr,
    key_stride, key_step, temperature_ptr, temperature_stride, allowed_ptr, vocab_size,
    splits, segment, RANDOM: tl.constexpr, LOWEST: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """Grid [B, splits]: the scan of one segment of a row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row_ptr, temperature, reciprocal, random, position, k0, k1 = _load_row(
        logits_ptr, logits_stride, position_ptr, position_stride, key_ptr, key_stride, key_step,
        temperature_ptr, temperature_stride, row, RANDOM,
    )
    start = part * segment
    largest, lowest, best, best_v = scan(
        row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, start,
        tl.minimum(start + segment, vocab_size), vocab_size, random, RANDOM, LOWEST, HAS_ALLOWED,
        BY_FMA, BLOCK,
    )
    floats = float_ptr + row * (3 * splits) + part
    tl.store(floats, largest)
    tl.store(floats + splits, lowest)
    tl.store(floats + 2 * splits, best)
    tl.store(id_ptr + row * splits + part, best_v)


@triton.jit(do_not_specialize=["splits", "segment"])
def _mass_kernel(
    mass_ptr, float_ptr, id_ptr, logits_ptr, logits_stride, temperature_ptr, temperature_stride,
    top_p_ptr, top_p_stride, allowed_ptr, vocab_size,
    splits, segment, HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """Grid [B, splits]: masses [B, 2, splits] of a segment: all, and before the candidate."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row_ptr, temperature, reciprocal, random, _, _, _ = _load_row(
        logits_ptr, logits_stride, float_ptr, 0, id_ptr, 0, 0, temperature_ptr, temperature_stride,
        row, True,
    )
    total = tl.full((), 0, tl.int64)
    before = tl.full((), 0, tl.int64)
    largest, _, candidate = _gather(float_ptr, id_ptr, row, splits)
    limited = tl.load(top_p_ptr + row * top_p_stride) < 1.0
    if random & limited & (tl.abs(largest) < float("inf")):
        start = part * segment
        total, before = mass_of(
            row_ptr, allowed_ptr, temperature, reciprocal, start,
            tl.minimum(start + segment, vocab_size), vocab_size, largest, float("-inf"), vocab_size,
            scaled_at(row_ptr, candidate, temperature, reciprocal, BY_FMA), candidate,
            HAS_ALLOWED, BY_FMA, BLOCK,
        )
    masses = mass_ptr + row * (2 * splits) + part
    tl.store(masses, total)
    tl.store(masses + splits, before)


def sample_triton(
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
    splits: int | None = None,
) -> Tensor:
    """As kernels.sampling.sample; the kernels look at top_p whatever `any_top_p` says.

    `splits`: programs a row, 0 for all in one; None chooses by the number of rows.
    """
    rows, vocab_size = logits.shape
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return token
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    # a lane's 8-bit counts must hold the tiles of a row
    block, warps, registers = ROW_CONFIG
    block = max(min(block, triton.next_power_of_2(vocab_size)), 64)
    block = max(block, triton.next_power_of_2(-(-vocab_size // 255)))
    tiles = -(-vocab_size // _SPLIT_BLOCK)
    if splits is None:
        wanted = min(tiles, MAX_SPLITS.value, -(-_SPLIT_PROGRAMS // rows))
        splits = wanted if rows < SPLIT_BELOW else 0
    segment = _SPLIT_BLOCK * -(-tiles // splits) if splits else 0
    splits = -(-vocab_size // segment) if segment else 0
    floats = torch.empty((rows, 3, splits), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, splits), dtype=torch.int32, device=logits.device)
    masses = torch.empty((rows, 2, splits), dtype=torch.int64, device=logits.device)
    mask = logits if allowed is None else allowed.view(torch.uint8)
    common = {"HAS_ALLOWED": allowed is not None, "BY_FMA": not interpreted()}
    scores = (
        position, position.stride(0), key, key.stride(0), key.stride(1),
        temperature, temperature.stride(0),
    )
    top_p_column = (top_p, top_p.stride(0))
    # Three kinds of kernels, not one for each set of settings a launch may have: they are compiled
    # before the first request. A row that has no use for a filter skips it.
    rare = any_random and (any_top_k or any_min_p)
    filters = {"TOP_K": rare, "TOP_P": any_random, "MIN_P": rare}
    if splits:
        split = {"BLOCK": _SPLIT_BLOCK, **common}
        _scan_kernel[rows, splits](
            floats, ids, logits, logits.stride(0), *scores, mask, vocab_size, splits,
            segment, RANDOM=any_random, LOWEST=filters["TOP_K"], **split, num_warps=_SPLIT_WARPS,
        )
        if filters["TOP_P"]:
            _mass_kernel[rows, splits](
                masses, floats, ids, logits, logits.stride(0), temperature, temperature.stride(0),
                *top_p_column, mask, vocab_size, splits, segment, **split, num_warps=_SPLIT_WARPS,
            )
    _row_kernel[rows,](
        token, logits, logits.stride(0), *scores, top_k, top_k.stride(0), *top_p_column, min_p,
        min_p.stride(0), mask, floats, ids, masses, vocab_size, splits, SPLIT=splits > 0,
        RANDOM=any_random, **filters, BLOCK=block, **common, num_warps=warps, maxnreg=registers,
    )
    return token
