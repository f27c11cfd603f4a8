"""How the samples of a run came about: how they ended, how long they are, when they were there.

    {"samples": 40, "finish_reasons": {"stop": 38, "length": 2}, "stop_reasons": {"\\ndef": 30, ..},
     "completion_tokens": {"total": 900, "longest": 99, "width": 5, "counts": [3, 12, ..]},
     "timeline": {"seconds": 9.8, "width": 0.5, "samples": [1, 4, ..], "tokens": [20, 95, ..]}}

Counts from the fields that santagen writes beside a completion; what no row has is left out. Reads
no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

BINS = 40
SHOWN_REASONS = 12
MOST = 1e15  # of anything that is counted or timed: more is no number that a picture can show
GENERATED_AT = "generated_at"  # seconds since the run began, its interruptions left out


def sample_statistics(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of samples given by their fields: finish_reason, stop_reason, usage,
    generated_at.
    """
    samples = 0
    reasons: Counter[str] = Counter()
    stops: Counter[str] = Counter()
    lengths: list[int] = []
    times: list[tuple[float, int]] = []
    for row in rows:
        samples += 1
        usage = row.get("usage")
        length = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        if type(length) is not int or not 0 <= length < MOST:
            length = None
        else:
            lengths.append(length)
        if row.get("finish_reason") is not None:
            reasons[str(row["finish_reason"])] += 1
        if row.get("stop_reason") is not None:
            stops[str(row["stop_reason"])] += 1
        at = row.get(GENERATED_AT)
        if isinstance(at, (int, float)) and 0 <= at < MOST:
            times.append((at, length or 0))
    found: dict[str, Any] = {"samples": samples}
    if reasons:
        found["finish_reasons"] = dict(reasons.most_common(SHOWN_REASONS))
    if stops:
        found["stop_reasons"] = dict(stops.most_common(SHOWN_REASONS))
    if lengths:
        found["completion_tokens"] = _histogram(lengths)
    if times:
        found["timeline"] = _timeline(times)
    return found


def _histogram(lengths: list[int]) -> dict[str, Any]:
    """Bin i counts lengths from i * width up to, not including, (i + 1) * width."""
    longest = max(lengths)
    width = round(nice_width(longest + 1, 1.0))
    counts = [0] * (longest // width + 1)
    for length in lengths:
        counts[length // width] += 1
    return {"total": sum(lengths), "longest": longest, "width": width, "counts": counts}


def _timeline(times: list[tuple[float, int]]) -> dict[str, Any]:
    """Per `width` seconds: the samples that ended then, and the tokens of those samples."""
    last = max(seconds for seconds, _ in times)
    width = nice_width(last, 0.05)
    size = int(last / width) + 1
    samples, tokens = [0] * size, [0] * size
    for seconds, length in times:
        at = int(seconds / width)
        samples[at] += 1
        tokens[at] += length
    return {"seconds": round(last, 3), "width": width, "samples": samples, "tokens": tokens}


def nice_width(span: float, least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`, that cuts `span` into at most BINS."""
    width = least
    for factor in _two_five_ten():
        if span <= width * BINS:
            break
        width = least * factor
    return round(width, 6)


def _two_five_ten() -> Iterable[int]:
    power = 1
    while True:
        yield from (2 * power, 5 * power, 10 * power)
        power *= 10
