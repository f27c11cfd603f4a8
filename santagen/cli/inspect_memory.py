"""How many sequences would fit a GPU, from sizes alone.

The engine measures free memory when it runs (engine.memory); this is the same arithmetic for a GPU
that need not be here, on which nothing else runs. Imports no torch, allocates nothing.
"""

from __future__ import annotations

from typing import Any

from santagen.config import ModelConfig
from santagen.engine.launch_limits import launch_limits, workspace_bytes
from santagen.errors import SantagenError

BLOCK_SIZE = 64  # of the attention a GPU runs by default


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

    `least_memory` is what a single sequence of that length asks for, `rows` how many run at once
    at most.
    """
    block_bytes = BLOCK_SIZE * config.kv_bytes_per_token(value_bytes)
    blocks_a_row = -(-length // BLOCK_SIZE)
    row_bytes = (blocks_a_row + 1) * block_bytes  # one block belongs to nobody
    room = int(memory * utilization) - weight_bytes
    rows, batched = launch_limits(config, room, length, row_bytes)
    workspace = workspace_bytes(config, rows, batched, length)
    room -= workspace
    least = workspace_bytes(config, *launch_limits(config, 0, length, row_bytes), length)
    blocks = max(0, room // block_bytes - 1)
    return {
        "weight_bytes": weight_bytes,
        "workspace_bytes": workspace,
        "rows": rows,
        "cache_bytes": max(0, room),
        "cache_tokens": blocks * BLOCK_SIZE,
        "sequences": blocks // blocks_a_row,
        "least_memory": int((weight_bytes + least + row_bytes) / utilization) + 1,
    }


def too_small(memory: int, plans: list[dict[str, Any]]) -> SantagenError | None:
    """The refusal of a run for which not even the weights and one block of cache have room."""
    if any(plan["cache_tokens"] for plan in plans):
        return None
    least = min(plan["least_memory"] for plan in plans)
    return SantagenError(
        f"The model does not fit a GPU of {memory:,} bytes: one sequence takes {least:,}.",
        "Take a larger GPU, a GPTQ file of fewer bits, or a shorter --max-model-len.",
    )
