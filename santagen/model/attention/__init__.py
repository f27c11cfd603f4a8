"""Attention backends of one signature: flash (flash-attn), and torch's own in a CPU and a CUDA
form."""

from santagen.model.attention.base import AttentionBackend, CacheShape, KVCache, Seqlen
from santagen.model.attention.select import Selection, select_attention

__all__ = ["AttentionBackend", "CacheShape", "KVCache", "Selection", "Seqlen", "select_attention"]
