"""Whether a model's tokenizer files have the form that the `tokenizers` library reads.

What is wrong is said in words, with the file and the value. Whether the tokenizer is of a kind
that santagen runs is io.tokenizer_files' question; no file is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from santagen.config_values import LARGEST_SIZE, shown
from santagen.errors import SantagenError

SAME_PLACE = "Take the tokenizer files from the same place as the weights."


def wrong(file: Path, name: str, value: object, wanted: str) -> SantagenError:
    """What to tell of a value that can't stand under `name`."""
    return SantagenError(f"{file} has {name} = {shown(value)}, which must be {wanted}.", SAME_PLACE)


def check_parts(description: Mapping[str, Any], file: Path) -> None:
    """The parts of a tokenizer.json are there, and are objects; the added tokens are tokens."""
    if description.get("model") is None:
        raise SantagenError(f"{file} is no tokenizer: it has no model.", SAME_PLACE)
    for name in ("model", "pre_tokenizer", "decoder", "post_processor", "normalizer"):
        if not isinstance(description.get(name), dict | None):
            raise wrong(file, name, description[name], "an object")
    _check_steps(description.get("pre_tokenizer"), file)
    added = description.get("added_tokens")
    if not isinstance(added, list | None):
        raise wrong(file, "added_tokens", added, "a list")
    for token in added or []:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise wrong(file, "added_tokens", token, "objects with id and content")
        check_id(token.get("id"), f"the id of the added token {shown(token['content'])}", file)
        if not isinstance(token.get("special"), bool | None):
            raise wrong(file, "special", token["special"], "true or false")


def _check_steps(part: dict[str, Any] | None, file: Path) -> None:
    inner = (part or {}).get("pretokenizers")
    if not isinstance(inner, list | None):
        raise wrong(file, "pretokenizers", inner, "a list of objects")
    for step in inner or []:
        if not isinstance(step, dict):
            raise wrong(file, "pretokenizers", step, "objects")
        _check_steps(step, file)


def check_id(value: object, name: str, file: Path) -> None:
    """A token id is a whole number of a size that a table can have."""
    if not _is_id(value):
        raise wrong(file, name, value, f"a whole number from 0 and below {LARGEST_SIZE:,}")


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST_SIZE


def check_vocabulary(vocabulary: object, file: Path, name: str = "vocab") -> None:
    """A vocabulary is an object of token -> id, no id twice: which token would it stand for?"""
    if not isinstance(vocabulary, dict):
        raise wrong(file, name, vocabulary, "an object of tokens and ids")
    for token, number in vocabulary.items():
        if not _is_id(number):
            check_id(number, f"the id of {shown(token)}", file)
    if len(set(vocabulary.values())) == len(vocabulary):
        return
    first: dict[int, str] = {}
    for token, number in vocabulary.items():
        if first.setdefault(number, token) != token:
            raise SantagenError(
                f"{file} has id {number} in {name} for {shown(first[number])} and for "
                f"{shown(token)}.",
                SAME_PLACE,
            )


def check_merges(merges: object, vocabulary: Mapping[str, int], file: Path) -> None:
    """Merges are pairs of tokens; the two, and what they make, are in the vocabulary."""
    if not isinstance(merges, list):
        raise wrong(file, "merges", merges, "a list of pairs of tokens")
    for merge, pair in _pairs(merges):
        if len(pair) != 2 or not all(isinstance(token, str) for token in pair):
            raise wrong(file, "merges", merge, "pairs of tokens")
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise SantagenError(
                    f"{file} merges {shown(pair[0])} and {shown(pair[1])}, but its vocabulary "
                    f"lacks {shown(token)}.",
                    SAME_PLACE,
                )


def _pairs(merges: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(merge as it stands, its tokens), in either of the spellings "a b" and ["a", "b"]."""
    for merge in merges:
        if isinstance(merge, str):
            if not merge.startswith("#version"):  # merges.txt's first line, copied along
                yield merge, merge.split(" ")
        else:
            yield merge, merge if isinstance(merge, list) else []


def eos_token(settings: Mapping[str, Any], file: Path) -> str | None:
    """The end token that tokenizer_config.json names, as a text or as an object with content."""
    named = settings.get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if not isinstance(text, str | None):
        raise wrong(file, "eos_token", named, "a text, or an object whose content is one")
    return text


def decoder_ids(settings: Mapping[str, Any], file: Path) -> dict[str, int]:
    """Token -> id of added_tokens_decoder in tokenizer_config.json."""
    decoder = settings.get("added_tokens_decoder")
    if not isinstance(decoder, dict | None):
        raise wrong(file, "added_tokens_decoder", decoder, "an object of ids and tokens")
    ids: dict[str, int] = {}
    for number, token in (decoder or {}).items():
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise wrong(file, "added_tokens_decoder", token, "objects with content")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise wrong(file, "added_tokens_decoder", number, "tokens under their ids")
        check_id(int(number), "added_tokens_decoder", file)
        ids[token["content"]] = int(number)
    return ids
