"""What bounds a run of millions of rows on hundreds of workers: the queue, the reading, the merge.

    python -m tests.benchmarks.simulate_scaling [--rows 10000000] [--workers 512] [--merge-rows N]

The queue runs with the program's own chunks and synthetic step times; its atomic add, the input's
lines and the merge are timed for real, the last two on fewer rows. No model runs.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from santagen.io.parts import Lines, merged
from santagen.io.prompts import read_prompts
from santagen.parallel.row_queue import chunk_rows, draw_rows

RATE = 30_000.0  # tokens a second of one worker with its rows full
MAX_NUM_SEQS = 1024
STEP = 1.5e-3  # seconds of a step with few rows left
MEAN_TOKENS, LONGEST = 256, 2048
SLOWEST = 0.5  # of the usual rate: one worker in a hundred is that slow
LINE_BYTES = 600


@dataclass(frozen=True)
class Outcome:
    """Seconds from the first draw to the last token, of all workers and at best."""

    seconds: float
    ideal: float
    draws: int

    @property
    def efficiency(self) -> float:
        return self.ideal / self.seconds


def lengths(rows: int, seed: int = 0) -> NDArray[np.int64]:
    """New tokens of each row: many short, some very long, and the long ones come together."""
    rng = np.random.default_rng(seed)
    drawn = rng.lognormal(np.log(MEAN_TOKENS) - 0.5, 1.0, rows)
    drawn[rows // 2 : rows // 2 + rows // 50] *= 4  # one source of the input that writes a lot
    return np.clip(drawn, 1, LONGEST).astype(np.int64)


def rates(workers: int, seed: int = 1) -> NDArray[np.float64]:
    """Tokens a second of each worker."""
    rng = np.random.default_rng(seed)
    found = RATE * rng.normal(1.0, 0.03, workers).clip(0.9, 1.1)
    found[rng.permutation(workers)[: workers // 100]] *= SLOWEST
    return found


def shared_queue(tokens: NDArray[np.int64], speed: NDArray[np.float64]) -> Outcome:
    """Each worker draws its next chunk when one of those that it holds is done."""
    rows, workers = len(tokens), len(speed)
    chunk = chunk_rows(rows, workers, MAX_NUM_SEQS, 1)
    before = np.concatenate([[0], np.cumsum(tokens)])
    held: list[deque[tuple[int, int]]] = [deque() for _ in range(workers)]
    at_once = max(1, MAX_NUM_SEQS // chunk)
    # At first all draw in turn until their rows are full.
    turns = [(0.0, turn, worker) for turn in range(at_once) for worker in range(workers)]
    heapq.heapify(turns)
    drawn = draws = 0
    ends = np.zeros(workers)
    while drawn < rows:
        now, _, worker = heapq.heappop(turns)
        stop = min(drawn + chunk, rows)
        held[worker].append((drawn, stop))
        ends[worker] += float(before[stop] - before[drawn]) / speed[worker]
        drawn, draws = stop, draws + 1
        if len(held[worker]) >= at_once:
            first, last = held[worker].popleft()
            done = now + float(before[last] - before[first]) / speed[worker]
            heapq.heappush(turns, (done, at_once, worker))
    for worker, chunks in enumerate(held):
        last_rows = [tokens[first:last] for first, last in chunks]
        if last_rows:
            ends[worker] += lost_while_ending(np.concatenate(last_rows), speed[worker])
    return Outcome(float(ends.max()), float(tokens.sum() / speed.sum()), draws)


def equal_shares(tokens: NDArray[np.int64], speed: NDArray[np.float64]) -> Outcome:
    """Every worker takes as many rows as the next, cut from the input in order."""
    ends = [
        float(piece.sum() / rate + lost_while_ending(piece[-MAX_NUM_SEQS:], rate))
        for piece, rate in zip(np.array_split(tokens, len(speed)), speed, strict=True)
    ]
    return Outcome(max(ends), float(tokens.sum() / speed.sum()), len(speed))


def lost_while_ending(tokens: NDArray[np.int64], rate: float) -> float:
    """Seconds by which the last rows of a worker, each somewhere on its way, outlast their work.

    The batch shrinks as they end, and a step of few rows takes as long as one of a hundred.
    """
    left = np.sort(tokens * np.random.default_rng(3).random(len(tokens)))
    running = np.arange(len(left), 0, -1)
    steps = np.diff(left, prepend=0.0)
    return float((steps * np.maximum(STEP, running / rate)).sum() - left.sum() / rate)


def seconds_of_an_add(calls: int = 2000) -> float:
    """One draw from a store on this machine."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    numbers = np.arange(calls)
    start = time.perf_counter()
    assert sum(1 for _ in draw_rows(numbers, 1, lambda n: store.add("drawn", n))) == calls
    return (time.perf_counter() - start) / calls


def seconds_of_reading(rows: int, folder: Path) -> tuple[float, float]:
    """(validating a row, passing over a row that another worker generates)."""
    path = folder / "rows.jsonl"
    text = "def f(x):\\n    return x + 1\\n" * 10
    path.write_text("".join(f'{{"task_id": "t/{i}", "prompt": "{text}"}}\n' for i in range(rows)))
    start = time.perf_counter()
    prompts = read_prompts([str(path)])
    middle = time.perf_counter()
    assert sum(1 for _ in prompts.select([rows - 1])) == 1
    return (middle - start) / rows, (time.perf_counter() - middle) / rows


def seconds_of_merging(rows: int, workers: int, folder: Path) -> float:
    """One row of the merge: from `workers` parts, each in the order in which its rows ended."""
    rng = np.random.default_rng(2)
    owner = np.repeat(rng.integers(0, workers, -(-rows // 64)), 64)[:rows]
    line = b"x" * (LINE_BYTES - 1) + b"\n"
    parts = []
    for worker in range(workers):
        numbers = rng.permutation(np.flatnonzero(owner == worker)).astype(np.int64)
        path = folder / f"part{worker}"
        path.write_bytes(line * len(numbers))
        offsets = np.arange(len(numbers)) * LINE_BYTES
        sizes = np.full(len(numbers), LINE_BYTES)
        parts.append(Lines(path, np.stack([numbers, np.zeros_like(numbers), offsets, sizes])))
    start = time.perf_counter()
    with (folder / "merged").open("wb", buffering=1 << 20) as file:
        file.writelines(merged(parts))
    seconds = time.perf_counter() - start
    assert (folder / "merged").stat().st_size == rows * LINE_BYTES
    return seconds / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--merge-rows", type=int, default=500_000)
    arguments = parser.parse_args()
    rows = arguments.rows
    tokens = lengths(rows)
    print(f"{rows:,} rows, {tokens.mean():.0f} new tokens each, {RATE:,.0f} tokens/s a worker")
    titles = ("workers", "ideal s", "queue s", "of ideal", "equal shares", "draws")
    print(" ".join(f"{title:>12}" for title in titles))
    for workers in (2, 8, 64, arguments.workers):
        speed = rates(workers)
        queue, shares = shared_queue(tokens, speed), equal_shares(tokens, speed)
        print(
            f"{workers:12} {queue.ideal:12,.0f} {queue.seconds:12,.0f} {queue.efficiency:12.1%} "
            f"{shares.efficiency:12.1%} {queue.draws:12,}"
        )
    add = seconds_of_an_add()
    with tempfile.TemporaryDirectory() as name:
        validate, skip = seconds_of_reading(100_000, Path(name))
        merge = seconds_of_merging(arguments.merge_rows, arguments.workers, Path(name))
    print(f"one draw {add * 1e6:.0f} us: {queue.draws * add:.1f} s of the store's time in all")
    print(f"rank 0 validates {validate * 1e6:.1f} us a row: {rows * validate:.0f} s")
    print(f"a group passes over {skip * 1e6:.2f} us a row: {rows * skip:.0f} s, while it generates")
    print(f"rank 0 merges {merge * 1e6:.1f} us a row of {LINE_BYTES} bytes: {rows * merge:.0f} s")


if __name__ == "__main__":
    main()
