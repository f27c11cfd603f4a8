"""What a report shows: results of `santagen eval`, runs of `santagen generate`, and a comparison.

Plain data; who fills it in is the command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """One sample of a problem, to look at."""

    kind: str  # its class
    result: str
    completion: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A parsed RESULT.json. `examples` holds one sample per problem where the samples were there;
    `statistics` is evaluation.statistics' (None: nothing is known).
    """

    label: str
    file: str
    result: dict[str, Any]
    examples: dict[str, Example] = field(default_factory=dict)
    statistics: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.label}: {self.result['task']}"


@dataclass(frozen=True, slots=True)
class Generation:
    """A run of `santagen generate`: its manifest, and what its output shows."""

    label: str
    file: str
    manifest: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    failed_rows: int | None = None

    @property
    def title(self) -> str:
        return f"{self.label}: generation"


@dataclass(frozen=True, slots=True)
class Report:
    """A whole page. `comparison` is evaluation.compare's JSON of the first two results;
    `no_comparison` says why there is none.
    """

    evaluations: tuple[Evaluation, ...] = ()
    generations: tuple[Generation, ...] = ()
    comparison: dict[str, Any] | None = None
    no_comparison: str = ""
