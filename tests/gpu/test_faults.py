"""Faults of a GPU under `santagen generate`: numbers that are not finite, memory that runs out, a
device that is lost.

Each run is a process of its own that brings the fault about for real: torch's allocator refuses,
a kernel's assertion fails. What torch says in such a case is played on the CPU in
tests/cli/test_device_faults.py and tests/engine/test_device_faults.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.helpers import Ran, process, read_jsonl, write_jsonl
from tests.gpu.random_model import SANTACODER, write_random_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SECONDS = 300
POISONED = 64  # the position whose embedding is not a number
MIB = 1 << 20

BEGIN = """
import sys, torch
from santagen.cli.app import run_program
from santagen.engine.cuda_graph import DecodeGraphs
from santagen.engine.model_runner import ModelRunner

def leave(room):
    '''From now on torch finds `room` bytes beside what is in use.'''
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    most = torch.cuda.memory_reserved() + room
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / torch.cuda.mem_get_info()[1]))

def of_the_run(step):
    '''Not of the rehearsal before it, which has one row.'''
    return step.size > 1

launch, seen = ModelRunner.launch, [0]
"""
END = """
sys.exit(run_program(sys.argv[1:]))
"""
# While the first graph is recorded there is no memory: a real refusal of the allocator.
NO_MEMORY_TO_CAPTURE = """
make = DecodeGraphs.__init__
def scarce(self, forward, largest):
    def greedy(size):
        if torch.cuda.is_current_stream_capturing() and not seen[0]:
            seen[0] = 1
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return forward(size)
    make(self, greedy, largest)
DecodeGraphs.__init__ = scarce
"""
# From the first launch of that kind on, less is left than it needs.
NO_MEMORY_TO_LAUNCH = """
def scarce(self, step):
    if of_the_run(step) and not seen[0] and ({when}):
        seen[0] = 1
        leave({room})
    return launch(self, step)
ModelRunner.launch = scarce
"""
LOST = """
def losing(self, step):
    seen[0] += of_the_run(step)
    if seen[0] == {launch}:
        torch._assert_async(torch.zeros(1, dtype=torch.bool, device="cuda"))
    return launch(self, step)
ModelRunner.launch = losing
"""


@pytest.fixture(scope="session")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that gives no numbers for a row that comes to position `POISONED`."""
    shape = {**SANTACODER, "n_layer": 2, "vocab_size": 1000}
    model = write_random_model(tmp_path_factory.mktemp("poisoned") / "model", shape, std=0.05)
    weights = load_file(model / "model.safetensors")
    weights["transformer.wpe.weight"][POISONED] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


def rows(count: int, length: int, **fields: Any) -> list[dict[str, Any]]:
    """Prompts of so many ids, no two alike from their second id on."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 1000, (count, length), generator=generator)
    ids[:, 0], ids[:, 1] = torch.arange(count) % 1000, torch.arange(count) // 1000
    return [
        {"id": f"row {number}", "prompt_token_ids": row, **fields}
        for number, row in enumerate(ids.tolist())
    ]


def with_fault(fault: str, *arguments: str | Path) -> Ran:
    """The program with a fault built in, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + fault + END, *map(str, arguments)],
        capture_output=True, encoding="utf-8", timeout=SECONDS,
    )  # fmt: skip
    print(done.stderr)
    return Ran(done.returncode, done.stdout, done.stderr)


def errors_of(ran: Ran) -> list[str]:
    for unreadable in ("Traceback (most recent", "fault in santagen", "terminate called"):
        assert unreadable not in ran.err, ran.err
    return re.findall(r"^error: .*$", ran.err, re.MULTILINE)


# -- numbers that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--enforce-eager",)])
def test_a_row_that_is_not_finite_ends_the_run_and_the_others_are_safe(
    poisoned_model: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    given = rows(40, 10, max_tokens=8)
    given.insert(20, {"id": "bad", "prompt_token_ids": list(range(9, 19)), "max_tokens": 100})
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    ran = process(
        "generate", prompts, "-m", poisoned_model, "-o", output, "--ignore-eos", "--token-ids",
        *flags,
    )  # fmt: skip
    (error,) = errors_of(ran)
    assert ran.code == 2
    # Token 0 is drawn where position 9 is fed, the last one of its prompt.
    assert f"not finite (NaN or infinite logits) at row 'bad', token {POISONED - 9}" in error
    assert "--dtype" in ran.err and "40 of 41 samples of this run are safe" in ran.err
    found = read_jsonl(output)
    assert sorted(r["task_id"] for r in found) == sorted(r["id"] for r in given if r["id"] != "bad")
    assert all(len(record["token_ids"]) == 8 for record in found)


# -- memory that runs out --------------------------------------------------------------------------


def check_whole(ran: Ran, output: Path, given: list[dict[str, Any]]) -> None:
    """Every row is there once, each as long as it should be, and nothing was an error."""
    assert errors_of(ran) == [] and ran.code == 0, ran.err
    found = read_jsonl(output)
    assert [record["task_id"] for record in found] == [row["id"] for row in given]
    for record, row in zip(found, given, strict=True):
        assert len(record["token_ids"]) == row["max_tokens"]


def shrinkings(ran: Ran) -> list[int]:
    """The sequences at once that a run went on with, each time that it shrank."""
    said = r"^warning: The device ran out of memory with .* going on with up to ([\d,]+) at once"
    return [int(text.replace(",", "")) for text in re.findall(said, ran.err, re.MULTILINE)]


def test_no_memory_while_capturing_starts_with_fewer_rows(
    small_model: Path, tmp_path: Path
) -> None:
    given = rows(300, 20, max_tokens=6)
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    ran = with_fault(
        NO_MEMORY_TO_CAPTURE, "generate", prompts, "-m", small_model, "-o", output,
        "--ignore-eos", "--token-ids", "--max-num-seqs", "256",
    )  # fmt: skip
    check_whole(ran, output, given)
    assert "no memory for 256 sequences at once: going on with 128" in ran.err
    assert "up to 128 sequences" in ran.err and shrinkings(ran) == []


@pytest.mark.parametrize("flags", [(), ("--enforce-eager",)])
def test_no_memory_while_prefilling_goes_on_with_fewer(
    small_model: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """16,384 tokens of prompts take 256 MiB for the inner activations of one layer alone."""
    given = rows(300, 200, max_tokens=6)
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    ran = with_fault(
        NO_MEMORY_TO_LAUNCH.format(when="len(step.prefill) > 8", room=160 * MIB),
        "generate", prompts, "-m", small_model, "-o", output, "--ignore-eos", "--token-ids",
        "--max-num-seqs", "256", "--max-num-batched-tokens", "16k", *flags,
    )  # fmt: skip
    check_whole(ran, output, given)
    steps = shrinkings(ran)
    assert steps and steps == sorted(set(steps), reverse=True) and steps[-1] >= 1


def test_no_memory_while_growing_goes_on_with_fewer(small_model: Path, tmp_path: Path) -> None:
    """A decode step of 8,192 rows takes 128 MiB for the inner activations of one layer alone."""
    given = rows(8200, 4, max_tokens=8)
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    ran = with_fault(
        NO_MEMORY_TO_LAUNCH.format(when="not step.prefill and step.size > 8000", room=96 * MIB),
        "generate", prompts, "-m", small_model, "-o", output, "--ignore-eos", "--token-ids",
        "--max-num-seqs", "8192", "--max-model-len", "1k", "--enforce-eager",
    )  # fmt: skip
    check_whole(ran, output, given)
    steps = shrinkings(ran)
    assert steps and steps[0] <= 4096 and steps == sorted(set(steps), reverse=True)


def test_too_little_memory_for_one_sequence_is_said_and_keeps_the_rows(
    small_model: Path, tmp_path: Path
) -> None:
    """The short rows end first; then one prompt of 2,000 tokens finds nothing at all left."""
    long = rows(1, 2000, max_tokens=6)[0] | {"id": "long"}
    given = [*rows(40, 20, max_tokens=6), long]
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    command = (
        "generate", prompts, "-m", small_model, "-o", output, "--ignore-eos", "--token-ids",
        "--max-num-seqs", "8", "--max-num-batched-tokens", "512",
    )  # fmt: skip
    fault = NO_MEMORY_TO_LAUNCH.replace("of_the_run(step) and ", "")
    when = "step.prefill and max(len(item.tokens) for item in step.prefill) >= 2000"
    ran = with_fault(fault.format(when=when, room=0), *command)
    (error,) = errors_of(ran)
    assert ran.code == 2 and "The device has no memory left for 1 sequences" in error
    assert "Lower --max-num-seqs" in ran.err
    check_resumed(ran, output, given)


# -- a device that is lost -------------------------------------------------------------------------


def check_resumed(ran: Ran, output: Path, given: list[dict[str, Any]]) -> None:
    """Whole rows are safe, their number is said, and the command that is shown does the rest."""
    said = r"^warning: (\d+) of (\d+) samples of this run are safe"
    safe = re.search(said, ran.err, re.MULTILINE)
    assert safe and int(safe[2]) == len(given), ran.err
    assert output.read_bytes().endswith(b"\n")
    kept = {record["task_id"]: record for record in read_jsonl(output)}
    assert int(safe[1]) == len(kept) and 0 < len(kept) < len(given)
    said = r"^hint: Go on with: santagen (generate .* --resume)$"
    shown = re.search(said, ran.err, re.MULTILINE)
    assert shown, ran.err
    resumed = process(*shlex.split(shown[1]))
    check_whole(resumed, output, given)
    again = {record["task_id"]: record for record in read_jsonl(output)}
    assert {name: again[name] for name in kept} == kept


@pytest.mark.parametrize(
    ("launch", "flags"),
    [(12, ()), (13, ()), (25, ("--enforce-eager",)), (20, ("--logprobs", "20"))],
)
def test_a_lost_device_leaves_whole_rows_and_the_command_that_goes_on(
    small_model: Path, tmp_path: Path, launch: int, flags: tuple[str, ...]
) -> None:
    given = rows(96, 20)
    for number, row in enumerate(given):
        row["max_tokens"] = 3 + number % 29
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    ran = with_fault(
        LOST.format(launch=launch), "generate", prompts, "-m", small_model, "-o", output,
        "--ignore-eos", "--token-ids", "--max-num-seqs", "48", *flags,
    )  # fmt: skip
    (error,) = errors_of(ran)
    # Not minus a signal's number: freeing memory of the lost device must not end the process.
    assert ran.code == 2, ran.err
    assert "The GPU failed" in error and "device-side assert" in error
    check_resumed(ran, output, given)


def test_a_device_lost_at_once_leaves_nothing_behind(small_model: Path, tmp_path: Path) -> None:
    given = rows(8, 20, max_tokens=6)
    prompts, output = write_jsonl(tmp_path / "p.jsonl", given), tmp_path / "out.jsonl"
    command = ("generate", prompts, "-m", small_model, "-o", output, "--ignore-eos", "--token-ids")
    ran = with_fault(LOST.format(launch=1), *command)
    assert len(errors_of(ran)) == 1 and ran.code == 2
    assert "safe" not in ran.err and not output.exists()
    check_whole(process(*command), output, given)
