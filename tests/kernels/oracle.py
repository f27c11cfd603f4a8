"""The sampling definition once more, one entry at a time, in Python numbers and numpy float32."""

from __future__ import annotations

import numpy as np

F = np.float32


def philox_word(position: int, v: int, key: tuple[int, int]) -> int:
    c, k, mask = [position, v // 4, 0, 0], list(key), 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c[v % 4]


def gumbel(word: int) -> np.float32:
    u = min(F(F(F(word) + F(0.5)) * F(2.0**-32)), F(1 - 2.0**-24))
    return -np.log(-np.log1p(-u))


def scaled_row(
    logits: np.ndarray, temperature: float, allowed: np.ndarray | None = None
) -> dict[int, np.float32]:
    ids = range(len(logits)) if allowed is None else np.flatnonzero(allowed).tolist()
    return {v: F(F(logits[v]) / F(temperature)) for v in ids}


def kept_ids(scaled: dict[int, np.float32], top_k: int, top_p: float, min_p: float) -> list[int]:
    """The ids that the filters keep, best first."""
    ranked = sorted(scaled, key=lambda v: (-scaled[v], v))
    if 0 < top_k < len(ranked):
        ranked = ranked[:top_k]
    largest = scaled[ranked[0]]
    masses = [int(np.rint(np.exp(scaled[v] - largest) * F(2.0**40))) for v in ranked]
    kept, before, threshold = [], 0, float(F(top_p)) * float(sum(masses))
    for v, mass in zip(ranked, masses, strict=True):
        fits = top_p >= 1 or float(before) < threshold or not kept
        if fits and (min_p <= 0 or scaled[v] >= largest + np.log(F(min_p))):
            kept.append(v)
        before += mass
    return kept


def scores(
    logits: np.ndarray, position: int, key: tuple[int, int], temperature: float, top_k: int,
    top_p: float, min_p: float, allowed: np.ndarray | None = None,
) -> dict[int, float]:
    """id -> score of what may be drawn; the token is the best, ties to the smaller id."""
    if temperature < 2.0**-60:
        return {v: float(x) for v, x in scaled_row(logits, 1.0, allowed).items()}
    scaled = scaled_row(logits, temperature, allowed)
    kept = kept_ids(scaled, top_k, top_p, min_p)
    return {v: float(scaled[v] + gumbel(philox_word(position, v, key))) for v in kept}


def token(scores_of_row: dict[int, float]) -> int:
    return min(scores_of_row, key=lambda v: (-scores_of_row[v], v))
