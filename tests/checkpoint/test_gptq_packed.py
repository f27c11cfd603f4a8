"""GPTQ checkpoints of other tools, packed and dequantised; and the choice between the two."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from santagen.checkpoint.gptq_choice import Machine, choose, dequantized_bytes
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.weights import open_weights
from santagen.config import ModelConfig
from santagen.errors import SantagenError
from santagen.kernels.packed_linear import storage_key
from santagen.llm import LLM
from santagen.model.attention.cpu import CpuAttention
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.model.quantized import QuantizedLinear
from santagen.request import Request, SampleOutput, SamplingParams
from tests.checkpoint.loading import open_float32, settings_in
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint
from tests.model_helpers import SHARED, decode_logits, prefill_logits

ROOT = SHARED / "fixtures"
MANIFEST: list[dict[str, Any]] = (
    json.loads((ROOT / "MANIFEST.json").read_text()) if (ROOT / "MANIFEST.json").is_file() else []
)
LOADS = [e["name"] for e in MANIFEST if e["kind"] == "gptq" and e["expected"] == "loads"]
SETTINGS = GPTQSettings(4, 128, False, True, "v1", "config.json")
STARCODER = ModelConfig(
    vocab_size=49152, n_positions=8192, n_embd=6144, n_head=48, n_layer=40, n_inner=24576
)
GIB = 2**30


def load(directory: Path, packed: bool) -> FlashSantacoderForCausalLM:
    config = ModelConfig.from_directory(directory)
    weights = open_weights(directory, config, dtype=torch.float32, device=torch.device("cpu"))
    weights.packed = packed
    with torch.inference_mode():
        return FlashSantacoderForCausalLM("", config, weights, CpuAttention(16))


@pytest.mark.skipif(not MANIFEST, reason="the shared fixtures are not beside this clone")
@pytest.mark.parametrize("quantization", ["gptq", "none"])
@pytest.mark.parametrize("name", LOADS)
def test_logits_and_greedy_equal_the_reference(name: str, quantization: str) -> None:
    reference = np.load(ROOT / name / "ref_logits.npz")
    prompts = [reference[f"prompt_{i}"].tolist() for i in range(len(reference["last_logits"]))]
    model = load(ROOT / name, quantization == "gptq")
    last = torch.stack([logits[-1] for logits in prefill_logits(model, prompts)])
    wanted = torch.from_numpy(reference["last_logits"])
    assert float((last - wanted).abs().max()) < 1e-4
    assert float((decode_logits(model, prompts) - wanted).abs().max()) < 1e-4

    llm = LLM(str(ROOT / name), device="cpu", quantization=quantization)
    packed = any(isinstance(part, QuantizedLinear) for part in llm.engine.runner.model.modules())
    assert packed == (quantization == "gptq")
    safe = reference["greedy_safe_len"].tolist()
    params = SamplingParams(max_tokens=reference["greedy_ids"].shape[1], ignore_eos=True)
    for output in llm.run(Request(i, i, tuple(ids), params) for i, ids in enumerate(prompts)):
        assert isinstance(output, SampleOutput)
        i = output.request.number
        assert list(output.token_ids)[: safe[i]] == reference["greedy_ids"][i][: safe[i]].tolist()


@pytest.mark.parametrize(
    ("machine", "packed", "words"),
    [
        (Machine("cuda", 126 * GIB, 1024, 2), False, ["1,024 sequences", "fit"]),
        (Machine("cuda", 126 * GIB, 16, 2), True, ["faster", "16 are allowed"]),
        (Machine("cuda", 21 * GIB, 1024, 2), True, ["would not fit into 21.0 GiB"]),
        (Machine("cuda", 40 * GIB, 1024, 2), True, ["would not fit"]),  # the weights alone would
        (Machine("cuda", 40 * GIB, 1024, 2, ranks=4), False, ["fit"]),
        (Machine("cpu", 100 * GIB, 1, 4), False, ["faster on the CPU"]),
        (Machine("cpu", 50 * GIB, 1, 4), True, ["would not fit"]),
    ],
)
def test_memory_and_batch_decide(machine: Machine, packed: bool, words: list[str]) -> None:
    choice = choose("auto", SETTINGS, STARCODER, machine)
    assert choice.packed == packed
    assert ("kept packed" if packed else "dequantised at load") in choice.note
    assert "4 bits in groups of 128" in choice.note
    assert all(word in choice.note for word in words), choice.note


def test_what_is_asked_for_wins() -> None:
    small, large = Machine("cuda", GIB, 1024, 2), Machine("cuda", 126 * GIB, 1024, 2)
    assert not choose("none", SETTINGS, STARCODER, small).packed
    choice = choose("gptq", replace(SETTINGS, group_size=-1, desc_act=True), STARCODER, large)
    assert choice.packed
    assert choice.note.endswith("--quantization gptq")
    assert "one group" in choice.note and "act-order" in choice.note


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("group_size", [32, -1])
def test_the_tensors_tell_act_order(
    tmp_path: Path, act_order: bool, said: bool, group_size: int
) -> None:
    write_checkpoint(tmp_path, Spec(gptq=GPTQSpec(act_order=act_order, group_size=group_size)))
    settings_in(tmp_path, "config.json", desc_act=said)
    settings = open_float32(tmp_path).quantization
    assert settings is not None
    machine = Machine("cpu", GIB, 1, 4)
    note = choose("auto", settings, ModelConfig.from_directory(tmp_path), machine).note
    assert ("act-order" in note) == (act_order and group_size > 0)  # of one group there is no order


def test_a_float_model_has_nothing_to_choose() -> None:
    machine = Machine("cpu", GIB, 1, 4)
    for wanted in ("auto", "none"):
        assert choose(wanted, None, STARCODER, machine).note == ""
    with pytest.raises(SantagenError, match="not quantised") as caught:
        choose("gptq", None, STARCODER, machine)
    assert caught.value.hint
    with pytest.raises(SantagenError, match="int4"):
        choose("int4", SETTINGS, STARCODER, machine)


def test_dequantised_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=GPTQSpec()))
    tensors = dict(load(tmp_path, False).named_parameters()).values()
    apart = {storage_key(t): t for t in tensors}.values()  # tied is once
    matrices = sum(t.nbytes for t in apart if t.ndim == 2)
    config = ModelConfig.from_directory(tmp_path)
    assert dequantized_bytes(config, Machine("cpu", GIB, 1, 4)) == matrices


def test_the_engine_says_which_way_it_took(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Spec(gptq=GPTQSpec()))
    for quantization, words in (
        ("auto", "dequantised at load: faster on the CPU"),
        ("gptq", "kept packed: --quantization gptq"),
    ):
        told = LLM(str(tmp_path), device="cpu", quantization=quantization).describe()
        assert sum(words in line for line in told) == 1
