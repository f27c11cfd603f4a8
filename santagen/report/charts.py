"""Pictures as inline SVG, drawn for the width of a phone and scaled up to a column's.

Each is one element with a name for screen readers; colours come from the page's style, and the same
numbers are in a table behind each picture, which is the caller's to add.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from santagen.report.markup import Html, tag

WIDTH = 360
LEFT, RIGHT = 8, 12
ROW = 40


@dataclass(frozen=True, slots=True)
class Span:
    """A value with a narrow and a wide interval around it."""

    label: str
    value: float
    inner: tuple[float, float]
    outer: tuple[float, float]
    shown: str


def picture(identifier: str, name: str, height: float, *children: Html) -> Html:
    """The SVG element; `name` is what a screen reader says of it."""
    title = tag("title", name, id=f"{identifier}-name")
    return tag(
        "svg",
        title,
        children,
        viewBox=f"0 0 {WIDTH} {_n(height)}",
        role="img",
        aria_labelledby=f"{identifier}-name",
        class_="picture",
    )


def spans(identifier: str, name: str, rows: Sequence[Span], low: float, high: float) -> Html:
    """One row per value: a dot, a thick line for the inner interval, a thin one for the outer."""

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    height = len(rows) * ROW + 26
    drawn = [*_axis(low, high, len(rows) * ROW + 4, x)]
    if low < 0 < high:
        drawn.append(_line(x(0), 0, x(0), len(rows) * ROW + 4, "zero"))
    for at, row in enumerate(rows):
        y = at * ROW + 28
        drawn += [
            _text(LEFT, y - 13, row.label, "label"),
            _text(WIDTH - RIGHT, y - 13, row.shown, "value end"),
            _line(x(row.outer[0]), y, x(row.outer[1]), y, "outer"),
            _line(x(row.inner[0]), y, x(row.inner[1]), y, "inner"),
            tag("circle", cx=_n(x(row.value)), cy=y, r=5, class_="dot"),
        ]
    return picture(identifier, name, height, *drawn)


def bars(identifier: str, name: str, rows: Sequence[tuple[str, float, str]]) -> Html:
    """Horizontal bars: label, length, what is written at the end. Below 0 they go to the left."""
    high = max([0.0, *(value for _, value, _ in rows)])
    low = min([0.0, *(value for _, value, _ in rows)])
    scale = (WIDTH - LEFT - RIGHT) / ((high - low) or 1)
    zero = LEFT - low * scale
    drawn = [_line(zero, 0, zero, len(rows) * 32, "zero")] if low < 0 else []
    for at, (label, value, shown) in enumerate(rows):
        y, start = at * 32, zero + min(0.0, value) * scale
        drawn += [
            _text(LEFT, y + 12, label, "label"),
            _text(WIDTH - RIGHT, y + 12, shown, "value end"),
            tag("rect", x=_n(start), y=y + 17, width=_n(abs(value) * scale), height=9, rx=2,
                class_="bar" if value >= 0 else "bar less"),
        ]  # fmt: skip
    return picture(identifier, name, len(rows) * 32 + 2, *drawn)


def columns(
    identifier: str, name: str, values: Sequence[float], width: float, unit: str, top: str
) -> Html:
    """Upright bars side by side, each `width` of `unit` wide; `top` names their height."""
    floor, most = 140, max(values, default=0) or 1
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    drawn = [_text(LEFT, 12, f"{top}, at most {_number(most)}", "label")]
    for at, value in enumerate(values):
        tall = value / most * (floor - 22)
        drawn.append(
            tag(
                "rect",
                tag("title", f"{_number(at * width)} to {_number((at + 1) * width)} {unit}: "
                    f"{_number(value)}"),
                x=_n(LEFT + at * step), y=_n(floor - tall),
                width=_n(max(0.5, step - 1)), height=_n(tall), class_="bar",
            )
        )  # fmt: skip
    span = len(values) * width
    drawn += _axis(0, span, floor, lambda v: LEFT + v / span * (WIDTH - LEFT - RIGHT), unit)
    drawn.append(_text(WIDTH / 2, floor + 32, unit, "middle"))
    return picture(identifier, name, floor + 38, *drawn)


def _axis(
    low: float, high: float, y: float, x: Callable[[float], float], unit: str = "%"
) -> list[Html]:
    """A line at height `y` from low to high with its ticks; `x` gives a value's place on it."""
    drawn = [_line(x(low), y, x(high), y, "axis")]
    step = _tick_step(high - low)
    first = math.ceil(low / step - 1e-9)
    for at in range(first, math.floor(high / step + 1e-9) + 1):
        value = at * step
        place = "start" if at == first and value == low else "middle"
        if x(value) > WIDTH - RIGHT - 20:
            place = "end"
        drawn += [
            _line(x(value), y, x(value), y + 4, "axis"),
            _text(x(value), y + 17, f"{_number(value)}{'%' if unit == '%' else ''}", place),
        ]
    return drawn


def _tick_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, for at most six ticks."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= 5)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    return tag("line", x1=_n(x1), y1=_n(y1), x2=_n(x2), y2=_n(y2), class_=kind)


def _text(x: float, y: float, words: str, kind: str) -> Html:
    return tag("text", words, x=_n(x), y=_n(y), class_=kind)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _number(value: float) -> str:
    """A number for people: at most four digits that count."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
