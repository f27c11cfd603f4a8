"""Loads c_attn, the product that makes queries, keys and values: a rank's own query heads, and the
one K/V head, which every rank has whole.

    rows of c_attn            Q 0 | Q 1 | Q 2 | Q 3 | K | V
    rank 1 of 2 keeps                     Q 2 | Q 3 | K | V

How a file stores these rows (fused or split, transposed, interleaved, packed) is the business of
checkpoint.weights. The names are those of LoRAX's flash_santacoder_modeling.
"""

from __future__ import annotations

from santagen.checkpoint.weights import Weights
from santagen.config import ModelConfig
from santagen.model.layers import Linear, TensorParallelColumnLinear
from santagen.model.quantized import QuantizedLinear, load_column


def load_multi_mqa(
    config: ModelConfig,
    prefix: str,
    weights: Weights,
    bias: bool,
    head_size: int,
    num_heads: int,
    hidden_size: int,
) -> Linear | QuantizedLinear:
    """c_attn of this rank: its query heads, and the whole K/V head (its own K/V heads without
    multi-query).

    num_heads counts this rank's query heads. Dispatches to the GPTQ half where the checkpoint is
    quantised.
    """
    if weights.quantization is not None:
        return _load_multi_mqa_gptq(
            config, prefix, weights, bias, head_size, num_heads, hidden_size
        )
    return _load_multi_mqa(config, prefix, weights, bias, head_size, num_heads, hidden_size)


def _load_multi_mqa(
    config: ModelConfig,
    prefix: str,
    weights: Weights,
    bias: bool,
    head_size: int,
    num_heads: int,
    hidden_size: int,
) -> TensorParallelColumnLinear:
    """The float half: fused or split, Linear or Conv1D, all read as rows Q | K | V."""
    ranges = _qkv_ranges(config, weights.rank, head_size, num_heads, hidden_size)
    weight, bias_rows = weights.get_linear(f"{prefix}.c_attn", out=ranges)
    return TensorParallelColumnLinear(weight, bias_rows if bias else None)


def _load_multi_mqa_gptq(
    config: ModelConfig,
    prefix: str,
    weights: Weights,
    bias: bool,
    head_size: int,
    num_heads: int,
    hidden_size: int,
) -> Linear | QuantizedLinear:
    """The GPTQ half: the same columns, packed; where they are not to stay so, `Weights` dequantises
    them once and the float half serves."""
    if not weights.packed:
        return _load_multi_mqa(config, prefix, weights, bias, head_size, num_heads, hidden_size)
    ranges = _qkv_ranges(config, weights.rank, head_size, num_heads, hidden_size)
    return load_column(f"{prefix}.c_attn", weights, ranges, bias=bias)


def _qkv_ranges(
    config: ModelConfig, rank: int, head_size: int, num_heads: int, hidden_size: int
) -> list[tuple[int, int]]:
    """Row ranges of the logical c_attn (Q, then K, then V) that belong to `rank`."""
    own = num_heads * head_size
    query = (rank * own, (rank + 1) * own)
    if config.multi_query:
        return [query, (hidden_size, hidden_size + 2 * head_size)]
    return [query, *((base + query[0], base + query[1]) for base in (hidden_size, 2 * hidden_size))]
