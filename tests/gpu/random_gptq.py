"""GPTQ layers and whole models of any shape with random integers, drawn on the device.

A layer depends on its name and shape alone, so that every rank of every world size sees slices of
one model, with the groups of the whole layer, as `Weights.get_gptq` gives them from files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import santagen.llm
from santagen.checkpoint.gptq import GPTQLinear
from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.random_weights import STD, RandomWeights
from santagen.checkpoint.weights import Range, Ranges


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
