from __future__ import annotations

import collections
import enum
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.evaluation.sandbox.literals import (
    NotLiteral,
    Opaque,
    decode,
    encode,
    is_mutable,
    update_in_place,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda part: st.tuples(part, part),
    max_leaves=4,
)
values = st.recursive(
    scalars | hashable,
    lambda part: (
        st.lists(part, max_size=4)
        | st.tuples(part, part)
        | st.dictionaries(hashable, part, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
    ),
    max_leaves=12,
)


def across(value: Any, strict: bool = False) -> Any:
    return decode(json.loads(json.dumps(encode(value, strict))))


def canonical(value: Any) -> Any:
    """Equal for equal values of equal types: not a number is itself, and a set has no order."""
    name = type(value).__name__
    if isinstance(value, dict):
        return name, [(canonical(key), canonical(part)) for key, part in value.items()]
    if isinstance(value, (set, frozenset)):
        return name, sorted(repr(canonical(part)) for part in value)
    if isinstance(value, (list, tuple)):
        return name, [canonical(part) for part in value]
    return name, repr(value)


@given(values)
def test_literals_arrive_as_they_were(value: Any) -> None:
    assert canonical(across(value, strict=True)) == canonical(value)


@pytest.mark.parametrize(
    "value",
    [
        2**200,
        -(2**63),
        -0.0,
        range(3, 9, 2),
        Fraction(1, 3),
        Decimal("1.10"),
        bytearray(b"ab"),
        "\ud800",
    ],
)
def test_rarer_literals(value: Any) -> None:
    arrived = across(value, strict=True)
    assert type(arrived) is type(value) and repr(arrived) == repr(value)


class Same:
    def __eq__(self, other: object) -> bool:
        return True


class SameInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (SameInt(4), 4),
        (SameInt(2**80), 2**80),
        (Colour.RED, 3),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict([(1, 2)]), {1: 2}),
        (collections.defaultdict(int, {1: 2}), {1: 2}),
    ],
)
def test_subclasses_are_reduced_to_their_plain_value(value: Any, plain: Any) -> None:
    arrived = across(value)
    assert arrived == plain and type(arrived) is type(plain)


def test_an_object_that_equals_everything_arrives_equal_to_nothing() -> None:
    arrived = across(Same())
    assert isinstance(arrived, Opaque) and arrived.equals_all
    assert arrived != 4 and arrived != [] and arrived is not None


def test_strict_refuses_what_has_no_literal_form() -> None:
    for value in (object(), len, [lambda: 0], collections.Counter("a")):
        with pytest.raises(NotLiteral):
            encode(value, True)


def test_depth_is_bounded_on_both_sides() -> None:
    item: list[Any] = []
    for _ in range(1000):
        item = [item]
    with pytest.raises(NotLiteral):
        encode(item)
    with pytest.raises(ValueError, match="deeply"):
        decode(item)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"x": 1},
        {"t": 3},
        {"i": "zz"},
        {"f": "7"},
        {"d": [[1]]},
        {"s": [[1]]},
        {"r": [1.5]},
        {"t": [], "s": []},
    ],
)
def test_what_no_encoder_makes_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_arguments_change_in_place() -> None:
    inner = [1, 2]
    arguments = ([3, 1, 2], {"a": 1}, inner)
    update_in_place(arguments, ([1, 2, 3], {"b": 2}, [1, 2, 3]))
    assert arguments == ([1, 2, 3], {"b": 2}, [1, 2, 3])
    assert inner == [1, 2, 3]
    assert is_mutable(arguments) and not is_mutable((1, ("a",)))
