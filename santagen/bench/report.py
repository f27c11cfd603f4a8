"""A bench in words and as JSON: one table row and one record per case, beside its limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from santagen.bench.card import GIB
from santagen.bench.cases import Result, Spread
from santagen.bench.limit import Limit, Rates

# (title, width) of each column; min-max is the spread of what stands before it, of limit the share
# of the hardware's limit that was reached.
COLUMNS = (
    ("batch", 5), ("prompt", 6), ("output", 6),
    ("prefill tok/s", 13), ("min-max", 15), ("of limit", 8),
    ("decode tok/s", 12), ("ms/step", 7), ("min-max", 13), ("of limit", 8),
    ("all tok/s", 9), ("peak GiB", 8),
)  # fmt: skip


def header() -> str:
    """The table's titles."""
    return _line(title for title, _ in COLUMNS)


def row(result: Result, limit: Limit) -> str:
    """One line of the table."""
    case = result.case
    sizes = [f"{case.batch_size:,}", f"{case.prompt_len:,}", f"{case.output_len:,}"]
    if result.error is not None:
        return f"{_line(sizes)}  {result.error}"
    prefill, step = result.prefill_rate, result.step_seconds
    shares = shares_of_limit(result, limit)
    cells = [
        *sizes,
        _rate(prefill.median),
        f"{_rate(prefill.min)}-{_rate(prefill.max)}",
        f"{shares['prefill']:.0%}",
        _rate(result.decode_rate.median),
        _milliseconds(step.median),
        f"{_milliseconds(step.min)}-{_milliseconds(step.max)}",
        f"{shares['decode']:.0%}",
        _rate(result.whole_rate.median),
        f"{result.peak_memory_bytes / GIB:.2f}",
    ]
    return _line(cells)


def _line(cells: Iterable[str]) -> str:
    widths = (width for _, width in COLUMNS)
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))


def _rate(per_second: float) -> str:
    return f"{per_second:,.{1 if per_second < 100 else 0}f}"


def _milliseconds(seconds: float) -> str:
    """0.0051234 -> 5.123, with four digits or more"""
    found = 1e3 * seconds
    return f"{found:.{3 if found < 10 else 2 if found < 100 else 1}f}"


def rates_line(rates: Rates, device: str, dtype: str) -> str:
    """What the probes found."""
    return (
        f"{device}: copies {rates.copy_bytes_per_second / 1e9:,.0f} GB/s, reads "
        f"{rates.read_bytes_per_second / 1e9:,.0f} GB/s, {dtype} products "
        f"{rates.flop_per_second / 1e12:,.2f} TFLOP/s"
    )


def limits(result: Result, limit: Limit) -> dict[str, float]:
    """Seconds that the hardware needs for the prefill and for one decode step of a result."""
    case, short = result.case, result.repeats[0].short
    rows = case.batch_size * (case.output_len - 1) / result.steps  # on average, if in waves
    return {
        # A step draws token i of the output at a context of prompt_len + i, i = 1 .. output_len - 1
        "decode": limit.decode_step(rows, case.prompt_len + case.output_len / 2),
        "prefill": limit.prefill(short.prompt_tokens, case.batch_size, short.prefills),
    }


def shares_of_limit(result: Result, limit: Limit) -> dict[str, float]:
    """The limit over the measured median; 1 is as fast as the hardware allows."""
    found = limits(result, limit)
    return {
        "decode": found["decode"] / result.step_seconds.median,
        "prefill": found["prefill"] / result.prefill_seconds.median,
    }


def as_json(result: Result, limit: Limit) -> dict[str, Any]:
    """The record of one case."""
    record = result.as_json()
    if result.error is not None:
        return record
    seconds, shares = limits(result, limit), shares_of_limit(result, limit)
    flop = limit.prefill_flop(record["prompt_tokens"], result.case.batch_size)
    per_second = Spread.of(flop / repeat.short.seconds for repeat in result.repeats)
    record["prefill"] |= {
        "flop_per_second": per_second.as_json(),
        "limit_seconds": seconds["prefill"],
        "share_of_limit": shares["prefill"],
    }
    record["decode"] |= {
        "limit_seconds_per_step": seconds["decode"],
        "share_of_limit": shares["decode"],
    }
    return record
