"""How many rows and prompt tokens a GPU's launches hold by default, and the memory that they take
beside weights and cache. Plain numbers: imports no torch, measures nothing."""

from __future__ import annotations

from santagen.config import ModelConfig

ROWS, BATCHED_TOKENS = 2048, 16384
HALVINGS = 5  # at most, of both, where memory is short
WORKSPACE_SHARE = 3  # of what weights leave, a third at most


def workspace_bytes(config: ModelConfig, rows: int, batched: int, longest: int) -> int:
    """What the largest forward takes: activations, in 16 bits, and float32 logits. A prompt of
    `longest` tokens is not divided."""
    tokens = max(batched, longest)
    activations = tokens * (4 * config.n_embd + 2 * config.n_inner) * 2
    return activations + 3 * min(rows, ROWS) * config.vocab_size * 4


def launch_limits(
    config: ModelConfig,
    room: int,
    longest: int,
    row_bytes: int,
    rows: int | None = None,
    batched: int | None = None,
) -> tuple[int, int]:
    """(rows, prompt tokens) of a launch, given the bytes that weights leave and those that the
    cache of one sequence takes; what is given stays."""
    found = (0, 0)
    for halvings in range(HALVINGS + 1):
        found = rows or ROWS >> halvings, batched or BATCHED_TOKENS >> halvings
        taken = workspace_bytes(config, *found, longest)
        if taken <= room // WORKSPACE_SHARE and taken + row_bytes <= room:
            break
    return found
