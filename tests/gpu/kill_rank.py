"""Kills one rank of a run of `santagen generate` in its middle, and waits for what is left.

Linux alone: ranks are found by their RANK in /proc, since the launcher gives each a session of its
own. Only processes that descend from the run are touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from santagen.io.parts import part_paths

GONE_SECONDS = 120.0  # after which what is left is killed, and counted
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Killed:
    """`seconds` from the kill until the last process of the run had ended; `left` had not."""

    seconds: float
    exit_code: int
    left: int
    errors: str  # what the run said


def kill_in_the_middle(
    command: Sequence[str | Path], output: Path, written: int, rank: int
) -> Killed:
    """Run `command`, and kill `rank` once OUT and its parts hold `written` bytes."""
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(command, stderr=said)
        try:
            while bytes_in(output) < written:
                if run.poll() is not None:
                    said.seek(0)
                    raise RuntimeError(f"the run ended before the kill:\n{said.read()}")
                time.sleep(POLL_SECONDS)
            every = [run.pid, *descendants(run.pid)]
            os.kill(rank_among(every, rank), signal.SIGKILL)
            seconds, left = wait_until_gone(run, every)
        finally:
            stop(run)
        said.seek(0)
        return Killed(seconds, run.returncode, len(left), said.read())


def bytes_in(output: Path) -> int:
    """What a run has written so far."""
    files = [path for path in (output, *part_paths(output)) if path.exists()]
    return sum(path.stat().st_size for path in files)


def descendants(pid: int) -> list[int]:
    """The living processes that `pid` started, and those that these did."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if after_name[0] != "Z":
            children.setdefault(int(after_name[1]), []).append(int(folder.name))
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, [])]
        found += fresh
    return found


def rank_among(pids: Sequence[int], rank: int) -> int:
    """The first process whose environment says RANK=`rank`: what it started comes after it."""
    for pid in filter(is_alive, pids):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise RuntimeError(f"none of {len(pids)} processes is rank {rank}")


def wait_until_gone(run: subprocess.Popen[bytes], pids: Sequence[int]) -> tuple[float, list[int]]:
    """(seconds until all had ended, those that had not in GONE_SECONDS and were killed)."""
    start = time.perf_counter()
    left = list(pids)
    while left and time.perf_counter() - start < GONE_SECONDS:
        run.poll()
        left = [pid for pid in left if is_alive(pid)]
        time.sleep(POLL_SECONDS)
    taken = time.perf_counter() - start
    kill(left)
    return taken, left


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(run: subprocess.Popen[bytes]) -> None:
    """End what still runs, after a fault in here."""
    if run.poll() is None:
        kill([*descendants(run.pid), run.pid])
    run.wait()


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
