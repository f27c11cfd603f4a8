"""Products in float8: weights and activations with a scale a row, from any half-precision model.

Weights are quantised once, after loading; activations as they are made, inside the LayerNorm or the
GELU that makes them. Embedding, head, norms and attention stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from santagen.config import TANH_GELUS, ModelConfig
from santagen.errors import SantagenError
from santagen.kernels.fp8 import (
    norm_quantize_rows,
    quantize_rows,
    quantize_rows_reference,
    scaled_product,
)
from santagen.kernels.triton_support import has_triton
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM
from santagen.model.layers import FastLayerNorm, Linear

FIRST_CAPABILITY = (8, 9)  # of GPUs with float8 products
MULTIPLE = 16  # of a product's inner and outer sizes


class Fp8Linear(nn.Module):
    """y = x W^T + b in float8, called as layers.Linear is; `gelu_before`: of the GELU of x."""

    def __init__(self, linear: Linear, gelu_before: bool = False) -> None:
        super().__init__()
        weight, scale = quantize_rows_reference(linear.weight.data)
        self.weight, self.scale = nn.Parameter(weight, False), nn.Parameter(scale, False)
        self.bias = linear.bias
        self.gelu_before = gelu_before

    def _product(self, q: Tensor, scale: Tensor) -> Tensor:
        return scaled_product(q, scale, self.weight, self.scale, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(*quantize_rows(x, self.gelu_before))

    def after_norm(
        self, norm: FastLayerNorm, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(this product of norm(x + residual), x + residual)."""
        x = norm.parallel.all_reduce(x)
        q, scale, total = norm_quantize_rows(x, residual, norm.weight, norm.bias, norm.eps)
        return self._product(q, scale), total


def check_fp8(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Raise SantagenError where float8 can't be had for a model that runs so."""
    why = ""
    if device.type != "cuda":
        why = "needs a CUDA device; this run is on the CPU"
    elif torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        why = "needs a GPU with float8 products (Ada, Hopper or later)"
    elif not has_triton():
        why = "needs Triton, which is not installed"
    elif dtype != torch.bfloat16:
        why = "needs --dtype bfloat16"
    elif config.activation not in TANH_GELUS:
        why = f"does not know the activation {config.activation}"
    for size in (config.n_embd, config.n_inner, config.head_dim):
        if not why and size % MULTIPLE:
            why = f"needs sizes that are multiples of {MULTIPLE}, and this model has {size}"
    if why:
        raise SantagenError(f"--quantization fp8 {why}.", "Leave --quantization out.")


def quantize_model(model: FlashSantacoderForCausalLM) -> None:
    """Replace the products of every layer; raises SantagenError where float8 can't be had."""
    weight = model.transformer.wte.weight
    check_fp8(model.config, weight.dtype, weight.device)
    for block in model.transformer.h:
        for module, name, gelu in (
            (block.attn, "c_attn", False),
            (block.attn, "c_proj", False),
            (block.mlp, "c_fc", False),
            (block.mlp, "c_proj", True),  # c_fc leaves its activation to the next product
        ):
            setattr(module, name, Fp8Linear(getattr(module, name), gelu_before=gelu))
