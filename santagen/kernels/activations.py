"""The activation functions of config.json by name, and how they are applied on each device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from santagen.config import TANH_GELUS
from santagen.kernels.cpu_linear import cpu_activation

Activation = Callable[[Tensor], Tensor]


def activation(name: str | None) -> Activation | None:
    """The function that activation_function names (checked by ModelConfig), on [M, N]; None of
    none."""
    if name is None:
        return None
    plain: dict[str, Activation] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}
    tanh_gelu = partial(F.gelu, approximate="tanh")
    return partial(_apply, tanh_gelu if name in TANH_GELUS else plain[name])


def _apply(act: Activation, y: Tensor) -> Tensor:
    return cpu_activation(act, y) if y.device.type == "cpu" else act(y)
