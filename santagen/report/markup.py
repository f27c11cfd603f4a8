"""HTML from Python values: whatever isn't `Html` already is text, and is escaped.

Text is shown as it is stored: control characters, text directions and what else is invisible or
would change how the page reads (an unbreakable space in code, say) are written out.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = frozenset(("br", "meta"))
_PICTURES = 0x2400  # of the control characters: U+2400 stands for NUL


class Html(str):
    """Markup that is safe as it stands."""


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def visible(text: str) -> str:
    """The text with every character that can't be seen written out, line ends and tabs excepted."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char in "\n\t" or char.isprintable():
        return char
    code = ord(char)
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


def text(value: object) -> Html:
    """Any value as text."""
    return Html(html.escape(visible(str(value))))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. Attribute names lose a last `_` and have `-` for the others: `class_`,
    `aria_label`; None and False leave an attribute out.
    """
    inside = "".join(_flat(children))
    start = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{start}>" if name in VOID else f"<{start}>{inside}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Several pieces after one another."""
    return Html("".join(_flat(children)))


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, (str, int, float)):
            yield text(child)
        else:
            yield from _flat(child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def table(
    caption: str, head: Iterable[str], rows: Iterable[Iterable[Child]], ids: Iterable[str] = ()
) -> Html:
    """A table with a caption; the first cell of each row heads it. `ids` name the rows."""
    names = iter(ids)
    body = [
        tag(
            "tr",
            [
                tag("td", cell) if at else tag("th", cell, scope="row")
                for at, cell in enumerate(cells)
            ],
            id=next(names, None),
        )
        for cells in rows
    ]
    columns = tag("tr", [tag("th", name, scope="col") for name in head])
    return tag(
        "div",
        tag("table", tag("caption", caption), tag("thead", columns), tag("tbody", body)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def folded(summary: str, *children: Child) -> Html:
    """What can be opened."""
    return tag("details", tag("summary", summary), children)


def figure(identifier: str, heading: str, picture: Child, *behind: Child) -> Html:
    """A picture under its heading, with what stands behind it."""
    title = tag("h3", heading, id=identifier)
    return tag("figure", title, picture, behind, aria_labelledby=identifier)


def absent(heading: str, why: str) -> Html:
    """In place of a picture whose data isn't there."""
    return tag("p", tag("b", heading), f" is left out: {why}.", class_="note")
