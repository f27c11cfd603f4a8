"""Text to ids and ids to bytes, from tokenizer.json alone, with no clean-up in either direction.

The ids of a text come from the `tokenizers` library with nothing added around them. The bytes of an
id come from a table built once, so that a sample's text is exactly the bytes of its tokens. Special
tokens are found by their spelling in the vocabulary, never by a model's name. Reads no files
(io.tokenizer_files does) and imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from santagen.config import ModelConfig
from santagen.io.fim import FIM_WORDS, FimTokens, find_fim_tokens, sentinel
from santagen.io.text_pieces import Bonds, can_cut, cut
from santagen.io.tokenizer_files import has_tokenizer, read_files, special_names

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer", "byte_alphabet", "has_tokenizer"]

LONG_TEXT = 1 << 18  # characters; longer ones are encoded in pieces
PIECES = 16  # of them together


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes are themselves, others from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


class Tokenizer:
    """One model's tokenizer. `vocab_size` counts ids, the highest one plus one."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        added: dict[int, str],
        eos_ids: Sequence[int],
        fingerprint: str,
        model_rows: int = 0,
    ) -> None:
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._added = added
        self.eos_ids = tuple(eos_ids)
        self.fingerprint = fingerprint
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocabulary: dict[str, int] = vocabulary
        self.vocab_size = max(vocabulary.values()) + 1
        self._table_size = max(self.vocab_size, model_rows)
        self.fim: FimTokens | None = find_fim_tokens(vocabulary)

    @classmethod
    def from_directory(cls, path: Path, config: ModelConfig | None = None) -> Tokenizer:
        """Load tokenizer.json (or vocab.json + merges.txt) of a directory, or the file itself."""
        files = read_files(path)
        vocabulary = files.inner.get_vocab(with_added_tokens=True)
        eos = list(config.eos_token_ids) if config is not None else []
        if files.eos_token is not None and files.eos_token in vocabulary:
            eos.append(vocabulary[files.eos_token])
        rows = config.vocab_size if config is not None else 0
        return cls(files.inner, files.added, list(dict.fromkeys(eos)), files.fingerprint, rows)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, to the letter: nothing stripped, nothing added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts."""
        clean = [_surrogate_free(text) for text in texts]
        long = [len(text) > LONG_TEXT and self._can_cut for text in clean]
        usual = [text for text, is_long in zip(clean, long, strict=True) if not is_long]
        encoded = iter(self._inner.encode_batch_fast(usual, add_special_tokens=False))
        return [
            self._encode_long(text) if is_long else next(encoded).ids
            for text, is_long in zip(clean, long, strict=True)
        ]

    def _encode_long(self, text: str) -> list[int]:
        """The same ids in little memory, a few pieces at a time."""
        ids: list[int] = []
        one = list(range(self.vocab_size))  # one object for each id, however often it comes
        pieces = iter(cut(text, self._bonds))
        while part := list(islice(pieces, PIECES)):
            for encoding in self._inner.encode_batch_fast(part, add_special_tokens=False):
                ids.extend(one[number] for number in encoding.ids)
        return ids

    def fewest_ids(self, text: str) -> int:
        """A lower bound of the ids of `text`, without encoding it; 0 where nothing is known.

        A character has one byte at least, and no id more than those of the longest token.
        """
        if not (self._knows_every_byte and self._can_cut):  # a byte might have no id
            return 0
        return -(-len(text) // self._longest_token)

    @cached_property
    def _longest_token(self) -> int:
        return max(len(token) for token in self.token_bytes if token is not None)

    @cached_property
    def _can_cut(self) -> bool:
        return can_cut(self._inner)

    @cached_property
    def _bonds(self) -> Bonds | None:
        return Bonds.of(self._inner, self.token_bytes) if self._knows_every_byte else None

    @cached_property
    def token_bytes(self) -> list[bytes | None]:
        """The bytes of every id of tokenizer and model; None where an id has no token."""
        alphabet = byte_alphabet()
        table: list[bytes | None] = [None] * self._table_size
        for token, number in self.vocabulary.items():
            if number in self._added:
                table[number] = self._added[number].encode()
            elif all(c in alphabet for c in token):
                table[number] = bytes(alphabet[c] for c in token)
            else:  # a token that was put into the vocabulary as plain text
                table[number] = token.encode()
        return table

    @cached_property
    def _knows_every_byte(self) -> bool:
        return all(character in self.vocabulary for character in byte_alphabet())

    def loses(self, text: str, ids: Sequence[int]) -> bool:
        """Whether `ids`, which encode made of `text`, lack some of it (bytes without a token)."""
        return not self._knows_every_byte and self.decode(ids) != _surrogate_free(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`: their bytes, with U+FFFD for what is no UTF-8. Never raises for a byte."""
        return self.bytes_of(ids).decode("utf-8", errors="replace")

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes of all `ids`; an id without a token has none."""
        table = self.token_bytes
        return b"".join(table[i] or b"" for i in ids if i < len(table))

    def known_ids_mask(self, vocab_size: int) -> np.ndarray:
        """[vocab_size] bool: which of the model's ids have a token."""
        mask = np.zeros(vocab_size, bool)
        known = [i for i, token in enumerate(self.token_bytes[:vocab_size]) if token is not None]
        mask[known] = True
        return mask

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer: the model's own end, FIM tokens, file separators."""
        found = {self.vocabulary[name] for name in special_names() if name in self.vocabulary}
        return frozenset(found | set(self.eos_ids))

    def foreign_sentinels(self, text: str) -> list[str]:
        """FIM sentinels of the other family's spelling in `text`: plain text to this model."""
        names = (sentinel(word, mark) for word in FIM_WORDS for mark in "-_")
        return [name for name in names if name not in self.vocabulary and name in text]

    def facts(self) -> dict[str, Any]:
        """What `inspect` and the manifest say of the tokenizer."""
        return {
            "vocab_size": self.vocab_size,
            "eos_ids": list(self.eos_ids),
            "end_ids": sorted(self.end_ids),
            "fim": None if self.fim is None else self.fim.spelling,
            "fingerprint": self.fingerprint,
        }


def _surrogate_free(text: str) -> str:
    """Lone surrogates (possible through JSON escapes) have no UTF-8 form: they become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
