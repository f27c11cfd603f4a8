"""Data that is written whole: to a file in one step, to standard output, or refused in words."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from santagen.cli import output
from tests.cli.helpers import Cli

RESULT: dict[str, Any] = {
    "format_version": 1, "task": "mini", "complete": True, "pass_at_k": {}, "missing": [],
    "problems": {"Mini/0": {"n": 1, "c": 1, "classes": {"passed": 1}}}, "classes": {"passed": 1},
}  # fmt: skip


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    return path


@pytest.mark.parametrize("flag", ["-o of report", "-o", "--prompts-out"])
def test_a_refused_file_is_told_with_its_option(
    cli: Cli, result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    def refuse(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "write_atomically", refuse)
    place = tmp_path / "place"
    ran = {
        "-o of report": lambda: cli("report", result, "-o", place),
        "-o": lambda: cli("eval", "--compare", result, result, "-o", place),
        "--prompts-out": lambda: cli("eval", "mini", "--prompts-out", place),
    }[flag]()
    assert ran.code == 2 and not place.exists()
    said = f"error: {flag.split()[0]} {place} can't be written: No space left on device."
    assert said in ran.err and "fault in santagen" not in ran.err


def test_a_dash_is_standard_output(cli: Cli, result: Path) -> None:
    ran = cli("eval", "--compare", result, result, "-o", "-", "-q")
    assert (ran.code, json.loads(ran.out)["problems"]) == (0, 1), ran.err
    assert cli("report", result, "-o", "-", "-q").out.startswith("<!doctype html>")


@pytest.mark.parametrize("command", ["generate", "eval", "doctor"])
def test_show_config_is_rank_zero_s(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert cli(command, "--show-config").out.startswith(f"[{command}]\n")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert cli(command, "--show-config")[:2] == (0, "")
