"""Stop strings against a naive search, token by token."""

from __future__ import annotations

import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from santagen.io.stops import StopSet, TokenIndex

LETTERS = st.text(alphabet="ab\né", min_size=1, max_size=4)
STOPS = st.lists(LETTERS, min_size=0, max_size=3).map(tuple)
TOKEN = st.lists(st.sampled_from("ab\né".encode()), min_size=1, max_size=5).map(bytes)
VOCABULARY = st.lists(st.none() | TOKEN | st.just(b""), min_size=1, max_size=12)


def may_end(stop: bytes, token: bytes) -> bool:
    tails = (stop[cut:] for cut in range(len(stop)))
    return stop in token or any(token.startswith(tail) for tail in tails)


@given(STOPS, VOCABULARY)
def test_can_end_is_its_definition(stops: tuple[str, ...], vocabulary: list[bytes | None]) -> None:
    found = StopSet(stops, vocabulary).can_end
    assert found.dtype == bool and found.shape == (len(vocabulary),)
    for token, flag in zip(vocabulary, found, strict=True):
        assert flag == any(bool(token) and may_end(stop.encode(), token) for stop in stops)


@settings(max_examples=300)
@given(STOPS, st.lists(TOKEN, min_size=1, max_size=6), st.data())
def test_a_row_ends_at_the_token_where_a_naive_search_first_finds_a_stop(
    stops: tuple[str, ...], vocabulary: list[bytes], data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(vocabulary) - 1), max_size=12))
    stop_set, text, found = StopSet(stops, vocabulary), bytearray(), None
    for step, token in enumerate(ids):
        before = len(text)
        text += vocabulary[token]
        if stop_set.can_end[token]:
            found = stop_set.find(text, stop_set.search_from(before))
        naive = min(
            (
                (text.find(stop.encode()), rank)
                for rank, stop in enumerate(stops)
                if stop.encode() in text
            ),
            default=None,
        )
        assert found == (None if naive is None else (naive[0], stops[naive[1]])), step
        if found:
            break


def test_a_token_that_runs_past_the_stop_and_a_stop_across_tokens() -> None:
    stops = StopSet(("DE",), [b"DEF", b"xD", b"E)", b"D", None, b"", b"abDEc"])
    assert stops.can_end.tolist() == [True, False, True, False, False, False, True]
    assert stops.find(b"abcDEF", stops.search_from(3)) == (3, "DE")
    assert stops.find(b"xDE)", stops.search_from(2)) == (1, "DE")


def test_the_earliest_match_wins_and_the_first_listed_at_one_place() -> None:
    assert StopSet(("b", "ab"), []).find(b"xab") == (1, "ab")
    assert StopSet(("ab", "abc"), []).find(b"xabc") == (1, "ab")
    assert StopSet(("abc", "ab"), []).find(b"xabc") == (1, "abc")
    assert StopSet(("abc", "bc"), []).find(b"xabc", 2) == (2, "bc")


def test_stops_are_literal_and_none_is_fine() -> None:
    assert StopSet(("<|endoftext|>",), []).find(b"if a > b | c") is None
    empty = StopSet((), [b"a"])
    assert not empty.can_end.any() and empty.find(b"aaa") is None
    assert empty.search_from(5) == 5


def test_a_large_vocabulary_is_quick() -> None:
    words = ["".join(word) for word in itertools.product("\n def(x)=:", repeat=5)][:49_152]
    index = TokenIndex([word.encode() for word in words])
    started = time.perf_counter()
    flags = StopSet(("\nclass", "\ndef", "\n#", "\nif", "\nprint", "<|endoftext|>"), index).can_end
    assert flags.any() and not flags.all()
    assert time.perf_counter() - started < 1.0  # tens of milliseconds on an idle core
