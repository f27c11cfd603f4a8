"""A device that fails under a run, as the command tells it: played on the CPU with torch's errors.

What a real one does is in tests/gpu/test_faults.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import santagen.cli.ending
from santagen.checkpoint.source import bundled_model
from santagen.engine.model_runner import ModelRunner
from santagen.errors import first_line, is_device_failure, is_out_of_memory, of_device
from tests.cli.helpers import TIMEOUT, Cli, Ran, read_jsonl, write_jsonl

ASSERTED = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)
LOST = {
    "assert": torch.AcceleratorError(ASSERTED),
    "fell off the bus": RuntimeError("CUDA error: unspecified launch failure"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemm`"),
    "triton": RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    "driver": RuntimeError("CUDA driver error: unknown error"),
}
FULL = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
    "driver": torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    "triton": RuntimeError("Triton Error [CUDA]: out of memory"),
}
NEITHER = {
    "a fault": RuntimeError("shapes don't fit"),
    "no runtime error": ValueError("CUDA error: unknown"),
    "of Python": MemoryError(),
}
ROWS = [{"id": f"row {n}", "prompt": f"def f{n}(x):"} for n in range(8)]
SLOW = ("--device", "cpu", "--max-num-seqs", "1", "--max-tokens", "4", "--ignore-eos")
CHILD = """
import atexit, os, sys, torch
import santagen.cli.ending
from santagen.cli.app import run_program
from santagen.engine.model_runner import ModelRunner
launch, launches = ModelRunner.launch, []
def failing(self, step):
    launches.append(step)
    if len(launches) == 11:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\\nadvice")
    return launch(self, step)
ModelRunner.launch = failing
santagen.cli.ending.uses_gpu = lambda: True
atexit.register(os.abort)  # as the libraries' farewells may
sys.exit(run_program(sys.argv[1:]))
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", ROWS)


def fail_at(monkeypatch: pytest.MonkeyPatch, error: Exception, number: int) -> None:
    launch, launches = ModelRunner.launch, 0

    def failing(self: ModelRunner, step: Any) -> Any:
        nonlocal launches
        launches += 1
        if launches >= number:
            raise error
        return launch(self, step)

    monkeypatch.setattr(ModelRunner, "launch", failing)


def check_kept(cli: Cli, ran: Ran, output: Path, rows: Path, whole: Path) -> None:
    """Whole lines are safe, and the command that is shown completes them."""
    safe = r"^warning: (\d+) of 8 samples of this run are safe in (.*)\.$"
    found = re.search(safe, ran.err, re.MULTILINE)
    assert found and found[2] == str(output), ran.err
    assert int(found[1]) == len(read_jsonl(output)) > 0
    shown = r"^hint: Go on with: (santagen generate .* --resume)$"
    command = re.search(shown, ran.err, re.MULTILINE)
    assert command, ran.err
    assert cli(*shlex.split(command[1])[1:]).code == 0
    assert cli.generate(rows, "-o", whole, *SLOW).code == 0
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("error", LOST.values(), ids=LOST)
def test_what_fails_the_device(error: Exception) -> None:
    assert is_device_failure(error) and not is_out_of_memory(error)
    known = of_device(error)
    assert known is not None and first_line(error) in known.message and known.exit_code == 2
    assert "\n" not in known.message + known.hint


@pytest.mark.parametrize("error", FULL.values(), ids=FULL)
def test_what_says_that_the_device_is_full(error: Exception) -> None:
    assert is_out_of_memory(error) and not is_device_failure(error)
    known = of_device(error)
    assert known is not None and "ran out of memory" in known.message


@pytest.mark.parametrize("error", NEITHER.values(), ids=NEITHER)
def test_other_errors_are_not_the_device_s(error: Exception) -> None:
    assert not is_out_of_memory(error) and not is_device_failure(error)
    assert of_device(error) is None


@pytest.mark.parametrize("error", LOST.values(), ids=LOST)
def test_a_lost_device_leaves_whole_rows_and_the_command_that_goes_on(
    cli: Cli, tmp_path: Path, rows: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        fail_at(patch, error, 11)
        ran = cli.generate(rows, "-o", output, *SLOW)
    assert ran.code == 2 and len(re.findall("^error: ", ran.err, re.MULTILINE)) == 1
    assert f"can't use it any more ({first_line(error)})" in ran.err
    assert "Traceback" not in ran.err and "fault in santagen" not in ran.err
    check_kept(cli, ran, output, rows, tmp_path / "whole.jsonl")


def test_a_device_lost_before_the_first_sample_promises_nothing(
    cli: Cli, tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    fail_at(monkeypatch, LOST["assert"], 1)
    for flags in ((), ("-o", output)):
        ran = cli.generate(rows, *flags, *SLOW)
        assert ran.code == 2 and "device-side assert" in ran.err
        assert "safe" not in ran.err and "--resume" not in ran.err and not output.exists()


def test_the_exit_code_survives_farewells_that_end_the_process(
    cli: Cli, tmp_path: Path, rows: Path
) -> None:
    output = tmp_path / "out.jsonl"
    words = ["generate", str(rows), "-o", str(output), *SLOW]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *words], capture_output=True, encoding="utf-8",
        timeout=TIMEOUT,
    )  # fmt: skip
    ran = Ran(child.returncode, child.stdout, child.stderr)
    assert ran.code == 2 and "device-side assert" in ran.err and "advice" not in ran.err
    check_kept(cli, ran, output, rows, tmp_path / "whole.jsonl")


def test_only_a_lost_gpu_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(santagen.cli.ending, "end_now", ended.append)
    santagen.cli.ending.end_if_lost(LOST["assert"], 2)
    assert ended == []  # no GPU is open here
    monkeypatch.setattr(santagen.cli.ending, "uses_gpu", lambda: True)
    for error in (*FULL.values(), *NEITHER.values()):
        santagen.cli.ending.end_if_lost(error, 2)
    assert ended == []
    santagen.cli.ending.end_if_lost(LOST["triton"], 2)
    assert ended == [2]


@pytest.mark.parametrize("error", FULL.values(), ids=FULL)
def test_a_model_that_finds_no_memory_is_the_user_s_to_mend(
    cli: Cli, rows: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr("santagen.llm.LLM", load)
    ran = cli.generate(rows)
    assert ran.code == 2 and f"ran out of memory ({first_line(error).rstrip('.')})" in ran.err
    assert "--gpu-memory-utilization" in ran.err and "fault in santagen" not in ran.err


def test_a_model_that_gives_no_numbers_ends_the_run_and_keeps_the_rows(
    cli: Cli, tmp_path: Path
) -> None:
    model = shutil.copytree(bundled_model(), tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("wpe.weight")]
    weights[name][40] = torch.nan  # no other row comes so far
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    prompts = [*ROWS, {"id": "bad", "prompt": "def f(x):", "max_tokens": 60}, {"prompt": "x = "}]
    path, output = write_jsonl(tmp_path / "p.jsonl", prompts), tmp_path / "out.jsonl"
    ran = cli.generate(path, "-m", model, "-o", output, *SLOW[:2], *SLOW[4:])
    assert ran.code == 2 and "not finite (NaN or infinite logits) at row 'bad'" in ran.err
    assert "9 of 10 samples of this run are safe" in ran.err and "--dtype" in ran.err
    found = {record["task_id"]: record for record in read_jsonl(output)}
    assert len(found) == 9 and "bad" not in found
    assert {record["usage"]["completion_tokens"] for record in found.values()} == {4}
