"""From rows to requests: ids, merged settings, lengths, and failures in their place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from santagen.errors import RowError, SantagenError
from santagen.io.requests import RequestBuilder
from santagen.io.tokenizer import Tokenizer
from santagen.request import PromptRow, Request, RowFailure, SamplingParams
from tests.io.tokenizer_files import ASSETS, copy_tokenizer

TOKENIZER = Tokenizer.from_directory(ASSETS)
PREFIX, MIDDLE, SUFFIX = 4092, 4093, 4094


def row(number: int = 0, **fields: Any) -> PromptRow:
    return PromptRow(f"r{number}", number, number + 1, "p.jsonl", **fields)


def builder(tokenizer: Tokenizer | None = TOKENIZER, **options: Any) -> RequestBuilder:
    settings: dict[str, Any] = {"vocab_size": 4096, "max_len": 64, "defaults": SamplingParams()}
    return RequestBuilder(tokenizer, **(settings | options))


def refused(built: RequestBuilder, given: PromptRow) -> str:
    with pytest.raises(RowError) as caught:
        built.build(given)
    assert caught.value.line == given.line and caught.value.hint
    assert f"p.jsonl, line {given.line}" in caught.value.message
    return caught.value.message


def test_text_ids_and_settings() -> None:
    built = builder().build(
        row(
            4,
            prompt="  def f():\r\n",
            overrides={"n": 3, "temperature": 0.5, "stop": ("\n",)},
            keep={"k": 1},
            batch_body={"prompt": ""},
        )
    )
    assert TOKENIZER.decode(built.prompt_token_ids) == "  def f():\r\n" == built.prompt_text
    assert built.params == SamplingParams(n=3, temperature=0.5, stop=("\n",))
    assert built.sample_indices == (0, 1, 2)
    assert (built.row_id, built.number, built.line) == ("r4", 4, 5)
    assert (built.keep, built.batch_body, built.truncated_tokens) == ({"k": 1}, {"prompt": ""}, 0)
    assert builder().build(row(prompt_token_ids=(1, 4095))).prompt_token_ids == (1, 4095)


@pytest.mark.parametrize("mode", ["psm", "spm"])
@pytest.mark.parametrize("mark", ["-", "_"])
def test_infilling(mode: str, mark: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", mark=mark))
    built = builder(tokenizer, fim_mode=mode).build(row(prefix="x = ", suffix="\r\nreturn x"))
    before, after = tuple(tokenizer.encode("x = ")), tuple(tokenizer.encode("\r\nreturn x"))
    wanted = {
        "psm": (PREFIX, *before, SUFFIX, *after, MIDDLE),
        "spm": (PREFIX, SUFFIX, *after, MIDDLE, *before),
    }
    assert built.prompt_token_ids == wanted[mode]


def test_infilling_with_an_empty_side() -> None:
    assert builder().build(row(prefix="", suffix="x")).prompt_token_ids[:2] == (PREFIX, SUFFIX)
    assert builder().build(row(prefix="x", suffix="")).prompt_token_ids[-2:] == (SUFFIX, MIDDLE)


def test_a_prompt_leaves_a_position_for_an_answer() -> None:
    assert len(builder().build(row(prompt_token_ids=(1,) * 63)).prompt_token_ids) == 63
    message = refused(builder(), row(prompt_token_ids=(1,) * 64))
    assert "64 tokens" in message and "64 positions" in message
    assert "900 tokens" in refused(builder(), row(prompt_token_ids=(1,) * 900))
    assert "positions" in refused(builder(), row(prompt="1" * 200))
    assert "positions" in refused(builder(), row(prefix="1" * 200, suffix="2"))


@pytest.mark.parametrize(
    "fields", [{"prompt": "word " * 4_000_000}, {"prefix": "word " * 4_000_000, "suffix": "x"}]
)
def test_a_hopelessly_long_text_is_refused_without_encoding_it(
    fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(len(token or b"") for token in TOKENIZER.token_bytes)
    encoded: list[str] = []
    encode = Tokenizer.encode_batch

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    built = builder()
    message = refused(built, row(**fields))
    least = int(message.split("at least ")[1].split()[0])
    assert 20_000_000 // longest <= least <= 20_000_000 // longest + 5 and "64 posi" in message
    results = list(built.build_many([row(0, prompt="x"), row(1, **fields), row(2, prompt="y")]))
    assert [type(result) for result in results] == [Request, RowFailure, Request]
    assert encoded == ["x", "y"]


def test_a_long_text_is_encoded_where_it_may_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def f(x):\n" * 30
    whole = len(TOKENIZER.encode(text))
    monkeypatch.setattr("santagen.io.requests.LONG_TEXT", 100)
    fewest = TOKENIZER.fewest_ids(text)
    assert 1 < fewest < whole
    for max_len in (fewest + 1, whole):  # the bound alone doesn't refuse these
        assert f"has {whole} tokens" in refused(builder(max_len=max_len), row(prompt=text))
    assert f"at least {fewest} tokens" in refused(builder(max_len=fewest), row(prompt=text))
    assert len(builder(max_len=whole + 1).build(row(prompt=text)).prompt_token_ids) == whole
    cut = builder(max_len=fewest, truncate="left", defaults=SamplingParams(max_tokens=2))
    kept = cut.build(row(prompt=text))
    assert list(kept.prompt_token_ids) == TOKENIZER.encode(text)[-(fewest - 2) :]
    assert kept.truncated_tokens == whole - (fewest - 2)

    def removes(value: dict[str, Any]) -> None:
        split = {"type": "Split", "pattern": {"String": "f"}, "behavior": "Removed"}
        value["pre_tokenizer"]["pretokenizers"][0] = split | {"invert": False}

    assert Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", removes)).fewest_ids(text) == 0


def test_left_truncation_makes_room_for_the_answer() -> None:
    cut = builder(truncate="left", defaults=SamplingParams(max_tokens=24))
    built = cut.build(row(prompt_token_ids=tuple(range(100))))
    assert built.prompt_token_ids == tuple(range(60, 100))
    assert built.truncated_tokens == 60
    built = cut.build(row(prompt="".join(str(i % 10) for i in range(100))))
    assert len(built.prompt_token_ids) == 40 and built.truncated_tokens == 60


def test_left_truncation_leaves_what_fits() -> None:
    for max_tokens in (1, 24, 63, 64, 10_000):
        cut = builder(truncate="left", defaults=SamplingParams(max_tokens=max_tokens))
        built = cut.build(row(prompt_token_ids=tuple(range(63))))
        assert (len(built.prompt_token_ids), built.truncated_tokens) == (63, 0)
        built = cut.build(row(prompt_token_ids=tuple(range(64))))
        kept = {1: 63, 24: 40, 63: 1, 64: 32, 10_000: 32}[max_tokens]
        assert built.prompt_token_ids == tuple(range(64 - kept, 64))


@pytest.mark.parametrize("mode", ["psm", "spm"])
@pytest.mark.parametrize("max_tokens", [1, 24, 60, 62, 63, 500])
def test_left_truncation_of_infilling_keeps_every_sentinel(mode: str, max_tokens: int) -> None:
    before, after = "a1b2c3d4e5" * 10, "9z8y7x6w5v" * 10
    cut = builder(truncate="left", fim_mode=mode, defaults=SamplingParams(max_tokens=max_tokens))
    built = cut.build(row(prefix=before, suffix=after))
    ids = built.prompt_token_ids
    assert [ids.count(token) for token in (PREFIX, MIDDLE, SUFFIX)] == [1, 1, 1]
    assert len(ids) <= 63
    whole = len(TOKENIZER.encode(before)) + len(TOKENIZER.encode(after)) + 3
    assert built.truncated_tokens == whole - len(ids) > 0
    if mode == "psm":
        kept = TOKENIZER.decode(ids[1 : ids.index(SUFFIX)])
        kept_after = TOKENIZER.decode(ids[ids.index(SUFFIX) + 1 : -1])
    else:
        kept = TOKENIZER.decode(ids[ids.index(MIDDLE) + 1 :])
        kept_after = TOKENIZER.decode(ids[2 : ids.index(MIDDLE)])
    assert before.endswith(kept) and after.startswith(kept_after)
    assert kept or kept_after


def test_no_room_for_sentinels_is_a_failure() -> None:
    tiny = builder(truncate="left", max_len=4)
    assert "positions" in refused(tiny, row(prefix="abc def", suffix="ghi"))


@pytest.mark.parametrize("truncate", ["left", "error"])
def test_a_hint_never_names_what_would_not_help(truncate: str) -> None:
    tiny = builder(truncate=truncate, max_len=4)
    with pytest.raises(RowError) as failed:
        tiny.build(row(prefix="", suffix="x"))
    assert "has 4 tokens" in failed.value.message
    assert "--max-model-len" in failed.value.hint and "--truncate" not in failed.value.hint
    # What the hint says is enough is enough.
    assert builder(truncate="left", max_len=5).build(row(prefix="", suffix="x")).prompt_token_ids


def test_one_token_is_no_tokens() -> None:
    with pytest.raises(RowError) as failed:
        builder(max_len=2).build(row(prompt="def f(x):"))
    assert failed.value.hint == "Shorten it to 1 token at most, or use --truncate left."


def test_ids_the_model_does_not_have() -> None:
    assert "4096" in refused(builder(), row(prompt_token_ids=(1, 4096)))
    assert "99" in refused(builder(vocab_size=50), row(prompt_token_ids=(99,)))
    message = refused(builder(vocab_size=4092), row(prompt="x<fim-suffix>"))
    assert "4094" in message and "4091" in message
    assert "empty" in refused(builder(), row(prompt_token_ids=()))


def test_settings_that_only_clash_together() -> None:
    assert "temperature 0" in refused(builder(), row(prompt="x", overrides={"n": 2}))
    assert "top_p" in refused(builder(), row(prompt="x", overrides={"top_p": 0}))
    many = {"n": 10**9, "temperature": 1.0}
    assert "n is 1000000000" in refused(builder(), row(prompt="x", overrides=many))


def test_without_a_tokenizer() -> None:
    bare = builder(None)
    assert bare.build(row(prompt_token_ids=(5,))).prompt_text is None
    assert "no tokenizer" in refused(bare, row(prompt="x"))
    assert "no tokenizer" in refused(bare, row(prefix="x", suffix="y"))
    assert "tokenizer" in refused(bare, row(prompt_token_ids=(5,), overrides={"stop": ("a",)}))
    with pytest.raises(SantagenError, match="tokenizer"):
        builder(None, defaults=SamplingParams(stop=("a",)))


def test_infilling_needs_sentinels(tmp_path: Path) -> None:
    def plain(value: dict[str, Any]) -> None:
        value["added_tokens"] = value["added_tokens"][:1]

    without = builder(Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", plain)))
    message = refused(without, row(prefix="a", suffix="b"))
    assert "<fim-prefix>" in message and "<fim_prefix>" in message
    without.build(row(prompt="<fim-prefix>a"))
    assert "<fim-prefix>" in next(iter(without.warnings))


def test_the_other_spelling_is_remarked_upon() -> None:
    built = builder()
    prompt = "<fim_prefix>a<fim_suffix>b<fim_middle>"
    list(built.build_many(row(i, prompt=prompt) for i in range(2)))
    assert set(built.warnings.values()) == {2}
    assert any("<fim_prefix>" in remark for remark in built.warnings)
    own = builder()
    own.build(row(prompt="<fim-prefix>a<fim-suffix>b<fim-middle>"))
    assert own.warnings == {}


@pytest.mark.parametrize("mark", ["-", "_"])
def test_an_own_sentinel_inside_an_infilling_row_is_remarked_upon(
    mark: str, tmp_path: Path
) -> None:
    built = builder(Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", mark=mark)))
    name = f"<fim{mark}suffix>"
    rows = [("a" + name, "b"), ("a", name + "b" + name), ("a", "b"), ("a <fim*suffix>", "b")]
    list(built.build_many(row(i, prefix=a, suffix=b) for i, (a, b) in enumerate(rows)))
    assert list(built.warnings.values()) == [2]
    assert name in next(iter(built.warnings))


def test_text_that_the_tokenizer_would_lose(tmp_path: Path) -> None:
    def forget(value: dict[str, Any]) -> None:
        vocabulary = value["model"]["vocab"]
        value["model"]["merges"] = []
        for token in [t for t in vocabulary if t != "x"]:
            del vocabulary[token]
        for place, added in enumerate(value["added_tokens"], start=1):
            added["id"] = place
        vocabulary["x"] = 0

    poor = builder(Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", forget)))
    assert poor.build(row(prompt="xx")).prompt_text == "xx"
    assert "no token" in refused(poor, row(prompt="xyx"))


def test_many_rows_stream_in_order_with_failures_in_their_place() -> None:
    taken = 0

    def rows() -> Iterator[PromptRow]:
        nonlocal taken
        for number in range(700):
            taken += 1
            bad = number % 100 == 50
            yield row(number, prompt="7" * 200 if bad else f"x = {number}\n")

    built = builder()
    stream = built.build_many(rows(), batch=32)
    first = next(stream)
    assert taken <= 32
    results = [first, *stream]
    assert [result.number for result in results] == list(range(700))
    for result in results:
        if result.number % 100 == 50:
            assert isinstance(result, RowFailure)
            assert (result.row_id, result.line) == (f"r{result.number}", result.number + 1)
        else:
            assert isinstance(result, Request)
            assert result == built.build(row(result.number, prompt=f"x = {result.number}\n"))


def test_half_a_surrogate_pair_can_not_end_a_run() -> None:
    text = json.loads('"a\\ud800b"')
    results = list(builder().build_many([row(0, prompt=text), row(1, prompt="x")]))
    assert [result.number for result in results] == [0, 1]
    assert isinstance(results[1], Request)


@pytest.mark.parametrize("option", [{"fim_mode": "msp"}, {"truncate": "right"}])
def test_unknown_modes(option: dict[str, str]) -> None:
    with pytest.raises(SantagenError, match="is not known"):
        builder(**option)
