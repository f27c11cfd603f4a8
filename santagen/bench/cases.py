"""What is measured: cases, the prompts they are fed, and the numbers that come out. No torch.

Every prompt of a bench is another one: its first tokens are its running number in base V. A prompt
that came twice would find its keys and values in the engine's prefix table, and a repeat would
time the table in place of the model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from santagen.config import ModelConfig
from santagen.errors import SantagenError
from santagen.request import Request, SamplingParams

NUMBER_TOKENS = 2  # V squared prompts before one could come again


@dataclass(frozen=True)
class Case:
    """`batch_size` prompts of `prompt_len` tokens that run together for `output_len` new tokens."""

    batch_size: int
    prompt_len: int
    output_len: int

    @property
    def length(self) -> int:
        return self.prompt_len + self.output_len


@dataclass(frozen=True)
class Defaults:
    """The sizes where the user names none."""

    batch_sizes: tuple[int, ...]
    prompt_len: int
    output_len: int


DEFAULTS = {
    "cpu": Defaults((1, 8, 32), 64, 32),  # under a minute with the bundled model on two cores
    "cuda": Defaults((1, 16, 64, 256, 1024), 256, 256),
}


def make_cases(
    device: str,
    config: ModelConfig,
    batch_sizes: tuple[int, ...] = (),
    prompt_lens: tuple[int, ...] = (),
    output_lens: tuple[int, ...] = (),
) -> list[Case]:
    """Every combination, batch sizes innermost; empty sizes are the device's defaults.

    Raises SantagenError for an output too short to hold a decode step, and for lengths that the
    model has no positions for.
    """
    defaults, half = DEFAULTS[device], config.n_positions // 2
    cases = [
        Case(batch_size, prompt_len, output_len)
        for prompt_len in prompt_lens or (min(defaults.prompt_len, half),)
        for output_len in output_lens or (min(defaults.output_len, half),)
        for batch_size in batch_sizes or defaults.batch_sizes
    ]
    for case in cases:
        if case.output_len < 2:
            raise SantagenError(
                f"--output-len {case.output_len} holds no decode step: prefill draws the first "
                "token.",
                "Give at least 2.",
            )
        if case.length > config.n_positions:
            raise SantagenError(
                f"--prompt-len {case.prompt_len} and --output-len {case.output_len} are together "
                f"more than the model's {config.n_positions} positions.",
                "Lower one of them.",
            )
    return cases


class Prompts:
    """Prompts of random ids that never repeat, and requests made of them."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._random = np.random.default_rng(0)
        self._next = 0

    def requests(self, case: Case, params: SamplingParams) -> list[Request]:
        """One request per row; ids, row numbers and so random streams are new in every call."""
        numbers = np.arange(self._next, self._next + case.batch_size)
        self._next += case.batch_size
        ids = self._random.integers(0, self.vocab_size, (case.batch_size, case.prompt_len))
        for digit in range(min(NUMBER_TOKENS, case.prompt_len)):
            ids[:, digit] = numbers // self.vocab_size**digit % self.vocab_size
        return [
            Request(number, number, tuple(row), params)
            for number, row in zip(numbers.tolist(), ids.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Timed:
    """One run of the engine: its wall time and what it did."""

    seconds: float
    prompt_tokens: int
    generated_tokens: int
    prefills: int
    decodes: int
    cached_tokens: int
    preemptions: int


@dataclass(frozen=True)
class Repeat:
    """The two runs that one repeat consists of; see `bench.measure`."""

    short: Timed
    long: Timed

    @property
    def decode_seconds(self) -> float:
        return self.long.seconds - self.short.seconds

    @property
    def step_seconds(self) -> float:
        return self.decode_seconds / self.long.decodes


@dataclass(frozen=True)
class Spread:
    """Median, least and most of some repeats."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    def as_json(self) -> dict[str, float]:
        return asdict(self)


@dataclass
class Result:
    """What became of one case: repeats, or the sentence that says why there are none."""

    case: Case
    repeats: list[Repeat] = field(default_factory=list)
    peak_memory_bytes: int = 0
    error: str | None = None

    @property
    def steps(self) -> int:
        """Decode steps of one long run; output_len - 1 where all rows ran together."""
        return self.repeats[0].long.decodes

    @property
    def prefill_seconds(self) -> Spread:
        return Spread.of(repeat.short.seconds for repeat in self.repeats)

    @property
    def prefill_rate(self) -> Spread:
        """Prompt tokens a second."""
        return Spread.of(r.short.prompt_tokens / r.short.seconds for r in self.repeats)

    @property
    def step_seconds(self) -> Spread:
        return Spread.of(repeat.step_seconds for repeat in self.repeats)

    @property
    def decode_rate(self) -> Spread:
        """New tokens a second of the decode steps alone."""
        return Spread.of(
            (r.long.generated_tokens - r.short.generated_tokens) / r.decode_seconds
            for r in self.repeats
        )

    @property
    def whole_rate(self) -> Spread:
        """New tokens a second, prefill included."""
        return Spread.of(r.long.generated_tokens / r.long.seconds for r in self.repeats)

    def notes(self) -> list[str]:
        """What makes these numbers something else than they seem."""
        runs = [run for repeat in self.repeats for run in (repeat.short, repeat.long)]
        cached = sum(run.cached_tokens for run in runs)
        preempted = sum(run.preemptions for run in runs)
        found = []
        if self.repeats and self.steps > self.case.output_len - 1:
            found.append(
                f"the rows did not all run together: {self.steps:,} decode steps in place of "
                f"{self.case.output_len - 1:,}, for want of cache"
            )
        if cached:
            found.append(f"{cached:,} prompt tokens came from the prefix table")
        if preempted:
            found.append(f"{preempted:,} preemptions")
        return found

    def as_json(self) -> dict[str, Any]:
        """The measured numbers; `bench.report` adds the limits."""
        found: dict[str, Any] = {**asdict(self.case), "error": self.error}
        if not self.repeats:
            return found
        long = self.repeats[0].long
        return found | {
            "repeats": len(self.repeats),
            "prompt_tokens": long.prompt_tokens,
            "generated_tokens": long.generated_tokens,
            "prefill": {
                "seconds": self.prefill_seconds.as_json(),
                "tokens_per_second": self.prefill_rate.as_json(),
                "launches": self.repeats[0].short.prefills,
            },
            "decode": {
                "steps": self.steps,
                "seconds_per_step": self.step_seconds.as_json(),
                "tokens_per_second": self.decode_rate.as_json(),
            },
            "whole": {
                "seconds": Spread.of(r.long.seconds for r in self.repeats).as_json(),
                "tokens_per_second": self.whole_rate.as_json(),
            },
            "peak_memory_bytes": self.peak_memory_bytes,
            "notes": self.notes(),
        }
