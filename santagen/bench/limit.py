"""The least time the hardware needs for a piece of work: the yardstick beside every measurement.

    decode step   max(weight bytes / bandwidth, FLOP / rate) + KV bytes read / bandwidth
    prefill       max(launches x weight bytes / bandwidth, FLOP / rate) + KV bytes written / ..

FLOP are those of the matrix products: two per parameter and row. The scores of attention are not
counted (a tenth more at SantaCoder's size and 2,048 tokens), nor is anything that a better program
could avoid. A small model whose weights stay in a processor's own cache can pass this limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from santagen.bench.card import ModelCard


@dataclass(frozen=True)
class Rates:
    """What the device reached in the probes: bytes/s of its memory, FLOP/s of a large product."""

    copy_bytes_per_second: float
    read_bytes_per_second: float
    flop_per_second: float

    @property
    def bandwidth(self) -> float:
        """The better of copying and reading, in bytes/s."""
        return max(self.copy_bytes_per_second, self.read_bytes_per_second)


@dataclass(frozen=True)
class Limit:
    """`read_bytes`: the weights that one launch must read, as they lie in memory."""

    card: ModelCard
    rates: Rates
    read_bytes: int

    def decode_step(self, rows: float, context: float) -> float:
        """Seconds of one step of `rows` rows whose contexts have `context` tokens on average."""
        products = max(
            self.read_bytes / self.rates.bandwidth,
            2 * self.card.products * rows / self.rates.flop_per_second,
        )
        kv_bytes = rows * context * self.card.kv_bytes_per_token
        return products + kv_bytes / self.rates.bandwidth

    def prefill_flop(self, tokens: int, rows: int) -> int:
        """FLOP of prompts of `tokens` tokens in all, `rows` of which reach the head."""
        return 2 * (self.card.layer_products * tokens + self.card.head_products * rows)

    def prefill(self, tokens: int, rows: int, launches: int) -> float:
        """Seconds of `rows` prompts of `tokens` tokens in all, computed in `launches` launches."""
        products = max(
            launches * self.read_bytes / self.rates.bandwidth,
            self.prefill_flop(tokens, rows) / self.rates.flop_per_second,
        )
        return products + tokens * self.card.kv_bytes_per_token / self.rates.bandwidth
