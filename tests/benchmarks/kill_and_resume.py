"""Kills a run with SIGKILL at random moments, resumes it, and compares the bytes with an unbroken
run.

    python -m tests.benchmarks.kill_and_resume PROMPTS [--kills 20] [--max-tokens 128] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    whole, broken = folder / "whole.jsonl", folder / "broken.jsonl"
    command = [
        *(sys.executable, "-m", "santagen", "generate", arguments.prompts, "-q"),
        *("--max-tokens", str(arguments.max_tokens), "--ignore-eos"),
    ]
    start = time.perf_counter()
    subprocess.run([*command, "-o", str(whole)], check=True)
    length = time.perf_counter() - start
    print(f"unbroken run: {length:.1f} s, {whole.stat().st_size:,} bytes", flush=True)
    chance = random.Random(arguments.seed)
    kills = 0
    while kills < arguments.kills:
        start = time.perf_counter()
        process = subprocess.Popen([*command, "-o", str(broken), "--resume"])
        try:
            code = process.wait(chance.uniform(0.1, 0.7) * length)
            print(f"ended by itself with {code} after {kills} kills: starting over", flush=True)
            length = min(length, time.perf_counter() - start)
            for file in folder.glob("broken.jsonl*"):
                file.unlink()
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            rows = len(broken.read_bytes().splitlines()) if broken.exists() else 0
            print(f"kill {kills}: {rows} whole or torn lines so far", flush=True)
    code = subprocess.run([*command, "-o", str(broken), "--resume"], check=False).returncode
    same = broken.read_bytes() == whole.read_bytes()
    print(f"after {kills} kills: exit code {code}, bytes {'equal' if same else 'DIFFER'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
