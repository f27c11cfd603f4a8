"""tokenizer.json with oddities: text still comes back to the letter, or the file is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from santagen.errors import SantagenError
from santagen.io.tokenizer import Tokenizer
from tests.fuzz.profile import fuzz
from tests.io.tokenizer_files import ASSETS

WHOLE = json.loads((ASSETS / "tokenizer.json").read_text("utf-8"))
KEPT = 300  # tokens: all bytes, and a few merges
SMALL = copy.deepcopy(WHOLE)
SMALL["model"]["vocab"] = {
    token: number for token, number in WHOLE["model"]["vocab"].items() if number < KEPT
}
SMALL["model"]["merges"] = [
    pair
    for pair in WHOLE["model"]["merges"]
    if "".join(pair if isinstance(pair, list) else pair.split(" ")) in SMALL["model"]["vocab"]
]
SMALL["added_tokens"] = [
    token | {"id": KEPT + place} for place, token in enumerate(WHOLE["added_tokens"])
]
ODD = st.sampled_from(
    [None, True, -1, 0, 2**40, 0.5, "", "x", "\x1b[2J", [], {}, [[]], [None], {"type": "x"},
     {"type": "Lowercase"}, {"type": "NFKC"}, {"type": "Metaspace"}, {"a": 1}, ["a", "b"]]
)  # fmt: skip
TEXTS = (" lead", "def f(x):\r\n\treturn x + 123  # é 😀\n", "a<fim-prefix>b  ", "", "\x00\x1b")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) but the thousand entries of the vocabulary and the merges."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if key not in ("vocab", "merges") and isinstance(value[key], dict | list):
            yield from places(value[key])


@fuzz(500)
@given(st.data())
def test_an_odd_file_keeps_the_text_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    value = copy.deepcopy(SMALL)
    for _ in range(data.draw(st.integers(1, 2))):
        found = list(places(value))
        container, key = found[data.draw(st.integers(0, len(found) - 1))]
        if data.draw(st.booleans()) or not isinstance(container, dict):
            container[key] = copy.deepcopy(data.draw(ODD))
        else:
            del container[key]
    check(tmp_path, json.dumps(value))


@fuzz(60)
@given(st.data())
def test_a_damaged_file_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    text = json.dumps(SMALL)
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(["", '"', "}", "]", ",", "\x00", "9" * 5000, "\ufeff"]))
    check(tmp_path, text[:at] + put + text[at + data.draw(st.integers(0, 5)) :])


def check(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text, "utf-8")
    try:
        tokenizer = Tokenizer.from_directory(folder)
    except SantagenError as error:
        assert "tokenizer" in error.message and error.hint
        return
    encoded = tokenizer.encode_batch(TEXTS)
    for sent, ids in zip(TEXTS, encoded, strict=True):
        assert tokenizer.decode(ids) == sent or tokenizer.loses(sent, ids), sent
        assert all(0 <= number < tokenizer.vocab_size for number in ids)
    assert len(tokenizer.token_bytes) >= tokenizer.vocab_size
    assert tokenizer.known_ids_mask(10).shape == (10,)
