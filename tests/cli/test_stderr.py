"""Messages that can't be written: the run, its rows and its exit code are as with a good stderr."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from santagen.cli import app, progress
from santagen.cli.console import Console
from santagen.cli.progress import Progress, Tally
from santagen.cli.stderr import BestEffort, best_effort
from tests.cli.helpers import PROGRAM

FULL = Path("/dev/full")
FEW = ("--max-tokens", "3")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


class Failing(io.StringIO):
    """Takes `good` writes, then fails as a terminal or a pipe that has gone."""

    def __init__(self, error: type[Exception] = BrokenPipeError, good: int = 0) -> None:
        super().__init__()
        self.error, self.good, self.tried = error, good, 0

    def write(self, text: str) -> int:
        self.tried += 1
        if self.tried > self.good:
            raise self.error
        return super().write(text)


def on_full(*words: str | Path) -> int:
    with FULL.open("w") as full:
        command = [*PROGRAM, *map(str, words)]
        return subprocess.run(command, stderr=full, capture_output=False, timeout=120).returncode


@needs_full
@pytest.mark.parametrize("groups", ["1", "2"])
def test_a_full_stderr_ends_no_run(prompts: Path, output: Path, groups: str) -> None:
    with prompts.open("a") as more:
        more.write("not a row\n")
    code = on_full("generate", prompts, "-o", output, *FEW, "--device", "cpu", "-dp", groups)
    assert code == 1  # a row failed, and nothing else
    assert output.read_bytes().count(b"\n") == 3


@needs_full
@pytest.mark.parametrize(
    "words",
    [
        (), ("--bogus",), ("generate",), ("generate", "--bogus"), ("generate", "absent.jsonl"),
        ("inspect", "absent"), ("eval", "mini"), ("generate", "-", "--max-tokens", "x"),
    ],
)  # fmt: skip
def test_a_full_stderr_leaves_a_fault_its_exit_code(words: tuple[str, ...]) -> None:
    assert on_full(*words) == 2


@needs_full
def test_a_full_stderr_lets_a_report_end() -> None:
    from santagen.checkpoint.source import bundled_model

    assert on_full("inspect", bundled_model()) == 0


def test_a_reader_that_has_gone_ends_no_run(prompts: Path, output: Path) -> None:
    reader, writer = os.pipe()
    words = [*PROGRAM, "generate", str(prompts), "-o", str(output), *FEW]
    with subprocess.Popen(words, stderr=writer) as child:
        os.close(writer)
        assert os.read(reader, 1)  # the first message is there: what follows meets nobody
        os.close(reader)
        assert child.wait(120) == 0
    assert output.read_bytes().count(b"\n") == 3


def test_without_stderr_nothing_turns_to_stdout() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *PROGRAM], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("error", [OSError, BrokenPipeError])
def test_a_stream_goes_silent_at_its_first_fault(error: type[Exception]) -> None:
    stream = Failing(error, good=1)
    quiet = BestEffort(stream)
    for text in ("a", "b", "c"):
        assert quiet.write(text) == 1
        quiet.flush()
    quiet.writelines(["d"])
    assert (stream.getvalue(), stream.tried) == ("a", 2)


def test_a_stream_that_is_full_for_now_is_tried_again() -> None:
    stream = Failing(BlockingIOError)
    quiet = BestEffort(stream)
    quiet.write("a")
    stream.good = 9
    quiet.write("b")
    assert stream.getvalue() == "b"


def test_a_closed_stream_is_no_terminal_and_takes_anything() -> None:
    stream = io.StringIO()
    quiet = BestEffort(stream)
    stream.close()
    quiet.write("a")
    quiet.flush()
    assert not quiet.isatty()


def test_other_faults_are_not_hidden() -> None:
    with pytest.raises(UnicodeError):
        BestEffort(Failing(UnicodeError)).write("a")


def test_whatever_speaks_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Failing()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")

    def speak(*_: Any, **__: Any) -> int:
        Console().warn("a")
        logging.getLogger("c").warning("c")
        with Progress(Tally(1, 1), lambda: 0):
            pass
        raise RuntimeError("b")

    monkeypatch.setattr(app, "app", speak)
    assert app.run_program([]) == 2
    assert stream.tried == 1
    assert cast(Any, sys.stderr) is stream  # as it was before


def test_the_stream_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with best_effort():
        print("a", file=sys.stderr)
    assert cast(Any, sys.stderr) is None
