"""Fixtures of the command line's tests: the program, and a small file of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import Cli, write_jsonl

ROWS = [
    {"task_id": "add", "prompt": "def add(a, b):\n    return", "level": 1},
    {"task_id": "square", "prompt": "def square(x):\n    return", "level": 2},
    {"task_id": "is_even", "prompt": "def is_even(n):\n    return", "level": 3},
]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "prompts.jsonl", ROWS)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"
