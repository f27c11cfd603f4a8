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


@torch.inference_mode()
def prefill_logits(model: FlashSantacoderForCausalLM, prompts: list[list[int]]) -> list[Tensor]:
    """[tokens, V] of each prompt, all in one packed prefill without the engine."""
    size, config = model.attention.block_size, model.config
    blocks = [-(-len(p) // size) for p in prompts]
    shape = CacheShape(config.n_layer, 1 + sum(blocks), size, config.n_kv_head, config.head_dim)
    cache = model.attention.allocate(shape, torch.float32, torch.device("cpu"))
    tables = torch.zeros(len(prompts), max(blocks), dtype=torch.int32)
    first, slots = 1, []
    for row, (prompt, count) in enumerate(zip(prompts, blocks, strict=True)):
        tables[row, :count] = torch.arange(first, first + count)
        slots.append(first * size + torch.arange(len(prompt)))
        first += count
    lengths = torch.tensor([len(p) for p in prompts], dtype=torch.int32)
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
    logits, _ = model(
        torch.tensor([token for prompt in prompts for token in prompt]),
        torch.cat([torch.arange(len(p)) for p in prompts]),
        cu,
        list(zip(*cache, strict=True)),
        tables,
        torch.cat(slots),
        Seqlen(lengths, torch.zeros_like(lengths), cu, cu),
        int(lengths.max()),
    )
    return list(logits.split(lengths.tolist()))
