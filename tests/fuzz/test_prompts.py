"""The prompts reader on hostile bytes: every row is used or named, and nothing else is raised."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from santagen.errors import SantagenError
from santagen.io.prompts import read_prompts
from santagen.request import SamplingParams
from tests.fuzz.profile import fuzz

NAMES = st.sampled_from(
    ["prompt", "prefix", "suffix", "prompt_token_ids", "id", "task_id", "custom_id", "body", "url",
     "method", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "other", ""]
)  # fmt: skip
TEXT = st.text(max_size=8) | st.sampled_from(["x", "\ud800", "\x1b[2J", "\u2028", "\x00", "a\r\n"])
SCALAR = (
    st.none() | st.booleans() | st.integers() | st.integers(0, 3) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ROW = st.dictionaries(NAMES, VALUE, max_size=4) | VALUE
LINE = st.one_of(
    ROW.map(lambda row: json.dumps(row).encode()),
    st.fixed_dictionaries({"prompt": TEXT}).map(lambda row: json.dumps(row).encode()),
    st.binary(max_size=20),
    st.sampled_from(
        [b'{"prompt": "x"', b'{"prompt": "\xff"}', b"\xef\xbb\xbf{}", b"[" * 3000, b"NaN", b"  ",
         b'{"prompt": 1e999}', b'{"id": ' + b"9" * 5000 + b', "prompt": "x"}', b"\x1f\x8b\x08"]
    ),
)  # fmt: skip
END = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r", b""])
FILE = st.lists(st.tuples(LINE, END), max_size=8).map(lambda rows: b"".join(map(b"".join, rows)))
NAME = st.sampled_from(["p.jsonl", "p.json", "p.txt", "p.jsonl.gz", "p.json.gz"])


def check(path: Path, data: bytes, **settings: Any) -> None:
    """Read it: each row is good once or failed once, as often as it is asked."""
    path.write_bytes(data)
    try:
        found = read_prompts([str(path)], defaults=SamplingParams(), **settings)
    except SantagenError as error:
        assert path.name in error.message and error.hint
        return
    rows = list(found)
    assert len(rows) == len(found)
    numbers = sorted([row.number for row in rows] + [bad.number for bad in found.failures])
    assert len(set(numbers)) == len(numbers)
    if "shard" not in settings:
        assert numbers == list(range(min(found.total_rows, settings.get("limit", len(numbers)))))
    assert len({str(row.row_id) for row in rows}) == len(rows)
    for failure in found.failures:
        assert failure.error.startswith(str(path)) and failure.hint
    assert list(found) == rows
    assert list(found.select(row.number for row in rows)) == rows


@fuzz(300)
@given(FILE, NAME, st.none() | st.integers(0, 5), st.none() | st.sampled_from([(0, 2), (1, 2)]))
def test_any_file_is_read_or_named(
    tmp_path: Path, data: bytes, name: str, limit: int | None, shard: tuple[int, int] | None
) -> None:
    chosen = {"limit": limit, "shard": shard}
    settings = {key: value for key, value in chosen.items() if value is not None}
    check(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data, **settings)


@fuzz(100)
@given(st.data())
def test_a_damaged_gzip_file_is_named(tmp_path: Path, data: st.DataObject) -> None:
    good = gzip.compress(b'{"prompt": "def f(x):"}\n' * 200)
    at = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        check(tmp_path / "p.jsonl.gz", good[:at])
    else:
        flipped = bytearray(good)
        flipped[at] ^= data.draw(st.integers(1, 255))
        check(tmp_path / "p.jsonl.gz", bytes(flipped))


@fuzz(200)
@given(st.lists(ROW, max_size=5), st.sampled_from([None, 0, 2]), st.binary(max_size=2))
def test_json_lists_agree_with_a_whole_parse(
    tmp_path: Path, rows: list[Any], indent: int | None, rest: bytes
) -> None:
    data = json.dumps(rows, indent=indent).encode() + rest
    path = tmp_path / "p.json"
    path.write_bytes(data)
    try:
        wanted = json.loads(data)
    except ValueError:
        with pytest.raises(SantagenError, match=r"JSON list|UTF-8"):
            read_prompts([str(path)])
        return
    found = read_prompts([str(path)])
    assert found.total_rows == len(wanted)
    for row in found:
        own = wanted[row.number]
        assert row.source == f"{path}, item {row.number + 1}"
        assert row.prompt is None or row.prompt == (own if isinstance(own, str) else row.prompt)
    check(path, data)
