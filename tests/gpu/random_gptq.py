"""GPTQ layers and whole models of any shape with random integers, drawn on the device.

A layer depends on its name and shape alone, so that every rank of every world size sees slices of
one model, with the groups of the whole layer, as `Weights.get_gptq` gives them from files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import santagen.llm
from santagen.checkpoint.gptq import GPTQLinear
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.layout import FUSED, linear_shape
from santagen.checkpoint.random_weights import STD, RandomWeights
from santagen.checkpoint.weights import Range, Ranges
from santagen.config import ModelConfig


def settings(
    bits: int = 4, group_size: int = 128, act_order: bool = False, symmetric: bool = False
) -> GPTQSettings:
    return GPTQSettings(bits, group_size, act_order, symmetric, "v2", "random weights")


def random_layer(
    outputs: int, inputs: int, form: GPTQSettings, device: torch.device, seed: int
) -> GPTQLinear:
    """Codes and zero points of any value, the middle one if symmetric; float16 scales that give
    weights of STD."""
    generator = torch.Generator(device).manual_seed(seed)
    top, groups = 2**form.bits, form.groups(inputs)

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, top, shape, generator=generator, device=device, dtype=torch.uint8)

    scales = torch.rand(groups, outputs, generator=generator, device=device) + 0.5
    index = torch.arange(inputs, device=device) // (inputs // groups)
    if form.desc_act:
        index = index[torch.randperm(inputs, generator=generator, device=device)]
    zeros = draw(groups, outputs)
    if form.sym:
        zeros.fill_(top // 2)
    return GPTQLinear(
        draw(inputs, outputs), zeros, (scales * STD / top).half().float(), index,
        form.bits, form.group_size, scales_dtype=torch.float16,
    )  # fmt: skip


class RandomGPTQWeights(RandomWeights):
    """A quantised model without files behind it; `form` is set by a subclass."""

    form: GPTQSettings

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.quantization = self.form

    @classmethod
    def of(cls, form: GPTQSettings) -> type[RandomGPTQWeights]:
        return type("RandomForm", (cls,), {"form": form})

    def get_gptq(
        self, prefix: str, *, out: Ranges | None = None, inp: Range | None = None
    ) -> list[GPTQLinear]:
        seed = int.from_bytes(hashlib.blake2b(prefix.encode(), digest_size=7).digest(), "little")
        layer = random_layer(*self._shape(prefix), self.form, self.device, seed)
        if inp is not None:
            rows, first = slice(*inp), inp[0]
            layer = replace(
                layer, codes=layer.codes[rows], g_idx=layer.g_idx[rows], first_input=first
            )
        if out is not None:
            order = torch.cat([torch.arange(*pair, device=self.device) for pair in out])
            layer = layer.columns(order)
        return [layer]

    def get_linear(
        self, prefix: str, *, out: Ranges | None = None, inp: Range | None = None
    ) -> tuple[Tensor, Tensor]:
        (layer,) = self.get_gptq(prefix, out=out, inp=inp)
        return layer.dequantize(self.dtype), self.get_bias(prefix, out)


@contextmanager
def quantised(form: GPTQSettings) -> Iterator[None]:
    """Within it the random models that an LLM loads are quantised."""
    floats = santagen.llm.RandomWeights
    santagen.llm.RandomWeights = RandomGPTQWeights.of(form)  # type: ignore[misc]
    try:
        yield
    finally:
        santagen.llm.RandomWeights = floats  # type: ignore[misc]


def write_gptq_model(directory: Path, config: ModelConfig, form: GPTQSettings) -> Path:
    """A checkpoint with a shard a layer, as large as a real one; the layers are all the same."""
    directory.mkdir(parents=True)
    embd = config.n_embd

    def words(*shape: int) -> Tensor:
        return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)

    layer: dict[str, Tensor] = {}
    for module in FUSED:
        outputs, inputs = linear_shape(config, module)
        groups = form.groups(inputs)
        order = torch.randperm(inputs) if form.desc_act else torch.arange(inputs)
        zeros = words(groups, outputs * form.bits // 32)
        layer |= {
            f"{module}.qweight": words(inputs * form.bits // 32, outputs),
            f"{module}.qzeros": zeros.fill_(-0x77777778) if form.sym else zeros,  # 8 of 4 bits
            f"{module}.scales": ((torch.rand(groups, outputs) + 0.5) * STD / 2**form.bits).half(),
            f"{module}.g_idx": (order // (inputs // groups)).int(),
            f"{module}.bias": torch.zeros(outputs).half(),
        }
    norm = {"weight": torch.ones(embd).half(), "bias": torch.zeros(embd).half()}
    layer |= {f"{name}.{part}": norm[part].clone() for name in ("ln_1", "ln_2") for part in norm}
    rest = {f"ln_f.{part}": norm[part] for part in norm}
    for name, rows in (("wte", config.vocab_size), ("wpe", config.n_positions)):
        rest[f"{name}.weight"] = (torch.randn(rows, embd) * STD).half()
    places: dict[str, str] = {}
    for number in range(config.n_layer + 1):
        part = {f"h.{number}.{k}": v for k, v in layer.items()} if number < config.n_layer else rest
        named = {f"transformer.{name}": tensor for name, tensor in part.items()}
        shard = f"model-{number:03}.safetensors"
        save_file(named, directory / shard, metadata={"format": "pt"})
        places |= dict.fromkeys(named, shard)
    index = {"metadata": {}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    raw = {
        "model_type": "gpt_bigcode", "n_embd": embd, "n_head": config.n_head,
        "n_layer": config.n_layer, "n_positions": config.n_positions,
        "vocab_size": config.vocab_size, "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "gptq", "bits": form.bits, "group_size": form.group_size,
            "desc_act": form.desc_act, "sym": form.sym, "checkpoint_format": "gptq_v2",
        },
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(raw))
    return directory
