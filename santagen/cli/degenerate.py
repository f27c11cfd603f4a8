"""Whether a run's output looks broken: every sample ends at once, or repeats one token.

Badly quantised or damaged weights do that, and no single sample tells. Counts only; nothing is
dropped or changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from santagen.request import SampleOutput

REPEATED = 8  # of one token and nothing else: shorter answers may mean it

HINT = (
    "Damaged or badly quantised weights do this, and so do prompts the model was not made for: "
    "compare with the unquantised model, and look at the checkpoint with santagen inspect."
)


@dataclass(slots=True)
class Degenerate:
    """The counts of one run, or of one group's part of it."""

    samples: int = 0
    ended_at_once: int = 0
    one_token: int = 0

    def add(self, output: SampleOutput) -> None:
        """A stop string that is found at once is the user's, and no fault."""
        ids = output.token_ids
        by_end_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        self.samples += 1
        self.ended_at_once += not ids and by_end_token
        self.one_token += len(ids) >= REPEATED and len(set(ids)) == 1

    def update(self, other: Degenerate) -> None:
        """Add what another group counted."""
        self.samples += other.samples
        self.ended_at_once += other.ended_at_once
        self.one_token += other.one_token

    def warning(self) -> str:
        """What to say of the run, empty where at least one sample is sound."""
        if self.samples == 0 or self.ended_at_once + self.one_token < self.samples:
            return ""
        what = "ended at once" if not self.one_token else "repeats one token"
        if self.ended_at_once and self.one_token:
            what = "ended at once or repeats one token"
        which = "the only sample" if self.samples == 1 else f"every one of {self.samples:,} samples"
        return f"{which} of this run {what}."
