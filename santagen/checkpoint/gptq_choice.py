"""Whether a GPTQ checkpoint's weights stay packed or are dequantised at load, and why.

    --quantization gptq    packed
                   none    dequantised
                   auto    dequantised where they and a cache fit into memory and the batch is large

Packed weights take the least memory and, on a GPU, the least time while the batch is small; on the
CPU, which takes them apart anew in every step, they are slower at any size. Needs no torch; looks
at no weight and measures no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from santagen.checkpoint.gptq_settings import GPTQSettings
from santagen.checkpoint.layout import FUSED, linear_shape
from santagen.config import ModelConfig
from santagen.errors import SantagenError

CHOICES = ("auto", "none", "gptq", "fp8")
# A batch of so many rows is decoded faster from packed weights.
PACKED_ROWS = {"cpu": 0, "cuda": 64}
# A cache that lets a batch of dequantised weights pay: for so many rows of so many tokens.
CACHED_ROWS = {"cpu": 16, "cuda": 1024}
CACHED_TOKENS = 1024
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """What the choice depends on beside the model: bytes that may be used for weights and cache,
    rows that run at once, bytes of a value, and ranks that share the model."""

    device: str
    memory: int
    rows: int
    value_bytes: int
    ranks: int = 1


@dataclass(frozen=True)
class Choice:
    """`note` says which it is and why; empty for a model that is not quantised."""

    packed: bool
    note: str = ""


def check_choice(wanted: str, settings: GPTQSettings | None) -> None:
    """Refuse what --quantization can't be, or can't be for this checkpoint."""
    if wanted not in CHOICES:
        raise SantagenError(
            f"--quantization {wanted} is not known.", f"Choose one of {', '.join(CHOICES)}."
        )
    if wanted == "gptq" and settings is None:
        raise SantagenError(
            "--quantization gptq was asked for, but the model's weights are not quantised.",
            "Leave the option out, or name a GPTQ checkpoint of the model.",
        )


def choose(
    wanted: str, settings: GPTQSettings | None, config: ModelConfig, machine: Machine
) -> Choice:
    """Packed or not. Raises SantagenError as `check_choice` does."""
    check_choice(wanted, settings)
    if settings is None:
        return Choice(False)
    if wanted == "auto":
        packed, why = _weigh(config, machine)
    else:
        packed, why = wanted == "gptq", f"--quantization {wanted}"
    how = "kept packed" if packed else "dequantised at load"
    return Choice(packed, f"{describe(settings)}, {how}: {why}")


def describe(settings: GPTQSettings) -> str:
    """The settings in words."""
    group = "one group" if settings.group_size == -1 else f"groups of {settings.group_size}"
    act_order = settings.desc_act if settings.act_order is None else settings.act_order
    order = ", act-order" if act_order else ""
    return f"GPTQ weights of {settings.bits} bits in {group}{order}"


def dequantized_bytes(config: ModelConfig, machine: Machine) -> int:
    """Bytes of one rank's products and tables, as floats of the run's width."""
    layer = sum(out * inp for out, inp in (linear_shape(config, module) for module in FUSED))
    tables = (config.vocab_size + config.n_positions) * config.n_embd
    if not config.tie_word_embeddings:
        tables += config.vocab_size * config.n_embd
    return (config.n_layer * layer + tables) * machine.value_bytes // machine.ranks


def _weigh(config: ModelConfig, machine: Machine) -> tuple[bool, str]:
    rows = min(machine.rows, CACHED_ROWS[machine.device])
    tokens = rows * min(config.n_positions, CACHED_TOKENS)
    weights = dequantized_bytes(config, machine)
    needed = weights + tokens * config.kv_bytes_per_token(machine.value_bytes)
    room = f"{weights / GIB:.1f} GiB of them and a cache"
    if needed > machine.memory:
        return True, f"{room} would not fit into {machine.memory / GIB:.1f} GiB"
    limit = PACKED_ROWS[machine.device]
    if machine.rows <= limit:
        return True, f"faster at up to {limit} sequences at once, and {machine.rows} are allowed"
    if limit == 0:
        return False, f"faster on the {machine.device.upper()}, and {room} fit"
    return False, f"faster at {machine.rows:,} sequences at once, and {room} fit"
