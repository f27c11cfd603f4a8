"""The activation functions of config.json by name, and a product with one, on each device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.config import TANH_GELUS
from santagen.kernels.cpu_linear import cpu_activation, cpu_linear

Activation = Callable[[Tensor], Tensor]


@cache
def activation(name: str | None) -> Activation | None:
    """The function that activation_function names (checked by ModelConfig), on [M, N]; None of
    none. What it is given is lost."""
    if name is None:
        return None
    plain: dict[str, Activation] = {
        "gelu": torch.ops.aten.gelu_,
        "relu": torch.relu_,
        "silu": partial(F.silu, inplace=True),
    }
    tanh_gelu = partial(torch.ops.aten.gelu_, approximate="tanh")
    return partial(_apply, tanh_gelu if name in TANH_GELUS else plain[name])


def _apply(act_: Activation, y: Tensor) -> Tensor:
    return cpu_activation(act_, y) if y.device.type == "cpu" else act_(y)


def activated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str | None) -> Tensor:
    """act(x W^T + b) [M, N] by torch's own product; x [M, K], weight [N, K], bias [N].

    On CUDA a tanh GELU of half precision is applied to the float32 sums, without a pass over
    memory. On the CPU a row's bits depend on no other row.
    """
    cuda = x.device.type == "cuda"
    if cuda and act in TANH_GELUS and bias is not None and x.dtype != torch.float32:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    y = (F.linear if cuda else cpu_linear)(x, weight, bias)
    function = activation(act)
    return y if function is None else function(y)
