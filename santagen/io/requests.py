"""From checked rows to requests: tokenises, merges settings over the defaults, enforces lengths.

A row that can't be used becomes a RowFailure in its place; the rows around it go on. Tokenises in
batches and as rows are asked for, so that a million rows start at once. Reads no files.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from santagen.errors import RowError, SantagenError
from santagen.io.fim import FIM_MODES, FIM_OVERHEAD, build_fim_ids, truncate_fim
from santagen.io.tokenizer import LONG_TEXT, Tokenizer
from santagen.request import PromptRow, Request, RowFailure, SamplingParams

TRUNCATE_MODES = ("error", "left")


class RequestBuilder:
    """`max_len` bounds prompt + output; `truncate` says what happens to a prompt that is longer."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_len: int,
        defaults: SamplingParams,
        fim_mode: str = "psm",
        truncate: str = "error",
    ) -> None:
        if fim_mode not in FIM_MODES:
            raise SantagenError(f"--fim-mode {fim_mode} is not known.", "Choose psm or spm.")
        if truncate not in TRUNCATE_MODES:
            raise SantagenError(f"--truncate {truncate} is not known.", "Choose error or left.")
        if tokenizer is None and defaults.stop:
            raise SantagenError(
                "Stop strings need a tokenizer, and the model has no tokenizer files.",
                "Leave --stop out, or give --tokenizer.",
            )
        self.tokenizer, self.vocab_size, self.max_len = tokenizer, vocab_size, max_len
        self.defaults, self.fim_mode, self.truncate = defaults, fim_mode, truncate
        self.warnings: Counter[str] = Counter()  # remarks, each with the rows that caused it

    def build(self, row: PromptRow) -> Request:
        """One row; raises RowError."""
        return self._build(row, self._encode(self._to_encode(row)))

    def build_many(
        self, rows: Iterable[PromptRow], batch: int = 256
    ) -> Iterator[Request | RowFailure]:
        """All rows in order, a RowFailure in the place of one that can't be used."""
        source = iter(rows)
        size = 1  # the first rows reach the engine at once
        while part := list(islice(source, size)):
            size = min(batch, size * 4)
            yield from self._build_part(part)

    def _build_part(self, part: list[PromptRow]) -> Iterator[Request | RowFailure]:
        texts = [self._to_encode(row) for row in part]
        ids = iter(self._encode([text for row in texts for text in row]))
        encoded = [[next(ids) for _ in row] for row in texts]
        for row, own in zip(part, encoded, strict=True):
            try:
                yield self._build(row, own)
            except SantagenError as error:
                yield RowFailure(row.row_id, row.number, row.line, error.message, error.hint)

    @staticmethod
    def _texts(row: PromptRow) -> list[str]:
        if row.prompt is not None:
            return [row.prompt]
        if row.prefix is not None and row.suffix is not None:
            return [row.prefix, row.suffix]
        return []

    def _to_encode(self, row: PromptRow) -> list[str]:
        """The row's texts; none where there is no tokenizer, or no hope that they fit.

        Under `left` all of a text is encoded: its record says how many tokens were dropped.
        """
        texts = self._texts(row)
        if self.tokenizer is None:
            return []
        long = self.truncate == "error" and sum(map(len, texts)) > LONG_TEXT
        return [] if long and self._fewest_tokens(row) > self.max_len - 1 else texts

    def _fewest_tokens(self, row: PromptRow) -> int:
        assert self.tokenizer is not None
        texts = self._texts(row)
        return sum(map(self.tokenizer.fewest_ids, texts)) + FIM_OVERHEAD * (len(texts) - 1)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts) if self.tokenizer is not None else []

    def _build(self, row: PromptRow, encoded: list[list[int]]) -> Request:
        """`encoded` are the ids of what `_to_encode` gave."""
        place = f"{row.source}, line {row.line}" if row.line else f"row {row.row_id}"
        params = self._params(row, place)
        text: str | None = None
        if row.prompt_token_ids is not None:
            ids = list(row.prompt_token_ids)
            self._check_ids(row, ids, place)
            ids, dropped = self._fit(row, ids, params, place)
        elif self.tokenizer is None:
            raise RowError(
                f"{place}: the row holds text, and the model has no tokenizer files.",
                "Give the row prompt_token_ids, or name a tokenizer with --tokenizer.",
                line=row.line,
            )
        elif not encoded:
            raise self._too_long(row, f"at least {self._fewest_tokens(row)}", place)
        elif row.prompt is not None:
            text = row.prompt
            self._warn_foreign(row.prompt)
            self._check_encoding(row, encoded, place)
            ids, dropped = self._fit(row, encoded[0], params, place)
        else:
            self._warn_own(encoded)
            self._check_encoding(row, encoded, place)
            text = f"{row.prefix}{row.suffix}"
            ids, dropped = self._infill(row, encoded[0], encoded[1], params, place)
        return Request(
            row.row_id,
            row.number,
            tuple(ids),
            params,
            sample_indices=tuple(range(params.n)),
            line=row.line,
            prompt_text=text,
            truncated_tokens=dropped,
            keep=row.keep,
            batch_body=row.batch_body,
            suffix=row.suffix,
        )

    def _params(self, row: PromptRow, place: str) -> SamplingParams:
        if not row.overrides:
            return self.defaults
        overrides: dict[str, Any] = dict(row.overrides)
        if "stop" in overrides and self.tokenizer is None and overrides["stop"]:
            raise RowError(
                f"{place}: stop strings need a tokenizer, and the model has no tokenizer files.",
                "Remove `stop` from the row, or give --tokenizer.",
                line=row.line,
            )
        try:
            return dataclasses.replace(self.defaults, **overrides)
        except SantagenError as error:
            raise RowError(f"{place}: {error.message}", error.hint, line=row.line) from None

    def _check_ids(self, row: PromptRow, ids: list[int], place: str) -> None:
        if not ids:
            raise RowError(
                f"{place}: prompt_token_ids is empty.", "Give at least one id.", line=row.line
            )
        largest = max(ids)
        if largest >= self.vocab_size or min(ids) < 0:
            bad = largest if largest >= self.vocab_size else min(ids)
            raise RowError(
                f"{place}: prompt_token_ids holds {bad}; the model's ids go from 0 to "
                f"{self.vocab_size - 1}.",
                "Tokenise with this model's tokenizer.",
                line=row.line,
            )

    def _check_encoding(self, row: PromptRow, encoded: list[list[int]], place: str) -> None:
        """Refuse text that the tokenizer can't give whole, or in ids that the model has."""
        assert self.tokenizer is not None
        for text, ids in zip(self._texts(row), encoded, strict=True):
            if max(ids, default=0) >= self.vocab_size:
                raise RowError(
                    f"{place}: the tokenizer gives id {max(ids)}; the model's ids go from 0 to "
                    f"{self.vocab_size - 1}.",
                    "Use the tokenizer of this model, or leave that special token out.",
                    line=row.line,
                )
            if self.tokenizer.loses(text, ids):
                raise RowError(
                    f"{place}: the text holds bytes for which the tokenizer has no token.",
                    "Use a tokenizer that knows all 256 bytes, or replace those characters.",
                    line=row.line,
                )

    def _fit(
        self, row: PromptRow, ids: list[int], params: SamplingParams, place: str
    ) -> tuple[list[int], int]:
        """Refuse a prompt that leaves no position for a new token, or drop its start."""
        if not ids:
            raise RowError(
                f"{place}: the prompt has no tokens.", "Give it some text.", line=row.line
            )
        room = self._room(params)
        if len(ids) <= self.max_len - 1:
            return ids, 0
        if self.truncate == "error":
            raise self._too_long(row, len(ids), place)
        return ids[-room:], len(ids) - room

    def _infill(
        self,
        row: PromptRow,
        prefix: list[int],
        suffix: list[int],
        params: SamplingParams,
        place: str,
    ) -> tuple[list[int], int]:
        assert self.tokenizer is not None
        tokens = self.tokenizer.fim
        if tokens is None:
            raise RowError(
                f"{place}: the row asks for infilling, and the tokenizer has neither <fim-prefix> "
                "nor <fim_prefix> with their middle and suffix.",
                "Use a model trained to infill, or give the row a `prompt`.",
                line=row.line,
            )
        length, dropped = len(prefix) + len(suffix) + FIM_OVERHEAD, 0
        if length > self.max_len - 1:
            # Sentinels always stay, and one id beside them is the least that says anything.
            room = min(max(self._room(params), FIM_OVERHEAD + 1), self.max_len - 1)
            if self.truncate == "error" or room <= FIM_OVERHEAD:
                raise self._too_long(row, length, place)
            prefix, suffix, dropped = truncate_fim(prefix, suffix, room - FIM_OVERHEAD)
        return build_fim_ids(tokens, prefix, suffix, self.fim_mode), dropped

    def _room(self, params: SamplingParams) -> int:
        """What a prompt that is too long is cut to, so that max_tokens fit behind it.

        Half of the positions where max_tokens asks for all there are.
        """
        if params.max_tokens >= self.max_len:
            return max(1, self.max_len // 2)
        return self.max_len - params.max_tokens

    def _too_long(self, row: PromptRow, length: int | str, place: str) -> RowError:
        room = self.max_len - 1
        hint = f"Shorten it to {_tokens(room)} at most, or use --truncate left."
        if self.truncate == "left" or (row.prefix is not None and room <= FIM_OVERHEAD):
            # Only infilling comes here under `left`: not even its sentinels and one id fit.
            hint = f"Infilling takes at least {FIM_OVERHEAD + 2} positions: raise --max-model-len."
        return RowError(
            f"{place}: the prompt has {_tokens(length)}, and there are {self.max_len} positions "
            "for prompt and answer.",
            hint,
            line=row.line,
        )

    def _warn_foreign(self, text: str) -> None:
        assert self.tokenizer is not None
        if "<fim" not in text:
            return
        for name in self.tokenizer.foreign_sentinels(text):
            self.warnings[
                f"the prompt holds {name}, which is plain text to this model: its own sentinels "
                "are spelled otherwise; use prefix and suffix"
            ] += 1

    def _warn_own(self, parts: list[list[int]]) -> None:
        """A prefix or suffix that spells a sentinel splits the prompt in another place."""
        assert self.tokenizer is not None
        for name, token in self.tokenizer.fim.names() if self.tokenizer.fim is not None else ():
            if any(token in ids for ids in parts):
                self.warnings[
                    f"the prefix or the suffix holds {name}, which the model reads as its own "
                    "sentinel, not as text: take it out of the row"
                ] += 1


def _tokens(length: int | str) -> str:
    """1 token, 2 tokens, at least 3 tokens"""
    return f"{length} token" + ("" if length == 1 else "s")
