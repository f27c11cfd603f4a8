"""The least time that a decode step of a sharded model takes. Plain numbers, no torch.

    step = max(weight bytes of a shard / bandwidth, FLOP of a shard / rate)
           + KV bytes / bandwidth + (2 L + 1) sums

The K/V head and its cache lie whole on every rank where queries share it. With one rank this is
`santagen.bench.limit.Limit.decode_step`.
"""

from __future__ import annotations

from dataclasses import dataclass

from santagen.bench.limit import Rates
from santagen.config import ModelConfig

H200 = Rates(4.2e12, 4.2e12, 785e12)


@dataclass(frozen=True)
class Storage:
    """Bits of a weight in the layers, and of a value elsewhere: the head, the cache."""

    layer_bits: float = 16
    value_bits: float = 16

    @classmethod
    def gptq(cls, bits: int, group_size: int, value_bits: float = 16) -> Storage:
        """Integers, and a 16-bit scale and a zero point for each group."""
        return cls(bits + (16 + bits) / group_size, value_bits)


def step_bound(
    config: ModelConfig,
    rates: Rates,
    storage: Storage,
    *,
    batch: int,
    context: float,
    ranks: int = 1,
    sum_seconds: float = 0.0,
) -> float:
    """Seconds that no step of `batch` rows of `context` tokens each can beat on `ranks` ranks, one
    sum between which takes `sum_seconds`."""
    embd = config.n_embd
    shared = 1 if config.multi_query else ranks  # the ranks that K/V are cut over
    layer = embd * (2 * embd + 2 * config.n_inner) / ranks
    layer += 2 * embd * config.n_kv_head * config.head_dim / shared
    head = config.vocab_size * embd / ranks
    weight_bytes = (config.n_layer * layer * storage.layer_bits + head * storage.value_bits) / 8
    flop = 2 * (config.n_layer * layer + head) * batch
    kv_bytes = batch * context * config.kv_bytes_per_token(1) * storage.value_bits / 8 / shared
    sums = (2 * config.n_layer + 1) * sum_seconds if ranks > 1 else 0.0
    products = max(weight_bytes / rates.bandwidth, flop / rates.flop_per_second)
    return products + kv_bytes / rates.bandwidth + sums
