"""Facts as text for people: lines with a label each, counts and sizes in words. Text only."""

from __future__ import annotations

from collections.abc import Iterable

from santagen.errors import many as many

LABEL = 13  # columns
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
Text = str | list[str]


def labelled(rows: Iterable[tuple[str, Text]]) -> list[str]:
    """A line for each text, the label before the first of its own."""
    lines = []
    for label, text in rows:
        first, *rest = text if isinstance(text, list) else [text]
        lines.append(f"{label:<{LABEL}}{first}")
        lines += [f"{'':<{LABEL}}{line}" for line in rest]
    return lines


def size(count: int) -> str:
    """A number of bytes for people: 4.20 GiB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {UNITS[unit]}" if unit else f"{count} bytes"
