"""The progress line of `santagen eval`: what is generated, what is judged, the score so far."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from santagen.cli.labelled import many
from santagen.cli.progress import Progress, Tally, duration
from santagen.evaluation.pass_at_k import CONFIDENCE_Z, pass_at_k
from santagen.evaluation.runner import Verdict


class Counts:
    """The running score: pass@k over the problems that have verdicts so far."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self.judged = 0

    def add(self, verdict: Verdict) -> None:
        pair = self._of.setdefault(verdict.sample.task_id, [0, 0])
        pair[0] += 1
        pair[1] += verdict.passed
        self.judged += 1

    def scores(self, ks: Sequence[int]) -> list[str]:
        """pass@k in percent over the problems that have k samples, where fewer than all seen with
        their number; the first with its two 95 % half-widths (both by the normal approximation:
        the table at the end has the exact ones).
        """
        seen = list(self._of.values())
        texts: list[str] = []
        for k in ks:
            pairs = [(n, c) for n, c in seen if n >= k]
            if not pairs:
                continue
            values = [pass_at_k(n, c, k) for n, c in pairs]
            mean = sum(values) / len(values)
            more = "" if texts else f" ±{_samples(pairs):.1f} ±{_problems(values, mean):.1f}"
            if len(pairs) < len(seen):
                more += f" of {many(len(pairs), 'problem')}"
            texts.append(f"pass@{k} {100 * mean:.1f}%{more}")
        return texts


def _samples(pairs: Sequence[tuple[int, int]]) -> float:
    """Half the 95 % interval of pass@1 in percent if the samples were drawn again."""
    variance = sum(c / n * (1 - c / n) / max(1, n - 1) for n, c in pairs)
    return 100 * CONFIDENCE_Z * math.sqrt(variance) / len(pairs)


def _problems(values: Sequence[float], mean: float) -> float:
    """The same if the problems were."""
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return 100 * CONFIDENCE_Z * math.sqrt(variance / len(values))


class EvalProgress(Progress):
    """The progress line with what has been judged."""

    def __init__(
        self, tally: Tally, tokens: Any, enabled: bool, counts: Counts, ks: Sequence[int] = (1,)
    ) -> None:
        super().__init__(tally, tokens, enabled)
        self.counts, self.generating, self.ks = counts, True, ks
        self._since = time.monotonic()

    def line(self) -> str:
        score = ", ".join([f"{self.counts.judged} judged", *self.counts.scores(self.ks)])
        if self.generating:
            return f"{super().line()}, {score}"
        return f"{score}, {duration(time.monotonic() - self._since)} elapsed"
