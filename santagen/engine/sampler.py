"""Draws the next token of each row, and keeps what drawing needs: allowed ids, end ids, ids seen.

The maths of a draw is in kernels.sampling; this module feeds it the row table's columns. A row
whose logits are not finite draws -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from santagen.distributed import TensorParallel
from santagen.engine import rows as columns
from santagen.engine.batch import Features, Step
from santagen.engine.rows import to_device
from santagen.engine.sequence import Sequence
from santagen.kernels.sampling import apply_repetition_penalty, mark_seen, sample


@dataclass
class Drawn:
    """tokens [n] int64; logprobs [n] of them and the N best (top_ids, top_logprobs [n, N]) where
    asked for."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None

    def to_host(self) -> Drawn:
        """Start copies to pinned memory; valid once an event recorded after this has passed."""

        def copy(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
            return host.copy_(part, non_blocking=True)

        tokens = copy(self.tokens)
        assert tokens is not None
        return Drawn(tokens, copy(self.logprobs), copy(self.top_ids), copy(self.top_logprobs))

    def of_all(self, parallel: TensorParallel, share: int, rows: int) -> Drawn:
        """What all ranks drew of `rows` rows, each `share` of them."""

        def gather(part: Tensor | None) -> Tensor | None:
            return None if part is None else parallel.gather_rows(part, share, rows)

        tokens = gather(self.tokens)
        assert tokens is not None
        optional = (self.logprobs, self.top_ids, self.top_logprobs)
        return Drawn(tokens, *(gather(part) for part in optional))


class Sampler:
    """`known` masks the ids that have a token, `end_ids` those that end a sample; V entries
    each."""

    def __init__(
        self,
        vocab_size: int,
        known: np.ndarray | None,
        end_ids: frozenset[int],
        capacity: int,
        device: torch.device,
    ) -> None:
        self.vocab_size, self.capacity, self.device = vocab_size, capacity, device
        masked = known is not None and not known.all()
        self.allowed = torch.from_numpy(known).to(device) if known is not None and masked else None
        ends = torch.zeros(vocab_size, dtype=torch.bool)
        ends[[i for i in end_ids if i < vocab_size]] = True
        self.ends = ends.to(device)
        # [capacity, ceil(V / 32)] bit mask of prompt and drawn ids; made when a row first asks
        # for a penalty
        self.seen: Tensor | None = None

    def apply(self, step: Step) -> None:
        """Follow the row table's moves, and note the ids of newly admitted rows that are
        penalised."""
        if self.seen is not None and step.moves:
            source, target = to_device(np.array(step.moves, np.int64).T, self.device)
            self.seen.index_copy_(0, target, self.seen.index_select(0, source))
        if not (step.is_prefill and step.features.penalty):
            return
        if self.seen is None:
            shape = (self.capacity, -(-self.vocab_size // 32))
            self.seen = torch.zeros(shape, dtype=torch.int32, device=self.device)
        rows = np.array([sequence.row for sequence in step.sequences], np.int64)
        masks = np.stack([_seen_mask(sequence, self.vocab_size) for sequence in step.sequences])
        self.seen.index_copy_(0, to_device(rows, self.device), to_device(masks, self.device))

    def draw(
        self,
        logits: Tensor,
        record: Tensor,
        position: Tensor,
        rows: Tensor | range,
        features: Features,
    ) -> Drawn:
        """logits [n, V] float32; record [n, columns] of the row table; position [n] of the drawn
        token; rows the numbers of the n rows. `note` has to hear of the tokens."""
        model_logprobs = None
        if features.logprobs is not None:
            model_logprobs = torch.log_softmax(logits, dim=-1)
        floats = record.view(torch.float32)
        if features.penalty:
            assert self.seen is not None
            penalty = floats[:, columns.PENALTY].contiguous()
            seen = self.seen.index_select(0, self._numbers(rows))
            logits = apply_repetition_penalty(logits, seen, penalty)
        tokens = sample(
            logits,
            position,
            record[:, columns.KEY : columns.KEY + 2],
            temperature=floats[:, columns.TEMPERATURE],
            top_k=record[:, columns.TOP_K],
            top_p=floats[:, columns.TOP_P],
            min_p=floats[:, columns.MIN_P],
            allowed=self.allowed,
            any_random=features.random,
            any_top_k=features.top_k,
            any_top_p=features.top_p,
            any_min_p=features.min_p,
        )
        if model_logprobs is None:
            return Drawn(tokens)
        chosen = model_logprobs.gather(1, tokens.clamp(min=0).unsqueeze(1)).squeeze(1)
        if not features.logprobs:
            return Drawn(tokens, chosen)
        values, ids = model_logprobs.topk(min(features.logprobs, self.vocab_size), dim=-1)
        return Drawn(tokens, chosen, ids, values)

    def note(self, tokens: Tensor, rows: Tensor | range, features: Features) -> None:
        """The tokens [n] were drawn in these rows."""
        if features.penalty:
            assert self.seen is not None
            mark_seen(self.seen, self._numbers(rows), tokens.clamp(min=0))

    def _numbers(self, rows: Tensor | range) -> Tensor:
        if isinstance(rows, range):
            return torch.arange(rows.start, rows.stop, device=self.device)
        return rows


def _seen_mask(sequence: Sequence, vocab_size: int) -> np.ndarray:
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    ids = np.array(sequence.tokens, np.uint32)
    np.bitwise_or.at(words, ids >> 5, np.uint32(1) << (ids & 31))
    return words.view(np.int32)
