"""Turns drawn tokens into finished samples: end tokens, stop strings, length, text. Host only.

`process` finds which sequences end, and where; `output` makes the sample of one, with its text,
which may wait until the next launch is on its way. A row's text is looked at only when its new
token may complete one of its stop strings (the table of io.stops); all other rows of a launch cost
one list append. Text is cut by id first, then at the first stop string, and decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np

from santagen.engine.batch import Step
from santagen.engine.sequence import Sequence
from santagen.errors import SantagenError
from santagen.io.fim import overlap_length
from santagen.io.stops import StopSet
from santagen.io.tokenizer import Tokenizer
from santagen.request import SampleOutput, TokenLogprob


class Ending(NamedTuple):
    """How a sequence ended. `tokens` it keeps; `raw`: the completion's bytes, where they are not
    all those of the tokens."""

    sequence: Sequence
    tokens: list[int]
    finish_reason: str
    stop_reason: str | int | None
    raw: bytes | None = None


class OutputProcessor:
    """`end_ids` end a sample unless it ignores them; `eos_ids` among them are the model's own
    end."""

    def __init__(
        self, tokenizer: Tokenizer | None, eos_ids: SequenceOf[int], end_ids: SequenceOf[int]
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_ids, self.end_ids = frozenset(eos_ids), frozenset(end_ids)
        self.tokens = 0  # drawn and kept, over all samples

    def process(
        self,
        step: Step,
        tokens: np.ndarray,
        logprobs: np.ndarray | None,
        top_ids: np.ndarray | None,
        top_logprobs: np.ndarray | None,
    ) -> Iterator[Ending]:
        """Take in one launch's tokens; yields the sequences that ended, in row order.

        Raises SantagenError, after all of them, where a row's logits were not finite.
        """
        broken: Sequence | None = None
        for i, (sequence, token) in enumerate(zip(step.sequences, tokens.tolist(), strict=True)):
            if sequence.finished:
                continue  # launched before its end was seen: the token is thrown away
            if token < 0:
                broken = broken or sequence
                continue
            sequence.output.append(token)
            self.tokens += 1
            wanted = sequence.request.params.logprobs
            if wanted is not None:
                assert logprobs is not None
                top = (
                    ()
                    if top_ids is None or top_logprobs is None
                    else tuple(
                        zip(
                            top_ids[i, :wanted].tolist(),
                            top_logprobs[i, :wanted].tolist(),
                            strict=True,
                        )
                    )
                )
                sequence.logprobs.append(TokenLogprob(token, float(logprobs[i]), top))
            ending = self._ending(sequence, token, bool(step.last[i]))
            if ending is not None:
                sequence.finished = True
                yield ending
        if broken is not None:
            raise SantagenError(
                f"The model's output is not finite (NaN or infinite logits) at row "
                f"{broken.request.row_id!r}, token {len(broken.output)}.",
                "The weights are damaged, or the dtype overflows: try --dtype bfloat16 or "
                "float32.",
            )

    def _ending(self, sequence: Sequence, token: int, last: bool) -> Ending | None:
        if token in self.end_ids and not sequence.request.params.ignore_eos:
            reason = None if token in self.eos_ids else token
            return Ending(sequence, sequence.output[:-1], "stop", reason)
        stop = sequence.stop
        if stop is not None and stop.can_end[token]:
            found = self._find_stop(sequence, stop)
            if found is not None:
                return self._stopped(sequence, *found)
        if last:
            return Ending(sequence, sequence.output, "length", None)
        return None

    def _find_stop(self, sequence: Sequence, stop: StopSet) -> tuple[int, str] | None:
        """(byte position, stop string) of the earliest match that the newest token completed."""
        assert self.tokenizer is not None
        table = self.tokenizer.token_bytes
        text = sequence.text
        for token in sequence.output[sequence.text_tokens : -1]:
            text += table[token] or b""
        before = len(text)
        text += table[sequence.output[-1]] or b""
        sequence.text_tokens = len(sequence.output)
        return stop.find(text, stop.search_from(before))

    def _stopped(self, sequence: Sequence, position: int, stop: str) -> Ending:
        """Cut at the stop string; keep the ids whose bytes reach into what is left."""
        assert self.tokenizer is not None
        end = position + len(stop.encode()) * sequence.request.params.include_stop
        kept = self._ids_up_to(sequence.output, end)
        return Ending(sequence, kept, "stop", stop, bytes(sequence.text[:end]))

    def _ids_up_to(self, tokens: list[int], end: int) -> list[int]:
        """The first ids, as many as reach into the first `end` bytes."""
        assert self.tokenizer is not None
        table = self.tokenizer.token_bytes
        kept, length = 0, 0
        while length < end:
            length += len(table[tokens[kept]] or b"")
            kept += 1
        return tokens[:kept]

    def output(self, ending: Ending) -> SampleOutput:
        """The finished sample, with its text."""
        sequence, tokens, finish_reason, stop_reason, raw = ending
        request, params = sequence.request, sequence.request.params
        text, overlap = None, ""
        if self.tokenizer is not None:
            if raw is None:
                raw = self.tokenizer.bytes_of(tokens)
            if params.trim_overlap and request.suffix:
                end = len(raw) - overlap_length(raw, request.suffix.encode())
                if end < len(raw):
                    overlap = raw[end:].decode("utf-8", errors="replace")
                    raw, tokens = raw[:end], self._ids_up_to(tokens, end)
            text = raw.decode("utf-8", errors="replace")
        return SampleOutput(
            request,
            sequence.index,
            text,
            tuple(tokens),
            finish_reason,
            stop_reason,
            len(sequence.output),
            None if params.logprobs is None else tuple(sequence.logprobs),
            overlap,
        )
