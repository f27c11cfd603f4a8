"""What several tests need: where the optional shared fixtures are, and logits of a model outside
the engine."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from santagen.checkpoint.weights import open_weights
from santagen.config import ModelConfig
from santagen.model.attention import CacheShape, Seqlen
from santagen.model.attention.cpu import CpuAttention
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM

SHARED = Path(__file__).resolve().parents[2] / "shared"


def load_model(directory: Path, block_size: int = 16) -> FlashSantacoderForCausalLM:
    """The model of a directory in float32 on the CPU."""
    config = ModelConfig.from_directory(directory)
    weights = open_weights(directory, config, dtype=torch.float32, device=torch.device("cpu"))
    with torch.inference_mode():
        return FlashSantacoderForCausalLM("", config, weights, CpuAttention(block_size))


class Paged:
    """A cache of a model's dtype and device outside the engine, and the blocks of some prompts."""

    def __init__(self, model: FlashSantacoderForCausalLM, lengths: list[int]) -> None:
        self.model, self.lengths = model, lengths
        weight, config = model.transformer.wte.weight, model.config
        self.size, self.device = model.attention.block_size, weight.device
        blocks = [-(-length // self.size) for length in lengths]
        shape = CacheShape(
            config.n_layer, 1 + sum(blocks), self.size, config.n_kv_head, config.head_dim
        )
        cache = model.attention.allocate(shape, weight.dtype, self.device)
        self.layers = list(zip(*cache, strict=True))
        self.tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        first = 1
        for row, count in enumerate(blocks):
            self.tables[row, :count] = torch.arange(first, first + count)
            first += count

    def slots(self, row: int, positions: Tensor) -> Tensor:
        return self.tables[row].long()[positions // self.size] * self.size + positions % self.size

    def on_device(self, *tensors: Tensor) -> list[Tensor]:
        return [tensor.to(self.device) for tensor in tensors]

    def prefill(self, prompts: list[list[int]]) -> list[Tensor]:
        """[tokens, V] of each prompt, all packed."""
        counts = [len(prompt) for prompt in prompts]
        places = [torch.arange(count) for count in counts]
        lengths = torch.tensor(counts, dtype=torch.int32)
        cu = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
        slots = torch.cat([self.slots(row, place) for row, place in enumerate(places)])
        tokens = torch.tensor([token for prompt in prompts for token in prompt])
        device = self.on_device(
            tokens, torch.cat(places), cu, self.tables, slots, lengths, torch.zeros_like(lengths)
        )
        tokens, positions, cu, tables, slots, lengths, cached = device
        logits, _ = self.model(
            tokens, positions, cu, self.layers, tables, slots,
            Seqlen(lengths, cached, cu, cu), max(counts),
        )  # fmt: skip
        return list(logits.split(counts))

    def decode(self, tokens: list[int], positions: list[int]) -> Tensor:
        """[sequences, V] after one more token each."""
        places = torch.tensor(positions)
        slots = torch.cat([self.slots(row, place[None]) for row, place in enumerate(places)])
        device = self.on_device(torch.tensor(tokens), places, self.tables, slots)
        token, position, tables, slots = device
        ones = torch.ones(len(tokens), dtype=torch.int32, device=self.device)
        context = (position + 1).int()
        seqlen = Seqlen(ones, position, has_prefix=False, kv_lengths=context)
        logits, _ = self.model(
            token, position, None, self.layers, tables, slots, seqlen, max(positions) + 1
        )
        return logits


@torch.inference_mode()
def prefill_logits(model: FlashSantacoderForCausalLM, prompts: list[list[int]]) -> list[Tensor]:
    """[tokens, V] of each prompt, all in one packed prefill without the engine."""
    return Paged(model, [len(prompt) for prompt in prompts]).prefill(prompts)


@torch.inference_mode()
def decode_logits(model: FlashSantacoderForCausalLM, prompts: list[list[int]]) -> Tensor:
    """[prompts, V] at each prompt's last token, which one decode step feeds to the model."""
    paged = Paged(model, [len(prompt) for prompt in prompts])
    paged.prefill([prompt[:-1] for prompt in prompts])
    return paged.decode([prompt[-1] for prompt in prompts], [len(p) - 1 for p in prompts])
