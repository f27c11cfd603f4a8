"""One sample on its way through the engine, and the prompt that several samples share. Host data,
no torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from santagen.io.stops import StopSet
from santagen.request import Request, TokenLogprob


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request.

    `output` holds the drawn tokens that the host has read; `launched` counts those that were
    launched, read or not. `limit` is max_tokens, or less where the positions end. `row` is its
    device row (-1: none).
    """

    request: Request
    index: int
    key: tuple[int, int]
    limit: int
    stop: StopSet | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)  # bytes of output[:text_tokens]
    text_tokens: int = 0
    launched: int = 0
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)  # its blocks as they were at admission
    admitted: int = -1  # running number of its admission: the youngest is preempted first
    finished: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and what the host has read of the output."""
        return (*self.request.prompt_token_ids, *self.output)


@dataclass(slots=True, eq=False)
class PromptGroup:
    """Samples that wait for the same token ids to be prefilled.

    While some of them still wait after the prefill, `blocks` keeps the prompt's blocks referenced.
    """

    tokens: tuple[int, ...]
    waiting: deque[Sequence]
    blocks: list[int] | None = None
