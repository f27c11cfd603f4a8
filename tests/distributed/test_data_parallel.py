"""Groups that share the rows: the same file as one process, with any number of them, at any end."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from santagen.io.parts import part_path, part_paths
from tests.distributed.conftest import NARROW, SAMPLED
from tests.distributed.processes import TIMEOUT, Ranks, start


def errors(output: Path) -> bytes:
    return Path(f"{output}.errors.jsonl").read_bytes()


def manifest(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{output}.manifest.json").read_text())
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_groups_write_what_one_process_writes(
    prompts: Path, single: Path, output: Path, size: int
) -> None:
    ran = start(size, "generate", prompts, "-o", output, *SAMPLED, *NARROW)
    assert ran.wait() == [1] * size, ran.err  # two rows failed
    assert output.read_bytes() == single.read_bytes()
    assert errors(output) == errors(single)
    assert sorted(path.name for path in output.parent.iterdir()) == [
        "out.jsonl", "out.jsonl.errors.jsonl", "out.jsonl.manifest.json"
    ]  # fmt: skip
    mine, wanted = manifest(output), manifest(single)
    assert mine["counts"] == wanted["counts"]
    assert mine["identity"] == wanted["identity"]
    assert mine["settings"]["data_parallel_size"] == size
    for total in ("samples", "rows", "prompt_tokens", "generated_tokens"):
        assert mine["run"][total] == wanted["run"][total], total
    shares = mine["run"]["samples_by_group"]
    assert len(shares) == size and all(shares) and sum(shares) == mine["run"]["samples"]
    assert ran.err.count("2 rows failed") == 1
    assert all(not ran.text(rank) for rank in range(1, size)), ran.err


def wait_for_parts(ran: Ranks, output: Path, lines: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    part = part_path(output, 1)
    while time.monotonic() < deadline and all(p.is_alive() for p in ran.processes):
        if part.exists() and part.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.005)
    raise AssertionError(f"the part never had {lines} lines\n{ran.err}")


def test_a_killed_rank_and_a_resume_with_three(prompts: Path, single: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW)
    ran = start(2, *command)
    wait_for_parts(ran, output, 3)
    ran.processes[1].kill()
    # What torchrun does then:
    ran.processes[0].terminate()
    codes = ran.wait()
    assert codes == [2, -signal.SIGKILL], ran.err
    told = re.findall(r"^error: (.*)", ran.err, re.M)
    assert len(told) == 1 and re.fullmatch(r"The run was stopped: rank 1 .* is gone\.", told[0])
    assert "samples of this run are safe in" in ran.err
    assert ran.err.count("Go on with: santagen generate") == 1
    assert "--data-parallel-size 2" in ran.err
    assert part_paths(output)

    refused = start(3, *command)
    assert refused.wait(60) == [2, 2, 2]
    assert refused.err.count("error: ") == 1 and "--resume" in refused.err
    assert part_paths(output)

    ran = start(3, *command, "--resume")
    assert ran.wait() == [1, 1, 1], ran.err
    assert output.read_bytes() == single.read_bytes()
    assert errors(output) == errors(single)
    assert not part_paths(output)
    done = manifest(output)["run"]["samples"]
    assert 0 < done < manifest(single)["run"]["samples"]


def test_a_signal_to_all_names_no_culprit(prompts: Path, output: Path) -> None:
    ran = start(2, "generate", prompts, "-o", output, *SAMPLED, *NARROW)
    wait_for_parts(ran, output, 3)
    for process in ran.processes:
        process.terminate()
    assert ran.wait()[0] == 130, ran.err
    assert "error: " not in ran.err and ran.err.count("interrupted: ") == 1


@pytest.mark.parametrize(
    ("changes", "start_again"),
    [
        (
            {"TORCHELASTIC_RUN_ID": "none"},
            "on all 2 nodes with the same options of torchrun: torchrun ... -m santagen generate ",
        ),
        ({}, "as this run was started, on every node, with: santagen generate "),
    ],
)
def test_a_run_of_two_nodes_goes_on_as_it_was_started(
    prompts: Path, output: Path, changes: dict[str, str], start_again: str
) -> None:
    node = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **changes}
    command = ("generate", prompts, "-o", output, *SAMPLED, *NARROW)
    ran = start(2, *command, changes={0: node, 1: node})
    wait_for_parts(ran, output, 3)
    ran.processes[1].kill()
    ran.processes[0].terminate()
    assert ran.wait()[0] == 2
    line = next(line for line in ran.err.splitlines() if line.startswith("Go on "))
    assert line.startswith(f"Go on {start_again}") and line.endswith(" --resume")
    assert " -n 2 " in line and "parallel-size" not in line  # torchrun decides, and refuses --n


def test_what_is_complete_is_left_alone(prompts: Path, output: Path) -> None:
    command = ("generate", prompts, "-o", output, "--limit", "3", "--max-tokens", "4", "-q")
    assert start(1, *command).wait() == [0]
    before = output.stat().st_mtime_ns
    ran = start(2, *command, "--resume")
    assert ran.wait() == [0, 0], ran.err
    assert output.stat().st_mtime_ns == before


def test_shards_compose_with_groups(prompts: Path, single: Path, tmp_path: Path) -> None:
    lines: list[bytes] = []
    for shard in (0, 1):
        own = tmp_path / f"shard{shard}.jsonl"
        command = ("generate", prompts, "-o", own, *SAMPLED, "--shard", f"{shard}/2")
        ran = start(2, *command, "-dp", "2")
        assert set(ran.wait()) <= {0, 1}, ran.err
        lines += own.read_bytes().splitlines()
    assert sorted(lines) == sorted(single.read_bytes().splitlines())


def test_openai_batches_keep_rows_together(tmp_path: Path, output: Path) -> None:
    body = {"model": "m", "max_tokens": 8, "n": 3, "temperature": 1.0}
    requests = [
        {
            "custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
            "body": {**body, "prompt": f"def f{i}(x):"},
        }
        for i in range(8)
    ]  # fmt: skip
    batch = tmp_path / "batch.jsonl"
    batch.write_text("".join(json.dumps(request) + "\n" for request in requests))
    command = ("generate", batch, "--format", "openai-batch", "-q", *NARROW)
    alone = tmp_path / "alone.jsonl"
    assert start(1, *command, "-o", alone).wait() == [0]
    ran = start(2, *command, "-o", output)
    assert ran.wait() == [0, 0], ran.err
    assert output.read_bytes() == alone.read_bytes()
    assert manifest(output)["counts"] == manifest(alone)["counts"]
