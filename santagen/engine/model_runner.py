"""Executes a Step on the device: row changes, forward, sampling, and the tokens' way back to the
host.

Launches only; it never waits for the device. What the host may read of a launch is in its Record,
whose `read` blocks on that launch alone. The scheduler decides what is launched, the sampler what
is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from santagen.engine import rows as columns
from santagen.engine.batch import PrefillItem, Step
from santagen.engine.cuda_graph import DecodeGraphs
from santagen.engine.rows import RowTable, to_device
from santagen.engine.sampler import Drawn, Sampler
from santagen.kernels.row_state import advance_rows, decode_inputs
from santagen.model.attention import CacheShape, KVCache, Seqlen
from santagen.model.gpt_bigcode import FlashSantacoderForCausalLM

# Decoded rows from which on the ranks of a sharded model draw a share of them each, from logits
# exchanged once: a gather of all logits moves as many times more as there are ranks. With fewer the
# second exchange, of the tokens, costs more than that saves.
SHARED_ROWS = 128


@dataclass
class Record:
    """The outcome of one launch, on its way to the host."""

    step: Step
    drawn: Drawn
    event: torch.cuda.Event | None

    def read(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """(tokens [n] int64, logprobs [n], top ids [n, N], top logprobs [n, N]); -1 for logits not
        finite."""
        if self.event is not None:
            self.event.synchronize()
        drawn = self.drawn
        optional = (drawn.logprobs, drawn.top_ids, drawn.top_logprobs)
        chosen, ids, values = (None if part is None else part.numpy() for part in optional)
        return drawn.tokens.numpy(), chosen, ids, values


class ModelRunner:
    """The model, its cache and the row table of one device."""

    def __init__(
        self,
        model: FlashSantacoderForCausalLM,
        shape: CacheShape,
        table: RowTable,
        sampler: Sampler,
    ) -> None:
        self.model, self.shape, self.table, self.sampler = model, shape, table, sampler
        self.device = table.device
        dtype = model.transformer.wte.weight.dtype
        self.ones = torch.ones(table.capacity, dtype=torch.int32, device=self.device)
        self.parallel = model.transformer.parallel
        self.graphs: DecodeGraphs | None = None
        self._dtype = dtype
        self._allocate()

    def _allocate(self) -> None:
        self.cache = self.model.attention.allocate(self.shape, self._dtype, self.device)
        key, value = self.cache
        self.layers: list[KVCache] = list(zip(key, value, strict=True))

    def clear_cache(self) -> None:
        """Put zeros in the place of all keys and values."""
        if self.device.type == "cpu":
            self._allocate()  # zeros that are never read take no memory
        else:  # graphs hold its address
            for part in self.cache:
                part.zero_()

    @torch.inference_mode()
    def launch(self, step: Step) -> Record:
        """Start one step; the tokens are read later from the record."""
        self.table.apply(step)
        self.sampler.apply(step)
        if step.block_moves:
            self._copy_blocks(*to_device(np.array(step.block_moves, np.int64).T, self.device))
        drawn = self._prefill(step) if step.is_prefill else self._decode(step)
        if self.device.type == "cpu":
            return Record(step, drawn, None)
        drawn = drawn.to_host()
        event = torch.cuda.Event()
        event.record()
        return Record(step, drawn, event)

    def _decode(self, step: Step) -> Drawn:
        size = launched = step.size
        if self.graphs is not None:
            launched = self.graphs.rung(size)
            logits = self.graphs.logits(launched)
        else:
            logits = self.decode_logits(size, step.max_context)
        shared = self._shares(launched)
        start, stop = self.parallel.share(launched) if shared else (0, size)
        own = range(min(start, size), min(stop, size))
        data = self.table.data[:size]
        record = data[own.start : own.stop]
        # The drawn token stands one past the fed one.
        position = record[:, columns.POSITION] + 1
        drawn = self.sampler.draw(logits[: len(own)], record, position, own, step.features)
        if shared:
            drawn = drawn.of_all(self.parallel, stop - start, size)
        self.sampler.note(drawn.tokens, range(size), step.features)
        advance_rows(data, drawn.tokens, self.sampler.ends, columns.IGNORE_EOS)
        return drawn

    def _shares(self, size: int) -> bool:
        """Whether each rank draws a share of a decode step's rows, not every rank all of them."""
        return self.parallel.world_size > 1 and size >= SHARED_ROWS

    def decode_logits(self, size: int, max_context: int) -> Tensor:
        """The forward of rows [0, size), of the ranks' shares of them where they share the draw:
        reads nothing but device state, so that a graph can hold it."""
        data = self.table.data[:size]
        token, position, context, slot = decode_inputs(
            data, self.shape.block_size, columns.HEADER
        )
        seqlen = Seqlen(self.ones[:size], position, has_prefix=False, kv_lengths=context)
        block_table = self.table.block_table[:size]
        logits, _ = self.model(
            token, position, None, self.layers, block_table, slot, seqlen, max_context,
            own_rows=self._shares(size),
        )  # fmt: skip
        return logits

    def _copy_blocks(self, source: Tensor, target: Tensor) -> None:
        for part in self.cache:  # [layers, blocks, ...]
            part[:, target] = part[:, source]

    def release_memory(self) -> None:
        """Give what a failed launch had taken back to the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def capture(self, max_context: int) -> None:
        """Record the decode forwards as CUDA graphs, where the attention backend allows it."""
        if self.device.type == "cuda" and self.model.attention.capturable:
            self.graphs = DecodeGraphs(
                lambda size: self.decode_logits(size, max_context), self.table.capacity
            )

    def _prefill(self, step: Step) -> Drawn:
        packed = _pack(step.prefill, self.shape.block_size)
        parts = to_device(np.concatenate([part.ravel() for part in packed.values()]), self.device)
        pieces = parts.split([part.size for part in packed.values()])
        fields = dict(zip(packed, pieces, strict=True))
        count = len(step.prefill)
        cu_q = fields["cu_q"].int()
        seqlen = Seqlen(
            fields["new"].int(),
            fields["cached"].int(),
            cu_q,
            fields["cu_k"].int(),
            max_q=int(packed["new"].max()),
            has_prefix=bool(packed["cached"].any()),
        )
        logits, _ = self.model(
            fields["ids"],
            fields["positions"],
            cu_q,
            self.layers,
            fields["block_tables"].view(count, -1).int(),
            fields["slots"],
            seqlen,
            step.max_context,
            lm_head_indices=fields["last"],
        )
        if len(fields["copy_from"]):
            self._copy_blocks(fields["copy_from"], fields["copy_to"])
        if len(fields["source"]) != count:
            logits = logits.index_select(0, fields["source"])
        rows = fields["rows"]
        record = self.table.data.index_select(0, rows)
        # A new row's record points one before the place of its first token.
        position = record[:, columns.POSITION] + 1
        drawn = self.sampler.draw(logits, record, position, rows, step.features)
        self.sampler.note(drawn.tokens, rows, step.features)
        advance_rows(record, drawn.tokens, self.sampler.ends, columns.IGNORE_EOS)
        self.table.data.index_copy_(0, rows, record)
        return drawn


def _pack(items: list[PrefillItem], block_size: int) -> dict[str, np.ndarray]:
    """The arrays of one packed prefill, int64.

    ids        | prompt 0 ...  | prompt 1 .. | prompt 2 ....... |      no padding
    positions  | 0 1 2 3 ...   | 64 65 ..    | 0 1 2 .......    |      (prompt 1: 64 tokens cached)
    cu_q       0               n0            n0+n1              n0+n1+n2
    """
    ids, positions, slots, rows, source, copies = [], [], [], [], [], []
    for number, item in enumerate(items):
        new = np.arange(item.cached, len(item.tokens), dtype=np.int64)
        blocks = np.array(item.blocks, np.int64)
        ids.append(np.array(item.tokens[item.cached :], np.int64))
        positions.append(new)
        slot = blocks[new // block_size] * block_size + new % block_size
        slots.append(np.zeros_like(slot) if item.keep_last else slot)
        rows += [sequence.row for sequence in item.samples]
        source += [number] * len(item.samples)
        copies += item.copies
    lengths = np.array([len(part) for part in ids], np.int64)
    cached = np.array([item.cached for item in items], np.int64)
    cu_q = np.concatenate([[0], np.cumsum(lengths)])
    width = max(len(item.blocks) for item in items)
    tables = np.zeros((len(items), width), np.int64)
    for number, item in enumerate(items):
        tables[number, : len(item.blocks)] = item.blocks
    pairs = np.array(copies, np.int64).reshape(-1, 2)
    return {
        "ids": np.concatenate(ids),
        "positions": np.concatenate(positions),
        "slots": np.concatenate(slots),
        "new": lengths,
        "cached": cached,
        "cu_q": cu_q,
        "cu_k": np.concatenate([[0], np.cumsum(lengths + cached)]),
        "last": cu_q[1:] - 1,
        "block_tables": tables,
        "rows": np.array(rows, np.int64),
        "source": np.array(source, np.int64),
        "copy_from": pairs[:, 0],
        "copy_to": pairs[:, 1],
    }
