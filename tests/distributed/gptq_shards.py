"""Runs in every rank of one tensor-parallel group: random GPTQ models against one rank's."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.random_weights import RandomModel
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.llm import LLM
from santagen.request import Request, SampleOutput, SamplingParams
from tests.distributed.shards import TOLERANCE, gap_where_they_part, join, last_logits
from tests.gpu.random_gptq import quantised, settings

SHAPE = {"n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 997}
PROMPTS = [[3], [5, 8, 13, 21], list(range(100, 120))]


def compare(quantization: str) -> list[str]:
    """A line per form: what rank 0 found wrong, or the sum of the shards' logits."""
    torch.set_num_threads(1)
    cluster = join()
    found = []
    for bits, group, act_order in ((4, 32, False), (4, 32, True), (8, 64, True), (3, 128, True)):
        form = settings(bits, group, act_order)
        name = f"{bits} bits, groups of {group}{', act-order' * act_order}"
        sharded, mine = _outputs(form, quantization, cluster.tensor_parallel)
        alone, wanted = _outputs(form, quantization, TensorParallel())
        error = float((alone - sharded).abs().max())
        gap = max(gap_where_they_part(one, two) for one, two in zip(wanted, mine, strict=True))
        good = error < TOLERANCE and gap < TOLERANCE and float(alone.std()) > 0.1
        wrong = "" if good else f"WRONG by {error:.2e}, greedy by {gap:.2e}: "
        found.append(f"{wrong}{name} {sharded.double().sum()}")
    cluster.leave()
    return found


def _outputs(
    form: GPTQSettings, quantization: str, parallel: TensorParallel
) -> tuple[Tensor, list[SampleOutput]]:
    """([prompts, V] after each prompt, what the engine goes on with) of the same random model."""
    config = ModelConfig.from_dict({"model_type": "gpt_bigcode", **SHAPE})
    with quantised(form):
        llm = LLM(
            RandomModel(Path(), "random GPTQ weights", config=config), device="cpu",
            dtype="float32", parallel=parallel, quantization=quantization, num_blocks=16,
            max_num_seqs=4,
        )  # fmt: skip
    packed = any("kept packed" in line for line in llm.describe())
    assert packed == (quantization == "gptq")
    logits = torch.cat([last_logits(llm, prompt) for prompt in PROMPTS])
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=2)
    requests = [Request(i, i, tuple(ids), params) for i, ids in enumerate(PROMPTS)]
    found = [result for result in llm.run(requests) if isinstance(result, SampleOutput)]
    return logits, sorted(found, key=lambda sample: sample.request.number)
