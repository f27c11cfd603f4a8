"""What a model's shape alone tells about its speed and size. Needs no weights and no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from santagen.checkpoint.inspection import parameter_count
from santagen.checkpoint.layout import FUSED, linear_shape
from santagen.config import ModelConfig

GIB = 2**30


@dataclass(frozen=True)
class ModelCard:
    """Sizes of one model in one dtype.

    `layer_products` are the weights of the layers' matrix products, which every token meets;
    `head_products` those of the head, which only the rows that draw a token meet. Bytes are those
    of all parameters as floats of the dtype; a quantised model's own are measured once it is
    loaded.
    """

    name: str
    dtype: str
    parameters: int
    layer_products: int
    head_products: int
    weight_bytes: int
    kv_bytes_per_token: int
    n_positions: int

    @property
    def products(self) -> int:
        """The parameters in products: two FLOP each for a row of a decode step."""
        return self.layer_products + self.head_products

    def sequences_that_fit(self, memory: int, length: int) -> int:
        """How many sequences of `length` tokens `memory` bytes hold beside the weights."""
        return max(0, memory - self.weight_bytes) // (self.kv_bytes_per_token * length)

    def lines(self, memory: int, lengths: tuple[int, ...]) -> list[str]:
        """The card for people; `memory` is what the run may use of its device, in bytes."""
        fits = ", ".join(
            f"{self.sequences_that_fit(memory, length):,} of {length:,}" for length in lengths
        )
        return [
            f"{self.name}: {_count(self.parameters)} parameters, {_count(self.products)} of them "
            f"in products",
            f"weights {in_words(self.weight_bytes)} in {self.dtype}, "
            f"{self.kv_bytes_per_token:,} bytes of KV per token",
            f"fits in {memory / GIB:.1f} GiB: {fits} tokens"
            + ("" if memory > self.weight_bytes else " (the weights alone are larger)"),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "parameters": self.parameters,
            "parameters_in_products": self.products,
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "n_positions": self.n_positions,
        }


def model_card(config: ModelConfig, name: str, dtype: str, itemsize: int) -> ModelCard:
    """Count what config.json implies; nothing is allocated."""
    parameters = parameter_count(config)["total"]
    layer = sum(out * inp for out, inp in (linear_shape(config, module) for module in FUSED))
    return ModelCard(
        name=name,
        dtype=dtype,
        parameters=parameters,
        layer_products=config.n_layer * layer,
        head_products=config.vocab_size * config.n_embd,
        weight_bytes=parameters * itemsize,
        kv_bytes_per_token=config.kv_bytes_per_token(itemsize),
        n_positions=config.n_positions,
    )


def in_words(size: int) -> str:
    """26310656 -> 25.1 MiB"""
    return f"{size / GIB:.2f} GiB" if size >= GIB // 4 else f"{size / 2**20:.1f} MiB"


def _count(number: int) -> str:
    """6,815,744 -> 6.82 M"""
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"
