"""The activation functions of config.json by name, and how they are applied on each device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from santagen.config import TANH_GELUS
from santagen.kernels.cpu_linear import cpu_activation

Activation = Callable[[Tensor], Tensor]


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
