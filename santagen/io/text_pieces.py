"""Cuts a very long text where it makes no difference, so that ids are made piece by piece.

A tokenizer keeps a hundred bytes for each token of a text until all of it is done: gigabytes for
one row of 20 MB. There are two kinds of places to cut, and the ids of the pieces are those of the
text at both:

    def f(x):|<line end>    return x|<line end>     behind a visible character, before white space
    3141592653|5897932384                           between two bytes that no token holds in a row

At the first no pattern of the byte-level pre-tokenizer goes on from the one side to the other, and
none looks back. At the second one may, but no merge can: it would make a token that holds both
bytes. Encodes nothing itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

PIECE = 1 << 16  # characters, at the least
_SEAM = re.compile(r"[\w!-~](?=[ \n\t])")
_INSIDE = re.compile(r"[^\s'](?=[^\s'])")
_KNOWN = {"Sequence", "ByteLevel", "Digits"}
_CONTRACTION = 2  # characters behind an apostrophe that the pre-tokenizer may keep with it


@dataclass(frozen=True, slots=True)
class Bonds:
    """The pairs of bytes that stand side by side in some token, added ones too."""

    pairs: frozenset[tuple[int, int]]

    @classmethod
    def of(
        cls, tokenizer: tokenizers.Tokenizer, token_bytes: Iterable[bytes | None]
    ) -> Bonds | None:
        """None where more than merges decides what a run of characters becomes. Every byte must
        have a token."""
        from tokenizers.models import BPE

        model: Any = tokenizer.model
        plain = isinstance(model, BPE) and not (
            model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix
        )
        if not plain or any(step.get("add_prefix_space") for step in _steps(tokenizer)):
            return None
        return cls(frozenset(pair for token in token_bytes for pair in pairwise(token or b"")))

    def free(self, text: str, at: int) -> bool:
        """Whether nothing holds text[at - 1] and text[at] together; neither is white space."""
        before, behind = text[at - 1], text[at]
        if not (before.isprintable() and behind.isprintable()):
            return False
        if "'" in text[max(0, at - _CONTRACTION) : at + 1]:
            return False
        return (before.encode()[-1], behind.encode()[0]) not in self.pairs


def can_cut(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether pieces have the ids of the whole: nothing but the usual steps, and no added token
    with white space in it."""
    if tokenizer.normalizer is not None or tokenizer.pre_tokenizer is None:
        return False
    steps = _steps(tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        all(step["type"] in _KNOWN for step in steps)
        and any(step["type"] == "ByteLevel" and step.get("use_regex", True) for step in steps)
        and not any(character.isspace() for token in added for character in token.content)
    )


def _steps(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """What the pre-tokenizer does, each step with its settings."""
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return [state, *state.get("pretokenizers", [])]


def cut(text: str, bonds: Bonds | None = None) -> list[str]:
    """The pieces; a text without a place to cut stays whole. Without `bonds` only the first kind
    of places is taken."""
    pieces, start = [], 0
    while len(text) - start > 2 * PIECE:
        place = _place(text, start + PIECE, bonds)
        if place is None:
            break
        pieces.append(text[start:place])
        start = place
    pieces.append(text[start:])
    return pieces


def _place(text: str, start: int, bonds: Bonds | None) -> int | None:
    """Where to cut next: white space within a piece's length comes before any other place."""
    for at in range(start, len(text), PIECE):
        end = min(at + PIECE, len(text) - 1) + 1
        seam = _SEAM.search(text, at, end)
        if seam is not None:
            return seam.end()
        if bonds is None:
            continue
        for found in _INSIDE.finditer(text, at, end):
            if bonds.free(text, found.end()):
                return found.end()
    return None
