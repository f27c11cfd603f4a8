"""Flash SantaCoder: the GPT-BigCode decoder over packed tokens and a paged cache.

    tokens -> wte + wpe -> L x [ln_1, attention, +, ln_2, MLP, +] -> ln_f -> head -> float32 logits

One forward serves prefill (cu_seqlen_prefill given) and decode (None). Contract and names follow
LoRAX's flash_santacoder_modeling. It neither schedules nor samples, and never looks at a padded
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from santagen.checkpoint.weights import Weights
from santagen.config import ModelConfig
from santagen.distributed import TensorParallel
from santagen.errors import SantagenError
from santagen.kernels.embedding import embed
from santagen.kernels.packed_linear import add_rows, rounded_rows
from santagen.model.attention import AttentionBackend, KVCache, Seqlen, select_attention
from santagen.model.layers import (
    FastLayerNorm,
    Linear,
    TensorParallelColumnLinear,
    TensorParallelEmbedding,
    TensorParallelHead,
    TensorParallelRowLinear,
)
from santagen.model.multi_mqa import load_multi_mqa
from santagen.model.quantized import (
    QuantizedLinear,
    QuantizedRowLinear,
    load_mlp,
    load_row,
)


class FlashMQAttention(nn.Module):
    """Multi-query attention: this rank's query heads on one shared K/V head."""

    def __init__(
        self, prefix: str, config: ModelConfig, weights: Weights, parallel: TensorParallel
    ) -> None:
        super().__init__()
        if config.n_head % parallel.world_size:
            raise SantagenError(
                f"{config.n_head} attention heads can't be shared by {parallel.world_size} ranks.",
                f"Choose a tensor-parallel size that divides {config.n_head}.",
            )
        self.head_size = config.head_dim
        self.num_heads = config.n_head // parallel.world_size
        self.num_kv_heads = 1 if config.multi_query else self.num_heads
        self.scale = config.attention_scale
        self.c_attn = load_multi_mqa(
            config, prefix, weights, True, self.head_size, self.num_heads, config.n_embd
        )
        own = self.num_heads * self.head_size
        inp = (parallel.rank * own, (parallel.rank + 1) * own)
        load = load_row if weights.packed else TensorParallelRowLinear.load
        self.c_proj = load(f"{prefix}.c_proj", weights, inp, parallel)
        self.place = self.c_proj.place if isinstance(self.c_proj, QuantizedRowLinear) else None

    def forward(
        self,
        norm: FastLayerNorm,
        hidden: Tensor,
        residual: Tensor | None,
        cache: KVCache,
        attention: AttentionBackend,
        plan: Any,
        slots: Tensor,
        prefill: bool,
        prefill_cache_indices: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """(this rank's part of the attention of norm(hidden + residual), hidden + residual)."""
        rows, size = hidden.shape[0], self.head_size
        tokens = rows if prefill else slots.shape[0]
        qkv, residual = self.c_attn.after_norm(norm, hidden, residual)
        kv_width = self.num_kv_heads * size
        query, key, value = qkv[:tokens].split([self.num_heads * size, kv_width, kv_width], dim=1)
        query = query.view(tokens, self.num_heads, size)
        key = key.view(tokens, self.num_kv_heads, size)
        value = value.view(tokens, self.num_kv_heads, size)
        place = None  # where c_proj wants each output, if the attention can put it there
        if not prefill:
            place = self.place if attention.orders_output else None
            out = attention.decode(query, key, value, cache, slots, plan, self.scale, place)
        else:
            kept = slice(None) if prefill_cache_indices is None else prefill_cache_indices
            attention.write(cache, key[kept], value[kept], slots)
            out = attention.prefill(query, key, value, cache, plan, self.scale)
        out = add_rows(out.reshape(tokens, self.num_heads * size), rows)
        if place is None:
            return self.c_proj(out), residual
        assert isinstance(self.c_proj, QuantizedRowLinear)
        return self.c_proj.of_ordered(out), residual


class MLP(nn.Module):
    """c_proj(act(c_fc(x))), the inner width sharded."""

    def __init__(
        self, prefix: str, config: ModelConfig, weights: Weights, parallel: TensorParallel
    ) -> None:
        super().__init__()
        if config.n_inner % parallel.world_size:
            raise SantagenError(
                f"n_inner {config.n_inner} can't be shared by {parallel.world_size} ranks.",
                f"Choose a tensor-parallel size that divides {config.n_inner}.",
            )
        own = parallel.share(config.n_inner)
        self.c_fc: Linear | QuantizedLinear
        self.c_proj: Linear | QuantizedLinear
        if weights.packed:
            self.c_fc, self.c_proj = load_mlp(prefix, weights, own, config.activation, parallel)
            return
        self.c_fc = TensorParallelColumnLinear.load(
            f"{prefix}.c_fc", weights, [own], config.activation
        )
        self.c_proj = TensorParallelRowLinear.load(f"{prefix}.c_proj", weights, own, parallel)

    def forward(
        self, norm: FastLayerNorm, hidden: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(this rank's part of the MLP of norm(hidden + residual), hidden + residual)."""
        inner, residual = self.c_fc.after_norm(norm, hidden, residual)
        return self.c_proj(inner), residual


class Block(nn.Module):
    """Pre-norm layer; the residual sum is carried beside the branch that will be added to it, and
    that is summed over the ranks, by the next norm."""

    def __init__(
        self, prefix: str, config: ModelConfig, weights: Weights, parallel: TensorParallel
    ) -> None:
        super().__init__()
        eps = config.layer_norm_epsilon
        self.ln_1 = FastLayerNorm(f"{prefix}.ln_1", weights, eps, parallel)
        self.attn = FlashMQAttention(f"{prefix}.attn", config, weights, parallel)
        self.ln_2 = FastLayerNorm(f"{prefix}.ln_2", weights, eps, parallel)
        self.mlp = MLP(f"{prefix}.mlp", config, weights, parallel)

    def forward(
        self, hidden: Tensor, residual: Tensor | None, *attention_arguments: Any
    ) -> tuple[Tensor, Tensor]:
        hidden, residual = self.attn(self.ln_1, hidden, residual, *attention_arguments)
        return self.mlp(self.ln_2, hidden, residual)


class FlashSantacoderModel(nn.Module):
    """The decoder without its head: [tokens] ids -> [tokens, n_embd], in decode on the CPU with
    some rows after them that mean nothing (`rounded_rows`)."""

    def __init__(
        self, prefix: str, config: ModelConfig, weights: Weights, parallel: TensorParallel
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.wte = TensorParallelEmbedding(
            f"{prefix}.wte.weight", config.vocab_size, weights, parallel
        )
        self.wpe = TensorParallelEmbedding(
            f"{prefix}.wpe.weight", config.n_positions, weights, parallel
        )
        self.h = nn.ModuleList(
            Block(f"{prefix}.h.{layer}", config, weights, parallel)
            for layer in range(config.n_layer)
        )
        self.ln_f = FastLayerNorm(f"{prefix}.ln_f", weights, config.layer_norm_epsilon, parallel)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        kv_cache: Sequence[KVCache],
        attention: AttentionBackend,
        plan: Any,
        slots: Tensor,
        prefill: bool,
        prefill_cache_indices: Tensor | None,
    ) -> Tensor:
        if self.parallel.world_size == 1:
            hidden = embed(input_ids, position_ids, self.wte.weight, self.wpe.weight)
        else:
            hidden = self.wte(input_ids) + self.wpe(position_ids)  # the first norm adds up
        if not prefill and hidden.device.type == "cpu":
            hidden = add_rows(hidden, rounded_rows(hidden.shape[0]))
        residual: Tensor | None = None
        for block, cache in zip(self.h, kv_cache, strict=True):
            hidden, residual = block(
                hidden, residual, cache, attention, plan, slots, prefill, prefill_cache_indices
            )
        return self.ln_f(hidden, residual)[0]


class FlashSantacoderForCausalLM(nn.Module):
    """The whole model. `attention` (by default the best for the weights' device) owns the cache's
    layout; `parallel` is by default the group that the weights were cut for."""

    def __init__(
        self,
        prefix: str,
        config: ModelConfig,
        weights: Weights,
        attention: AttentionBackend | None = None,
        parallel: TensorParallel | None = None,
    ) -> None:
        super().__init__()
        if parallel is None:
            parallel = TensorParallel(weights.rank, weights.world_size, weights.process_group)
        if attention is None:
            attention = select_attention("auto", weights.device, weights.dtype, config).backend
        self.config, self.attention = config, attention
        root = f"{prefix}.transformer" if prefix else "transformer"
        self.transformer = FlashSantacoderModel(root, config, weights, parallel)
        head = self.transformer.wte.weight.data
        if not weights.layout.tied:
            head = weights.get_rows("lm_head.weight", *parallel.share(config.vocab_size))
        self.lm_head = TensorParallelHead(head, config.vocab_size, parallel)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cu_seqlen_prefill: Tensor | None,
        kv_cache: Sequence[KVCache],
        block_tables: Tensor,
        slots: Tensor,
        seqlen: Seqlen,
        max_s: int,
        prefill_cache_indices: Tensor | None = None,
        lm_head_indices: Tensor | None = None,
        skip_lm_head: bool = False,
        own_rows: bool = False,
    ) -> tuple[Tensor, None]:
        """One step over packed tokens; returns (float32 logits, None).

        input_ids, position_ids, slots: [tokens]; cu_seqlen_prefill: [sequences + 1] int32, or None
        in decode; block_tables: [sequences, max_blocks] int32; max_s: longest context of the batch
        in tokens. lm_head_indices picks the rows that reach the head; skip_lm_head returns the
        hidden states [tokens, n_embd] instead; own_rows, of several ranks, the logits of this
        one's equal share of the rows alone, [rows / ranks rounded up, V].
        """
        prefill = cu_seqlen_prefill is not None
        if prefill and seqlen.cu_seqlen_q is None:
            seqlen.cu_seqlen_q = cu_seqlen_prefill
        plan = self.attention.plan(seqlen, block_tables, max_s, decode=not prefill)
        hidden = self.transformer(
            input_ids,
            position_ids,
            kv_cache,
            self.attention,
            plan,
            slots,
            prefill,
            prefill_cache_indices,
        )
        tokens = input_ids.shape[0]
        if lm_head_indices is not None:
            hidden = hidden[lm_head_indices]
            tokens = hidden.shape[0]
        if skip_lm_head:
            return hidden[:tokens], None
        if own_rows:
            return self.lm_head.of_own_rows(hidden, tokens), None
        return self.lm_head(hidden)[:tokens], None
