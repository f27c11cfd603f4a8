"""How large the KV cache and the batch may be on this machine. Measures memory, allocates none."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from santagen.checkpoint.inspection import parameter_count
from santagen.config import EngineConfig, ModelConfig
from santagen.engine.launch_limits import BATCHED_TOKENS, ROWS, launch_limits, workspace_bytes
from santagen.errors import SantagenError
from santagen.model.attention import AttentionBackend, CacheShape

CPU_SHARE = 0.4  # of the memory that is available when the cache is made
DEFAULT_ROWS = {"cpu": 256, "cuda": ROWS}
DEFAULT_BATCHED_TOKENS = {"cpu": 2048, "cuda": BATCHED_TOKENS}
MAX_ROWS = 65536


@dataclass(frozen=True)
class CachePlan:
    """The sizes in force. cache_bytes counts keys and values of all layers."""

    shape: CacheShape
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cache_bytes: int


def plan_cache(
    settings: EngineConfig,
    config: ModelConfig,
    attention: AttentionBackend,
    dtype: torch.dtype,
    device: torch.device,
    ranks: int = 1,
    sharing: int = 1,
) -> CachePlan:
    """Sizes from the settings, the model's positions and the memory that is free after loading.

    `ranks` hold a shard of the model each: K/V heads are cut, a single one is on every rank.
    `sharing` processes use this machine's memory.
    """
    size = attention.block_size
    longest = settings.max_model_len or config.n_positions
    if longest > config.n_positions:
        raise SantagenError(
            f"--max-model-len {longest} is more than the model's {config.n_positions} positions.",
            "The model has learned no positions beyond; leave the option out or lower it.",
        )
    if longest < 2:
        raise SantagenError(
            f"--max-model-len {longest} leaves no room for a prompt and a new token.",
            "Give at least 2.",
        )
    _check_block_size(settings, config, attention)
    rows = _positive("--max-num-seqs", settings.max_num_seqs, DEFAULT_ROWS[device.type])
    batched = _positive(
        "--max-num-batched-tokens",
        settings.max_num_batched_tokens,
        DEFAULT_BATCHED_TOKENS[device.type],
    )
    if rows > MAX_ROWS:
        raise SantagenError(
            f"--max-num-seqs {rows} is more than {MAX_ROWS}.", "Give a smaller number."
        )
    heads = 1 if config.multi_query else config.n_head // ranks
    block_bytes = size * config.kv_bytes_per_token(dtype.itemsize) * heads // config.n_kv_head
    blocks_a_row = -(-longest // size)
    if settings.num_blocks is not None:
        blocks = settings.num_blocks
    else:
        room = _room(settings, device, sharing)
        if device.type == "cuda":
            rows, batched = launch_limits(
                config, room, longest, (blocks_a_row + 1) * block_bytes,
                settings.max_num_seqs, settings.max_num_batched_tokens,
            )  # fmt: skip
            room -= workspace_bytes(config, rows, batched, longest)
        # One block nobody owns; more than every row at full length is of no use.
        blocks = min(room // block_bytes, rows * blocks_a_row + 1)
    longest = min(longest, (blocks - 1) * size)
    if longest < 2:
        raise SantagenError(
            f"There is no memory for the KV cache: one block of {size} tokens takes "
            f"{block_bytes:,} bytes.",
            "Free memory, raise --gpu-memory-utilization, or lower --max-num-seqs, "
            "--max-num-batched-tokens or --max-model-len.",
        )
    shape = CacheShape(config.n_layer, blocks, size, heads, config.head_dim)
    return CachePlan(shape, longest, rows, batched, blocks * block_bytes)


def _check_block_size(
    settings: EngineConfig, config: ModelConfig, attention: AttentionBackend
) -> None:
    """Refuse blocks longer than any sequence: all of a block is read, also what nobody wrote."""
    multiple = attention.block_multiple
    most = -(-config.n_positions // multiple) * multiple
    if settings.block_size is not None and settings.block_size > most:
        raise SantagenError(
            f"--block-size {settings.block_size} is more than the {config.n_positions} tokens that "
            "a sequence of this model can have.",
            f"Leave it out, or give at most {most}.",
        )


def _positive(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise SantagenError(
            f"{name} is {value}; it must be at least 1.", f"Leave {name} out, or raise it."
        )
    return value


def _room(settings: EngineConfig, device: torch.device, sharing: int) -> int:
    """Bytes for the cache, on a GPU for launches too: what is free after loading."""
    if not 0 < settings.gpu_memory_utilization <= 1:
        raise SantagenError(
            f"--gpu-memory-utilization is {settings.gpu_memory_utilization}; it must be above 0 "
            f"and at most 1.",
            "0.9 is the default.",
        )
    if device.type == "cpu":
        return int(available_ram() * CPU_SHARE / sharing)
    free, total = torch.cuda.mem_get_info(device)
    return int(total * settings.gpu_memory_utilization) - (total - free)


def refuse_too_large(name: str, config: ModelConfig, dtype: torch.dtype, ranks: int = 1) -> None:
    """Refuse weights, as floats of `dtype`, of which one rank's share is more than the machine
    can give: the system would end the process in the middle of reading them."""
    needed = parameter_count(config)["total"] * dtype.itemsize // ranks
    free = available_ram()
    if needed > free:
        short = str(dtype).removeprefix("torch.")
        raise SantagenError(
            f"The model ({name}) takes {needed / 2**30:.1f} GiB of weights in {short}, and this "
            f"machine has {free / 2**30:.1f} GiB of memory to give.",
            "Free memory, or take a smaller model or --dtype, its GPTQ form, a GPU, or a larger "
            "machine.",
        )


def available_ram() -> int:
    """Bytes the machine can give without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: ask the C library
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
