"""What is asked of the engine and what it answers: plain data, no torch, no I/O.

    PromptRow (as the file says it) -> Request (token ids) -> SampleOutput (one per sample)

`io.prompts` makes the first, `io.requests` the second, the engine's output processor the third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from santagen.errors import SantagenError

RowId = str | int

# Seeds and row numbers travel through JSON and 64-bit integers.
MAX_SEED = 2**63 - 1
MAX_SAMPLES = 1_000_000  # of one row: each is an entry in its Request
# Logits are float32: past these, dividing and multiplying them leaves no number.
MAX_TEMPERATURE = 1e6
MIN_PENALTY, MAX_PENALTY = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the samples of one row are drawn and when they end.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are "off". `stop`
    holds literal strings. `logprobs` None means none; N means each token's own log-probability and
    the N best. `trim_overlap` takes from the end of an infilling row's answer what repeats its
    suffix's start.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    trim_overlap: bool = False

    def __post_init__(self) -> None:
        def refuse(name: str, value: object, wanted: str) -> None:
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:40]}..."
            raise SantagenError(
                f"{name} is {shown}; it must be {wanted}.", f"Make {name} {wanted}."
            )

        for name in ("max_tokens", "top_k", "n", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                refuse(name, value, "a whole number")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not _is_finite(value)
            ):
                refuse(name, value, "a finite number")
        if self.max_tokens < 1:
            refuse("max_tokens", self.max_tokens, "at least 1")
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            refuse("temperature", self.temperature, "0 (greedy) or above, up to a million")
        if not 0 < self.top_p <= 1:
            refuse("top_p", self.top_p, "above 0 and at most 1")
        if self.top_k < 0:
            refuse("top_k", self.top_k, "0 (off) or above")
        if not 0 <= self.min_p <= 1:
            refuse("min_p", self.min_p, "between 0 and 1")
        if not MIN_PENALTY <= self.repetition_penalty <= MAX_PENALTY:
            refuse("repetition_penalty", self.repetition_penalty, "from a millionth to a million")
        if self.n < 1:
            refuse("n", self.n, "at least 1")
        if self.n > MAX_SAMPLES:
            refuse("n", self.n, f"at most {MAX_SAMPLES:,}")
        if not 0 <= self.seed <= MAX_SEED:
            refuse("seed", self.seed, f"between 0 and {MAX_SEED}")
        if any(not isinstance(s, str) or s == "" for s in self.stop):
            refuse("stop", list(self.stop), "a list of non-empty strings")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            refuse("logprobs", self.logprobs, "between 0 and 100")
        if not isinstance(self.trim_overlap, bool):
            refuse("trim_overlap", self.trim_overlap, "true or false")
        if self.n > 1 and self.temperature == 0:
            raise SantagenError(
                f"n is {self.n} at temperature 0: greedy samples would all be equal.",
                "Set a temperature above 0, or n to 1.",
            )


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of the input, checked but not tokenised.

    Exactly one of `prompt`, `prefix` + `suffix`, `prompt_token_ids` is set. `overrides` holds the
    row's own sampling settings under SamplingParams' names (`stop` a tuple). `number` counts rows
    of the whole input from 0 and `line` the lines of its file from 1. `keep` holds the fields to
    copy to the output.
    """

    row_id: RowId
    number: int
    line: int
    source: str
    prompt: str | None = None
    prefix: str | None = None
    suffix: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    keep: dict[str, Any] = field(default_factory=dict)
    batch_body: dict[str, Any] | None = None  # the `body` of an OpenAI batch row


@dataclass(frozen=True, slots=True)
class Request:
    """One row ready for the engine: ids, settings, and which of its samples are still wanted.

    `sample_indices` is range(n) less the samples an earlier run already wrote. `prompt_text` is
    what --echo shows. `truncated_tokens` counts the prompt tokens that --truncate left dropped.
    `suffix` is an infilling row's, whole.
    """

    row_id: RowId
    number: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sample_indices: tuple[int, ...] = (0,)
    line: int = 0
    prompt_text: str | None = None
    truncated_tokens: int = 0
    keep: dict[str, Any] = field(default_factory=dict)
    batch_body: dict[str, Any] | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's log-probability (nats) under the model's own distribution, and the best
    N."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """One finished sample.

    `token_ids` are the ids whose text is the completion: no end token, nothing past a stop
    string's token. `completion` is None where there is no tokenizer. `finish_reason` is "stop" or
    "length"; `stop_reason` is None (the model's own end token), the stop string, or the id of
    another end token. `generated_tokens` counts every token drawn, the end token included.
    `trimmed_overlap` is the text that trim_overlap took from the completion's end.
    """

    request: Request
    index: int
    completion: str | None
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    generated_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    trimmed_overlap: str = ""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that could not be generated: a record of the errors file, in place of its samples."""

    row_id: RowId
    number: int
    line: int
    error: str
    hint: str
