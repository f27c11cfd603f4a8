"""Infilling: the model's own FIM tokens, and prompts built from a prefix and a suffix.

    PSM:  <prefix> prefix <suffix> suffix <middle>
    SPM:  <prefix> <suffix> suffix <middle> prefix     (the order these models were trained with)

Works on ids, so what follows a sentinel can never change how the sentinel is read. What an answer
repeats of the suffix is measured here; whether it is cut is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIM_WORDS = ("prefix", "middle", "suffix", "pad")
FIM_MODES = ("psm", "spm")
FIM_OVERHEAD = 3  # sentinels in either order


def sentinel(word: str, mark: str) -> str:
    """SantaCoder writes <fim-prefix>, StarCoder <fim_prefix>."""
    return f"<fim{mark}{word}>"


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of the sentinels; `spelling` is "hyphen" or "underscore"."""

    prefix: int
    middle: int
    suffix: int
    pad: int | None
    spelling: str

    def names(self) -> list[tuple[str, int]]:
        """(spelling, id) of each sentinel there is."""
        mark = {"hyphen": "-", "underscore": "_"}[self.spelling]
        ids = (self.prefix, self.middle, self.suffix, self.pad)
        pairs = zip(FIM_WORDS, ids, strict=True)
        return [(sentinel(word, mark), token) for word, token in pairs if token is not None]


def find_fim_tokens(vocabulary: Mapping[str, int]) -> FimTokens | None:
    """The sentinels that the vocabulary knows, None where it lacks prefix, middle or suffix."""
    for mark, spelling in (("-", "hyphen"), ("_", "underscore")):
        ids = [vocabulary.get(sentinel(word, mark)) for word in FIM_WORDS]
        prefix, middle, suffix, pad = ids
        if prefix is not None and middle is not None and suffix is not None:
            return FimTokens(prefix, middle, suffix, pad, spelling)
    return None


def build_fim_ids(
    tokens: FimTokens, prefix: Sequence[int], suffix: Sequence[int], mode: str
) -> list[int]:
    """The prompt ids of an infilling row."""
    if mode == "psm":
        return [tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle]
    return [tokens.prefix, tokens.suffix, *suffix, tokens.middle, *prefix]


def truncate_fim(
    prefix: Sequence[int], suffix: Sequence[int], room: int
) -> tuple[list[int], list[int], int]:
    """Cut the start of the prefix and the end of the suffix: (prefix, suffix, number dropped).

    `room` ids stay in all, those nearest to the hole. Half the room is each side's own; what one
    side leaves free the other may use.
    """
    excess = max(0, len(prefix) + len(suffix) - room)
    if not excess:
        return list(prefix), list(suffix), 0
    half = room // 2
    keep_suffix = min(len(suffix), max(half, room - len(prefix)))
    keep_prefix = room - keep_suffix
    return list(prefix[len(prefix) - keep_prefix :]), list(suffix[:keep_suffix]), excess


def overlap_length(answer: bytes, suffix: bytes) -> int:
    """Bytes at the end of the answer that are the start of the suffix too, as many as there are."""
    at = max(0, len(answer) - len(suffix))
    while suffix and (at := answer.find(suffix[:1], at)) >= 0:
        if suffix.startswith(answer[at:]):
            return len(answer) - at
        at += 1
    return 0
