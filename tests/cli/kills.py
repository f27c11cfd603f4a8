"""Kills a run with SIGKILL at random moments, resumes it, and compares what it ends with."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cli.helpers import write_jsonl
from tests.cli.preloaded import Preloaded

# Greedy and drawn rows, stops, several samples, and a row that fails.
ROWS = [
    *({"id": f"greedy {n}", "prompt": f"def f{n}(x):\n    return"} for n in range(4)),
    {"id": "bad", "prompt": ""},
    *(
        {"id": n, "prompt": f"class C{n}:\n", "temperature": 0.9, "n": 3, "stop": ["\n\n"]}
        for n in range(3)
    ),
    {"id": "infilling", "prefix": "def f(a, b):\n    return ", "suffix": "\n", "temperature": 0.5},
]
FEW_AT_ONCE = ("--max-num-seqs", "2", "--max-tokens", "16", "--device", "cpu", "--quiet")


def mixed_run(folder: Path) -> list[str]:
    """The command of a run of about a second, without its output."""
    prompts = write_jsonl(folder / "prompts.jsonl", ROWS)
    return ["generate", str(prompts), *FEW_AT_ONCE]


def kill_and_resume(
    command: Sequence[str], folder: Path, kills: int, seed: int = 0
) -> Iterator[int]:
    """After each of `kills` kills, the whole lines that it left of the output.

    A run that is complete before its kill is compared with an unbroken one and begun anew. Raises
    AssertionError for a byte or a file too many or too few.
    """
    chance = random.Random(seed)
    whole, broken = folder / "whole.jsonl", folder / "broken.jsonl"
    with Preloaded(folder / "messages") as program:
        started = time.monotonic()
        program.start(*command, "-o", whole)
        usual = program.wait()
        length = time.monotonic() - started
        assert usual in (0, 1), program.log.read_text()
        left = kills
        while left:
            program.start(*command, "-o", broken, "--resume")
            code = program.wait(chance.uniform(0, length))
            if code is None:
                code = program.kill()
            if code == -signal.SIGKILL:
                left -= 1
                yield check_lines(broken, whole)
                continue
            assert code == usual, program.log.read_text()
            check_equal(whole, broken)
            for file in folder.glob("broken.jsonl*"):
                file.unlink()
        program.start(*command, "-o", broken, "--resume")
        assert program.wait() == usual, program.log.read_text()
        check_equal(whole, broken)


def check_lines(broken: Path, whole: Path) -> int:
    """The number of whole lines; each must be one of the unbroken run's."""
    if not broken.exists():
        return 0
    *lines, torn = broken.read_bytes().split(b"\n")
    wanted = whole.read_bytes().split(b"\n")
    assert set(lines) <= set(wanted) and len(set(lines)) == len(lines)
    assert not torn or any(line.startswith(torn) for line in wanted)
    return len(lines)


def check_equal(whole: Path, broken: Path) -> None:
    """The same samples and errors, a complete manifest, and nothing else left behind."""
    for ending in ("", ".errors.jsonl"):
        files = [Path(f"{path}{ending}") for path in (whole, broken)]
        first, second = (file.read_bytes() if file.exists() else b"" for file in files)
        assert first == second, f"the bytes of {files[1]} differ"
    assert json.loads(Path(f"{broken}.manifest.json").read_text())["complete"] is True
    known = {f"broken.jsonl{end}" for end in ("", ".errors.jsonl", ".manifest.json")}
    assert {file.name for file in broken.parent.glob("broken.jsonl*")} <= known
