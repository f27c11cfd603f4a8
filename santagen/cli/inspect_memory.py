"""How many sequences would fit a GPU, from sizes alone.

The engine measures free memory when it runs (engine.memory); this is the same arithmetic for a GPU
that need not be here, on which nothing else runs. Imports no torch, allocates nothing.
"""

from __future__ import annotations

from typing import Any

from santagen.config import ModelConfig
from santagen.errors import SantagenError

BLOCK_SIZE = 64  # of the attention a GPU runs by default
ROWS, BATCHED_TOKENS = 2048, 16384  # the engine's defaults on a GPU


def sequence_length(config: ModelConfig, wanted: int | None) -> int:
    """Tokens of the longest sequence; raises as a run would."""
    length = wanted or config.n_positions
    if length > config.n_positions:
        raise SantagenError(
            f"--max-model-len {length} is more than the model's {config.n_positions} positions.",
            "The model has learned no positions beyond; leave the option out or lower it.",
        )
    if length < 2:
        raise SantagenError(
            f"--max-model-len {length} leaves no room for a prompt and a new token.",
            "Give at least 2.",
        )
    return length


def workspace_bytes(config: ModelConfig) -> int:
    """What the largest forward takes beside weights and cache: activations and logits."""
    tokens = max(BATCHED_TOKENS, config.n_positions)
    activations = tokens * (4 * config.n_embd + 2 * config.n_inner) * 2
    return activations + 3 * ROWS * config.vocab_size * 4


def fit(
    config: ModelConfig,
    *,
    memory: int,
    utilization: float,
    weight_bytes: int,
    value_bytes: int,
    length: int,
) -> dict[str, Any]:
    """Cache and sequences of `length` tokens in `memory` bytes; `value_bytes` are a cached
    number's.

    `least_memory` is what a single sequence of that length asks for.
    """
    block_bytes = BLOCK_SIZE * config.kv_bytes_per_token(value_bytes)
    taken = weight_bytes + workspace_bytes(config)
    room = int(memory * utilization) - taken
    blocks = max(0, room // block_bytes - 1)  # one belongs to nobody
    blocks_a_row = -(-length // BLOCK_SIZE)
    return {
        "weight_bytes": weight_bytes,
        "workspace_bytes": workspace_bytes(config),
        "cache_bytes": max(0, room),
        "cache_tokens": blocks * BLOCK_SIZE,
        "sequences": blocks // blocks_a_row,
        "least_memory": int((taken + (blocks_a_row + 1) * block_bytes) / utilization) + 1,
    }


def too_small(memory: int, plans: list[dict[str, Any]]) -> SantagenError | None:
    """The refusal of a run for which not even the weights and one block of cache have room."""
    if any(plan["cache_tokens"] for plan in plans):
        return None
    least = min(plan["least_memory"] for plan in plans)
    return SantagenError(
        f"The model does not fit a GPU of {memory:,} bytes: one sequence takes {least:,}.",
        "Take a larger GPU, a GPTQ file of the model, or a shorter --max-model-len.",
    )
