"""The engine on a GPU: backends agree within bf16 error, graphs and run-ahead change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from santagen import SamplingParams
from santagen.llm import LLM
from santagen.request import Request, SampleOutput

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def has_flash() -> bool:
    try:
        import flash_attn  # noqa: F401
    except ImportError:
        return False
    return True


def rows(params: SamplingParams, count: int = 48) -> list[Request]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 400, (count,), generator=generator).tolist()
    return [
        Request(i, i, tuple(torch.randint(0, 1000, (n,), generator=generator).tolist()), params,
                tuple(range(params.n)))
        for i, n in enumerate(lengths)
    ]


def generate(llm: LLM, params: SamplingParams) -> dict[tuple[int, int], tuple[int, ...]]:
    found = {}
    for output in llm.run(rows(params)):
        assert isinstance(output, SampleOutput)
        found[output.request.number, output.index] = output.token_ids
    return found


GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, n=3, ignore_eos=True)


def agreement(a: dict[Any, tuple[int, ...]], b: dict[Any, tuple[int, ...]]) -> float:
    """Share of tokens before the first difference of each sample."""
    same = total = 0
    for key, tokens in a.items():
        other = b[key]
        first = next((i for i, (x, y) in enumerate(zip(tokens, other, strict=True)) if x != y), len(tokens))
        same, total = same + first, total + len(tokens)
    return same / total


@pytest.mark.skipif(not has_flash(), reason="needs flash-attn")
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_graphs_and_run_ahead_change_nothing(small_model: Path, params: SamplingParams) -> None:
    llm = LLM(str(small_model), attention="flash", max_num_seqs=32)
    with_graphs = generate(llm, params)
    assert generate(llm, params) == with_graphs  # the same command gives the same tokens
    llm.engine.run_ahead = 0
    assert generate(llm, params) == with_graphs
    eager = LLM(str(small_model), attention="flash", max_num_seqs=32, enforce_eager=True)
    assert agreement(generate(eager, params), with_graphs) > 0.9


@pytest.mark.skipif(not has_flash(), reason="needs flash-attn")
def test_flash_equals_torch_within_bf16_error(small_model: Path) -> None:
    flash = generate(LLM(str(small_model), attention="flash", max_num_seqs=32), GREEDY)
    torch_ = generate(LLM(str(small_model), attention="torch", max_num_seqs=32), GREEDY)
    assert agreement(flash, torch_) > 0.8


def test_gpu_equals_cpu_float32(small_model: Path) -> None:
    cpu = generate(LLM(str(small_model), device="cpu", max_num_seqs=32), GREEDY)
    gpu = generate(LLM(str(small_model), dtype="float32", max_num_seqs=32), GREEDY)
    assert agreement(cpu, gpu) > 0.97


def test_preemption_and_small_caches_lose_nothing(small_model: Path) -> None:
    llm = LLM(str(small_model), attention="torch", max_num_seqs=32, num_blocks=60)
    found = generate(llm, SAMPLED)
    assert sorted(found) == [(i, k) for i in range(48) for k in range(3)]
    assert all(len(tokens) == 40 for tokens in found.values())
