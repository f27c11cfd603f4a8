"""Plain values across the pipe between a test and the program under test, as JSON with tags.

Only exact built-in types come out of `decode`: an object of the program's own making can't cross,
so one that claims to equal everything can't meet an assert. What has no literal form arrives as an
`Opaque`, which equals nothing. `encode` with `strict` refuses instead (the way from the test to the
program).

    None True 3 2.5 "text" [..]   themselves     {"t": [..]} tuple      {"d": [[k, v], ..]} dict
    {"i": hex} big int            {"f": "nan"}   {"s"|"z": [..]} set    {"b"|"a": hex} bytes
"""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 150  # well inside the recursion limit of both ends
_JSON_INT = 2**53


class NotLiteral(Exception):
    """The value can't cross as a plain literal."""


class Opaque:
    """Stands for a value that has no literal form; equal to nothing but itself."""

    def __init__(self, type_name: str, *, equals_all: bool = False) -> None:
        self.type_name, self.equals_all = type_name, equals_all

    def __repr__(self) -> str:
        return f"<{self.type_name} object>"


def encode(value: Any, strict: bool = False, depth: int = 0) -> Any:
    """`value` as what json.dumps takes. Subclasses are reduced to the value of their built-in base.
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
        return _container(value, kind, strict, depth + 1)
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if strict:
        raise NotLiteral(f"a value of type {kind.__name__} has no literal form")
    return _reduced(value, depth)


def _container(value: Any, kind: Any, strict: bool, depth: int) -> Any:
    if kind is list:
        return [encode(item, strict, depth) for item in list.__iter__(value)]
    if kind is dict:
        pairs = dict.items(value)
        return {"d": [[encode(k, strict, depth), encode(v, strict, depth)] for k, v in pairs]}
    return {_CONTAINERS[kind]: [encode(item, strict, depth) for item in kind.__iter__(value)]}


_CONTAINERS = {list: "", tuple: "t", set: "s", frozenset: "z", dict: "d"}
_SCALARS: dict[type, Any] = {
    complex: lambda v: {"c": [encode(v.real), encode(v.imag)]},
    bytes: lambda v: {"b": v.hex()},
    bytearray: lambda v: {"a": v.hex()},
    range: lambda v: {"r": [encode(v.start), encode(v.stop), encode(v.step)]},
    Fraction: lambda v: {"q": [encode(v.numerator), encode(v.denominator)]},
    Decimal: lambda v: {"m": str(v)},
}


def _reduced(value: Any, depth: int) -> Any:
    """A subclass's value as its built-in base stores it, whatever the subclass says of itself."""
    if isinstance(value, str):
        return str.__getitem__(value, slice(0, str.__len__(value))) + ""
    if isinstance(value, int):
        return encode(int.__add__(value, 0))
    if isinstance(value, float):
        return encode(float.__add__(value, 0.0) if value else float.__mul__(value, 1.0))
    for base in (list, tuple, dict, set, frozenset):
        if isinstance(value, base):
            return _container(value, base, False, depth + 1)
    if type(value).__module__ == "numpy":
        plain = getattr(value, "item", None)
        if plain is not None and getattr(value, "ndim", None) == 0:
            return encode(plain(), True)
    return {"o": type(value).__name__, "x": _equals_all(value)}


def _equals_all(value: Any) -> bool:
    try:
        return bool(value == object())
    except Exception:
        return False


def decode(data: Any, depth: int = 0) -> Any:
    """The value behind parsed JSON; raises ValueError for what `encode` can't have made."""
    if depth > MAX_DEPTH + 1:
        raise ValueError("nested too deeply")
    kind = type(data)
    if data is None or kind in (bool, int, float, str):
        return data
    if kind is list:
        return [decode(item, depth + 1) for item in data]
    if kind is not dict or not data:
        raise ValueError("not a tagged value")
    tag = next(iter(data))
    body = data[tag]
    if tag == "o":
        return Opaque(str(body)[:100], equals_all=data.get("x") is True)
    maker = _MAKERS.get(tag)
    if maker is None or len(data) != 1:
        raise ValueError(f"unknown tag {tag!r}")
    try:
        return maker(body, depth + 1)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(str(error)) from None


def _items(body: Any, depth: int) -> list[Any]:
    if type(body) is not list:
        raise ValueError("not a list of values")
    return [decode(item, depth) for item in body]


def _finite_set(body: Any) -> Any:
    if body not in ("nan", "inf", "-inf"):
        raise ValueError("not a special float")
    return float(body)


def _ints(body: Any, depth: int) -> list[int]:
    values = _items(body, depth)
    if any(type(value) is not int for value in values):
        raise ValueError("not whole numbers")
    return values


_MAKERS: dict[str, Any] = {
    "t": lambda body, depth: tuple(_items(body, depth)),
    "s": lambda body, depth: set(_items(body, depth)),
    "z": lambda body, depth: frozenset(_items(body, depth)),
    "d": lambda body, depth: {decode(k, depth): decode(v, depth) for k, v in body},
    "i": lambda body, depth: int(body, 16),
    "f": lambda body, depth: _finite_set(body),
    "c": lambda body, depth: complex(*_items(body, depth)),
    "b": lambda body, depth: bytes.fromhex(body),
    "a": lambda body, depth: bytearray.fromhex(body),
    "r": lambda body, depth: range(*_ints(body, depth)),
    "q": lambda body, depth: Fraction(*_ints(body, depth)),
    "m": lambda body, depth: Decimal(body),
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
