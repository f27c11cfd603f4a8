"""Plain values across the pipe between a test and the program under test, as JSON with tags.

Only exact built-in types come out of `decode`: an object of the program's own making can't cross,
so one that claims to equal everything can't meet an assert. What has no literal form arrives as an
`Opaque`, which equals nothing. `encode` with `strict` refuses instead (the way from the test to the
program). Either side may hand over what has no literal form by a tag of its own (`refer` makes it,
`resolve` reads it): see `session` and `program`.

    None True 3 2.5 "text" [..]   themselves     {"t": [..]} tuple      {"d": [[k, v], ..]} dict
    {"i": hex} big int            {"f": "nan"}   {"s"|"z": [..]} set    {"b"|"a": hex} bytes
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 150  # well inside the recursion limit of both ends
Tag = dict[str, Any]
_JSON_INT = 2**53


class NotLiteral(Exception):
    """The value can't cross as a plain literal."""


class Opaque:
    """Stands for a value that has no literal form; equal to nothing but itself."""

    def __init__(self, type_name: str, *, equals_all: bool = False) -> None:
        self.type_name, self.equals_all = type_name, equals_all

    def __repr__(self) -> str:
        return f"<{self.type_name} object>"


def encode(
    value: Any,
    strict: bool = False,
    refer: Callable[[Any], Tag | None] | None = None,
    depth: int = 0,
) -> Any:
    """`value` as what json.dumps takes. Subclasses are reduced to the value of their built-in base.

    `refer` gives the tag of a value without literal form, or None where it has none either.
    """
    if value is None or value is True or value is False:
        return value
    if depth > MAX_DEPTH:
        raise NotLiteral("the value is nested too deeply")
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return value if -_JSON_INT < value < _JSON_INT else {"i": hex(value)}
    if kind is float:
        return value if value - value == 0 else {"f": repr(value)}
    if kind in _CONTAINERS:
        return _container(value, kind, strict, refer, depth + 1)
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if not strict:
        return _reduced(value, refer, depth)
    tag = None if refer is None else refer(value)
    if tag is None:
        raise NotLiteral(f"a value of type {kind.__name__} has no literal form")
    return tag


def _container(value: Any, kind: Any, strict: bool, refer: Any, depth: int) -> Any:
    if kind is list:
        return [encode(item, strict, refer, depth) for item in list.__iter__(value)]
    if kind is dict:
        pairs = [
            [encode(k, strict, refer, depth), encode(v, strict, refer, depth)]
            for k, v in dict.items(value)
        ]
        return {"d": pairs}
    items = [encode(item, strict, refer, depth) for item in kind.__iter__(value)]
    return {_CONTAINERS[kind]: items}


_CONTAINERS = {list: "", tuple: "t", set: "s", frozenset: "z", dict: "d"}
_SCALARS: dict[type, Any] = {
    complex: lambda v: {"c": [encode(v.real), encode(v.imag)]},
    bytes: lambda v: {"b": v.hex()},
    bytearray: lambda v: {"a": v.hex()},
    range: lambda v: {"r": [encode(v.start), encode(v.stop), encode(v.step)]},
    Fraction: lambda v: {"q": [encode(v.numerator), encode(v.denominator)]},
    Decimal: lambda v: {"m": str(v)},
}


def _reduced(value: Any, refer: Callable[[Any], Tag | None] | None, depth: int) -> Any:
    """A subclass's value as its built-in base stores it, whatever the subclass says of itself."""
    if isinstance(value, str):
        return str.__getitem__(value, slice(0, str.__len__(value))) + ""
    if isinstance(value, int):
        return encode(int.__add__(value, 0))
    if isinstance(value, float):
        return encode(float.__add__(value, 0.0) if value else float.__mul__(value, 1.0))
    for base in (list, tuple, dict, set, frozenset):
        if isinstance(value, base):
            return _container(value, base, False, refer, depth + 1)
    if type(value).__module__ == "numpy":
        plain = getattr(value, "item", None)
        if plain is not None and getattr(value, "ndim", None) == 0:
            return encode(plain(), True)
    tag = None if refer is None else refer(value)
    return {"o": type(value).__name__, "x": equals_all(value)} if tag is None else tag


def equals_all(value: Any) -> bool:
    """Whether the object claims to equal a stranger."""
    try:
        return bool(value == object())
    except Exception:
        return False


def decode(data: Any, resolve: Callable[[Tag], Any] | None = None, depth: int = 0) -> Any:
    """The value behind parsed JSON; raises ValueError for what `encode` can't have made.

    `resolve` gives the value of a tag that isn't a literal's, or raises ValueError.
    """
    if depth > MAX_DEPTH + 1:
        raise ValueError("nested too deeply")
    kind = type(data)
    if data is None or kind in (bool, int, float, str):
        return data
    if kind is list:
        return [decode(item, resolve, depth + 1) for item in data]
    if kind is not dict or not data:
        raise ValueError("not a tagged value")
    tag = next(iter(data))
    maker = _MAKERS.get(tag)
    if maker is None:
        return (resolve or opaque)(data)
    if len(data) != 1:
        raise ValueError("more than one tag")
    try:
        return maker(data[tag], lambda item: decode(item, resolve, depth + 1))
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(str(error)) from None


def opaque(tag: Tag) -> Opaque:
    """What an object without literal form arrives as where nothing can be done with it."""
    if "o" not in tag:
        raise ValueError(f"unknown tag {next(iter(tag))!r}")
    return Opaque(str(tag["o"])[:100], equals_all=tag.get("x") is True)


def _items(body: Any, read: Callable[[Any], Any]) -> list[Any]:
    if type(body) is not list:
        raise ValueError("not a list of values")
    return [read(item) for item in body]


def _special_float(body: Any) -> float:
    if body not in ("nan", "inf", "-inf"):
        raise ValueError("not a special float")
    return float(body)


def _ints(body: Any, read: Callable[[Any], Any]) -> list[int]:
    values = _items(body, read)
    if any(type(value) is not int for value in values):
        raise ValueError("not whole numbers")
    return values


_MAKERS: dict[str, Any] = {
    "t": lambda body, read: tuple(_items(body, read)),
    "s": lambda body, read: set(_items(body, read)),
    "z": lambda body, read: frozenset(_items(body, read)),
    "d": lambda body, read: {read(k): read(v) for k, v in body},
    "i": lambda body, read: int(body, 16),
    "f": lambda body, read: _special_float(body),
    "c": lambda body, read: complex(*_items(body, read)),
    "b": lambda body, read: bytes.fromhex(body),
    "a": lambda body, read: bytearray.fromhex(body),
    "r": lambda body, read: range(*_ints(body, read)),
    "q": lambda body, read: Fraction(*_ints(body, read)),
    "m": lambda body, read: Decimal(body),
}


def is_mutable(value: Any) -> bool:
    """Whether a program could change this argument in place."""
    if type(value) is tuple:
        return any(is_mutable(item) for item in value)
    return type(value) in (list, dict, set, bytearray)


def update_in_place(old: Any, new: Any) -> None:
    """Make the caller's own argument look as the program left it."""
    kind = type(old)
    if kind is not type(new):
        return
    if kind in (list, tuple) and len(old) == len(new):
        for at, (before, after) in enumerate(zip(old, new, strict=True)):
            if is_mutable(before) and type(before) is type(after):
                update_in_place(before, after)
            elif kind is list:
                old[at] = after
    elif kind in (list, bytearray):
        old[:] = new
    elif kind in (dict, set):
        old.clear()
        old.update(new)


def allow_long_ints() -> None:
    """Lift Python's limit on the digits of an int, which only its own text would meet."""
    sys.set_int_max_str_digits(0)
