"""Errors of a device as the engine takes them: memory that runs out below torch, and a device that
is lost. Played on the CPU; tests/gpu/test_faults.py has the real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from santagen import LLM, SamplingParams
from santagen.engine.lost_device import outlive_frees
from santagen.engine.model_runner import ModelRunner, Record
from santagen.request import Request

PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)
PROMPTS: list[Any] = [f"x{n} = " for n in range(20)]
NO_MEMORY = [
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=["driver", "cublas", "triton"])
def test_memory_that_runs_out_below_torch_shrinks_the_run_too(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(device="cpu", max_num_seqs=16)
    wanted = [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]
    told: list[str] = []
    launch, launches = llm.engine.runner.launch, 0
    llm.engine.on_shrink = told.append

    def scarce(step: Any) -> Record:
        nonlocal launches
        launches += 1
        if launches in (1, 4):
            raise error
        return launch(step)

    monkeypatch.setattr(llm.engine.runner, "launch", scarce)
    assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS)] == wanted
    assert len(told) == 2 and "going on with up to 8" in told[0]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_lost_device_is_not_asked_again(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended comes out first, and nothing of the runner is called on the way."""
    llm = LLM(device="cpu", max_num_seqs=8)
    llm.engine.run_ahead = ahead
    lost = torch.AcceleratorError("CUDA error: device-side assert triggered")
    calls: list[str] = []

    def gone(name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            if calls.count("launch") > 3:
                raise lost
            return real(*arguments)

        return call

    for name in ("launch", "release_memory", "clear_cache"):
        monkeypatch.setattr(ModelRunner, name, gone(name, getattr(ModelRunner, name)))
    monkeypatch.setattr(Record, "read", gone("read", Record.read))
    short, long = SamplingParams(max_tokens=2), SamplingParams(max_tokens=30, ignore_eos=True)
    rows = [Request(n, n, (9, n), long if n == 0 else short, (0,)) for n in range(8)]
    found: list[Any] = []
    with pytest.raises(torch.AcceleratorError) as caught:
        for output in llm.run(rows):
            found.append(output.request.number)
    assert caught.value is lost and sorted(found) == list(range(1, 8))
    assert calls[-1] == "launch" and calls.count("launch") == 4 and set(calls) == {"launch", "read"}


def test_frees_on_a_lost_device_are_made_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append, raising=False)
    outlive_frees()
    assert asked == ["pinned_free_catch_all:True"]

    def refuse(setting: str) -> None:
        raise ValueError(f"Unrecognized key {setting}")

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", refuse)
    outlive_frees()  # an older release: the run goes on without
