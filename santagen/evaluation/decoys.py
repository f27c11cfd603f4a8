"""Tests that no right program passes: a task's test with one expected value changed.

A test that has to run in the program's own process can be forged there. Whoever forges it can't
tell the test from its decoys without knowing the answer, so a program that passes both is found
out. Writes tests only: `sandbox.worker` runs them, and the self-check keeps those that the right
solution fails.
"""

from __future__ import annotations

import ast
from typing import Any

MOST = 3


def plain(test: str) -> str:
    """The test in the form of its decoys, which the layout must not tell apart from it."""
    return ast.unparse(ast.parse(test))


def decoys(test: str) -> tuple[str, ...]:
    """Up to three variants of `test`, each with the literal of another `==` changed."""
    places = len(_literals(ast.parse(test)))
    step = max(1, -(-places // MOST))
    return tuple(_changed(test, place) for place in range(0, places, step))


def _changed(test: str, place: int) -> str:
    tree = ast.parse(test)
    compare, side = _literals(tree)[place]
    wrong = ast.parse(repr(_another(ast.literal_eval(_side(compare, side)))), mode="eval").body
    if side == "left":
        compare.left = wrong
    else:
        compare.comparators[0] = wrong
    return ast.unparse(tree)


def _literals(tree: ast.AST) -> list[tuple[ast.Compare, str]]:
    """Comparisons `a == b` of asserts with a literal that can be changed, and its side."""
    found = []
    for asserted in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        compare = asserted.test
        if not (isinstance(compare, ast.Compare) and len(compare.ops) == 1):
            continue
        if isinstance(compare.ops[0], ast.Eq):
            sides = [side for side in ("right", "left") if _can_change(_side(compare, side))]
            found += [(compare, side) for side in sides[:1]]
    return found


def _side(compare: ast.Compare, side: str) -> ast.expr:
    return compare.left if side == "left" else compare.comparators[0]


def _can_change(node: ast.expr) -> bool:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return isinstance(value, (bool, int, float, str, list, tuple))


def _another(value: Any) -> Any:
    """A value like this one that doesn't equal it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if value + 1 != value else 0
    if isinstance(value, str):
        return value[:-1] if value else "a"
    if value and isinstance(value[-1], (bool, int, float, str)):
        return type(value)((*value[:-1], _another(value[-1])))
    return value[:-1] if value else type(value)((0,))
