"""The tokenizer: text to the letter in both directions, special tokens by their spelling."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santagen.config import ModelConfig
from santagen.errors import SantagenError
from santagen.io.text_pieces import Bonds, can_cut, cut
from santagen.io.tokenizer import Tokenizer, has_tokenizer
from tests.io.tokenizer_files import ASSETS, copy_tokenizer, edit_json

BUNDLED = Tokenizer.from_directory(ASSETS, ModelConfig.from_directory(ASSETS))


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    assert BUNDLED.decode(BUNDLED.encode(text)) == text


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    st.lists(
        st.text(max_size=6)
        | st.sampled_from(["def f(x):\n", "  \n\n   ", "'s", " 'll", "x1 2\t", "é\xa0", "\x1c ",
                           "<fim-prefix>", "<|endoftext|> ", "_\n", "日本 ", "a\u200b\n", "\r\n",
                           "<|endoftext|>", "x'sy", "'re", "!'", "''", "0123456789", "😀😀", "zq",
                           "éé", "a\u0301", "\x85", "{}[]()", "ⅷ٣"]),
        max_size=30,
    )
)  # fmt: skip
def test_a_long_text_in_pieces_has_the_ids_of_the_whole(parts: list[str]) -> None:
    text, whole = "".join(parts), BUNDLED
    with pytest.MonkeyPatch.context() as patch:
        ids = whole.encode(text)
        patch.setattr("santagen.io.tokenizer.LONG_TEXT", 3)
        patch.setattr("santagen.io.text_pieces.PIECE", 2)
        assert whole.encode_batch(["a", text, "b"]) == [whole.encode("a"), ids, whole.encode("b")]


def test_only_a_tokenizer_that_cuts_there_itself_gets_pieces(tmp_path: Path) -> None:
    assert can_cut(BUNDLED._inner)

    def spaced(value: dict[str, Any]) -> None:
        value["added_tokens"][0]["content"] = "two words"

    def other_steps(value: dict[str, Any]) -> None:
        split = {"type": "Split", "pattern": {"String": "b c"}, "behavior": "Isolated"}
        value["pre_tokenizer"]["pretokenizers"][0] = split | {"invert": False}

    for change in (spaced, other_steps):
        folder = copy_tokenizer(tmp_path / change.__name__, change)
        assert not can_cut(Tokenizer.from_directory(folder)._inner)
    pieces = cut("ab cd\n" * 100_000)
    assert len(pieces) > 5 and "".join(pieces) == "ab cd\n" * 100_000
    assert all(piece[-1] in "bd" for piece in pieces[:-1])
    assert cut("a" * 500_000) == ["a" * 500_000]


ONE_RUN = {"digits": "1234567890", "letter": "x", "emoji": "😀", "code": "def(x):returnx+1;"}


@pytest.mark.parametrize("unit", ONE_RUN.values(), ids=ONE_RUN)
def test_a_run_without_white_space_is_cut_where_no_token_holds_both_sides(unit: str) -> None:
    text = unit * (600_000 // len(unit))
    pieces = cut(text, BUNDLED._bonds)
    assert len(pieces) > 3 and "".join(pieces) == text
    assert max(map(len, pieces)) <= 3 * 65536
    whole = BUNDLED._inner.encode(text, add_special_tokens=False).ids
    assert BUNDLED.encode(text) == whole


def test_a_run_is_not_cut_inside_what_belongs_together() -> None:
    bonds = BUNDLED._bonds
    assert bonds is not None
    text = "12<|endoftext|>34"
    assert not any(bonds.free(text, at) for at in range(3, len(text) - 2))
    assert bonds.free("1" * 40, 20) and not bonds.free("return", 2)
    assert not any(bonds.free("zq'rezq", at) for at in (2, 3, 4))
    assert cut("1" * 500_000, None) == ["1" * 500_000]


@pytest.mark.parametrize("setting", ["continuing_subword_prefix", "end_of_word_suffix", "dropout"])
def test_a_tokenizer_of_more_than_merges_is_cut_at_white_space_alone(
    tmp_path: Path, setting: str
) -> None:
    inner = Tokenizer.from_directory(copy_tokenizer(tmp_path / "t"))._inner
    assert Bonds.of(inner, BUNDLED.token_bytes) == BUNDLED._bonds
    setattr(inner.model, setting, 0.5 if setting == "dropout" else "##")
    assert Bonds.of(inner, BUNDLED.token_bytes) is None


def test_a_long_text_is_encoded_in_little_memory() -> None:
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from santagen.io.tokenizer import Tokenizer\n"
        "def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "tokenizer = Tokenizer.from_directory(Path(sys.argv[1]))\n"
        "text, before = 'def f(x):\\n    return x + 1\\n' * 100_000, used()\n"
        "ids = tokenizer.encode(text)\n"
        "print(len(ids), used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ASSETS)], capture_output=True)
    ids, grown = map(int, done.stdout.split())  # KiB; twice as much and more if encoded whole
    assert ids > 1_000_000 and grown < 300_000


def test_encode_agrees_with_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(ASSETS)
    texts = [" lead", "def f(x):\r\n\treturn x + 123  # é 😀\n", "<fim-prefix>a<fim-suffix>\r\n"]
    assert BUNDLED.encode_batch(texts) == [
        reference.encode(text, add_special_tokens=False) for text in texts
    ]
    assert [BUNDLED.encode(text) for text in texts] == BUNDLED.encode_batch(texts)


def test_token_bytes_and_facts() -> None:
    assert len(BUNDLED.token_bytes) == BUNDLED.vocab_size == 4096
    assert BUNDLED.token_bytes[4092] == b"<fim-prefix>"
    assert {bytes([byte]) for byte in range(256)} <= set(BUNDLED.token_bytes)
    assert BUNDLED.eos_ids == (4091,)
    assert BUNDLED.end_ids == {4091, 4092, 4093, 4094, 4095}
    assert BUNDLED.facts()["fim"] == "hyphen"
    mask = BUNDLED.known_ids_mask(5000)
    assert mask[:4096].all() and not mask[4096:].any()
    assert BUNDLED.known_ids_mask(10).tolist() == [True] * 10


def test_decoding_never_raises_and_never_cleans(tmp_path: Path) -> None:
    lone = BUNDLED.token_bytes.index(b"\xe2")
    space = BUNDLED.encode(" x")
    assert BUNDLED.decode([lone, *space]) == "\ufffd x"
    folder = copy_tokenizer(tmp_path / "cleaning")
    edit_json(
        folder / "tokenizer_config.json",
        lambda value: value.update(clean_up_tokenization_spaces=True, add_prefix_space=True),
    )
    cleaning = Tokenizer.from_directory(folder)
    text = "who ? me , it ' s"
    assert cleaning.encode(text) == BUNDLED.encode(text)
    assert cleaning.decode(cleaning.encode(text)) == text
    assert BUNDLED.decode([999_999]) == ""


def spoil(value: dict[str, Any]) -> None:
    """Switch on everything that changes a text on its way to ids."""
    value["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    value["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 4095,
        "pad_type_id": 0,
        "pad_token": "<fim-pad>",
    }
    value["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    value["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    value["model"]["dropout"] = 0.9
    for token in value["added_tokens"]:
        token.update(lstrip=True, rstrip=True, single_word=True)


def test_settings_that_change_the_text_are_not_honoured(tmp_path: Path) -> None:
    spoilt = Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", spoil))
    for text in ("  def f():\n    pass\n  ", "x <fim-suffix>\r\nreturn", "a<fim-middle>b " * 9):
        assert spoilt.encode(text) == BUNDLED.encode(text)
        assert spoilt.decode(spoilt.encode(text)) == text


@pytest.mark.parametrize("rest", ["\r\n  return x", "", " ", "\n", "x", "\x0b", "<fim-middle>"])
def test_a_sentinel_is_one_token_whatever_follows(rest: str) -> None:
    ids = BUNDLED.encode("a<fim-suffix>" + rest)
    assert 4094 in ids
    assert BUNDLED.decode(ids[ids.index(4094) + 1 :]) == rest


def test_the_underscore_spelling(tmp_path: Path) -> None:
    star = Tokenizer.from_directory(copy_tokenizer(tmp_path / "santacoder", mark="_"))
    assert star.fim is not None and star.fim.spelling == "underscore"
    assert star.end_ids == {4091, 4092, 4093, 4094, 4095}
    assert star.foreign_sentinels("<fim-prefix>x<fim_suffix>") == ["<fim-prefix>"]
    assert BUNDLED.foreign_sentinels("<fim-prefix>x<fim_suffix>") == ["<fim_suffix>"]


def test_file_separators_end_an_answer(tmp_path: Path) -> None:
    def change(value: dict[str, Any]) -> None:
        names = ["<file_sep>", "<filename>"]
        value["added_tokens"] += [
            {"id": 4096 + i, "content": name, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for i, name in enumerate(names)
        ]  # fmt: skip

    tokenizer = Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", change))
    assert {4096, 4097} <= tokenizer.end_ids
    assert tokenizer.vocab_size == 4098


def test_a_sentinel_of_the_plain_vocabulary_is_read_as_one_token(tmp_path: Path) -> None:
    def change(value: dict[str, Any]) -> None:
        for token in value["added_tokens"]:
            value["model"]["vocab"][token["content"]] = token["id"]
        value["added_tokens"] = []

    tokenizer = Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", change))
    assert tokenizer.encode("a<fim-suffix>b") == BUNDLED.encode("a<fim-suffix>b")


def test_end_of_text_from_every_file(tmp_path: Path) -> None:
    raw = json.loads((ASSETS / "config.json").read_text()) | {"eos_token_id": 7}
    tokenizer = Tokenizer.from_directory(ASSETS, ModelConfig.from_dict(raw))
    assert tokenizer.eos_ids == (7, 4091) and 7 in tokenizer.end_ids
    folder = copy_tokenizer(tmp_path / "t")
    edit_json(
        folder / "tokenizer_config.json",
        lambda value: value.update(eos_token={"content": "!", "__type": "AddedToken"}),
    )
    assert Tokenizer.from_directory(folder).eos_ids == (0,)


def test_a_model_with_more_rows_than_tokens() -> None:
    raw = json.loads((ASSETS / "config.json").read_text()) | {"vocab_size": 4100}
    tokenizer = Tokenizer.from_directory(ASSETS, ModelConfig.from_dict(raw))
    assert tokenizer.token_bytes[4096:] == [None] * 4
    assert not tokenizer.known_ids_mask(4100)[4096:].any()


def test_legacy_files(tmp_path: Path) -> None:
    value = json.loads((ASSETS / "tokenizer.json").read_text("utf-8"))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in value["model"]["merges"])]
    (tmp_path / "vocab.json").write_text(json.dumps(value["model"]["vocab"]), "utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(merges), "utf-8")
    added = {token["content"]: token["id"] for token in value["added_tokens"]}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added), "utf-8")
    assert has_tokenizer(tmp_path)
    legacy = Tokenizer.from_directory(tmp_path)
    text = "def f(self):\r\n    return self<fim-suffix>\r\n"
    assert legacy.encode(text) == BUNDLED.encode(text)
    assert legacy.token_bytes == BUNDLED.token_bytes
    assert legacy.end_ids == BUNDLED.end_ids


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    with pytest.raises(SantagenError, match=r"holds no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    for content in (b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(SantagenError) as caught:
            Tokenizer.from_directory(tmp_path)
        assert "tokenizer.json" in caught.value.message and caught.value.hint


def test_a_broken_tokenizer_config_is_named(tmp_path: Path) -> None:
    folder = copy_tokenizer(tmp_path / "t")
    (folder / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(SantagenError, match=r"tokenizer_config\.json"):
        Tokenizer.from_directory(folder)


def test_other_kinds_of_tokenizer_are_refused(tmp_path: Path) -> None:
    def fallback(value: dict[str, Any]) -> None:
        value["pre_tokenizer"] = None
        value["decoder"] = {"type": "ByteFallback"}

    with pytest.raises(SantagenError, match="byte-level"):
        Tokenizer.from_directory(copy_tokenizer(tmp_path / "t", fallback))


def test_steps_that_lose_text_and_ids_that_move_are_refused(tmp_path: Path) -> None:
    def no_bytes(value: dict[str, Any]) -> None:
        del value["pre_tokenizer"]["pretokenizers"][1]

    def prefix(value: dict[str, Any]) -> None:
        value["model"]["continuing_subword_prefix"] = "x"

    def moved(value: dict[str, Any]) -> None:
        value["added_tokens"][0]["id"] = 7

    for change, words in (
        (no_bytes, "no byte-level BPE"), (prefix, "continuing_subword_prefix"), (moved, "the id 7,")
    ):  # fmt: skip
        with pytest.raises(SantagenError, match=words) as caught:
            Tokenizer.from_directory(copy_tokenizer(tmp_path / change.__name__, change))
        assert caught.value.hint


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    same = Tokenizer.from_directory(copy_tokenizer(tmp_path / "a"))
    other = Tokenizer.from_directory(copy_tokenizer(tmp_path / "b", mark="_"))
    assert same.fingerprint == BUNDLED.fingerprint != other.fingerprint
    assert len(same.fingerprint) == 64


# What stands in tokenizer.json in place of what belongs there, and what is said of it.
MISSHAPEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no model": (lambda v: v.pop("model"), "it has no model"),
    "model null": (lambda v: v.update(model=None), "it has no model"),
    "model": (lambda v: v.update(model=5), "model = 5, which must be an object"),
    "no vocab": (lambda v: v["model"].pop("vocab"), "vocab = None, which must be an object"),
    "vocab": (lambda v: v["model"].update(vocab=[]), "vocab = [], which must be an object"),
    "lacking": (lambda v: v["model"]["vocab"].pop("!"), "its vocabulary lacks '!'"),
    "an id twice": (
        lambda v: v["model"]["vocab"].update({"!": v["model"]["vocab"]["a"]}),
        "in vocab for '!' and for 'a'",
    ),
    "id as text": (lambda v: v["model"]["vocab"].update(x="y"), "the id of 'x' = 'y'"),
    "id below 0": (lambda v: v["model"]["vocab"].update(x=-4), "the id of 'x' = -4"),
    "huge id": (lambda v: v["model"]["vocab"].update(x=2**32 - 1), "the id of 'x' = 4294967295"),
    "no merges": (lambda v: v["model"].pop("merges"), "merges = None, which must be a list"),
    "merges": (lambda v: v["model"].update(merges=[5]), "merges = 5, which must be pairs"),
    "three": (lambda v: v["model"].update(merges=["a b c"]), "merges = 'a b c', which must be"),
    "product": (lambda v: v["model"].update(merges=[["!", "~"]]), "merges '!' and '~', but"),
    "added": (lambda v: v.update(added_tokens=5), "added_tokens = 5, which must be a list"),
    "added token": (lambda v: v.update(added_tokens=[{}]), "added_tokens = {}, which must be"),
    "added id": (lambda v: v["added_tokens"][0].update(id="x"), "'<|endoftext|>' = 'x'"),
    "special": (lambda v: v["added_tokens"][0].update(special="x"), "special = 'x', which"),
    "steps": (lambda v: v.update(pre_tokenizer=[1]), "pre_tokenizer = [1], which must be"),
    "inner": (lambda v: v["pre_tokenizer"].update(pretokenizers=[5]), "pretokenizers = 5, which"),
    "decoder": (lambda v: v.update(decoder=5), "decoder = 5, which must be an object"),
}


def test_a_link_to_nothing_is_no_missing_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to("gone.json")
    assert has_tokenizer(tmp_path)
    assert "tokenizer.json is a link to gone.json, which is not there" in refused(tmp_path)


@pytest.mark.parametrize("case", MISSHAPEN)
def test_what_is_wrong_with_a_tokenizer_is_said_in_words(tmp_path: Path, case: str) -> None:
    change, words = MISSHAPEN[case]
    folder = copy_tokenizer(tmp_path / "t", change)
    assert words in refused(folder) and "tokenizer.json" in refused(folder)


def refused(folder: Path) -> str:
    with pytest.raises(SantagenError) as caught:
        Tokenizer.from_directory(folder)
    assert caught.value.hint
    for word in ("object has no attribute", "not subscriptable", "untagged", "KeyError"):
        assert word not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("content", ["[1]", "null", "5"])
def test_a_tokenizer_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert "does not hold a JSON object" in refused(tmp_path)


@pytest.mark.parametrize("end", [5, {"content": 5}, ["x"], {"content": ["x"]}])
def test_an_end_token_of_the_wrong_kind_is_named(tmp_path: Path, end: Any) -> None:
    folder = copy_tokenizer(tmp_path / "t")
    edit_json(folder / "tokenizer_config.json", lambda value: value.update(eos_token=end))
    assert "tokenizer_config.json has eos_token = " in refused(folder)


@pytest.mark.parametrize(
    ("file", "value", "words"),
    [
        ("vocab.json", ["a"], "vocab.json does not hold a JSON object"),
        ("vocab.json", {"a": "b"}, "the id of 'a' = 'b'"),
        ("added_tokens.json", {"a": None}, "the id of 'a' = None"),
        ("tokenizer_config.json", {"added_tokens_decoder": 5}, "added_tokens_decoder = 5"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": "x"}}, "decoder = 'x'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "y"}}}, "= 'x'"),
    ],
)
def test_legacy_files_of_the_wrong_form_are_named(
    tmp_path: Path, file: str, value: Any, words: str
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}), "utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", "utf-8")
    assert Tokenizer.from_directory(tmp_path).vocab_size == 3
    (tmp_path / file).write_text(json.dumps(value), "utf-8")
    assert words in refused(tmp_path) and file in refused(tmp_path)


def test_legacy_merges_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}), "utf-8")
    (tmp_path / "merges.txt").write_text("a b c d\n", "utf-8")
    assert "merges.txt" in refused(tmp_path)
