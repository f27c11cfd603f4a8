"""A run of very many short rows: its peak memory, and how soon it shows that it gets on.

    python -m tests.benchmarks.million_rows [--rows 1000000] [--max-tokens 1] [--model DIR]

Runs on the CPU, by default one layer of random weights with the bundled tokenizer: what is measured
is the host's work per row, not the model's. Says the seconds until the first message, the first
progress line and the first sample, the peak resident memory and the rate. Then the output is cut to
a share of its lines and the run resumed, which must end with the same bytes. Fails where the peak
is above `--limit` GB and the weights.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from santagen.checkpoint.source import bundled_model
from tests.fixture_writer import Spec, write_checkpoint

SHAPE = {"vocab_size": 4096, "n_positions": 256, "n_layer": 1}
STEP_SECONDS = 0.1
PROGRESS = re.compile(r"\d+/\d+ samples")


def small_model(folder: Path) -> Path:
    """A model whose products cost next to nothing, which reads text."""
    folder.mkdir()
    write_checkpoint(folder, Spec(config=SHAPE))
    for file in bundled_model().glob("tokenizer*.json"):
        shutil.copy(file, folder)
    return folder


def write_rows(path: Path, rows: int) -> None:
    with path.open("w", encoding="ascii") as file:
        file.writelines(f'{{"prompt": "def f{number}(x):"}}\n' for number in range(rows))


def peak_bytes(pid: int) -> int:
    """The largest resident set so far of a process that runs."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure(command: list[str], output: Path) -> int:
    """Run it; prints what was seen and returns the peak in bytes."""
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stderr is not None
    seen: dict[str, float] = {}
    lines: list[str] = []

    def listen() -> None:
        for line in child.stderr or ():
            seconds = time.monotonic() - started
            seen.setdefault("first message", seconds)
            if PROGRESS.search(line):
                seen.setdefault("first progress line", seconds)
            lines.append(line)

    listener = threading.Thread(target=listen)
    listener.start()
    peak = 0
    while child.poll() is None:
        peak = max(peak, peak_bytes(child.pid))
        if "first sample" not in seen and output.exists() and output.stat().st_size:
            seen["first sample"] = time.monotonic() - started
        time.sleep(STEP_SECONDS)
    listener.join()
    print("".join(lines[-3:]), end="")
    for name, seconds in sorted(seen.items(), key=lambda item: item[1]):
        print(f"{name} after {seconds:.1f} s")
    print(
        f"exit code {child.returncode} after {time.monotonic() - started:.0f} s, "
        f"peak {peak / 1e9:.2f} GB",
        flush=True,
    )
    if child.returncode:
        raise SystemExit(f"the run failed: {lines[-1] if lines else 'no message'}")
    return peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--max-tokens", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.5, help="GB beside the model's weights")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--resume-at", type=float, default=0.9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="santagen-rows-") as name:
        prompts, output = Path(name) / "rows.jsonl", Path(name) / "out.jsonl"
        model = arguments.model or small_model(Path(name) / "model")
        weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
        write_rows(prompts, arguments.rows)
        command = [
            *(sys.executable, "-m", "santagen", "generate", str(prompts), "-o", str(output)),
            *("-m", str(model), "--device", "cpu", "--max-tokens", str(arguments.max_tokens)),
        ]
        peak = measure(command, output)
        whole = output.read_bytes()
        lines = whole.count(b"\n")
        keep = int(lines * arguments.resume_at)
        cut = b"".join(whole.splitlines(keepends=True)[:keep])
        output.write_bytes(cut + b'{"torn')
        peak = max(peak, measure([*command, "--resume"], output))
        same = output.read_bytes() == whole
        print(f"{lines:,} lines; after the resume the bytes {'are equal' if same else 'DIFFER'}")
    within = peak - weights <= arguments.limit * 1e9
    verdict = "within" if within else "ABOVE"
    print(f"peak {peak / 1e9:.2f} GB, {verdict} {arguments.limit} GB and the weights")
    return 0 if same and within else 1


if __name__ == "__main__":
    raise SystemExit(main())
