"""Text to ids and ids to bytes, from tokenizer.json alone, with no clean-up in either direction.

The ids of a text come from the `tokenizers` library with nothing added around them. The bytes of an
id come from a table built once, so that a sample's text is exactly the bytes of its tokens. Special
tokens are found by their spelling in the vocabulary, never by a model's name. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from santagen.config import ModelConfig, read_json
from santagen.errors import SantagenError
from santagen.io.fim import FIM_WORDS, FimTokens, find_fim_tokens, sentinel
from santagen.io.text_pieces import can_cut, cut

if TYPE_CHECKING:
    import tokenizers

LONG_TEXT = 1 << 18  # characters; longer ones are encoded in pieces
PIECES = 16  # of them together
END_TOKENS = ("<|endoftext|>", "<file_sep>", "<filename>", "<file-sep>")


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes are themselves, others from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


def has_tokenizer(directory: Path) -> bool:
    """Whether a model directory holds tokenizer files."""
    return (directory / "tokenizer.json").is_file() or _is_legacy(directory)


def _is_legacy(directory: Path) -> bool:
    return (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file()


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
        import tokenizers

        directory, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        settings = _optional_json(directory / "tokenizer_config.json")
        try:
            if file.is_file():
                raw = file.read_bytes()
                description = _to_the_letter(json.loads(raw.decode("utf-8-sig")), file)
                inner = tokenizers.Tokenizer.from_str(json.dumps(description))
                added = {t["id"]: t["content"] for t in description["added_tokens"]}
                _check_added(inner, description["added_tokens"], file)
            elif _is_legacy(directory):
                inner, added, raw = _legacy(directory, settings)
            else:
                raise SantagenError(
                    f"{directory} holds no tokenizer.json.",
                    "Copy the model's there, give --tokenizer, or use prompt_token_ids.",
                )
        except SantagenError:
            raise
        except Exception as error:  # tokenizers raises bare Exception for a damaged file
            raise SantagenError(
                f"{file} can't be read as a tokenizer: {str(error)[:200]}.", "Download it again."
            ) from None
        vocabulary = inner.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise SantagenError(f"The tokenizer {file} has no tokens.", "Download it again.")
        eos = list(config.eos_token_ids) if config is not None else []
        named = settings.get("eos_token")
        named = named.get("content") if isinstance(named, dict) else named
        if isinstance(named, str) and named in vocabulary:
            eos.append(vocabulary[named])
        rows = config.vocab_size if config is not None else 0
        return cls(inner, added, list(dict.fromkeys(eos)), hashlib.sha256(raw).hexdigest(), rows)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, to the letter: nothing stripped, nothing added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts."""
        clean = [_surrogate_free(text) for text in texts]
        long = [len(text) > LONG_TEXT and self._can_cut for text in clean]
        usual = [text for text, is_long in zip(clean, long, strict=True) if not is_long]
        encoded = iter(self._inner.encode_batch(usual, add_special_tokens=False))
        return [
            self._encode_long(text) if is_long else next(encoded).ids
            for text, is_long in zip(clean, long, strict=True)
        ]

    def _encode_long(self, text: str) -> list[int]:
        """The same ids in little memory, a few pieces at a time."""
        ids: list[int] = []
        one = list(range(self.vocab_size))  # one object for each id, however often it comes
        pieces = iter(cut(text))
        while part := list(islice(pieces, PIECES)):
            for encoding in self._inner.encode_batch(part, add_special_tokens=False):
                ids.extend(one[number] for number in encoding.ids)
        return ids

    @cached_property
    def _can_cut(self) -> bool:
        return can_cut(self._inner)

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
        found = {self.vocabulary[name] for name in _special_names() if name in self.vocabulary}
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


def _to_the_letter(description: dict[str, Any], file: Path) -> dict[str, Any]:
    """A tokenizer.json without what changes a text on its way to ids; byte-level BPE only.

    Nothing is prepended, normalised, cut, padded or drawn at random; special tokens swallow no
    white space beside them, and a sentinel of the plain vocabulary is read as one token too.
    """
    model = description.get("model") or {}
    steps = _steps(description.get("pre_tokenizer"))
    if model.get("type") not in ("BPE", None) or all(s.get("type") != "ByteLevel" for s in steps):
        raise SantagenError(
            f"{file} is no byte-level BPE tokenizer, which every GPT-BigCode model has.",
            "Take the tokenizer files from the same place as the weights.",
        )
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):  # the library may even end the process over one
            raise SantagenError(
                f"{file} sets {name}, which no byte-level BPE tokenizer has.",
                "Take the tokenizer files from the same place as the weights.",
            )
    for step in steps:
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    model["dropout"] = None
    added = description.get("added_tokens") or []
    known = {token["content"] for token in added}
    for name in _special_names():
        if name not in known and name in model["vocab"]:
            added.append({"id": model["vocab"][name], "content": name, "special": True})
    for token in added:
        token.update(single_word=False, lstrip=False, rstrip=False, normalized=False)
    added.sort(key=lambda token: token["id"])
    return description | {
        "added_tokens": added,
        "normalizer": None,
        "truncation": None,
        "padding": None,
    }


def _check_added(inner: tokenizers.Tokenizer, added: list[dict[str, Any]], file: Path) -> None:
    """The library gives a token another id in silence where its own is taken or not the next."""
    for token in added:
        found = inner.token_to_id(token["content"])
        if found != token["id"]:
            raise SantagenError(
                f"{file} gives the added token {token['content']!r} the id {token['id']}, which "
                f"it can't have ({'none' if found is None else found} is left for it).",
                "Take the tokenizer files from the same place as the weights.",
            )


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A pre-tokenizer's or decoder's steps, a sequence's opened up."""
    if not part:
        return []
    inner = part.get("pretokenizers") or part.get("decoders") or []
    return [part, *(step for one in inner for step in _steps(one))]


def _special_names() -> list[str]:
    return [*END_TOKENS, *(sentinel(word, mark) for word in FIM_WORDS for mark in "-_")]


def _legacy(directory: Path, settings: dict[str, Any]) -> tuple[Any, dict[int, str], bytes]:
    """vocab.json + merges.txt, with the added tokens that the files beside them name."""
    import tokenizers
    from tokenizers.implementations import ByteLevelBPETokenizer

    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    wrapped = ByteLevelBPETokenizer.from_file(str(vocab), str(merges), add_prefix_space=False)
    inner = tokenizers.Tokenizer.from_str(wrapped.to_str())
    known: dict[str, int] = inner.get_vocab()
    special = {
        token["content"]: int(number)
        for number, token in (settings.get("added_tokens_decoder") or {}).items()
    }
    special.update(_optional_json(directory / "added_tokens.json"))
    for value in _optional_json(directory / "special_tokens_map.json").values():
        for token in value if isinstance(value, list) else [value]:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and text in known:
                special.setdefault(text, known[text])
    special.update({name: known[name] for name in _special_names() if name in known})
    for text, number in sorted(special.items(), key=lambda item: item[1]):
        inner.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True)])
        if inner.token_to_id(text) != number:
            raise SantagenError(
                f"The added token {text!r} of {directory} has id {number}, for which vocab.json "
                "leaves no room.",
                "Save the tokenizer as tokenizer.json with transformers.",
            )
    raw = vocab.read_bytes() + merges.read_bytes() + json.dumps(special, sort_keys=True).encode()
    return inner, {number: text for text, number in special.items()}, raw


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return read_json(path, "take it from the same place as the weights")


def _surrogate_free(text: str) -> str:
    """Lone surrogates (possible through JSON escapes) have no UTF-8 form: they become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
