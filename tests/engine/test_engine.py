"""The whole engine on the CPU with the bundled model: equal to the reference, whatever the
company."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from santagen import LLM, SamplingParams, SantagenError
from santagen.engine import memory
from santagen.engine.batch import Step
from santagen.engine.model_runner import ModelRunner, Record
from santagen.engine.warm_up import load_kernels, rehearse
from santagen.request import Request, RowFailure, SampleOutput

PROMPTS = [
    'def add(a, b):\n    """Return the sum of a and b."""',
    'def is_even(n: int) -> bool:\n    """Return True if n is even."""',
    "def f(",
    "import os\n\n\ndef walk(path):",
    'def largest(numbers):\n    """Return the largest number in numbers."""\n    best = numbers[0]',
    "class A:\n    def __init__(self, x):",
    "x",
]
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, n=4)

Found = dict[tuple[int, int], tuple[int, ...]]


def ids_of(llm: LLM, params: SamplingParams, prompts: list[str] = PROMPTS) -> Found:
    return {(o.request.number, o.index): o.token_ids for o in llm.generate(prompts, params)}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu", max_num_seqs=64)


def test_weights_larger_than_the_memory_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("santagen.llm.FlashSantacoderForCausalLM", read)
    whole = 6839808 * 4  # the bundled model's parameters in float32
    monkeypatch.setattr(memory, "available_ram", lambda: whole - 1)
    with pytest.raises(SantagenError, match=r"0\.0 GiB of weights in float32") as refused:
        LLM(device="cpu", dtype="float32")
    assert "--dtype" in refused.value.hint
    for room, dtype in ((whole, "float32"), (whole // 2, "bfloat16")):
        monkeypatch.setattr(memory, "available_ram", lambda room=room: room)
        with pytest.raises(AssertionError, match="were read"):
            LLM(device="cpu", dtype=dtype)


@pytest.fixture(scope="module")
def sampled(llm: LLM) -> Found:
    return ids_of(llm, SAMPLED)


def test_greedy_equals_transformers(llm: LLM, bundled_model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        bundled_model, dtype=torch.float32, attn_implementation="eager"
    )
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    for output in llm.generate(PROMPTS, params):
        ids = torch.tensor([output.request.prompt_token_ids])
        wanted = reference.generate(
            ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, ids.shape[1] :]
        assert list(output.token_ids) == wanted.tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"max_num_seqs": 28, "max_num_batched_tokens": 16},
        {"max_num_seqs": 28, "num_blocks": 18, "block_size": 8},
        {"max_num_seqs": 5, "block_size": 16},
    ],
    ids=str,
)
def test_batch_preemption_and_sharing_change_no_token(
    sampled: Found, settings: dict[str, Any]
) -> None:
    if "block_size" in settings:  # another block size is another order of sums: compare with itself
        size = settings["block_size"]
        wanted = ids_of(LLM(device="cpu", block_size=size), SAMPLED)
    else:
        wanted = sampled
    llm = LLM(device="cpu", **settings)
    assert ids_of(llm, SAMPLED) == wanted
    if "num_blocks" in settings:
        assert llm.engine.stats.preemptions > 0


def test_order_and_repetition_change_no_token(llm: LLM, sampled: Found) -> None:
    assert ids_of(llm, SAMPLED) == sampled  # now from cached prefixes
    rows = [
        Request(i, i, tuple(llm.tokenizer.encode(PROMPTS[i])), SAMPLED, (2, 0))
        for i in reversed(range(len(PROMPTS)))
    ]
    for output in llm.run(rows):
        assert isinstance(output, SampleOutput)
        assert output.token_ids == sampled[output.request.number, output.index]


def test_run_ahead_changes_no_token(sampled: Found) -> None:
    llm = LLM(device="cpu", max_num_seqs=9)
    llm.engine.run_ahead = 1
    stops = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, n=4, stop=("return", "\n\n"))
    ahead = [(o.completion, o.stop_reason, o.token_ids) for o in llm.generate(PROMPTS, stops)]
    assert ids_of(llm, SAMPLED) == sampled
    llm.engine.run_ahead = 0
    assert [
        (o.completion, o.stop_reason, o.token_ids) for o in llm.generate(PROMPTS, stops)
    ] == ahead


def test_samples_differ_and_seeds_matter(llm: LLM, sampled: Found) -> None:
    assert len({sampled[5, i] for i in range(4)}) > 1
    other = ids_of(llm, SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, n=4, seed=1))
    assert other != sampled


def test_identical_prompts_are_prefilled_once() -> None:
    llm = LLM(device="cpu")
    llm.generate(["def add(a, b):"] * 9, SamplingParams(max_tokens=2))
    assert llm.engine.scheduler.counts.prefill_tokens == len(llm.tokenizer.encode("def add(a, b):"))


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    free = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=40))[0]
    assert free.completion is not None and "return" in free.completion
    cut = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=40, stop=("turn a", "zzz")))[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", "turn a")
    assert cut.completion == free.completion[: free.completion.index("turn a")]
    kept = llm.generate(
        PROMPTS[:1], SamplingParams(max_tokens=40, stop=("turn a",), include_stop=True)
    )[0]
    assert kept.completion == (cut.completion or "") + "turn a"
    assert free.token_ids[: len(cut.token_ids)] == cut.token_ids


def test_ends(llm: LLM) -> None:
    one = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=1))[0]
    assert (one.finish_reason, one.generated_tokens, len(one.token_ids)) == ("length", 1, 1)
    ended = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=200))[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    assert ended.generated_tokens == len(ended.token_ids) + 1  # the end token is counted, not kept
    full = LLM(device="cpu", max_model_len=32)
    output = full.generate([[5] * 20], SamplingParams(max_tokens=200, ignore_eos=True))[0]
    assert (output.finish_reason, output.generated_tokens) == ("length", 12)


def test_logprobs_are_the_models_own(llm: LLM, bundled_model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    params = SamplingParams(
        max_tokens=6, temperature=0.7, top_k=5, repetition_penalty=1.2, logprobs=3
    )
    output = llm.generate(PROMPTS[:1], params)[0]
    assert output.logprobs is not None and len(output.logprobs) == output.generated_tokens
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        bundled_model, dtype=torch.float32
    )
    drawn = [t.token_id for t in output.logprobs]
    ids = torch.tensor([[*output.request.prompt_token_ids, *drawn]])
    with torch.inference_mode():
        table = torch.log_softmax(reference(ids).logits[0].float(), -1)[
            len(output.request.prompt_token_ids) - 1 :
        ]
    for step, token in enumerate(output.logprobs):
        assert token.logprob == pytest.approx(float(table[step, token.token_id]), abs=1e-4)
        assert [i for i, _ in token.top] == table[step].topk(3).indices.tolist()


def test_without_onednn_the_tokens_are_the_same(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["def add(a, b):\n", "class Stack:\n    def __init__(self):\n", "import os\n"]
    params = SamplingParams(max_tokens=24, logprobs=1)
    wanted = llm.generate(prompts, params)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = LLM(device="cpu", max_num_seqs=8)
    assert not any(p.is_mkldnn for p in plain.engine.runner.model.parameters())
    for one, other in zip(wanted, plain.generate(prompts, params), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs is not None and other.logprobs is not None
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            assert abs(a.logprob - b.logprob) < 1e-4


def test_repetition_penalty_is_exact_across_batches() -> None:
    params = SamplingParams(max_tokens=30, repetition_penalty=1.4)
    alone = ids_of(LLM(device="cpu", max_num_seqs=1), params)
    together = ids_of(LLM(device="cpu", max_num_seqs=7), params)
    squeezed = LLM(device="cpu", max_num_seqs=7, num_blocks=9, block_size=64, max_model_len=128)
    assert alone == together == ids_of(squeezed, params)
    assert alone != ids_of(LLM(device="cpu"), SamplingParams(max_tokens=30))


def test_infilling_uses_the_models_sentinels(llm: LLM) -> None:
    pair = ('def add(a, b):\n    """Return the sum of a and b."""\n', "    return result\n")
    output = llm.generate([pair], SamplingParams(max_tokens=40))[0]
    assert "result" in (output.completion or "") and "<fim" not in (output.completion or "")
    spm = llm.generate([pair], SamplingParams(max_tokens=40), fim_mode="spm")[0]
    assert spm.request.prompt_token_ids != output.request.prompt_token_ids


def test_bad_prompts_do_not_stop_the_others(llm: LLM) -> None:
    results = list(
        llm.stream(["def f():", "x " * 5000, "", [99999], "y"], SamplingParams(max_tokens=2))
    )
    assert sorted(r.number for r in results if isinstance(r, RowFailure)) == [1, 2, 3]
    with pytest.raises(SantagenError, match="positions"):
        llm.generate(["x " * 5000], SamplingParams(max_tokens=2))


class Scarce:
    """A runner whose device has no memory for launches `at` (counted from 0)."""

    def __init__(self, llm: LLM, at: set[int]) -> None:
        self.inner, self.at, self.launches = llm.engine.runner.launch, at, 0

    def __call__(self, step: Any) -> Any:
        self.launches += 1
        if self.launches - 1 in self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.inner(step)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("at", [{0}, {1}, {5}, {3, 4, 9, 30}])
def test_a_launch_without_memory_is_done_again_in_smaller_ones(
    at: set[int], ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    prompts = [PROMPTS[4] * 3 + prompt for prompt in PROMPTS]  # they share whole blocks
    whole = LLM(device="cpu", max_num_seqs=64, block_size=16)
    wanted = ids_of(whole, SAMPLED, prompts)
    llm = LLM(device="cpu", max_num_seqs=64, block_size=16)
    llm.engine.run_ahead, llm.engine.on_shrink = ahead, told.append
    monkeypatch.setattr(llm.engine.runner, "launch", Scarce(llm, at))
    assert ids_of(llm, SAMPLED, prompts) == wanted
    assert len(told) == len(at) and "ran out of memory" in told[0]
    assert llm.engine.scheduler.limits.max_num_seqs <= 64 >> len(at)
    llm.engine.scheduler.check_integrity()


def test_no_memory_for_one_sequence_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(device="cpu", max_num_seqs=8)
    llm.engine.on_shrink = lambda text: None
    monkeypatch.setattr(llm.engine.runner, "launch", Scarce(llm, set(range(1, 99))))
    with pytest.raises(SantagenError, match=r"no memory left for 1 sequences"):
        ids_of(llm, SAMPLED)


def test_no_memory_for_all_rows_starts_with_fewer(
    sampled: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(runner: ModelRunner, longest: int) -> None:
        if runner.table.capacity > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ModelRunner, "capture", capture)
    llm = LLM(device="cpu", max_num_seqs=64)
    assert llm.plan.max_num_seqs == llm.engine.scheduler.limits.max_num_seqs == 16
    assert "no memory for 32 sequences at once: going on with 16" in llm.describe()
    assert ids_of(llm, SAMPLED) == sampled


def test_warming_up_leaves_the_engine_as_it_was() -> None:
    plain, rehearsed = (LLM(device="cpu", max_num_seqs=4) for _ in range(2))
    runner, plan = rehearsed.engine.runner, rehearsed.plan
    load_kernels(runner, plan.max_model_len)
    rehearse(runner, plan.max_num_batched_tokens, plan.max_model_len)
    assert torch.equal(runner.table.data, plain.engine.runner.table.data)
    prompts = ["def add(a, b):\n", "import os\n"]
    params = SamplingParams(max_tokens=12, temperature=0.8)
    found = [out.token_ids for out in rehearsed.generate(prompts, params)]
    assert found == [out.token_ids for out in plain.generate(prompts, params)]
    assert rehearsed.engine.stats == plain.engine.stats


def test_warming_up_fits_a_model_of_few_positions() -> None:
    llm = LLM(device="cpu", max_num_seqs=1, max_model_len=4)
    load_kernels(llm.engine.runner, 4)
    rehearse(llm.engine.runner, 4, 4)


def test_warming_up_on_the_cpu_is_one_forward_after_the_other(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention keeps a forward's slots from layer to layer."""
    under_way, met = threading.Lock(), []

    def forward(*_: object, **__: object) -> tuple[torch.Tensor, None]:
        met.append(under_way.acquire(blocking=False))
        time.sleep(0.02)
        if met[-1]:
            under_way.release()
        return torch.zeros(1, 1), None

    monkeypatch.setattr(type(llm.engine.runner.model), "forward", forward)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    load_kernels(llm.engine.runner, 8)
    assert len(met) > 2 and all(met)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_ended_comes_out_before_an_error(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, short = 200, 2  # all short ones end together: more than are handed out in one launch
    llm = LLM(device="cpu", max_num_seqs=rows)
    llm.engine.run_ahead = 1
    requests = [
        Request(i, i, (7, 8), SamplingParams(max_tokens=9 if i == 0 else short), (0,))
        for i in range(rows)
    ]
    launch, launches = ModelRunner.launch, 0

    def fail_late(self: ModelRunner, step: Step) -> Record:
        nonlocal launches
        launches += 1
        if launches > short + 1:
            raise error
        return launch(self, step)

    monkeypatch.setattr(ModelRunner, "launch", fail_late)
    found: list[Any] = []
    with pytest.raises(error):
        for output in llm.run(requests):
            found.append(output)
    assert len(found) == rows - 1


@pytest.mark.parametrize(("run_ahead", "launches"), [(0, 0), (1, 4)])
def test_samples_that_ended_wait_for_a_few_launches_at_most(run_ahead: int, launches: int) -> None:
    rows, ends = 300, 4000
    llm = LLM(device="cpu", max_num_seqs=rows)
    llm.engine.run_ahead = run_ahead
    once = SamplingParams(max_tokens=1)
    waiting = []
    for _ in llm.run(Request(i, i, (7, 8), once, (0,)) for i in range(ends)):
        waiting.append(llm.engine.stats.samples - len(waiting) - 1)
    assert len(waiting) == ends
    assert max(waiting) <= (launches + 1) * rows and (max(waiting) > rows) == bool(launches)


def test_a_run_that_is_given_up_leaves_nothing_to_the_next(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    wanted = llm.generate(["def add(a, b):\n"], params)
    for _ in llm.stream([f"x{i} = " for i in range(10)], params):
        break
    assert llm.generate(["def add(a, b):\n"], params) == wanted
    with pytest.raises(SantagenError, match="Prompt 1"):
        llm.generate(["x = ", [10**6], "y ="], params)
    assert llm.generate(["def add(a, b):\n"], params) == wanted


def test_a_run_ends_an_earlier_one(llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    earlier = llm.stream([f"x{i} = " for i in range(10)], params)
    next(earlier)
    found = llm.generate(["def add(a, b):\n"], params)
    assert len(found) == 1
    with pytest.raises(SantagenError, match="another one on the same model"):
        list(earlier)


def test_a_row_that_is_not_finite_spoils_no_other_row_or_run() -> None:
    llm = LLM(device="cpu", max_num_seqs=8)
    wanted = llm.generate([[20, 21, 22]], SamplingParams(max_tokens=70, ignore_eos=True))
    weight = llm.engine.runner.model.transformer.wpe.weight
    kept = weight[60].clone()
    with torch.inference_mode():
        weight[60] = torch.nan  # only the long prompt comes there
    short = SamplingParams(max_tokens=1)
    rows = [Request(i, i, (30 + i, 31), short, (0,)) for i in range(5)]
    found: list[Any] = []
    with pytest.raises(SantagenError, match="not finite"):
        for output in llm.run([*rows, Request("bad", 5, (9,) * 70, short, (0,))]):
            found.append(output)
    assert sorted(output.request.number for output in found) == [0, 1, 2, 3, 4]
    with torch.inference_mode():
        weight[60] = kept
    again = llm.generate([[20, 21, 22]], SamplingParams(max_tokens=70, ignore_eos=True))
    assert [out.token_ids for out in again] == [out.token_ids for out in wanted]
