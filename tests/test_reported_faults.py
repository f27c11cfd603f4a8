"""Faults that users of other tools reported, where no other test holds the right behaviour.

`test_cases` says which test answers which report.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen import LLM, SampleOutput, SamplingParams, SantagenError, __version__
from santagen.config import ARCHITECTURES, MODEL_TYPES, ModelConfig
from santagen.engine.batch import Features, Step
from santagen.engine.output_processor import OutputProcessor
from santagen.engine.sequence import Sequence
from santagen.evaluation.tasks import HUMANEVAL_STOPS, MBPP_STOPS
from santagen.io.stops import StopSet
from santagen.model.attention import CacheShape, Seqlen
from santagen.model.attention.cpu import CpuAttention
from santagen.model.attention.sdpa import SdpaAttention
from santagen.request import Request
from tests.checkpoint.loading import change, open_float32
from tests.cli.helpers import Cli, read_jsonl, write_jsonl
from tests.fixture_writer import TINY, Spec, read_safetensors, write_checkpoint, write_safetensors
from tests.model_helpers import load_model, prefill_logits

PAIR = ("def area(w, h):\n    return ", " * h\n")
LEFT_TO_RIGHT = "def add(a, b):\n    return"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cpu")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


# -- checkpoints -------------------------------------------------------------------------------


def test_another_architecture_is_told_what_is_accepted() -> None:
    raw = TINY | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    with pytest.raises(SantagenError) as caught:
        ModelConfig.from_dict(raw)
    for word in (*ARCHITECTURES, *MODEL_TYPES, __version__):
        assert word in caught.value.hint
    assert "llama" in caught.value.message and "LlamaForCausalLM" in caught.value.message


def test_heads_of_the_cache_need_no_key_that_was_derived(tmp_path: Path) -> None:
    for more in ({}, {"num_key_value_heads": 1}, {"num_key_value_heads": 4}):
        assert ModelConfig.from_dict(TINY | more).n_kv_head == 1


def move_to_head(folder: Path) -> None:
    """The embedding under the head's name, while the index still lists both."""
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    shard = folder / listed["weight_map"]["transformer.wte.weight"]
    tensors = read_safetensors(shard)
    tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")
    write_safetensors(shard, tensors)
    listed["weight_map"]["lm_head.weight"] = shard.name
    index.write_text(json.dumps(listed))


def test_an_index_that_lists_an_embedding_no_shard_holds(tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path, Spec(shards=2))
    move_to_head(tmp_path)
    found = open_float32(tmp_path).get_rows("transformer.wte.weight", 0, 96)
    assert np.array_equal(found.numpy(), wanted["transformer.wte.weight"])


def test_neither_name_of_a_tied_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec())
    change(tmp_path, "transformer.wte.weight", None)
    with pytest.raises(SantagenError, match=r"transformer\.wte\.weight"):
        open_float32(tmp_path)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ggml-model-q4_0.bin", ["holds no weights", "safetensors"]),
        ("pytorch_model.bin", ["pytorch_model.bin"]),
    ],
)
def test_a_file_of_another_program_s_format(tmp_path: Path, file: str, words: list[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / file).write_bytes(b"lmgg" + bytes(400))
    with pytest.raises(SantagenError) as caught:
        open_float32(tmp_path)
    assert all(word in caught.value.message for word in words) and caught.value.hint


@pytest.mark.parametrize("name", ["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"])
def test_flags_of_the_softmax_do_not_change_the_maths(tmp_path: Path, name: str) -> None:
    prompt = list(range(1, 40))
    logits = []
    for value in (True, False):
        folder = tmp_path / str(value)
        folder.mkdir()
        write_checkpoint(folder, Spec(config={name: value}))
        logits.append(prefill_logits(load_model(folder), [prompt])[0])
    assert torch.equal(*logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", [CpuAttention, SdpaAttention])
def test_scores_beyond_float16_are_no_fault(
    backend: type[CpuAttention] | type[SdpaAttention], dtype: torch.dtype
) -> None:
    tokens, heads, size, block = 37, 3, 16, 16
    generator = torch.Generator().manual_seed(0)

    def draw(width: int) -> torch.Tensor:
        return torch.randn(tokens, width, size, generator=generator).to(dtype)

    query, key, value = 300 * draw(heads), 300 * draw(1), draw(1)
    scores = torch.einsum("qhd,kd->hqk", query.double(), key[:, 0].double()) * size**-0.5
    assert scores.abs().max() > 5 * torch.finfo(torch.float16).max
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    shares = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    wanted = torch.einsum("hqk,kd->qhd", shares, value[:, 0].double())

    attention: Any = backend(block)
    cpu = torch.device("cpu")
    caches = attention.allocate(CacheShape(1, 5, block, 1, size), dtype, cpu)
    layer = (caches[0][0], caches[1][0])
    attention.write(layer, key, value, block + torch.arange(tokens))
    count, cu = torch.tensor([tokens]).int(), torch.tensor([0, tokens]).int()
    seqlen = Seqlen(count, torch.zeros_like(count), cu, cu)
    plan = attention.plan(seqlen, torch.tensor([[1, 2, 3]]).int(), tokens, decode=False)
    found = attention.prefill(query, key, value, layer, plan, size**-0.5)
    assert torch.allclose(found.double(), wanted, atol=0.03)
    seqlen = Seqlen(torch.ones_like(count), count - 1)
    plan = attention.plan(seqlen, torch.tensor([[1, 2, 3]]).int(), tokens, decode=True)
    slot = torch.tensor([block + tokens - 1])
    last = query[-1:], key[-1:], value[-1:]
    found = attention.decode(*last, layer, slot, plan, size**-0.5)
    assert torch.allclose(found.double(), wanted[-1:], atol=0.03)


# -- text --------------------------------------------------------------------------------------


def test_left_to_right_and_infilled_text_are_the_recorded_ones(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, stop=("\n",))
    assert llm.generate([LEFT_TO_RIGHT], params)[0].completion == " a + b"
    for mode in ("psm", "spm"):
        (sample,) = llm.generate([PAIR], SamplingParams(max_tokens=12), fim_mode=mode)
        assert sample.completion == GOLDEN_INFILLED[mode], mode


GOLDEN_INFILLED = {"psm": "w * h", "spm": "2 * w"}


@pytest.mark.parametrize("mode", ["psm", "spm"])
def test_infilling_equals_transformers(llm: LLM, bundled_model: Path, mode: str) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        bundled_model, dtype=torch.float32, attn_implementation="eager"
    )
    (sample,) = llm.generate([PAIR], SamplingParams(max_tokens=12, ignore_eos=True), fim_mode=mode)
    ids = torch.tensor([sample.request.prompt_token_ids])
    wanted = reference.generate(
        ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert list(sample.token_ids) == wanted[0, ids.shape[1] :].tolist()


def test_nothing_depends_on_a_version_of_transformers(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['transformers'] = None\n"
        "from santagen import LLM, SamplingParams\n"
        "(s,) = LLM(device='cpu').generate(['who ? me'], SamplingParams(max_tokens=2))\n"
        "print(s.request.prompt_text)\n"
    )
    settings = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "check": True}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        **settings,  # type: ignore[call-overload]
    )
    assert done.stdout == "who ? me\n"


def ends(llm: LLM, drawn: list[list[int]], request: Request, limit: int) -> list[SampleOutput]:
    """What becomes of rows that draw these tokens, a column a launch."""
    assert llm.tokenizer is not None
    processor = OutputProcessor(llm.tokenizer, (4091,), tuple(llm.tokenizer.end_ids))
    stop = StopSet(request.params.stop, llm.tokenizer.token_bytes)
    rows = [Sequence(request, i, (0, 0), limit, stop) for i in range(len(drawn))]
    outputs: list[SampleOutput] = []
    for at in range(limit):
        last = np.full(len(rows), at == limit - 1)
        tokens = np.array([(row + [0] * limit)[at] for row in drawn])
        step = Step(len(rows), rows, last, Features(), at)
        outputs += map(processor.output, processor.process(step, tokens, None, None, None))
    return sorted(outputs, key=lambda output: output.index)


def test_one_end_token_ends_its_own_row_and_is_in_no_text(llm: LLM) -> None:
    assert llm.tokenizer is not None
    word = llm.tokenizer.encode("x")
    params = SamplingParams(max_tokens=4, n=4, temperature=1.0)
    drawn = [
        [*word, 4091, *word, *word], [*word, 4092, *word, *word], [4091, *word, *word, *word],
        [*word, *word, *word, *word],
    ]  # fmt: skip
    found = ends(llm, drawn, Request(0, 0, (1,), params, (0, 1, 2, 3)), 4)
    assert [(o.completion, o.finish_reason, o.stop_reason) for o in found] == [
        ("x", "stop", None), ("x", "stop", 4092), ("", "stop", None), ("xxxx", "length", None)
    ]  # fmt: skip
    assert [o.generated_tokens for o in found] == [2, 2, 1, 4]


@pytest.mark.parametrize("end", [True, False])
def test_text_that_may_begin_a_stop_is_kept_where_the_row_ends(llm: LLM, end: bool) -> None:
    assert llm.tokenizer is not None
    stop = "abcdefghij" * 5
    drawn = llm.tokenizer.encode(stop[:-1])
    params = SamplingParams(max_tokens=99, stop=(stop,))
    limit = len(drawn) + end
    rows = [[*drawn, 4091] if end else drawn]
    (found,) = ends(llm, rows, Request(0, 0, (1,), params), limit)
    assert found.completion == stop[:-1]
    assert (found.finish_reason, found.stop_reason) == ("stop" if end else "length", None)


def test_default_stops_begin_at_column_0(llm: LLM) -> None:
    body = (
        "    def inner(x):\n\n        if x:\n            print(x)\n        return x  # a\n\n\n"
        "    class A:\n        @property\n        def b(self):\n            assert self\n"
        "    return inner\n"
    )
    for stops in (HUMANEVAL_STOPS, MBPP_STOPS):
        assert StopSet(stops, []).find(body.encode()) is None
        for more in ("def", "class", "```") if stops is HUMANEVAL_STOPS else ("class", "```"):
            found = StopSet(stops, []).find((body + f"\n{more} x").encode())
            assert found is not None and found[0] == len(body)


# -- rows and records --------------------------------------------------------------------------


def test_a_row_that_is_too_long_fails_alone_and_once(cli: Cli, tmp_path: Path) -> None:
    long = "x = 1\n" * 4000
    given = [{"prompt": LEFT_TO_RIGHT}, {"prompt": long}, {"prompt": LEFT_TO_RIGHT}]
    out = tmp_path / "out.jsonl"
    ran = cli.generate(write_jsonl(tmp_path / "p.jsonl", given), "-o", out, "--max-tokens", "4")
    assert ran.code == 1
    assert [row["task_id"] for row in read_jsonl(out)] == [0, 2]
    (error,) = read_jsonl(tmp_path / "out.jsonl.errors.jsonl")
    assert (error["task_id"], error["line"]) == (1, 2)
    assert "positions" in error["error"] and "--truncate left" in error["hint"]


def test_a_request_for_more_than_the_positions_ends_at_the_last_one(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20_000, ignore_eos=True)
    room = 3
    prompt = [5] * (llm.max_model_len - room)
    (sample,) = llm.generate([prompt], params)
    assert (sample.finish_reason, sample.generated_tokens) == ("length", room)


def test_more_positions_than_the_model_has_are_refused_with_the_reason(
    cli: Cli, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "x"}])
    for command in (["generate", path], ["bench"], ["inspect"]):
        ran = cli(*command, "--max-model-len", "20000")
        assert ran.code == 2 and "learned no positions" in ran.err, (command, ran.err)


def test_prompts_that_differ_in_trailing_space_are_two_rows(cli: Cli, tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"id": f"r{i}", "prompt": f"x ={space}", "n": 2, "temperature": 1.0}
        for i, space in enumerate(["", " ", "\n", " \n"])
    ]
    path = write_jsonl(tmp_path / "p.jsonl", given)
    found = cli.generate(path, "--max-tokens", "3", "--echo").samples
    assert [(s["task_id"], s["index"]) for s in found] == [
        (row["id"], i) for row in given for i in range(2)
    ]
    assert [s["prompt"] for s in found[::2]] == [row["prompt"] for row in given]


def test_each_of_n_samples_has_a_stream_of_its_own_that_can_be_drawn_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, n=5, seed=1, temperature=1.2, ignore_eos=True)
    together = llm.generate(["import "], params)
    assert len({sample.token_ids for sample in together}) == 5
    request = together[0].request
    for sample in together:
        alone = dataclasses.replace(request, sample_indices=(sample.index,))
        (again,) = llm.run([alone])
        assert isinstance(again, SampleOutput)
        assert (again.index, again.token_ids) == (sample.index, sample.token_ids)
    copies = [
        Request(name, number, request.prompt_token_ids, dataclasses.replace(params, n=1))
        for number, name in enumerate(["a", "b", "c", "d", "e"])
    ]
    found = [result for result in llm.run(copies) if isinstance(result, SampleOutput)]
    assert len({sample.token_ids for sample in found}) == 5
