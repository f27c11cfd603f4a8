"""The arithmetic behind the scaling tables, and what watches the runs that they are made of."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from santagen.bench.card import model_card
from santagen.bench.limit import Limit
from santagen.checkpoint.random_weights import random_model
from tests.distributed.conftest import NARROW, SAMPLED
from tests.distributed.processes import start
from tests.gpu import kill_rank
from tests.gpu.decode_steps import Trace, compare
from tests.gpu.merge_clock import MergeClock
from tests.gpu.scaling_table import (
    division_row,
    divisions,
    idle_shares,
    parallel_options,
    step_row,
    tensor_parallel_sizes,
)
from tests.gpu.step_bound import H200, Storage, step_bound

STARCODER = random_model("starcoder").config
ROWS: list[Trace] = [[(7, -1.0, [(7, -1.0), (9, -1.5)]), (3, -0.5, [(3, -0.5), (4, -2.0)])]]


def bound(batch: int, ranks: int = 1, sum_seconds: float = 0.0, **changes: object) -> float:
    config = replace(STARCODER, **changes)  # type: ignore[arg-type]
    return step_bound(
        config, H200, Storage(), batch=batch, context=160, ranks=ranks, sum_seconds=sum_seconds
    )


@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_one_rank_has_the_bound_that_bench_prints(batch: int) -> None:
    card = model_card(STARCODER, "", "bfloat16", 2)
    limit = Limit(card, H200, 2 * card.products)
    assert bound(batch) == pytest.approx(limit.decode_step(batch, 160), rel=1e-9)


def test_ranks_share_the_weights_but_not_the_one_key_value_head() -> None:
    for batch in (1, 1024):
        assert bound(batch) / 2 < bound(batch, 2) < bound(batch) * 0.65
        many = {"multi_query": False}
        assert bound(batch, 2, **many) == pytest.approx(bound(batch, **many) / 2)
    alone = bound(64, 2)
    assert bound(64, 2, 1e-5) == pytest.approx(alone + (2 * STARCODER.n_layer + 1) * 1e-5)
    assert bound(64, 1, 1e-5) == bound(64)


def test_packed_weights_are_read_in_a_quarter_of_the_time_and_multiplied_in_the_same() -> None:
    few, many = (
        step_bound(STARCODER, H200, Storage.gptq(4, 128), batch=batch, context=160) / bound(batch)
        for batch in (1, 1024)
    )
    assert 0.25 < few < 0.30 and many == pytest.approx(1)


def test_divisions() -> None:
    assert tensor_parallel_sizes(8) == [1, 2, 4, 8] and tensor_parallel_sizes(2) == [1, 2]
    assert divisions(8) == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 4)]
    assert divisions(2) == [(1, 1), (1, 2), (2, 1)] and divisions(1) == [(1, 1)]
    assert parallel_options(1, 1) == [] and parallel_options(1, 8) == ["-dp", "8"]
    assert parallel_options(2, 4) == ["-tp", "2", "-dp", "4"]


def test_lines_of_the_tables() -> None:
    one = {"batch": 64, "seconds": 0.010, "bound": 0.006}
    two = {"batch": 64, "seconds": 0.008, "bound": 0.004}
    assert step_row(one, two) == ("8.000", "8,000", "4.000", "50%", "1.25", "1.50")
    run = {"tokens": 1000, "whole": 30.0, "merge_seconds": 0.25}
    alone = {**run, "tensor_parallel": 1, "groups": 1, "seconds": 8.0, "seconds_by_group": [8.0]}
    shared = {**run, "tensor_parallel": 2, "groups": 2, "seconds": 2.5}
    line = division_row(alone, {**shared, "seconds_by_group": [2.5, 2.0]})
    assert line == ("4", "2", "2", "400", "0.800", "2.50", "0.250", "30.0", "0.0% 20.0%")
    assert idle_shares([3.0, 1.5], 2.0) == [0.0, 0.25]


def test_rows_are_compared_up_to_where_they_part() -> None:
    assert compare(ROWS, json.loads(json.dumps(ROWS))) == (0.0, 0)
    nearby: list[Trace] = [[(7, -1.25, []), (3, -0.5, [])]]
    assert compare(ROWS, nearby) == (0.25, 0)
    parted: list[Trace] = [[(9, -1.1, []), (1, -70.0, [])]]
    assert compare(ROWS, parted) == (0.25, 1)  # half the gap, and nothing after it
    elsewhere: list[Trace] = [[(5, -1.0, []), (3, -0.5, [])]]
    assert compare(ROWS, elsewhere)[0] > 40


def test_groups_record_how_long_they_were_busy(prompts: Path, output: Path) -> None:
    ran = start(2, "generate", prompts, "-o", output, *SAMPLED, *NARROW)
    assert ran.wait() == [1, 1], ran.err
    run = json.loads(Path(f"{output}.manifest.json").read_text())["run"]
    busy = run["seconds_by_group"]
    assert len(busy) == 2 and min(busy) > 0
    assert busy[0] <= run["generation_seconds"]


def test_a_merge_is_timed_from_outside(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with MergeClock(output) as clock:
        time.sleep(0.02)
        growing = tmp_path / "out.jsonl.tmp"
        growing.write_text("")
        time.sleep(0.1)
        growing.rename(output)
        time.sleep(0.1)
    assert 0.05 < clock.seconds < 0.2
    with MergeClock(output) as idle:
        time.sleep(0.01)
    assert idle.seconds == 0


# Two ranks in sessions of their own, as the launcher starts them. When one ends, so does it all.
LAUNCHER = """
import os, subprocess, sys, time
from pathlib import Path
ranks = [
    subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": str(k)}, start_new_session=True)
    for k in range(2)
]
Path(sys.argv[1]).write_text("x" * 60)
Path(sys.argv[1] + ".part-00001").write_text("x" * 60)
code = ranks[1].wait()
print("rank 1 ended by", code, file=sys.stderr)
if sys.argv[2] == "stop":
    ranks[0].terminate()
    ranks[0].wait()
sys.exit(3)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("manners", ["stop", "leave"])
def test_one_rank_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manners: str) -> None:
    monkeypatch.setattr(kill_rank, "GONE_SECONDS", 20.0 if manners == "stop" else 1.0)
    monkeypatch.delenv("RANK", raising=False)
    others = set(kill_rank.descendants(os.getpid()))
    output = tmp_path / "out.jsonl"
    command: list[str | Path] = [sys.executable, "-c", LAUNCHER, output, manners]
    killed = kill_rank.kill_in_the_middle(command, output, 100, 1)
    assert killed.errors == f"rank 1 ended by {-signal.SIGKILL}\n"
    assert killed.exit_code == 3
    assert killed.left == (0 if manners == "stop" else 1)  # and it was killed
    assert killed.seconds < 15
    assert set(kill_rank.descendants(os.getpid())) == others


def test_a_run_that_ends_before_the_kill_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(RuntimeError, match="no such model"):
        kill_rank.kill_in_the_middle(command, tmp_path / "out.jsonl", 100, 1)
