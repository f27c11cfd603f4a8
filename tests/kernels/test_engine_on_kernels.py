"""The whole engine on the Triton attention, in the interpreter: what the CPU's own form gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from santagen import SamplingParams
from santagen.llm import LLM
from santagen.request import SampleOutput
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu does it for real")

PROMPTS = [[5, 6, 7, 8] * 4 + [9, 9], [3], [5, 6, 7, 8] * 4 + [1]]
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=0)


def run(model: Path, **settings: object) -> list[SampleOutput]:
    return LLM(str(model), device="cpu", max_num_seqs=2, **settings).generate(PROMPTS, PARAMS)


def logprobs(samples: list[SampleOutput]) -> list[float]:
    return [token.logprob for sample in samples for token in sample.logprobs or ()]


@pytest.mark.parametrize(
    ("multi_query", "settings"),
    [(True, {"block_size": 16}), (False, {"invariant": True, "max_num_batched_tokens": 24})],
)
def test_triton_equals_the_cpu_form(
    tmp_path: Path, multi_query: bool, settings: dict[str, object]
) -> None:
    write_checkpoint(tmp_path, Spec(config={"multi_query": multi_query}))
    wanted, found = run(tmp_path), run(tmp_path, attention="triton", **settings)
    assert [sample.token_ids for sample in found] == [sample.token_ids for sample in wanted]
    assert logprobs(found) == pytest.approx(logprobs(wanted), abs=1e-4)


def test_decode_writes_in_the_order_of_an_act_order_product(tmp_path: Path) -> None:
    spec = GPTQSpec(group_size=32, sym=False, act_order=True)
    write_checkpoint(tmp_path, Spec(gptq=spec))
    wanted = run(tmp_path, quantization="none")
    llm = LLM(str(tmp_path), device="cpu", max_num_seqs=2, attention="triton", quantization="gptq")
    layers = llm.engine.runner.model.transformer.h
    assert all(layer.attn.place is not None for layer in layers)
    found = llm.generate(PROMPTS, PARAMS)
    assert [sample.token_ids for sample in found] == [sample.token_ids for sample in wanted]
    assert logprobs(found) == pytest.approx(logprobs(wanted), abs=1e-4)
