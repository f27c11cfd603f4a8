"""Runs the program as a shell would, in this process or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from santagen.cli.app import run_program

PROGRAM = [sys.executable, "-m", "santagen"]
TIMEOUT = 120


class Ran(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The records on stdout; they come as they end, so they are sorted here by id and index."""
        found = [json.loads(line) for line in self.out.splitlines()]
        return sorted(found, key=lambda s: (str(s.get("task_id", "")), s.get("index", 0)))


class Cli:
    """Calls `santagen` in this process (quick: torch is imported once for all tests)."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str | Path) -> Ran:
        self._capfd.readouterr()
        code = run_program([str(argument) for argument in arguments])
        return Ran(code, *self._capfd.readouterr())

    def generate(self, *arguments: str | Path) -> Ran:
        return self("generate", *arguments)


def process(*arguments: str | Path, **settings: Any) -> Ran:
    """Run it as a process of its own."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        **settings,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
