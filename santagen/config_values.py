"""The values of config.json by kind: each is checked, and a wrong one is named with its file.

    flag, size, fraction, word, words, end_ids

null counts as left out. Knows nothing of what the values mean together; reads no files.
"""

from __future__ import annotations

from typing import Any

from santagen.errors import SantagenError

WRONG_FILE = "Take config.json from the same place as the weights."
LARGEST_SIZE = 1 << 24  # far above any model's; tables of that many entries still fit
LARGEST = {"n_layer": 10_000}
SHOWN = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value as a message shows it: cut where it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def wrong(where: str, name: str, value: object, wanted: str) -> SantagenError:
    """What to tell of a value that `name` can't have."""
    return SantagenError(
        f"{where} has {name} = {shown(value)}, which must be {wanted}.", WRONG_FILE
    )


def flag(raw: dict[str, Any], where: str, name: str, default: bool) -> bool:
    """true or false; a text such as "false" is neither."""
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(where, name, value, "true or false")
    return value


def size(raw: dict[str, Any], where: str, name: str, default: int | None = None) -> int:
    """A whole number above 0, of a magnitude that a model can have."""
    value = raw.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong(where, name, value, "a whole number above 0")
    largest = LARGEST.get(name, LARGEST_SIZE)
    if value > largest:
        raise wrong(where, name, value, f"a whole number of at most {largest:,}")
    return value


def fraction(raw: dict[str, Any], where: str, name: str, default: float) -> float:
    """A number above 0 and below 1."""
    value = raw.get(name)
    if value is None:
        return default
    # NaN fails the comparison too, and an int of any length passes through it.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise wrong(where, name, value, "a number above 0 and below 1")
    return float(value)


def word(raw: dict[str, Any], where: str, name: str) -> str | None:
    """A text, or None."""
    value = raw.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(where, name, value, "a text")
    return value


def words(raw: dict[str, Any], where: str, name: str) -> tuple[str, ...]:
    """A list of texts; empty where there is none."""
    value = raw.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong(where, name, value, "a list of texts")
    return tuple(value)


def end_ids(
    raw: dict[str, Any], where: str, vocab_size: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(the ids of eos_token_id that the vocabulary has, notes of those it has not).

    Real files name ids of another vocabulary, so these are no error: the model can't draw them.
    """
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
        raise wrong(where, "eos_token_id", value, "a token id, a list of them or null")
    beyond = [number for number in ids if not 0 <= number < vocab_size]
    notes: tuple[str, ...] = ()
    if beyond:
        named = shown(beyond if len(beyond) > 1 else beyond[0])
        notes = (
            f"{where} has eos_token_id {named}, which is outside the model's vocabulary of "
            f"{vocab_size:,} ids and is not used",
        )
    return tuple(number for number in dict.fromkeys(ids) if number not in beyond), notes
