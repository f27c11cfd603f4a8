"""The manifest is whole at any moment, holds no secret, and knows another run when it sees one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.errors import SantagenError
from santagen.io.manifest import (
    check_identity,
    manifest_path,
    read_manifest,
    scrub,
    write_manifest,
)

TOKEN = "hf_" + "aB3" * 11
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def test_it_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.jsonl"
    assert read_manifest(output) is None
    write_manifest(output, {"a": 1})
    assert read_manifest(output) == {"format_version": 1, "a": 1}

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_manifest(output, {"a": 2})
    assert read_manifest(output) == {"format_version": 1, "a": 1}
    assert list(tmp_path.iterdir()) == [manifest_path(output)]


@pytest.mark.parametrize(
    "content",
    [
        {"settings": {"hf_token": TOKEN}},
        {"settings": {"hf_token": "anything at all"}},
        {"HF_TOKEN": TOKEN, "api_key": "anything at all", "Password": "anything at all"},
        {"token": {"value": "anything at all"}},
        {"command": f"santagen generate --hf-token {TOKEN} -o x"},
        {"command": ["--hf-token", TOKEN]},
        {"url": f"https://user:{TOKEN}@huggingface.co/x"},
        {"environment": [f"SANTAGEN_GENERATE_HF_TOKEN={TOKEN}"]},
        {TOKEN: 1},
    ],
)
def test_no_secret_is_written(tmp_path: Path, content: dict[str, Any]) -> None:
    write_manifest(tmp_path / "out.jsonl", content)
    text = manifest_path(tmp_path / "out.jsonl").read_text()
    assert TOKEN not in text and "anything at all" not in text and "***" in text


@pytest.mark.parametrize(
    "content",
    [
        {"token_ids": True, "max_tokens": 256, "tokenizer": "./my_tokenizer", "hf_home": "/x"},
        {"model": "hf_user/model", "stop": ["\ndef", "hf_"]},
    ],
)
def test_what_is_no_secret_stays(content: dict[str, Any]) -> None:
    assert scrub(content) == content


@given(st.dictionaries(st.text(max_size=8), PLAIN, max_size=4))
def test_the_same_settings_are_the_same_run_after_a_round_trip(identity: dict[str, Any]) -> None:
    earlier = {"identity": json.loads(json.dumps(scrub(identity)))}
    check_identity(Path("out.jsonl"), earlier, identity)


def test_every_difference_is_named_with_both_values() -> None:
    before = {"identity": {"prompts": "aa", "sampling": {"top_p": 1.0, "stop": ["x"]}, "n": 1}}
    now = {"prompts": "bb", "sampling": {"top_p": 0.5, "stop": ("x",)}, "n": 1, "keep": ("k",)}
    with pytest.raises(SantagenError) as caught:
        check_identity(Path("out.jsonl"), before, now)
    message = str(caught.value)
    assert "prompts was 'aa' and is 'bb'" in message
    assert "sampling.top_p was 1.0 and is 0.5" in message
    assert "keep was None and is ['k']" in message
    assert "stop" not in message and "n was" not in message
    assert "--overwrite" in caught.value.hint


def test_many_differences_are_counted() -> None:
    now = {f"setting {number}": number for number in range(10)}
    with pytest.raises(SantagenError, match="and 4 more"):
        check_identity(Path("out.jsonl"), {}, now)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"format_version": 2}', "\xff"])
def test_a_broken_or_foreign_manifest_is_named(tmp_path: Path, text: str) -> None:
    output = tmp_path / "out.jsonl"
    manifest_path(output).write_text(text, encoding="latin-1")
    with pytest.raises(SantagenError, match=r"out\.jsonl\.manifest\.json"):
        read_manifest(output)


@pytest.mark.parametrize("text", ["{", "[]", '{"format_version": 0}'])
def test_a_damaged_one_is_refused_with_a_hint_that_ends_once(tmp_path: Path, text: str) -> None:
    output = tmp_path / "out.jsonl"
    manifest_path(output).write_text(text)
    with pytest.raises(SantagenError) as caught:
        read_manifest(output)
    assert caught.value.hint == "Start again with --overwrite, or choose another -o."
