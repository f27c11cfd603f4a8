"""What one launch on the device consists of: plain lists that the scheduler fills and the runner
executes.

Step.moves, .vacated, .new_blocks      changes of the row table, applied first
Step.block_moves                       cache blocks that move before anything is computed
Step.prefill                           packed prompts, then one first token per admitted sample
otherwise                              one decode step of rows [0, size)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from santagen.engine.sequence import Sequence


@dataclass(slots=True)
class PrefillItem:
    """One prompt to compute: tokens[cached:] are new, `blocks` hold all of them.

    `keep_last` is True when the cache already holds every token: the last one is computed again
    for its logits, and its K/V are not written. `samples` draw their first token from its logits;
    `copies` are (from, to) blocks for the samples' own partial last block.
    """

    tokens: tuple[int, ...]
    cached: int
    blocks: list[int]
    keep_last: bool
    samples: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Features:
    """Which parts of sampling some live row asks for; the rest is skipped."""

    random: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalty: bool = False
    logprobs: int | None = None  # the largest N asked for

    @classmethod
    def of(cls, sequences: list[Sequence]) -> Features:
        """What some of the sequences asks for."""
        features = cls()
        for params in {id(s.request.params): s.request.params for s in sequences}.values():
            features.random |= params.temperature > 0
            features.top_k |= params.top_k > 0
            features.top_p |= params.top_p < 1
            features.min_p |= params.min_p > 0
            features.penalty |= params.repetition_penalty != 1
            if params.logprobs is not None:
                features.logprobs = max(features.logprobs or 0, params.logprobs)
        return features


@dataclass(slots=True)
class Step:
    """One launch. `sequences[i]` gets the i-th token; `last[i]` says that it is that sequence's
    last one."""

    size: int
    sequences: list[Sequence]
    last: np.ndarray  # bool
    features: Features
    max_context: int  # longest context of the launch, the new token included
    moves: list[tuple[int, int]] = field(default_factory=list)  # (from row, to row)
    vacated: range = range(0)
    new_blocks: list[tuple[int, int, int]] = field(default_factory=list)  # (row, column, block)
    block_moves: list[tuple[int, int]] = field(default_factory=list)  # (from, to), all at once
    prefill: list[PrefillItem] = field(default_factory=list)

    @property
    def is_prefill(self) -> bool:
        return bool(self.prefill)
