"""pass@k and its two uncertainties. Pure arithmetic, the same numbers in every run.

pass@k is the unbiased estimate of Chen et al. (2021): of n samples with c right ones, the chance
that k drawn without replacement hold a right one, 1 - C(n-c, k) / C(n, k), as a product that can't
overflow.

    sampling interval   the problems fixed, the samples drawn again
    problem interval    the problems drawn again (bootstrap), as if from a larger set
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_Z = 1.959964  # 95 %
BOOTSTRAPS = 10_000
DRAWN_AT_ONCE = 500  # 5,815 problems times 10,000 would take 465 MB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with two 95 % intervals, all between 0 and 1."""

    value: float
    sampling_interval: tuple[float, float]
    problem_interval: tuple[float, float]

    def as_json(self) -> dict[str, object]:
        return {
            "value": self.value,
            "sampling_interval": list(self.sampling_interval),
            "problem_interval": list(self.problem_interval),
        }


def pass_at_k(n: int, c: int, k: int) -> float:
    """For one problem; needs n >= k."""
    if n < k:
        raise ValueError(f"pass@{k} needs {k} samples, and there are {n}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def estimate(counts: Sequence[tuple[int, int]], k: int, *, greedy: bool = False) -> Estimate | None:
    """pass@k over problems of (n, c); None where a problem has fewer than k samples, or there is
    none.

    `greedy` says that drawing again would give the same samples.
    """
    if not counts or any(n < k for n, _ in counts):
        return None
    values = np.array([pass_at_k(n, c, k) for n, c in counts])
    value = float(values.mean())
    if greedy:
        deviation = 0.0
    elif min(n for n, _ in counts) == 1:
        # One sample says nothing about its spread: this bound may be too wide, never too narrow.
        deviation = math.sqrt(value * (1 - value) / len(counts))
    else:
        deviation = math.sqrt(sum(_variance(n, c, k) for n, c in counts)) / len(counts)
    half = CONFIDENCE_Z * deviation
    return Estimate(
        value, (max(0.0, value - half), min(1.0, value + half)), bootstrap_interval(values)
    )


def _variance(n: int, c: int, k: int) -> float:
    """Variance of one problem's estimate if its n samples were drawn again, each right with chance
    c/n.

    Summed over the binomial distribution exactly; n / (n - 1) makes it unbiased at k = 1.
    """
    if c in (0, n):
        return 0.0
    share = c / n
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(n + 1)]
    first = second = 0.0
    for i, log in enumerate(logs):
        chance = math.exp(log + i * math.log(share) + (n - i) * math.log1p(-share))
        value = pass_at_k(n, i, k)
        first += chance * value
        second += chance * value * value
    return max(0.0, second - first * first) * n / (n - 1)


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """95 % percentile interval of the mean over resampled problems, always from the same random
    numbers.
    """
    draws = np.random.Generator(np.random.PCG64(0))
    means = np.empty(BOOTSTRAPS)
    for start in range(0, BOOTSTRAPS, DRAWN_AT_ONCE):
        picks = draws.integers(0, len(values), size=(DRAWN_AT_ONCE, len(values)))
        means[start : start + DRAWN_AT_ONCE] = values[picks].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def useful_ks(counts: Sequence[tuple[int, int]], wanted: Sequence[int] = (1, 10, 100)) -> list[int]:
    """Those of `wanted` that every problem has samples for."""
    fewest = min((n for n, _ in counts), default=0)
    return [k for k in wanted if k <= fewest]
