"""The engine on a GPU: backends agree within bf16 error, graphs and run-ahead change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from santagen import SamplingParams
from santagen.llm import LLM
from santagen.request import Request, SampleOutput

Found = dict[tuple[int, int], SampleOutput]
BF16_NATS = 0.15  # log-probabilities of a model of bf16 products, logits of size about 5

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
        Request(
            i,
            i,
            tuple(torch.randint(0, 1000, (n,), generator=generator).tolist()),
            params,
            tuple(range(params.n)),
        )
        for i, n in enumerate(lengths)
    ]


def generate(llm: LLM, params: SamplingParams) -> Found:
    found = {}
    for output in llm.run(rows(params)):
        assert isinstance(output, SampleOutput)
        found[output.request.number, output.index] = output
    return found


def tokens(found: Found) -> dict[tuple[int, int], tuple[int, ...]]:
    return {key: output.token_ids for key, output in found.items()}


def logprobs(found: Found) -> dict[tuple[int, int], object]:
    return {key: output.logprobs for key, output in found.items()}


GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=20)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.8, top_p=0.95, n=3, ignore_eos=True)


def largest_error(a: Found, b: Found) -> float:
    """Largest difference of log-probabilities (nats) up to each row's first other token.

    There the two tokens must have been as near to each other as that error allows: their gap
    counts too.
    """
    worst = 0.0
    for key, one in a.items():
        assert one.logprobs is not None and b[key].logprobs is not None
        for x, y in zip(one.logprobs, b[key].logprobs, strict=True):
            if x.token_id == y.token_id:
                worst = max(worst, abs(x.logprob - y.logprob))
                continue
            gap = x.logprob - dict(x.top).get(y.token_id, -99.0)
            worst = max(worst, gap / 2)
            break
    return worst


FLASH = pytest.mark.skipif(not has_flash(), reason="needs flash-attn")
BACKENDS = ["auto", "triton", pytest.param("flash", marks=FLASH)]


def engine(model: Path, **settings: object) -> LLM:
    return LLM(str(model), max_num_seqs=32, **settings)


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_run_gives_the_same_tokens_with_and_without_run_ahead(
    small_model: Path, params: SamplingParams, attention: str
) -> None:
    def once(ahead: int) -> Found:
        llm = engine(small_model, attention=attention)
        llm.engine.run_ahead = ahead
        return generate(llm, params)

    first = once(1)
    assert tokens(once(1)) == tokens(first)
    assert tokens(once(0)) == tokens(first)


@pytest.mark.parametrize("attention", BACKENDS)
def test_graphs_equal_eager_within_bf16_error(small_model: Path, attention: str) -> None:
    graphs = generate(engine(small_model, attention=attention), GREEDY)
    eager = generate(engine(small_model, attention=attention, enforce_eager=True), GREEDY)
    error = largest_error(graphs, eager)
    print(f"{attention}, graphs against eager: {error:.4f} nats")
    assert error < BF16_NATS


@pytest.mark.parametrize("attention", BACKENDS)
def test_backends_equal_torch_within_bf16_error(small_model: Path, attention: str) -> None:
    found = generate(engine(small_model, attention=attention), GREEDY)
    torch_ = generate(engine(small_model, attention="torch"), GREEDY)
    error = largest_error(found, torch_)
    print(f"{attention} against torch: {error:.4f} nats")
    assert error < BF16_NATS


def test_a_lone_row_equals_a_batch_within_bf16_error(small_model: Path) -> None:
    batch = generate(engine(small_model), GREEDY)
    alone = generate(LLM(str(small_model), max_num_seqs=1), GREEDY)
    error = largest_error(batch, alone)
    print(f"one row at a time against 32: {error:.4f} nats")
    assert error < BF16_NATS


INVARIANT_RUNS: dict[str, dict[str, object]] = {
    "eager": {"enforce_eager": True},
    "one row at a time": {"max_num_seqs": 1},
    "seven rows": {"max_num_seqs": 7},
    "more rows": {"max_num_seqs": 200},
    "small prefills": {"max_num_batched_tokens": 300},
}
CRAMPED = {"block_size": 16, "num_blocks": 70}


def test_invariant_gives_a_row_the_same_bits_in_any_company(small_model: Path) -> None:
    def once(params: SamplingParams, **settings: object) -> Found:
        llm = LLM(str(small_model), invariant=True, **{"max_num_seqs": 32, **settings})
        found = generate(llm, params)
        assert (llm.engine.scheduler.counts.preemptions > 0) == ("num_blocks" in settings)
        return found

    for params in (SAMPLED, SamplingParams(max_tokens=40, ignore_eos=True, logprobs=3)):
        first = once(params)
        for name, settings in INVARIANT_RUNS.items():
            other = once(params, **settings)
            assert tokens(other) == tokens(first), name
            # the log-probabilities tell more than the tokens: their bits are the logits'
            assert logprobs(other) == logprobs(first), name
        other, first = once(params, **CRAMPED), once(params, block_size=CRAMPED["block_size"])
        assert tokens(other) == tokens(first)
        assert logprobs(other) == logprobs(first)


def test_fp8_stays_near_bfloat16(small_model: Path) -> None:
    plain = generate(engine(small_model), GREEDY)
    fp8 = generate(engine(small_model, quantization="fp8"), GREEDY)
    same = sum(plain[key].token_ids[0] == fp8[key].token_ids[0] for key in plain)
    errors = [largest_error({key: plain[key]}, fp8) for key in plain]
    mean = sum(errors) / len(errors)
    print(
        f"fp8 against bfloat16: a row's largest error {mean:.3f} nats in the mean, "
        f"{max(errors):.3f} at most; first token equal in {same} of {len(plain)}"
    )
    # Each product is off by some 4%, and these random logits of size 2 are nearly flat.
    assert 0 < mean < 0.6 and same >= 0.6 * len(plain)


def test_gpu_equals_cpu_float32(small_model: Path) -> None:
    cpu = generate(LLM(str(small_model), device="cpu", max_num_seqs=32), GREEDY)
    gpu = generate(LLM(str(small_model), dtype="float32", max_num_seqs=32), GREEDY)
    error = largest_error(cpu, gpu)
    print(f"GPU against CPU, float32: {error:.6f} nats")
    assert error < 5e-3


def test_preemption_and_small_caches_lose_nothing(small_model: Path) -> None:
    llm = LLM(str(small_model), attention="torch", max_num_seqs=32, num_blocks=60)
    found = generate(llm, SAMPLED)
    assert sorted(found) == [(i, k) for i in range(48) for k in range(3)]
    assert all(len(output.token_ids) == 40 for output in found.values())


def test_repetition_penalty_equals_the_cpu(small_model: Path) -> None:
    params = SamplingParams(max_tokens=40, repetition_penalty=1.3, ignore_eos=True)
    cpu = generate(LLM(str(small_model), device="cpu", max_num_seqs=32), params)
    gpu = generate(LLM(str(small_model), dtype="float32", max_num_seqs=32), params)
    same = sum(cpu[key].token_ids == gpu[key].token_ids for key in cpu)
    print(f"rows equal under a repetition penalty: {same} of {len(cpu)}")
    assert same >= len(cpu) - 1  # one near-tie of float32 sums is allowed
    plain = generate(LLM(str(small_model), dtype="float32", max_num_seqs=32), GREEDY)
    assert tokens(gpu) != tokens(plain)
