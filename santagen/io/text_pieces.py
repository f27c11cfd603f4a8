"""Cuts a very long text where the pre-tokenizer would in any case, so that ids are made piece by
piece.

A tokenizer keeps a hundred bytes for each token of a text until all of it is done: gigabytes for
one row of 20 MB. A piece ends behind a visible character that white space follows:

    def f(x):|<line end>    return x|<line end>

No pattern of the byte-level pre-tokenizer goes on from the one to the other, and none looks back:
the ids of the pieces are those of the text. Encodes nothing itself.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

PIECE = 1 << 16  # characters, at the least
_SEAM = re.compile(r"[\w!-~](?=[ \n\t])")
_KNOWN = {"Sequence", "ByteLevel", "Digits"}


def can_cut(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether pieces have the ids of the whole: nothing but the usual steps, and no added token
    with white space in it."""
    if tokenizer.normalizer is not None or tokenizer.pre_tokenizer is None:
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    steps = [state, *state.get("pretokenizers", [])]
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        all(step["type"] in _KNOWN for step in steps)
        and any(step["type"] == "ByteLevel" and step.get("use_regex", True) for step in steps)
        and not any(character.isspace() for token in added for character in token.content)
    )


def cut(text: str) -> list[str]:
    """The pieces; a text without a seam stays whole."""
    pieces, start = [], 0
    while len(text) - start > 2 * PIECE:
        seam = _SEAM.search(text, start + PIECE)
        if seam is None:
            break
        pieces.append(text[start : seam.end()])
        start = seam.end()
    pieces.append(text[start:])
    return pieces
