"""Kills a run with SIGKILL at random moments, resumes it, and compares the bytes with an unbroken
run.

    python -m tests.benchmarks.kill_and_resume [PROMPTS] [--kills 200] [--max-tokens 128] [--seed 0]

Without PROMPTS it takes the small mixed run of the tests, which kills fifteen times. Ends with 1
where a byte differs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.cli.kills import kill_and_resume, mixed_run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="?")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="santagen-kills-"))
    command = mixed_run(folder)
    if arguments.prompts:
        limit = ("--max-tokens", str(arguments.max_tokens), "--ignore-eos")
        command = ["generate", arguments.prompts, "--quiet", *limit]
    started = time.monotonic()
    left: Counter[int] = Counter()
    try:
        for lines in kill_and_resume(command, folder, arguments.kills, arguments.seed):
            left[lines] += 1
            if left.total() % 10 == 0:
                print(f"{left.total()} kills, {time.monotonic() - started:.0f} s", flush=True)
    except AssertionError as error:
        print(f"after {left.total()} kills: {error}; the files are in {folder}")
        return 1
    print(f"{left.total()} kills in {time.monotonic() - started:.0f} s: all bytes equal")
    print("kills by whole lines left:", ", ".join(f"{k}: {n}" for k, n in sorted(left.items())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
