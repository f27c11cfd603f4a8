"""The passes over one row of logits that kernels.sampling_triton is made of; imports Triton.

Each pass walks entries [start, stop) in tiles of BLOCK, keeps one running value per lane and
reduces once at its end. Masses are int64 and counts int32, so no result depends on the order of a
sum. z is the definition's l, logit / temperature; v is an id.
"""

# Triton types a kernel's arguments at launch, and decides constant conditions by themselves:
# mypy: allow-untyped-defs
# ruff: noqa: SIM102

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(position, quarter, k0, k1):
    """Words 0 to 3 for counter (position, quarter, 0, 0); `position` and the key are scalars."""
    c0 = position
    c1 = quarter
    c2 = position * 0
    c3 = position * 0
    for _ in tl.static_range(10):
        low = c2.to(tl.uint64) * 0xCD9E8D57
        high = c0.to(tl.uint64) * 0xD2511F53
        c0 = (low >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = low.to(tl.uint32)
        c2 = (high >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = high.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def noise(position, k0, k1, first, BLOCK: tl.constexpr):
    """Gumbel noise of BLOCK entries from `first`, a multiple of 4."""
    quarter = (first // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    w0, w1, w2, w3 = philox(position, quarter, k0, k1)
    # [n] x 4 -> [n, 2, 2] -> [4n]: a thread's four words stay with it
    word = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK,))
    u = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    rest = 1.0 - u
    # -log1p(-u): what rounding took from `rest` is given back, so a small u keeps all its digits
    exponential = (u - (1.0 - rest)) - tl.log(rest)
    return -tl.log(exponential)


@triton.jit
def divide(x, temperature, reciprocal, BY_FMA: tl.constexpr):
    """x / temperature, correctly rounded: fused corrections avoid div.rn's slow branch."""
    if BY_FMA:
        q = x * reciprocal
        q = tl.fma(tl.fma(-q, temperature, x), reciprocal, q)
        q = tl.fma(tl.fma(-q, temperature, x), reciprocal, q)
        return tl.where(tl.abs(x) < float("inf"), q, x)
    else:
        return tl.div_rn(x, temperature)


@triton.jit
def scaled_at(row_ptr, v, temperature, reciprocal, BY_FMA: tl.constexpr):
    """z of one entry."""
    return divide(tl.load(row_ptr + v), temperature, reciprocal, BY_FMA)


@triton.jit
def scaled(
    row_ptr, allowed_ptr, temperature, reciprocal, v, vocab_size,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr,
):
    """z of entries v; -inf where there is none or it isn't allowed."""
    mask = v < vocab_size
    x = tl.load(row_ptr + v, mask=mask, other=float("-inf"))
    if HAS_ALLOWED:
        x = tl.where(tl.load(allowed_ptr + v, mask=mask, other=0) != 0, x, float("-inf"))
    return divide(x, temperature, reciprocal, BY_FMA)


@triton.jit
def in_cut(z, v, cut_l, cut_v):
    """Ranks at or before the cut."""
    return (z > cut_l) | ((z == cut_l) & (v <= cut_v))


@triton.jit
def first_best(score, v):
    """The smallest v of the largest score."""
    return tl.min(tl.where(score == tl.max(score, 0), v, 0x7FFFFFFF), 0)


@triton.jit
def scan(
    row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, start, stop, vocab_size,
    random, RANDOM: tl.constexpr, LOWEST: tl.constexpr,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """(largest z, lowest finite z, best score, its v); largest is inf where a NaN was seen."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    lowest = tl.full((BLOCK,), float("inf"), tl.float32)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_v = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    for first in range(start, stop, BLOCK):
        v = first + lanes
        z = scaled(
            row_ptr, allowed_ptr, temperature, reciprocal, v, vocab_size, HAS_ALLOWED, BY_FMA
        )
        score = z
        if RANDOM:
            if random:
                score = z + noise(position, k0, k1, first, BLOCK)
        best_v = tl.where(score > best, v, best_v)
        best = tl.where(score > best, score, best)
        largest = tl.maximum(largest, z, propagate_nan=tl.PropagateNan.ALL)
        if LOWEST:
            lowest = tl.minimum(lowest, tl.where(z > float("-inf"), z, float("inf")))
    nans = tl.max((largest != largest).to(tl.int32), 0)
    top = tl.where(nans > 0, float("inf"), tl.max(tl.where(largest != largest, 0.0, largest), 0))
    return top, tl.min(lowest, 0), tl.max(best, 0), first_best(best, best_v)


@triton.jit
def best_within(
    row_ptr, allowed_ptr, temperature, reciprocal, position, k0, k1, vocab_size, cut_l, cut_v,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """The arg-max of z + noise within the cut; tiles that have no part in it are skipped."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_v = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    for first in range(0, vocab_size, BLOCK):
        v = first + lanes
        z = scaled(
            row_ptr, allowed_ptr, temperature, reciprocal, v, vocab_size, HAS_ALLOWED, BY_FMA
        )
        keep = in_cut(z, v, cut_l, cut_v)
        if tl.max(keep.to(tl.int32), 0) > 0:
            score = tl.where(keep, z + noise(position, k0, k1, first, BLOCK), float("-inf"))
            best_v = tl.where(score > best, v, best_v)
            best = tl.where(score > best, score, best)
    return first_best(best, best_v)


@triton.jit
def mass_of(
    row_ptr, allowed_ptr, temperature, reciprocal, start, stop, vocab_size, largest,
    cut_l, cut_v, c_l, c_v,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """Masses in [start, stop): (what ranks at or before the cut, what ranks before entry c)."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int64)
    before = tl.zeros((BLOCK,), tl.int64)
    for first in range(start, stop, BLOCK):
        v = first + lanes
        z = scaled(
            row_ptr, allowed_ptr, temperature, reciprocal, v, vocab_size, HAS_ALLOWED, BY_FMA
        )
        real = tl.exp(z - largest) * 1099511627776.0  # 2^40
        # adding 2^23 rounds halves to even; from there on floats are whole
        real = tl.where(real < 8388608.0, (real + 8388608.0) - 8388608.0, real)
        mass = real.to(tl.int64)
        total += tl.where(in_cut(z, v, cut_l, cut_v), mass, 0)
        before += tl.where(in_cut(z, v, c_l, c_v - 1), mass, 0)
    return tl.sum(total, 0), tl.sum(before, 0)


@triton.jit
def _pivot(low, step, high, number: tl.constexpr):
    """One of seven values between low and high; fused, so that it rounds alike wherever used."""
    return tl.minimum(tl.fma(step, step * 0.0 + number, low), high)


@triton.jit
def _field(counts, number: tl.constexpr):
    """How many entries lie above exactly `number` pivots: the sum over lanes of an 8-bit count."""
    return tl.sum(((counts >> (8 * number)) & 255).to(tl.int32), 0)


@triton.jit
def top_k_cut(
    row_ptr, allowed_ptr, temperature, reciprocal, vocab_size, largest, lowest, k,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """The cut after the k-th entry, by closing in: count(z > low) >= k > count(z > high)."""
    lanes = tl.arange(0, BLOCK)
    low = lowest - tl.maximum(1.0, tl.abs(lowest) * 1e-6)
    high = largest + 0.0
    above_high = k * 0
    cut_l = low
    cut_v = above_high - 1
    searching = k > 0
    while searching:
        step = (high - low) * 0.125
        counts = tl.zeros((BLOCK,), tl.int64)
        least = tl.full((BLOCK,), float("inf"), tl.float32)
        most = tl.full((BLOCK,), float("-inf"), tl.float32)
        for first in range(0, vocab_size, BLOCK):
            z = scaled(
                row_ptr, allowed_ptr, temperature, reciprocal, first + lanes, vocab_size,
                HAS_ALLOWED, BY_FMA,
            )
            part = tl.zeros((BLOCK,), tl.int64)
            for number in tl.static_range(1, 8):
                part += (z > _pivot(low, step, high, number)).to(tl.int64)
            one = (z > low).to(tl.int64)
            counts += one << (8 * part)
            least = tl.minimum(least, tl.where(z > low, z, float("inf")))
            most = tl.maximum(most, tl.where(z <= high, z, float("-inf")))
        # down from the highest pivot; `above` counts z > pivot, and `found` says that it reached k
        above = k * 0
        found = above > 0
        new_low, new_high, new_above_high = low, high, above_high
        for back in tl.static_range(0, 7):
            pivot = _pivot(low, step, high, 7 - back)
            above += _field(counts, 7 - back)
            reached = above >= k
            new_low = tl.where(reached & (found == 0), pivot, new_low)
            new_high = tl.where(reached, new_high, pivot)
            new_above_high = tl.where(reached, new_above_high, above)
            found = found | reached
        above += _field(counts, 0)
        least_l = tl.min(least, 0)
        if above <= k:  # exactly the set, or no more entries than k
            cut_l = low
            searching = k < 0
        else:
            if least_l == tl.max(most, 0):  # equals: the first of them by id
                cut_l = least_l
                cut_v = _tie_cut(
                    row_ptr, allowed_ptr, temperature, reciprocal, vocab_size, least_l,
                    k - above_high, HAS_ALLOWED, BY_FMA, BLOCK,
                )
                searching = k < 0
            else:
                low = new_low
                high = new_high
                above_high = new_above_high
    return cut_l, cut_v


@triton.jit
def _tie_cut(
    row_ptr, allowed_ptr, temperature, reciprocal, vocab_size, value, wanted,
    HAS_ALLOWED: tl.constexpr, BY_FMA: tl.constexpr, BLOCK: tl.constexpr,
):
    """The id of the `wanted`-th entry with z == value, by halving the range that holds it."""
    lanes = tl.arange(0, BLOCK)
    start = wanted * 0
    stop = vocab_size + 0
    while stop - start > 1:
        middle = start + (stop - start) // 2
        counts = tl.zeros((BLOCK,), tl.int32)
        for first in range(start, middle, BLOCK):
            v = first + lanes
            z = scaled(
                row_ptr, allowed_ptr, temperature, reciprocal, v, vocab_size, HAS_ALLOWED, BY_FMA
            )
            counts += ((z == value) & (v < middle)).to(tl.int32)
        count = tl.sum(counts, 0)
        enough = count >= wanted
        stop = tl.where(enough, middle, stop)
        start = tl.where(enough, start, middle)
        wanted = tl.where(enough, wanted, wanted - count)
    return start
