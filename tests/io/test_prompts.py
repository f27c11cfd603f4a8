"""Prompt files as people write them: every form that is read, and every fault that is named."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santagen.errors import SantagenError
from santagen.io.prompts import PromptSet, read_prompts
from santagen.request import SamplingParams

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes bytes, text, or rows as JSON lines; returns the path."""

    def write_file(content: Any, name: str = "p.jsonl") -> str:
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return str(path)

    return write_file


def prompts_of(found: PromptSet) -> list[str | None]:
    return [row.prompt for row in found]


def only_failure(path: str, **options: Any) -> str:
    found = read_prompts([path], **options)
    assert len(found) == 0 and list(found) == []
    (failure,) = found.failures
    assert failure.hint
    return failure.error


def test_rows_of_every_kind(write: Write) -> None:
    path = write(
        [
            {"task_id": "HumanEval/0", "prompt": " def f():\n", "entry_point": "f", "extra": [1]},
            {"id": 7, "prefix": "a", "suffix": "\r\nb"},
            {"custom_id": "c", "prompt_token_ids": [1, 2]},
            {"prompt": "x", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3,
             "min_p": 0.1, "repetition_penalty": 1.2, "n": 2, "seed": 9, "stop": "\n"},
        ]
    )  # fmt: skip
    found = read_prompts([path], keep=["extra", "absent"])
    first, infill, ids, last = found
    assert (first.row_id, first.prompt) == ("HumanEval/0", " def f():\n")
    assert (first.number, first.line) == (0, 1)
    assert first.keep == {"extra": [1]} and infill.keep == {}
    assert (infill.row_id, infill.prompt, infill.prefix, infill.suffix) == (7, None, "a", "\r\nb")
    assert (ids.row_id, ids.prompt_token_ids) == ("c", (1, 2))
    assert last.row_id == 3 and last.source == path
    assert last.overrides == {
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
        "repetition_penalty": 1.2, "n": 2, "seed": 9, "stop": ("\n",),
    }  # fmt: skip
    assert (len(found), found.total_rows, found.failures) == (4, 4, [])
    assert list(found) == [first, infill, ids, last]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\t", "\x1c", "\0"])
def test_rows_are_split_on_line_feeds_alone(write: Write, odd: str) -> None:
    path = write(f'{{"prompt": "a{odd}b"}}\n{{"prompt": "c"}}\n')
    assert prompts_of(read_prompts([path])) == [f"a{odd}b", "c"]


def test_bom_crlf_blank_lines_and_no_final_line_end(write: Write) -> None:
    path = write('\ufeff{"prompt": "a\\r\\n"}\r\n\r\n  \r\n{"prompt": "b"}\r\n\n{"prompt": "c"}')
    found = read_prompts([path])
    assert [(row.prompt, row.number, row.line) for row in found] == [
        ("a\r\n", 0, 1), ("b", 1, 4), ("c", 2, 6)
    ]  # fmt: skip
    assert found.failures == []


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1), max_size=5), st.booleans())
def test_text_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], escaped: bool
) -> None:
    path = tmp_path_factory.mktemp("p") / "p.jsonl"
    lines = [json.dumps({"prompt": text}, ensure_ascii=escaped) + "\n" for text in texts]
    path.write_bytes("".join(lines).encode("utf-8"))
    assert prompts_of(read_prompts([str(path)])) == texts


BAD_ROWS: list[tuple[Any, list[str]]] = [
    (b"{", ["not JSON"]),
    (b'{"prompt": "x"} trailing', ["not JSON", "column"]),
    (b'"text"', ["is text", "object"]),
    (b"[1, 2]", ["is a list"]),
    (b"null", ["null"]),
    (b'{"prompt": "\xff"}', ["UTF-8", "0xff"]),
    (b'{"prompt": "x", "temperature": NaN}', ["NaN"]),
    (b"[" * 100_000, []),
    (b'{"seed": ' + b"9" * 5000 + b"}", []),
    ({"prompt": ""}, ["prompt", "empty"]),
    ({"prompt": 3}, ["prompt", "number"]),
    ({"prompt": None}, ["no prompt: prompt is null."]),
    ({"prefix": None, "suffix": None}, ["no prompt: prefix and suffix are null."]),
    (b'{"prompt": "half', ["Unterminated string starting at column 12."]),
    ({"prompt": ["a"]}, ["prompt", "list"]),
    ({"prompt": "half \ud800"}, ["surrogate", "ud800"]),
    ({"text": "x"}, ["no prompt", "text"]),
    ({}, ["no prompt", "none"]),
    ({"prompt": "x", "prefix": "a", "suffix": "b"}, ["prompt", "prefix", "together"]),
    ({"prompt": "x", "prompt_token_ids": [1]}, ["together"]),
    ({"prefix": "a"}, ["no suffix"]),
    ({"suffix": "a"}, ["no prefix"]),
    ({"prompt": "a", "suffix": "b"}, ["prompt and suffix"]),
    ({"prefix": "", "suffix": ""}, ["empty"]),
    ({"prefix": "a", "suffix": 1}, ["suffix", "number"]),
    ({"prompt_token_ids": []}, ["empty"]),
    ({"prompt_token_ids": "1 2"}, ["text"]),
    ({"prompt_token_ids": [1, -2]}, ["[1]", "-2"]),
    ({"prompt_token_ids": [1, 2.0]}, ["[1]"]),
    ({"prompt_token_ids": [True]}, ["true"]),
    ({"prompt": "x", "id": 1.5}, ["id", "1.5"]),
    ({"prompt": "x", "task_id": True}, ["task_id", "true"]),
    ({"prompt": "x", "task_id": ""}, ["task_id", "empty"]),
    ({"prompt": "x", "task_id": ["a"]}, ["task_id", "list"]),
    ({"prompt": "x", "max_tokens": "64"}, ["max_tokens", "64"]),
    ({"prompt": "x", "max_tokens": 0}, ["max_tokens"]),
    ({"prompt": "x", "max_tokens": 1.5}, ["max_tokens"]),
    ({"prompt": "x", "n": True}, ["n is True"]),
    ({"prompt": "x", "seed": -1}, ["seed", "-1"]),
    ({"prompt": "x", "temperature": -0.1}, ["temperature"]),
    ({"prompt": "x", "temperature": "hot"}, ["temperature", "hot"]),
    ({"prompt": "x", "top_p": 0}, ["top_p"]),
    ({"prompt": "x", "top_p": 1.1}, ["top_p"]),
    ({"prompt": "x", "min_p": [0]}, ["min_p"]),
    ({"prompt": "x", "repetition_penalty": 0}, ["repetition_penalty"]),
    ({"prompt": "x", "stop": 5}, ["stop"]),
    ({"prompt": "x", "stop": ["a", ""]}, ["stop", "empty"]),
    ({"prompt": "x", "stop": ["a", None]}, ["stop", "null"]),
    ({"prompt": "x", "n": 2, "temperature": 0}, ["n is 2"]),
    ({"body": None, "custom_id": "a"}, ["body"]),
    ({"body": {}, "custom_id": "a"}, ["body", "empty"]),
    ({"body": {"messages": [{"role": "user", "content": "x"}]}}, ["chat"]),
    ({"body": {"prompt": "x", "frequency_penalty": 0.5}}, ["frequency_penalty"]),
    ({"body": {"prompt": "x", "echo": True}}, ["echo"]),
    ({"body": {"prompt": ["x", "y"]}}, ["2 prompts"]),
    ({"body": {"prompt": []}}, ["empty"]),
    ({"body": {"input": "x"}}, ["no prompt"]),
    ({"body": {"prompt": "x", "logprobs": "many"}}, ["logprobs"]),
]


@pytest.mark.parametrize(("row", "words"), BAD_ROWS)
def test_a_bad_row_fails_alone_and_says_why(write: Write, row: Any, words: list[str]) -> None:
    line = row if isinstance(row, bytes) else json.dumps(row).encode()
    path = write(b'{"prompt": "good"}\n\n' + line + b'\n{"prompt": "also"}\n')
    found = read_prompts([path])
    assert [(row.prompt, row.row_id) for row in found] == [("good", 0), ("also", 2)]
    assert (len(found), found.total_rows) == (2, 3)
    (failure,) = found.failures
    assert (failure.number, failure.line) == (1, 3)
    assert failure.row_id == (row.get("custom_id", 1) if isinstance(row, dict) else 1)
    for word in [*words, f"{path}, line 3"]:
        assert word in failure.error
    assert failure.hint


def test_every_bad_line_is_reported_under_its_id(write: Write) -> None:
    rows = [b'{"task_id": "a", "prompt": ""}', b"nonsense", b'{"prompt": "x"}', b'{"id": "d"}']
    found = read_prompts([write(b"\n".join(rows))])
    assert [(f.row_id, f.line) for f in found.failures] == [("a", 1), (1, 2), ("d", 4)]


def test_null_means_absent_and_whole_floats_are_whole_numbers(write: Write) -> None:
    row = {"task_id": None, "id": "i", "prompt": "x", "prefix": None, "prompt_token_ids": None,
           "max_tokens": 64.0, "temperature": None, "stop": None, "seed": None}  # fmt: skip
    (found,) = read_prompts([write([row])])
    assert (found.row_id, found.overrides) == ("i", {"max_tokens": 64})
    assert type(found.overrides["max_tokens"]) is int
    (found,) = read_prompts([write([{"prompt": "x", "stop": []}])])
    assert found.overrides == {"stop": ()}


def test_a_row_that_is_wrong_only_with_the_flags(write: Write) -> None:
    path = write([{"prompt": "x", "n": 4}, {"prompt": "y", "temperature": 0}, {"prompt": "z"}])
    assert len(read_prompts([path])) == 2 + 1
    greedy = read_prompts([path], defaults=SamplingParams())
    assert [f.line for f in greedy.failures] == [1]
    many = read_prompts([path], defaults=SamplingParams(n=8, temperature=0.8))
    assert [f.line for f in many.failures] == [2]


def test_repeated_ids_fail_the_later_row_and_name_the_first(write: Write) -> None:
    rows = [{"id": 3, "prompt": "a"}, {"id": "x", "prompt": "b"}, {"id": "3", "prompt": "c"},
            {"prompt": "d"}, {"id": "x", "prompt": "e"}, {"id": "x", "prompt": ""}]  # fmt: skip
    path = write(rows)
    other = write([{"custom_id": "x", "prompt": "f"}, {"prompt": "g"}], "q.jsonl")
    found = read_prompts([path, other])
    assert prompts_of(found) == ["a", "b", "g"]
    assert [(f.number, f.row_id, f.line) for f in found.failures] == [
        (2, "3", 3), (3, 3, 4), (4, "x", 5), (5, "x", 6), (6, "x", 1)
    ]  # fmt: skip
    assert f"{path}, line 1" in found.failures[0].error
    assert "empty" in found.failures[3].error
    assert f"{other}, line 1" in found.failures[4].error
    assert f"{path}, line 2" in found.failures[4].error


def test_numbers_run_through_all_files(write: Write) -> None:
    first, empty = write([{"prompt": "a"}, {"prompt": "b"}]), write("", "empty.jsonl")
    second = write([{"prompt": "c"}], "q.jsonl")
    found = read_prompts([first, empty, second])
    assert [(row.row_id, row.line) for row in found] == [(0, 1), (1, 2), (2, 1)]


def test_shards_part_the_rows_and_agree_about_repeated_ids(write: Write) -> None:
    rows: list[Any] = [{"id": f"r{i}", "prompt": str(i)} for i in range(10)]
    rows[4], rows[7] = {"prompt": ""}, {"id": "r2", "prompt": "again"}
    path = write(rows)
    whole = read_prompts([path])
    shards = [read_prompts([path], shard=(i, 3)) for i in range(3)]
    assert sorted(r.number for s in shards for r in s) == [r.number for r in whole]
    assert all(row.number % 3 == i for i, shard in enumerate(shards) for row in shard)
    assert [len(shard) for shard in shards] == [len(list(shard)) for shard in shards] == [4, 1, 3]
    assert [[f.number for f in shard.failures] for shard in shards] == [[], [4, 7], []]
    assert {s.fingerprint for s in shards} == {whole.fingerprint}
    assert {s.total_rows for s in shards} == {10}


def test_a_column_that_is_null_and_a_list_that_is_cut_are_told_as_such(write: Write) -> None:
    null = only_failure(write([{"text": None}]), prompt_column="text")
    assert null.endswith("'text', which the prompt is to be taken from, is null.")
    with pytest.raises(SantagenError, match="string starting at line 1, column 2"):
        read_prompts([write('["half', "p.json")])


def test_the_limit_comes_before_the_shard(write: Write) -> None:
    path = write([{"prompt": str(i)} for i in range(10)] + [{"prompt": ""}])
    found = read_prompts([path], limit=5, shard=(1, 2))
    assert prompts_of(found) == ["1", "3"]
    assert (len(found), found.total_rows, found.failures) == (2, 11, [])
    assert prompts_of(read_prompts([path, path], limit=3)) == ["0", "1", "2"]
    assert len(read_prompts([path], limit=0)) == 0
    assert len(read_prompts([path], limit=100)) == 10


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0), (3, 1)])
def test_what_is_no_shard(write: Write, shard: tuple[int, int]) -> None:
    with pytest.raises(SantagenError, match="shard"):
        read_prompts([write([])], shard=shard)


def test_the_fingerprint_is_that_of_the_bytes(write: Write) -> None:
    rows = b'{"prompt": "a"}\n\nnonsense\n'
    path = write(rows)
    assert read_prompts([path]).fingerprint == hashlib.sha256(rows).hexdigest()
    assert read_prompts([path], limit=1).fingerprint == hashlib.sha256(rows).hexdigest()
    packed = write(gzip.compress(rows), "p.jsonl.gz")
    assert read_prompts([packed]).fingerprint == hashlib.sha256(rows).hexdigest()
    a, b = write(b'{"prompt": "a"}\n', "a.jsonl"), write(b'{"prompt": "b"}\n', "b.jsonl")
    assert read_prompts([a, b]).fingerprint != read_prompts([b, a]).fingerprint


def test_gzip_and_its_faults(write: Write) -> None:
    packed = gzip.compress(b'{"prompt": "a"}\n' * 1 + os.urandom(3000).hex().encode())
    good = write(gzip.compress(b'{"prompt": "a\xe2\x80\xa8"}\n'), "p.jsonl.gz")
    assert prompts_of(read_prompts([good])) == ["a\u2028"]
    for content in (packed[:-9], packed[:200], b"no gzip", packed[:50] + b"\0" * 20 + packed[70:]):
        path = write(content, "broken.jsonl.gz")
        with pytest.raises(SantagenError, match="gzip") as caught:
            read_prompts([path])
        assert path in caught.value.message
    with pytest.raises(SantagenError, match="gzip"):
        read_prompts([write(packed, "unlabelled.jsonl")])


def test_json_lists(write: Write) -> None:
    text = '\ufeff[\r\n  {"prompt": "a",\n   "id": "x"},\n "plain\x0b",\n {}\n]\n'
    path = write(text, "p.json")
    found = read_prompts([path])
    assert [(r.prompt, r.row_id, r.line) for r in found] == [("a", "x", 2), ("plain\x0b", 1, 4)]
    assert [(f.number, f.line) for f in found.failures] == [(2, 5)]
    assert len(read_prompts([write("[]", "q.json")])) == 0


def test_rows_that_share_a_line_are_told_apart(write: Write) -> None:
    lines = write([{"prompt": "x"}, {"prompt": ""}])
    path = write('["a", {}, {"id": "a", "prompt": "b"}, {"id": "a", "prompt": "c"}]', "p.json")
    found = read_prompts([lines, path])
    assert [row.source for row in found] == [lines, f"{path}, item 1", f"{path}, item 3"]
    first, second, third = (failure.error for failure in found.failures)
    assert f"{lines}, line 2: " in first
    assert f"{path}, item 2, line 1: " in second
    assert f"{path}, item 4, line 1: " in third and f"that of {path}, item 3, line 1." in third


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"prompt": "a"}\n{"prompt": "b"}', "[1", "[1,]", "[1] 2", "[1 2]", '[{"x": NaN}'],
)
def test_what_is_no_json_list(write: Write, content: str) -> None:
    path = write(content, "p.json")
    with pytest.raises(SantagenError, match="JSON list") as caught:
        read_prompts([path])
    assert path in caught.value.message and caught.value.hint


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_value_fails_its_row_alone(write: Write, constant: str) -> None:
    bad, good = f'{{"prompt": "a", "x": [{constant}]}}', '{"prompt": "ok"}'
    for path in (
        write(f"[{bad}, {good}, {constant}]", "p.json"),
        write(f"{bad}\n{good}\n{constant}"),
    ):
        found = read_prompts([path])
        assert [(row.prompt, row.number) for row in found] == [("ok", 1)]
        assert [failure.number for failure in found.failures] == [0, 2]
        assert all(f"{constant} is not a JSON value" in f.error and f.hint for f in found.failures)


def test_a_number_of_any_length_may_stand_in_an_ignored_field(write: Write) -> None:
    long = "-" + "7" * 10_000
    row = f'{{"prompt": "a", "x": {{"y": [{long}]}}, "z": {long}}}'
    batch = f'{{"custom_id": "b", "extra": {long}, "body": {{"prompt": "c", "k": {long}}}}}'
    for path in (write(f"{row}\n{batch}\n"), write(f"[{row},\n{batch}]", "p.json")):
        found = read_prompts([path])
        assert (prompts_of(found), found.failures) == (["a", "c"], [])
        assert [f.row_id for f in read_prompts([path], keep=["z"]).failures] == [0]
    for name in ("id", "seed", "max_tokens", "temperature", "prompt_token_ids", "prompt"):
        other = "" if name.startswith("prompt") else '"prompt": "a", '
        value = f"[{long}]" if name == "prompt_token_ids" else long
        assert name in only_failure(write(f'{{{other}"{name}": {value}}}\n'))


def test_any_other_file_is_one_prompt(write: Write) -> None:
    path = write("\ufeffdef f():\r\n    '''\u2028'''\n\n", "f.py")
    (row,) = read_prompts([path], prompt_column="text")
    assert (row.row_id, row.prompt) == (path, "def f():\r\n    '''\u2028'''\n\n")
    assert "empty" in only_failure(write("", "empty.txt"))
    broken = read_prompts([write(b"caf\xe9", "latin.txt"), path])
    assert prompts_of(broken) == [row.prompt]
    assert broken.failures[0].row_id.endswith("latin.txt")  # type: ignore[union-attr]
    assert "UTF-8" in broken.failures[0].error
    twice = read_prompts([path, path])
    assert len(twice) == 1 and "already" in twice.failures[0].error


def test_stdin_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'{"prompt": "a"}\nbad\n{"prompt": "b"}\n'))
    monkeypatch.setattr("sys.stdin", stdin)
    found = read_prompts(["-"])
    assert prompts_of(found) == prompts_of(found) == ["a", "b"]
    assert "stdin, line 2" in found.failures[0].error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_what_stdin_can_be_instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SantagenError, match="stdin is closed"):
        read_prompts(["-"])
    packed = io.TextIOWrapper(io.BytesIO(gzip.compress(b'{"prompt": "x"}')))
    monkeypatch.setattr("sys.stdin", packed)
    with pytest.raises(SantagenError, match="compressed with gzip") as caught:
        read_prompts(["-"])
    assert "gunzip" in caught.value.hint

    class Folder(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Folder()))
    with pytest.raises(SantagenError, match="stdin can't be read: Is a directory"):
        read_prompts(["-"])


def test_a_pipe_can_be_read_twice(tmp_path: Path) -> None:
    pipe = tmp_path / "p.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b'{"prompt": "a"}\n',))
    writer.start()
    found = read_prompts([str(pipe)])
    writer.join()
    assert prompts_of(found) == prompts_of(found) == ["a"]


def test_an_empty_name_is_said_to_be_empty() -> None:
    with pytest.raises(SantagenError, match="is empty"):
        read_prompts([""])


def test_inputs_that_are_not_there(tmp_path: Path, write: Write) -> None:
    for paths, words in (
        ([str(tmp_path / "absent.jsonl")], "does not exist"),
        ([str(tmp_path)], "directory"),
        ([], "no prompts"),
        (["-", "-"], "more than once"),
    ):
        with pytest.raises(SantagenError, match=words) as caught:
            read_prompts(paths)
        assert caught.value.hint and caught.value.exit_code == 2
    with pytest.raises(SantagenError, match="--split"):
        read_prompts([write([])], split="test")


def test_prompt_column_turns_other_fields_into_data(write: Write) -> None:
    path = write([{"text": "write", "prompt": "x", "suffix": "y", "code": "z"}, {"prompt": "only"}])
    found = read_prompts([path], prompt_column="text", keep=["prompt"])
    (row,) = found
    assert (row.prompt, row.suffix, row.keep) == ("write", None, {"prompt": "x"})
    assert "'text'" in found.failures[0].error


def test_openai_batch_rows(write: Write) -> None:
    def row(**body: Any) -> dict[str, Any]:
        fixed = {"method": "POST", "url": "/v1/completions"}
        return {"custom_id": f"r{len(rows)}", **fixed, "body": {"model": "m", **body}}

    rows: list[dict[str, Any]] = []
    rows.append(row(prompt="a", max_tokens=9, temperature=0.7, top_p=0.9, n=3, seed=4, stop=["\n"],
                    logprobs=2, stream=False, user="u", presence_penalty=0, best_of=3))  # fmt: skip
    rows.append(row(prompt=["only"], max_completion_tokens=5, logprobs=False))
    rows.append(row(prompt=[1, 2]))
    rows.append(row(prompt=[[3, 4]]))
    rows.append(row(prompt="before", suffix="after"))
    found = list(read_prompts([write(rows)], keep=["url", "user"]))
    assert [r.row_id for r in found] == ["r0", "r1", "r2", "r3", "r4"]
    assert found[0].overrides == {
        "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "n": 3, "seed": 4, "stop": ("\n",),
        "logprobs": 2,
    }  # fmt: skip
    assert found[0].batch_body == rows[0]["body"]
    assert found[0].keep == {"url": "/v1/completions", "user": "u"}
    assert (found[1].prompt, found[1].overrides) == ("only", {"max_tokens": 5})
    assert [found[2].prompt_token_ids, found[3].prompt_token_ids] == [(1, 2), (3, 4)]
    assert (found[4].prefix, found[4].suffix) == ("before", "after")


def test_a_batch_row_is_answered_under_its_custom_id(write: Write) -> None:
    row = {"task_id": "u", "id": "t", "custom_id": "s", "body": {"prompt": "x"}}
    broken = {"id": "t", "custom_id": "b", "body": {}}
    found = read_prompts([write([row, broken, {"id": "t", "body": {"prompt": "y"}}])])
    assert [r.row_id for r in found] == ["s", "t"]
    assert [failure.row_id for failure in found.failures] == ["b"]
    plain = {"id": "t", "custom_id": "s", "prompt": "x"}
    assert [r.row_id for r in read_prompts([write([plain])])] == ["t"]


def test_a_row_with_a_prompt_may_have_any_body(write: Write) -> None:
    (row,) = read_prompts([write([{"prompt": "x", "body": "    return 1", "method": "f"}])])
    assert (row.prompt, row.batch_body) == ("x", None)


def test_kept_fields_must_be_writable(write: Write) -> None:
    assert "--keep" in only_failure(write('{"prompt": "x", "k": "\\ud800"}'), keep=["k"])


def test_a_file_that_changes_during_the_run_is_noticed(write: Write) -> None:
    path = write([{"prompt": "a"}, {"prompt": "b"}])
    for later in ([{"prompt": "a"}], [{"prompt": "a"}] * 3, "{", '\n{"prompt": "a"}'):
        found = read_prompts([path])
        write(later)
        with pytest.raises(SantagenError, match="changed"):
            list(found)
        write([{"prompt": "a"}, {"prompt": "b"}])


def test_memory_holds_no_rows(write: Write) -> None:
    text = "x" * 2000
    path = write("".join(f'{{"id": "row-{i}", "prompt": "{text}"}}\n' for i in range(3000)))
    tracemalloc.start()
    found = read_prompts([path])
    assert sum(1 for _ in found) == 3000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_500_000  # the file is 6 MB


class TestDatasets:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()

    def parquet(self, tmp_path: Path, columns: dict[str, list[Any]]) -> str:
        datasets = pytest.importorskip("datasets")
        path = tmp_path / "p.parquet"
        datasets.Dataset.from_dict(columns).to_parquet(path)
        return str(path)

    def test_parquet(self, tmp_path: Path) -> None:
        path = self.parquet(
            tmp_path,
            {"task_id": ["a", "b", "c"], "prompt": ["x\r\n", None, "z"],
             "max_tokens": [5, 6, None], "other": [1, 2, 3], "mine": ["p", "q", "r"]},
        )  # fmt: skip
        for found in (
            read_prompts([path], keep=["mine"]),
            read_prompts([], dataset=path, split="train", keep=["mine"]),
            read_prompts([], dataset=path, split="test", keep=["mine"]),
        ):
            first, last = found
            assert (first.row_id, first.prompt) == ("a", "x\r\n")
            assert first.overrides == {"max_tokens": 5}
            assert (last.overrides, last.keep, last.line) == ({}, {"mine": "r"}, 3)
            assert [(f.row_id, f.line) for f in found.failures] == [("b", 2)]
            assert len(found.fingerprint) == 64
        column = read_prompts([], dataset=path, prompt_column="mine")
        assert prompts_of(column) == ["p", "q", "r"]
        sliced = read_prompts([], dataset=path, split="train[:1]")
        assert prompts_of(sliced) == ["x\r\n"]

    def test_no_progress_bar_goes_to_a_log(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        datasets = pytest.importorskip("datasets")
        path = self.parquet(tmp_path, {"prompt": ["x"]})
        datasets.enable_progress_bars()
        capfd.readouterr()
        assert len(read_prompts([path])) == 1
        assert capfd.readouterr() == ("", "")

    def test_csv_cells_are_text(self, tmp_path: Path) -> None:
        path = tmp_path / "p.csv"
        path.write_bytes(
            b"\xef\xbb\xbfid,prompt,n,temperature,stop,prompt_token_ids\r\n"
            b'1,"NA",,,,\n2,007,2,0.5,"[""a"", ""b""]",\n03,"two\nlines ",,,END,\n'
            b'x,,,,,"[1, 2]"\ny,,,,,\n'
        )
        found = read_prompts([], dataset=str(path))
        rows = list(found)
        assert [row.row_id for row in rows] == [1, 2, "03", "x"]
        assert [row.prompt for row in rows] == ["NA", "007", "two\nlines ", None]
        assert rows[1].overrides == {"n": 2, "temperature": 0.5, "stop": ("a", "b")}
        assert rows[2].overrides == {"stop": ("END",)}
        assert rows[3].prompt_token_ids == (1, 2)
        assert [f.row_id for f in found.failures] == ["y"]

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("e.csv", "prompt,x\n"), ("e.csv", "\ufeffprompt"), ("e.csv", ""),
            ("e.csv", '"two\nlines"\r\n\r\n'), ("e.jsonl", ""), ("e.jsonl", "\n\n"),
            ("e.json", "[]"), ("e.json", "\ufeff[\n]\n"),
        ],
    )  # fmt: skip
    def test_a_file_without_rows_is_no_fault(self, tmp_path: Path, name: str, content: str) -> None:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        for split in (None, "test", "train[:5]"):
            found = read_prompts([], dataset=str(path), split=split)
            assert (list(found), found.failures, found.total_rows) == ([], [], 0)

    def test_a_parquet_file_without_rows_is_no_fault(self, tmp_path: Path) -> None:
        for column in ("prompt", "other"):
            path = self.parquet(tmp_path, {column: []})
            for found in (read_prompts([path]), read_prompts([], dataset=path, split="test")):
                assert (list(found), found.failures, found.total_rows) == ([], [], 0)
        rows = self.parquet(tmp_path, {"prompt": ["x"]})
        assert prompts_of(read_prompts([rows])) == ["x"]

    def test_faults(self, tmp_path: Path) -> None:
        path = self.parquet(tmp_path, {"question": ["x"]})
        with pytest.raises(SantagenError, match="question"):
            read_prompts([path])
        (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
        for name in (str(tmp_path / "bad.parquet"), str(tmp_path / "absent.parquet"), "no/such"):
            with pytest.raises(SantagenError) as caught:
                read_prompts([], dataset=name)
            assert name in caught.value.message and caught.value.hint
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(SantagenError, match="neither parquet"):
            read_prompts([], dataset=str(tmp_path / "notes.txt"))
