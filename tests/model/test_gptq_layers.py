"""Models whose GPTQ weights stay packed equal the dequantised ones, whole and in shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from santagen.checkpoint.inspection import Examination, parameter_count
from santagen.checkpoint.weights import Weights, open_weights
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.engine.packed_size import packed_bytes
from santagen.model import quantized
from santagen.model.attention.cpu import CpuAttention
from santagen.model.gpt_bigcode import MLP, FlashMQAttention, FlashSantacoderForCausalLM
from santagen.model.quantized import QuantizedLinear, QuantizedRowLinear
from tests.fixture_writer import GPTQSpec, Spec, write_checkpoint
from tests.model_helpers import prefill_logits

ASYM = GPTQSpec(sym=False)
CPU = torch.device("cpu")
FORMS = {
    "4 bits": Spec(gptq=GPTQSpec()),
    "4 bits act-order": Spec(gptq=replace(ASYM, act_order=True)),
    "2 bits act-order": Spec(gptq=GPTQSpec(bits=2, act_order=True)),
    "3 bits act-order": Spec(gptq=replace(ASYM, bits=3, act_order=True, scales_dtype="BF16")),
    "8 bits one group": Spec(gptq=replace(ASYM, bits=8, group_size=-1)),
    "zero points of 0": Spec(gptq=replace(ASYM, form="v1-word", zero_points=(0, 15))),
    "v2": Spec(gptq=replace(ASYM, form="v2", scales_dtype="F32")),
    "split, two act-orders": Spec(split=True, gptq=replace(ASYM, act_order=True)),
    "split, one act-order": Spec(split=True, gptq=GPTQSpec(g_idx="absent")),
    "group that does not divide": Spec(gptq=replace(ASYM, group_size=24, act_order=True)),
    "interleaved heads": Spec(config={"multi_query": False}, gptq=ASYM),
    "exact gelu": Spec(
        config={"activation_function": "gelu"}, gptq=replace(ASYM, act_order=True)
    ),
}  # fmt: skip
ALL = pytest.mark.parametrize("spec", FORMS.values(), ids=FORMS)


class Alone(TensorParallel):
    """A rank whose sums stay its own, so that a test can add them up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


def opened(folder: Path, packed: bool, **rank: int) -> Weights:
    config = ModelConfig.from_directory(folder)
    weights = open_weights(folder, config, dtype=torch.float32, device=CPU, **rank)
    weights.packed = packed
    return weights


def model(folder: Path, packed: bool) -> FlashSantacoderForCausalLM:
    weights = opened(folder, packed)
    with torch.inference_mode():
        return FlashSantacoderForCausalLM("", weights.config, weights, CpuAttention(16))


def logits(folder: Path, packed: bool) -> Tensor:
    prompts = [[5, 9, 2, 40, 33, 7], [1], list(range(20, 60))]
    return torch.cat(prefill_logits(model(folder, packed), prompts))


@ALL
def test_packed_equals_dequantised(tmp_path: Path, spec: Spec) -> None:
    write_checkpoint(tmp_path, spec)
    packed, dense = logits(tmp_path, True), logits(tmp_path, False)
    assert float((packed - dense).abs().max()) < 1e-5 * float(dense.abs().max())
    assert not torch.equal(dense[0], dense[1])


def test_no_weight_is_left_unpacked(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FORMS["4 bits act-order"])
    found = model(tmp_path, True)
    layers = [part for part in found.modules() if isinstance(part, QuantizedLinear)]
    assert len(layers) == 4 * found.config.n_layer
    assert not any(".attn." in name or ".mlp." in name for name, _ in found.named_parameters())


def test_act_order_of_the_second_product_is_laid_into_the_first(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FORMS["4 bits act-order"])
    for block in model(tmp_path, True).transformer.h:
        assert [part.order is None for part in block.mlp.c_fc.parts] == [False]
        assert [part.order is None for part in block.mlp.c_proj.parts] == [True]


@ALL
def test_shards_add_up_to_the_whole(tmp_path: Path, spec: Spec) -> None:
    """Each rank's layers of a world of 2: outputs side by side or, by rows, summed."""
    write_checkpoint(tmp_path, spec)
    config = ModelConfig.from_directory(tmp_path)
    x = torch.randn(6, config.n_embd, generator=torch.Generator().manual_seed(1))
    prefix, width = "transformer.h.1", config.head_dim * config.n_head

    def layers(packed: bool, rank: int, world: int) -> tuple[Any, Any]:
        weights = opened(tmp_path, packed, rank=rank, world_size=world)
        arguments: tuple[Any, ...] = (config, weights, Alone(rank, world))
        return FlashMQAttention(f"{prefix}.attn", *arguments), MLP(f"{prefix}.mlp", *arguments)

    with torch.inference_mode():
        attention, mlp = layers(False, 0, 1)
        whole = attention.c_attn(x)
        shards = [layers(True, rank, 2) for rank in range(2)]
        found = [shard.c_attn(x) for shard, _ in shards]
        own = width // 2
        sizes = [own, *[(whole.shape[1] - width) // 2 // (1 if config.multi_query else 2)] * 2]
        for kind, start in enumerate((0, width, width + (whole.shape[1] - width) // 2)):
            parts = [qkv.split(sizes, dim=1)[kind] for qkv in found]
            if kind and config.multi_query:
                assert torch.equal(parts[0], parts[1])
                parts = parts[:1]
            joined = torch.cat(parts, dim=1)
            wanted = whole[:, start : start + joined.shape[1]]
            torch.testing.assert_close(joined, wanted, atol=1e-5, rtol=1e-5)
        summed = sum(shard.c_proj(x[:, i * own : (i + 1) * own])
                     for i, (shard, _) in enumerate(shards))  # fmt: skip
        torch.testing.assert_close(summed, attention.c_proj(x), atol=1e-5, rtol=1e-5)
        summed = sum(shard.c_proj(shard.c_fc(x)) for _, shard in shards)
        wanted = mlp.c_proj(mlp.c_fc(x))
        torch.testing.assert_close(summed, wanted, atol=1e-5, rtol=1e-5)


def test_the_bias_of_a_row_sharded_layer_is_on_rank_0_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FORMS["4 bits"])
    for rank in range(2):
        weights = opened(tmp_path, True, rank=rank, world_size=2)
        layer = quantized.load_row(
            "transformer.h.0.attn.c_proj", weights, (32 * rank, 32 * rank + 32), Alone(rank, 2)
        )
        assert isinstance(layer, QuantizedRowLinear)
        silent = not layer(torch.zeros(1, 32)).any()
        assert silent == (rank == 1)


@ALL
def test_its_headers_tell_a_model_s_bytes(tmp_path: Path, spec: Spec) -> None:
    write_checkpoint(tmp_path, spec)
    examined = Examination.of(tmp_path)
    config, loaded = examined.config, model(tmp_path, True)
    assert config is not None
    layers = [module for module in loaded.modules() if isinstance(module, QuantizedLinear)]
    held = sum(buffer.nbytes for layer in layers for buffer in layer.buffers())
    rest = 4 * parameter_count(config)["unquantised"]
    assert packed_bytes(examined, "float32") == held + rest


def test_the_scales_keep_the_file_s_type(tmp_path: Path) -> None:
    for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)):
        folder = tmp_path / name
        folder.mkdir()
        write_checkpoint(folder, Spec(gptq=replace(ASYM, scales_dtype=name)))
        (layer,) = opened(folder, True).get_gptq("transformer.h.0.mlp.c_fc")
        packed = quantized.pack(layer)
        assert packed.scale_dtype == dtype
        assert torch.equal(packed.dequantize(), layer.dequantize())


def test_a_row_s_bits_depend_on_no_other_row(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FORMS["4 bits act-order"])
    x = torch.randn(21, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        mlp = model(tmp_path, True).transformer.h[0].mlp
        whole = mlp.c_proj(mlp.c_fc(x))
        for start, stop in ((0, 1), (2, 5), (1, 18)):
            assert torch.equal(mlp.c_proj(mlp.c_fc(x[start:stop])), whole[start:stop])
