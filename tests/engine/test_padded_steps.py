"""Decode steps of more rows than are live, as recorded graphs make them, give the same samples."""

from __future__ import annotations

from santagen import SamplingParams
from santagen.llm import LLM
from tests.engine.padded_graphs import PaddedGraphs

PROMPTS = ["def add(a, b):\n", "import os\n", "class A:\n", "for i in", "x = 1\n"]


def test_padded_steps_give_the_same_samples() -> None:
    params = SamplingParams(
        max_tokens=12, temperature=0.8, top_p=0.9, repetition_penalty=1.2, logprobs=2,
        ignore_eos=True,
    )  # fmt: skip
    plain, padded = (LLM(device="cpu", max_num_seqs=8) for _ in range(2))
    graphs = PaddedGraphs(padded, multiple=4)
    padded.engine.runner.graphs = graphs  # type: ignore[assignment]
    wanted, found = (llm.generate(PROMPTS, params) for llm in (plain, padded))
    assert [(s.token_ids, s.logprobs) for s in found] == [(s.token_ids, s.logprobs) for s in wanted]
    assert max(graphs.padded) == 8
