"""A model's tokenizer files as a `tokenizers` object that takes every text to the letter.

    tokenizer.json              without what changes a text on its way to ids
    vocab.json + merges.txt     with the added tokens that the files beside them name

Refuses whatever is no byte-level BPE tokenizer. What is done with the object is io.tokenizer's
business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santagen.config import read_json
from santagen.errors import SantagenError, first_line
from santagen.io.fim import FIM_WORDS, sentinel
from santagen.io.tokenizer_checks import (
    check_merges,
    check_parts,
    check_vocabulary,
    decoder_ids,
    eos_token,
)

if TYPE_CHECKING:
    import tokenizers

SETTINGS = "tokenizer_config.json"
END_TOKENS = ("<|endoftext|>", "<file_sep>", "<filename>", "<file-sep>")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files say. `added` are the added tokens by id; `eos_token` is None where none
    is named."""

    inner: tokenizers.Tokenizer
    added: dict[int, str]
    eos_token: str | None
    fingerprint: str


def has_tokenizer(directory: Path) -> bool:
    """Whether a model directory holds tokenizer files, or a link that stands for one."""
    return _is_named(directory / "tokenizer.json") or _is_legacy(directory)


def _is_named(file: Path) -> bool:
    return file.is_file() or file.is_symlink()


def _is_legacy(directory: Path) -> bool:
    return (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file()


def read_files(path: Path) -> TokenizerFiles:
    """The tokenizer of a directory, or of a tokenizer.json; raises SantagenError."""
    directory, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    settings = _optional_json(directory / SETTINGS)
    end = eos_token(settings, directory / SETTINGS)
    if _is_named(file):
        inner, added, raw = _modern(file)
    elif _is_legacy(directory):
        inner, added, raw = _legacy(directory, settings)
    else:
        raise SantagenError(
            f"{directory} holds no tokenizer.json.",
            "Copy the model's there, give --tokenizer, or use prompt_token_ids.",
        )
    if not inner.get_vocab(with_added_tokens=True):
        raise SantagenError(f"The tokenizer {file} has no tokens.", "Download it again.")
    return TokenizerFiles(inner, added, end, hashlib.sha256(raw).hexdigest())


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """The library raises bare Exception for what it can't read, with a place and no name."""
    try:
        yield
    except Exception as error:
        raise SantagenError(
            f"{file} can't be read as a tokenizer, as the tokenizers library says: "
            f"{first_line(error)[:200]}.",
            "Download it again.",
        ) from None


def _modern(file: Path) -> tuple[tokenizers.Tokenizer, dict[int, str], bytes]:
    import tokenizers

    description = _to_the_letter(read_json(file, "download it again"), file)
    raw = file.read_bytes()
    with _reading(file):
        inner = tokenizers.Tokenizer.from_str(json.dumps(description))
    added = {t["id"]: t["content"] for t in description["added_tokens"]}
    _check_added(inner, description["added_tokens"], file)
    return inner, added, raw


def _to_the_letter(description: dict[str, Any], file: Path) -> dict[str, Any]:
    """A tokenizer.json without what changes a text on its way to ids; byte-level BPE only.

    Nothing is prepended, normalised, cut, padded or drawn at random; special tokens swallow no
    white space beside them, and a sentinel of the plain vocabulary is read as one token too.
    """
    check_parts(description, file)
    model = description["model"]
    steps = _steps(description.get("pre_tokenizer"))
    if model.get("type") not in ("BPE", None) or all(s.get("type") != "ByteLevel" for s in steps):
        raise SantagenError(
            f"{file} is no byte-level BPE tokenizer, which every GPT-BigCode model has.",
            "Take the tokenizer files from the same place as the weights.",
        )
    check_vocabulary(model.get("vocab"), file)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):  # the library may even end the process over one
            raise SantagenError(
                f"{file} sets {name}, which no byte-level BPE tokenizer has.",
                "Take the tokenizer files from the same place as the weights.",
            )
    check_merges(model.get("merges"), model["vocab"], file)
    for step in steps:
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    model["dropout"] = None
    added = description.get("added_tokens") or []
    known = {token["content"] for token in added}
    for name in special_names():
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
    """A pre-tokenizer's steps, a sequence's opened up."""
    if not part:
        return []
    inner = part.get("pretokenizers") or []
    return [part, *(step for one in inner for step in _steps(one))]


def special_names() -> list[str]:
    """The end tokens and FIM sentinels of the family, in every spelling."""
    return [*END_TOKENS, *(sentinel(word, mark) for word in FIM_WORDS for mark in "-_")]


def _legacy(directory: Path, settings: dict[str, Any]) -> tuple[Any, dict[int, str], bytes]:
    """vocab.json + merges.txt, with the added tokens that the files beside them name."""
    import tokenizers
    from tokenizers.implementations import ByteLevelBPETokenizer

    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    check_vocabulary(read_json(vocab, "download it again"), vocab)
    with _reading(merges):
        wrapped = ByteLevelBPETokenizer.from_file(str(vocab), str(merges), add_prefix_space=False)
    inner = tokenizers.Tokenizer.from_str(wrapped.to_str())
    known: dict[str, int] = inner.get_vocab()
    special = decoder_ids(settings, directory / SETTINGS)
    more = _optional_json(directory / "added_tokens.json")
    check_vocabulary(more, directory / "added_tokens.json")
    special.update(more)
    for value in _optional_json(directory / "special_tokens_map.json").values():
        for token in value if isinstance(value, list) else [value]:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and text in known:
                special.setdefault(text, known[text])
    special.update({name: known[name] for name in special_names() if name in known})
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
