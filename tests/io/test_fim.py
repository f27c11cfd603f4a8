"""Infilling prompts: both orders, both spellings, and what truncation keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.io.fim import (
    FimTokens,
    build_fim_ids,
    find_fim_tokens,
    overlap_length,
    truncate_fim,
)

TOKENS = FimTokens(prefix=91, middle=92, suffix=93, pad=94, spelling="hyphen")
IDS = st.lists(st.integers(0, 80), max_size=30)


def test_both_orders() -> None:
    assert build_fim_ids(TOKENS, [1, 2], [3], "psm") == [91, 1, 2, 93, 3, 92]
    assert build_fim_ids(TOKENS, [1, 2], [3], "spm") == [91, 93, 3, 92, 1, 2]


@pytest.mark.parametrize(("mark", "spelling"), [("-", "hyphen"), ("_", "underscore")])
def test_sentinels_are_found_by_their_spelling(mark: str, spelling: str) -> None:
    vocabulary = {f"<fim{mark}{w}>": i for i, w in enumerate(("prefix", "middle", "suffix", "pad"))}
    assert find_fim_tokens(vocabulary) == FimTokens(0, 1, 2, 3, spelling)
    del vocabulary[f"<fim{mark}pad>"]
    assert find_fim_tokens(vocabulary) == FimTokens(0, 1, 2, None, spelling)
    del vocabulary[f"<fim{mark}middle>"]
    assert find_fim_tokens(vocabulary) is None


def test_mixed_spellings_make_no_set() -> None:
    assert find_fim_tokens({"<fim-prefix>": 0, "<fim_middle>": 1, "<fim-suffix>": 2}) is None


@given(IDS, IDS, st.integers(0, 70))
def test_truncation_keeps_what_is_next_to_the_gap(
    prefix: list[int], suffix: list[int], room: int
) -> None:
    kept_prefix, kept_suffix, dropped = truncate_fim(prefix, suffix, room)
    assert prefix[len(prefix) - len(kept_prefix) :] == kept_prefix
    assert suffix[: len(kept_suffix)] == kept_suffix
    kept = len(kept_prefix) + len(kept_suffix)
    assert kept == min(room, len(prefix) + len(suffix))
    assert dropped == len(prefix) + len(suffix) - kept
    if len(suffix) <= room // 2:
        assert kept_suffix == suffix
    if len(prefix) <= room // 2:
        assert kept_prefix == prefix


FEW_BYTES = st.lists(st.sampled_from(b"ab"), max_size=12).map(bytes)


@given(FEW_BYTES, FEW_BYTES)
def test_the_overlap_is_the_longest_there_is(answer: bytes, suffix: bytes) -> None:
    lengths = range(min(len(answer), len(suffix)) + 1)
    wanted = max(n for n in lengths if answer.endswith(suffix[:n]))
    assert overlap_length(answer, suffix) == wanted


def test_a_long_overlap_of_one_byte_is_quick_to_find() -> None:
    assert overlap_length(b" " * 30_000 + b"x", b" " * 30_000) == 0
    assert overlap_length(b"x" + b" " * 30_000, b" " * 30_000) == 30_000
