"""Packed GPTQ products at real sizes, in CUDA graphs and in the engine.

tests/kernels/test_gptq_matmul.py has every form at small sizes, and runs on a GPU too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from santagen import SamplingParams
from santagen.checkpoint.random_weights import RandomModel
from santagen.config import ModelConfig
from santagen.kernels import gptq_matmul as gm
from santagen.kernels.gptq_packed import PackedWeight
from santagen.llm import LLM
from santagen.model.quantized import pack
from tests.gpu.random_gptq import RandomGPTQWeights, random_layer, settings
from tests.gpu.random_model import SANTACODER
from tests.gpu.test_engine import BF16_NATS, GREEDY, generate, largest_error, tokens

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RELATIVE = 2e-2  # of bfloat16, to the largest output
ROWS = (1, 3, 16, 17, 64, 65, 200, 512, 513, 1500)  # of every way and every tile
SHAPES = {"c_attn": (6400, 6144), "mlp.c_proj": (6144, 24576), "odd": (2304, 2048 + 64)}


def made(name: str, bits: int, group: int, act_order: bool) -> PackedWeight:
    form = settings(bits, group, act_order)
    return pack(random_layer(*SHAPES[name], form, torch.device("cuda"), 1))


def drawn(rows: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, width, generator=generator, device="cuda").bfloat16()


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("act_order", [False, True], ids=["in-order", "act-order"])
@pytest.mark.parametrize(
    ("name", "bits", "group"),
    [("c_attn", 4, 128), ("mlp.c_proj", 4, 128), ("odd", 4, 64), ("odd", 4, 32), ("odd", 8, 64),
     ("odd", 3, 64), ("odd", 2, 64)],
)  # fmt: skip
def test_the_kernel_equals_the_twin_in_bfloat16(
    name: str, bits: int, group: int, act_order: bool
) -> None:
    weight = made(name, bits, group, act_order)
    bias = drawn(1, weight.outputs, seed=9)[0]
    counters = gm.new_counters(weight.outputs, bias.device)
    worst = 0.0
    for rows in ROWS:
        x = drawn(rows, weight.inputs, seed=rows)
        wanted = gm.gptq_matmul_reference(x.float(), weight, bias.float(), "gelu_new")
        found = gm.gptq_matmul(x, weight, bias, "gelu_new", counters)
        worst = max(worst, relative_error(found, wanted))
        assert not counters.any()
    print(f"{name}, {bits} bits, group {group}: relative error {worst:.4f}")
    assert worst < RELATIVE


@pytest.mark.parametrize("rows", [1, 16, 64, 128])
def test_shares_are_summed_alike_every_time(rows: int) -> None:
    weight = made("c_attn", 4, 128, True)
    x = drawn(rows, weight.inputs)
    counters = gm.new_counters(weight.outputs, x.device)
    first = gm.gptq_matmul(x, weight, None, None, counters)
    for _ in range(200):
        assert torch.equal(gm.gptq_matmul(x, weight, None, None, counters), first)


@pytest.mark.parametrize("rows", [1, 40, 300, 700])
def test_a_captured_product_reads_its_input_anew(rows: int) -> None:
    weight = made("odd", 4, 64, True)
    x = torch.zeros(rows, weight.inputs, dtype=torch.bfloat16, device="cuda")
    counters = gm.new_counters(weight.outputs, x.device)
    gm.gptq_matmul(x, weight, None, None, counters)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gm.gptq_matmul(x, weight, None, None, counters)
    for seed in range(3):
        x.copy_(drawn(rows, weight.inputs, seed))
        graph.replay()
        wanted = gm.gptq_matmul_reference(x.float(), weight, None)
        assert relative_error(out, wanted) < RELATIVE


def engine(monkeypatch: pytest.MonkeyPatch, act_order: bool, **arguments: object) -> LLM:
    raw = {"model_type": "gpt_bigcode", **SANTACODER, "n_layer": 2, "vocab_size": 1000,
           "torch_dtype": "bfloat16"}  # fmt: skip
    config = ModelConfig.from_dict(raw)
    weights = RandomGPTQWeights.of(settings(4, 128, act_order))
    monkeypatch.setattr("santagen.llm.RandomWeights", weights)
    model = RandomModel(Path(), "random GPTQ weights", config=config)
    return LLM(model, max_num_seqs=32, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("act_order", [False, True], ids=["in-order", "act-order"])
def test_the_engine_packed_equals_dequantised(
    act_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = engine(monkeypatch, act_order, quantization="gptq")
    assert any("kept packed" in line for line in packed.describe())
    found = generate(packed, GREEDY)
    dense = generate(engine(monkeypatch, act_order, quantization="none"), GREEDY)
    error = largest_error(found, dense)
    print(f"packed against dequantised: {error:.4f} nats")
    assert error < BF16_NATS


def test_the_engine_draws_the_same_tokens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, n=3, ignore_eos=True)
    found = [
        tokens(generate(engine(monkeypatch, True, quantization="gptq"), params)) for _ in range(2)
    ]
    assert found[0] == found[1]


def test_a_small_batch_on_a_gpu_keeps_the_weights_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = engine(monkeypatch, False).describe()
    assert any("kept packed: faster at up to" in line for line in told)
