"""The same examples in every run, without a clock: fuzzing that is fit for CI."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings


def fuzz(examples: int) -> Any:
    """Settings of a test that tries so many examples."""
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=examples, derandomize=True, deadline=None, suppress_health_check=slow
    )
