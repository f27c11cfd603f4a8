"""How samples came about, in pictures: finish reasons, lengths, throughput over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from santagen.report import charts
from santagen.report.markup import Html, absent, figure, folded, table


def statistics(found: dict[str, Any] | None, prefix: str, title: str) -> Iterable[Html]:
    """Finish reasons, lengths and throughput of the input `title`, as far as they are known."""
    known = found or {}
    yield _reasons(known, prefix, title)
    yield _lengths(known, prefix, title)
    yield _throughput(known, prefix, title)


def _reasons(known: dict[str, Any], prefix: str, title: str) -> Html:
    counts = known.get("finish_reasons") or {}
    total = sum(counts.values())
    if not total:
        return absent("Finish reasons", "the samples don't say how they ended")
    rows = [(name, float(n), f"{n:,} ({100 * n / total:.1f}%)") for name, n in counts.items()]
    cells = [[f"finish: {name}", f"{many:,}"] for name, many in counts.items()]
    stops = known.get("stop_reasons", {})
    cells += [[f"stop: {name!r}", f"{many:,}"] for name, many in stops.items()]
    said = ", ".join(f"{name} {many}" for name, many in counts.items())
    return figure(
        f"{prefix}-reasons", "Finish reasons",
        charts.bars(f"{prefix}-reasons-picture", f"Finish reasons of {title}: {said}", rows),
        folded("Table of finish and stop reasons",
               table(f"Finish reasons of {title}", ("Reason", "Samples"), cells)),
    )  # fmt: skip


def _lengths(known: dict[str, Any], prefix: str, title: str) -> Html:
    found = known.get("completion_tokens")
    if not found:
        return absent("The histogram of lengths", "the samples don't say how many tokens they have")
    width, counts = found["width"], found["counts"]
    cells = [
        [f"{at * width} to {(at + 1) * width - 1}", f"{many:,}"] for at, many in enumerate(counts)
    ]
    mean = found["total"] / max(1, sum(counts))
    said = f"Lengths of {title}: mean {mean:.1f}, longest {found['longest']} tokens"
    return figure(
        f"{prefix}-lengths", f"Lengths in tokens (mean {mean:.1f}, longest {found['longest']:,})",
        charts.columns(f"{prefix}-lengths-picture", said, counts, width, "tokens", "Samples"),
        folded("Table of lengths", table(f"Lengths of {title}", ("Tokens", "Samples"), cells)),
    )  # fmt: skip


def _throughput(known: dict[str, Any], prefix: str, title: str) -> Html:
    found = known.get("timeline")
    if not found:
        return absent("Throughput over time", "the samples don't say when they were there")
    width, tokens = found["width"], found["tokens"]
    rates = [round(many / width, 3) for many in tokens]
    cells = [
        [f"{at * width:.4g} to {(at + 1) * width:.4g}", f"{samples:,}", f"{rate:,.0f}"]
        for at, (samples, rate) in enumerate(zip(found["samples"], rates, strict=True))
    ]
    mean = sum(tokens) / found["seconds"] if found["seconds"] else 0.0
    over = f"over {found['seconds']:.1f} seconds"
    said = f"Throughput of {title} {over}: mean {mean:,.0f} tokens per second"
    return figure(
        f"{prefix}-throughput", f"Throughput over time (mean {mean:,.0f} tokens per second)",
        charts.columns(f"{prefix}-throughput-picture", said, rates, width, "seconds",
                       "Tokens per second, counted as samples end"),
        folded("Table of throughput",
               table(f"Throughput of {title}", ("Seconds", "Samples", "Tokens per second"), cells)),
    )  # fmt: skip
