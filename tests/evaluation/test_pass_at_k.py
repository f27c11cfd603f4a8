from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from santagen.evaluation.pass_at_k import bootstrap_interval, estimate, pass_at_k, useful_ks


@pytest.mark.parametrize(("n", "k"), [(5, 1), (5, 2), (6, 3), (7, 7)])
def test_estimate_is_the_share_of_draws_that_hold_a_right_sample(n: int, k: int) -> None:
    for c in range(n + 1):
        draws = list(itertools.combinations(range(n), k))
        hits = sum(any(i < c for i in draw) for draw in draws)
        assert pass_at_k(n, c, k) == pytest.approx(hits / len(draws), abs=1e-12)


def test_large_n_stays_exact() -> None:
    expected = 1 - math.comb(190, 100) / math.comb(200, 100)
    assert pass_at_k(200, 10, 100) == pytest.approx(expected, rel=1e-12)


def test_fewer_samples_than_k_is_left_out_and_not_one() -> None:
    assert estimate([(20, 0), (200, 3)], 100) is None
    assert estimate([], 1) is None
    assert useful_ks([(20, 0), (200, 3)]) == [1, 10]
    with pytest.raises(ValueError, match="pass@10"):
        pass_at_k(9, 9, 10)


def test_sampling_interval_covers_what_repeated_sampling_gives() -> None:
    rng = np.random.default_rng(3)
    chances = rng.uniform(0, 0.6, size=40)
    n, k, inside = 20, 10, 0
    truth = float(np.mean(1 - (1 - chances) ** k))
    for _ in range(200):
        counts = [(n, int(c)) for c in rng.binomial(n, chances)]
        found = estimate(counts, k)
        assert found is not None
        low, high = found.sampling_interval
        inside += low <= truth <= high
    assert 170 <= inside <= 200  # 95 % of 200 is 190


def test_greedy_has_no_sampling_error_and_one_sample_a_wide_one() -> None:
    counts = [(1, 1), (1, 0), (1, 0), (1, 1)]
    greedy, sampled = estimate(counts, 1, greedy=True), estimate(counts, 1)
    assert greedy is not None and sampled is not None
    assert greedy.sampling_interval == (0.5, 0.5)
    assert sampled.sampling_interval[0] < 0.1
    assert greedy.problem_interval == sampled.problem_interval


def test_bootstrap_is_the_same_every_time_and_of_the_right_width() -> None:
    values = np.array([0.0, 1.0] * 50)
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.015)
    assert high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.015)


def test_all_right_is_one_with_no_width() -> None:
    found = estimate([(20, 20)] * 5, 10)
    assert found is not None
    assert found.as_json() == {
        "value": 1.0,
        "sampling_interval": [1.0, 1.0],
        "problem_interval": [1.0, 1.0],
    }
