"""A small task and one pool of workers for all tests that need one."""

# ruff: noqa: E501
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import SantagenError
from santagen.evaluation.execution import Pool
from santagen.evaluation.tasks import Task, load_task

ROWS: list[dict[str, Any]] = [
    {
        "task_id": "Mini/0",
        "prompt": 'def double(n):\n    """Twice n."""\n',
        "entry_point": "double",
        "canonical_solution": "    return 2 * n\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
    },
    {
        "task_id": "Mini/1",
        "prompt": 'def first(items):\n    """The first item."""\n    ',
        "entry_point": "first",
        "canonical_solution": "return items[0]\n",
        "test": "def check(candidate):\n    assert candidate([3, 1]) == 3\n    assert candidate('ab') == 'a'\n",
    },
    {
        "task_id": "Mini/2",
        "prompt": 'def code(s):\n    return s + \'x\'\n\ndef decode(s):\n    """Undo code."""\n',
        "entry_point": "decode",
        "canonical_solution": "    return s[:-1]\n",
        "test": "def check(candidate):\n    assert candidate(code('ab')) == 'ab'\n",
    },
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "problems.jsonl", ROWS)


@pytest.fixture
def task(problem_file: Path) -> Task:
    return load_task("mini", problem_file)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Whatever tier this machine has."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the sandbox is Linux's")
    try:
        made = Pool(workers=2, unsafe=True)
    except SantagenError as error:
        pytest.skip(error.message)
    with made:
        yield made
