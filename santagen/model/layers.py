"""The sharded pieces a GPT-BigCode model is made of: embedding, products, norm, head.

Column-parallel products need no communication. Row-parallel ones, which carry their bias on rank 0
alone, and the embedding give each rank its part of a sum, and the LayerNorm that follows adds the
parts up: two all-reduces a layer. Weights arrive in Linear orientation [out, in] from
`checkpoint.weights.Weights`, whatever the file's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from santagen.checkpoint.weights import Weights
from santagen.config import TANH_GELUS
from santagen.distributed import TensorParallel
from santagen.kernels.activations import activated_linear, activation
from santagen.kernels.invariant_linear import invariant_linear
from santagen.kernels.layer_norm import add_layer_norm
from santagen.kernels.packed_linear import pack_weight, packed_linear
from santagen.kernels.row_linear import row_linear, takes_row


class Linear(nn.Module):
    """y = act(x W^T + b), with bits that don't depend on the number of rows on the CPU.

    `act` names an activation_function; None is none. `shared`: the weight is another module's too,
    and stays as it is.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, act: str | None = None, shared: bool = False
    ) -> None:
        super().__init__()
        weight = weight if shared else pack_weight(weight)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.act = act
        self.invariant = False  # a row's bits depend on no other row: a promise that costs speed
        self.gelu_or_none = act is None or act in TANH_GELUS  # what santagen's own products apply

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.is_mkldnn:
            return packed_linear(x, self.weight, self.bias, self.act)
        if self.invariant:
            gelu = self.gelu_or_none and self.act is not None
            y = invariant_linear(x, self.weight, self.bias, gelu, x.dtype)
            later = None if self.gelu_or_none else activation(self.act)
            return y if later is None else later(y)
        if self.gelu_or_none and takes_row(x, self.weight, normed=False):
            return row_linear(x, self.weight, self.bias, self.act is not None)[0]
        return activated_linear(x, self.weight, self.bias, self.act)

    def after_norm(
        self, norm: FastLayerNorm, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(this product of norm(x + residual), x + residual); a lone row takes one kernel."""
        alone = norm.parallel.world_size == 1
        if (
            alone and not self.invariant and self.gelu_or_none
            and takes_row(x, self.weight, normed=True)
        ):  # fmt: skip
            settings = (residual, norm.weight, norm.bias, norm.eps)
            return row_linear(x, self.weight, self.bias, self.act is not None, settings)
        normed, total = norm(x, residual)
        return self(normed), total


def make_invariant(model: nn.Module) -> None:
    """From now on every product and sum of the model gives a row the same bits in any company."""
    for module in model.modules():
        if isinstance(module, Linear | FastLayerNorm):
            module.invariant = True


class TensorParallelColumnLinear(Linear):
    """A product whose outputs are sharded: `out` lists this rank's row ranges of the weight."""

    @classmethod
    def load(
        cls,
        prefix: str,
        weights: Weights,
        out: Sequence[tuple[int, int]],
        act: str | None = None,
    ) -> Linear:
        return cls(*weights.get_linear(prefix, out=out), act)


class TensorParallelRowLinear(Linear):
    """A product whose inputs are sharded: its output is this rank's part of a sum."""

    @classmethod
    def load(
        cls, prefix: str, weights: Weights, inp: tuple[int, int], parallel: TensorParallel
    ) -> Linear:
        weight, bias = weights.get_linear(prefix, inp=inp)
        return cls(weight, bias if parallel.rank == 0 else None)


class TensorParallelEmbedding(nn.Module):
    """A table sharded over its rows: ids of other ranks give zeros, this rank's part of a sum."""

    def __init__(self, name: str, rows: int, weights: Weights, parallel: TensorParallel) -> None:
        super().__init__()
        self.world_size = parallel.world_size
        self.first, self.last = parallel.share(rows)
        table = weights.get_rows(name, self.first, self.last)
        self.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        if self.world_size == 1:
            return F.embedding(ids, self.weight)
        own = (ids >= self.first) & (ids < self.last)
        rows = F.embedding(torch.where(own, ids - self.first, 0), self.weight)
        return rows.masked_fill_(~own.unsqueeze(-1), 0)


class TensorParallelHead(nn.Module):
    """The output product: float32 logits [rows, vocab_size]. `weight` may be the embedding's
    own."""

    def __init__(self, weight: Tensor, vocab_size: int, parallel: TensorParallel) -> None:
        super().__init__()
        self.linear = Linear(weight, None, shared=True)
        self.vocab_size, self.parallel = vocab_size, parallel

    def forward(self, x: Tensor) -> Tensor:
        # The last shard may hold rows past the vocabulary: cut, so they are never sampled.
        return self.parallel.gather_last(self._columns(x))[:, : self.vocab_size]

    def of_own_rows(self, x: Tensor, rows: int) -> Tensor:
        """The logits of this rank's equal share of x's first `rows` rows alone."""
        return self.parallel.exchange_rows(self._columns(x)[:rows])[:, : self.vocab_size]

    def _columns(self, x: Tensor) -> Tensor:
        """float32 [rows, this rank's share of the vocabulary]."""
        if self.linear.invariant:
            return invariant_linear(x, self.linear.weight, None, False, torch.float32)
        if x.device.type == "cuda" and x.dtype != torch.float32:
            # float32 straight from the accumulators: near-ties stay apart
            return torch.mm(x, self.linear.weight.t(), out_dtype=torch.float32)
        return self.linear(x).float()


class FastLayerNorm(nn.Module):
    """LayerNorm of the residual sum, (norm(x + residual), x + residual), x being the sum of the
    ranks' parts."""

    def __init__(self, prefix: str, weights: Weights, eps: float, parallel: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(weights.get_tensor(f"{prefix}.weight"), requires_grad=False)
        self.bias = nn.Parameter(weights.get_tensor(f"{prefix}.bias"), requires_grad=False)
        self.eps, self.parallel = eps, parallel
        self.invariant = weights.device.type == "cpu"  # as Linear's, which there costs nothing

    def forward(
        self, x: Tensor, residual: Tensor | None = None, place: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x: this rank's part [T, E], which is lost. place as in kernels.layer_norm."""
        shared = self.parallel.fast_sum
        if shared is not None and shared.takes_norm(x):
            return shared.layer_norm(x, residual, self.weight, self.bias, self.eps, place)
        x = self.parallel.ordered_sum(x) if self.invariant else self.parallel.all_reduce(x)
        return add_layer_norm(x, residual, None, self.weight, self.bias, self.eps, place)
