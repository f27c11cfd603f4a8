"""Token plus position embedding in one gather: out[t] = wte[ids[t]] + wpe[positions[t]].

The sum is made in float32 and rounded once, which is what adding two rows of the type gives.
"""

from __future__ import annotations

from torch import Tensor

from santagen.kernels.triton_support import runs_triton


def embed(ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
    """ids, positions [T] int64 or int32, in range; wte [V, E], wpe [P, E]; returns [T, E]."""
    if runs_triton(ids):
        from santagen.kernels.embedding_triton import launch

        return launch(ids, positions, wte, wpe)
    return embed_reference(ids, positions, wte, wpe)


def embed_reference(ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Tensor:
    """`embed` in plain torch."""
    return wte[ids.long()] + wpe[positions.long()]
