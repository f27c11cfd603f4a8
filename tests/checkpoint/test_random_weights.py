"""Random weights: one model whatever the rank that asks, close to what training starts from."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from santagen.checkpoint.random_weights import STD, RandomWeights
from santagen.config import ModelConfig

SHAPE = {"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 50,
         "vocab_size": 301}  # fmt: skip


def weights(dtype: torch.dtype = torch.float32, **raw: Any) -> RandomWeights:
    config = ModelConfig.from_dict({**SHAPE, **raw})
    return RandomWeights(config, dtype=dtype, device=torch.device("cpu"))


def test_parts_are_parts_of_one_tensor() -> None:
    found = weights()
    whole, bias = found.get_linear("transformer.h.1.attn.c_attn")
    assert whole.shape == (64 + 32, 64) and bias.shape == (96,)
    part, part_bias = weights().get_linear("transformer.h.1.attn.c_attn", out=[(16, 32), (64, 96)])
    assert torch.equal(part, torch.cat([whole[16:32], whole[64:96]]))
    assert torch.equal(part_bias, torch.cat([bias[16:32], bias[64:96]]))
    columns, _ = found.get_linear("transformer.h.1.mlp.c_proj", inp=(64, 128))
    assert torch.equal(columns, found.get_linear("transformer.h.1.mlp.c_proj")[0][:, 64:128])


def test_rows_past_the_end_of_a_table_are_zeros() -> None:
    table = weights().get_rows("transformer.wte.weight", 0, 301)
    last = weights().get_rows("transformer.wte.weight", 200, 304)
    assert torch.equal(last[:101], table[200:]) and not last[101:].any()


def test_tensors_differ_and_have_the_usual_spread() -> None:
    found = weights()
    names = [f"transformer.h.{layer}.mlp.{part}" for layer in (0, 1) for part in ("c_fc", "c_proj")]
    drawn = [found.get_linear(name)[0] for name in names]
    for one, two in itertools.combinations(drawn, 2):
        assert not torch.equal(one.flatten(), two.flatten())
    for tensor in drawn:
        assert float(tensor.std()) == pytest.approx(STD, rel=0.05)
        assert abs(float(tensor.mean())) < STD / 20
    norm = found.get_tensor("transformer.ln_f.weight")
    assert float(norm.mean()) == pytest.approx(1, abs=0.02)
    assert abs(float(found.get_tensor("transformer.ln_f.bias").mean())) < 0.02


def test_a_dtype_rounds_the_same_numbers() -> None:
    name = "transformer.h.0.attn.c_proj"
    exact, rounded = (weights(dtype).get_linear(name)[0] for dtype in (torch.float32, torch.half))
    assert rounded.dtype == torch.half and torch.equal(exact.half(), rounded)


def test_a_quantisation_is_left_out_and_told() -> None:
    assert weights().notes == []
    found = weights(quantization_config={"quant_method": "gptq", "bits": 4})
    assert found.quantization is None and "not quantised" in found.notes[0]
