"""A GPT-BigCode forward as plain as can be: float32, one prompt, no cache, no package code.

Tests compare the package's model with it, so it shares nothing with the package. Weights come by
their standard names, Linear [out, in], c_attn as rows Q, then K, then V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def _tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x * torch.sigmoid(x),
}


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def _attention(qkv: Tensor, config: Any) -> Tensor:
    """[T, E + 2KD] -> [T, E]: every query head attends its K/V head, causally."""
    tokens, heads = qkv.shape[0], config.n_head
    size = config.n_embd // heads
    kv_heads = 1 if config.multi_query else heads
    query, key, value = qkv.split([config.n_embd, kv_heads * size, kv_heads * size], dim=1)
    future = torch.ones(tokens, tokens).triu(1).bool()
    outputs = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        shared = own if kv_heads > 1 else slice(0, size)
        scores = query[:, own] @ key[:, shared].t()
        if config.scale_attn_weights:
            scores = scores / math.sqrt(size)
        scores = scores.masked_fill(future, -torch.inf)
        outputs.append(torch.softmax(scores, dim=1) @ value[:, shared])
    return torch.cat(outputs, dim=1)


@torch.inference_mode()
def reference_logits(weights: Mapping[str, Tensor], config: Any, ids: Sequence[int]) -> Tensor:
    """Float32 logits [T, V] of one prompt; `config` has the fields of santagen's ModelConfig.

    The head is lm_head.weight where `weights` has it, and else the embedding.
    """
    w = {name: tensor.float() for name, tensor in weights.items()}
    act, eps = ACTIVATIONS[config.activation], config.layer_norm_epsilon
    hidden = w["transformer.wte.weight"][list(ids)] + w["transformer.wpe.weight"][: len(ids)]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return _norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)

    for layer in range(config.n_layer):
        base = f"transformer.h.{layer}"
        qkv = linear(norm(hidden, f"{base}.ln_1"), f"{base}.attn.c_attn")
        hidden = hidden + linear(_attention(qkv, config), f"{base}.attn.c_proj")
        inner = act(linear(norm(hidden, f"{base}.ln_2"), f"{base}.mlp.c_fc"))
        hidden = hidden + linear(inner, f"{base}.mlp.c_proj")
    head = w.get("lm_head.weight", w["transformer.wte.weight"])
    return norm(hidden, "transformer.ln_f") @ head.t()
