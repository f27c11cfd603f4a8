"""The progress line of `santagen eval`: what is generated, what is judged, the score so far."""

from __future__ import annotations

import time
from typing import Any

from santagen.cli.progress import Progress, Tally, duration
from santagen.evaluation.runner import Verdict


class Counts:
    """The running score: mean over problems of their share of passes so far."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self.judged = 0

    def add(self, verdict: Verdict) -> None:
        pair = self._of.setdefault(verdict.sample.task_id, [0, 0])
        pair[0] += 1
        pair[1] += verdict.passed
        self.judged += 1

    def rate(self) -> float:
        pairs = list(self._of.values())
        return sum(c / n for n, c in pairs) / len(pairs) if pairs else 0.0


class EvalProgress(Progress):
    """The progress line with what has been judged."""

    def __init__(self, tally: Tally, tokens: Any, enabled: bool, counts: Counts) -> None:
        super().__init__(tally, tokens, enabled)
        self.counts, self.generating = counts, True
        self._since = time.monotonic()

    def line(self) -> str:
        score = f"{self.counts.judged} judged, pass@1 {100 * self.counts.rate():.1f}%"
        if self.generating:
            return f"{super().line()}, {score}"
        return f"{score}, {duration(time.monotonic() - self._since)} elapsed"
