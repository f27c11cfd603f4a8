"""What a long pass over the rows shows, before and beside generation."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from santagen.cli import progress, rows_progress
from santagen.cli.options import GenerateOptions
from santagen.cli.rows_progress import READING, ReadingProgress, RowsProgress, input_size
from santagen.io.prompts import PromptSet, read_prompts
from santagen.io.read_count import ReadCount
from tests.cli.helpers import Cli, write_jsonl

FEW = ("--max-tokens", "2", "--device", "cpu")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come often, and rows slowly."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    check: Callable[..., Any] = PromptSet._check
    rows = PromptSet.__iter__

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.03)
        return check(*arguments)

    def slow_rows(self: PromptSet) -> Any:
        for row in rows(self):
            yield row
            time.sleep(0.03)

    monkeypatch.setattr(PromptSet, "_check", slowly)
    monkeypatch.setattr(PromptSet, "__iter__", slow_rows)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_reading_shows_rows_and_bytes(cli: Cli, prompts: Path, more: tuple[str, ...]) -> None:
    ran = cli.generate(prompts, *FEW, *more)
    assert ran.code == 0
    seen = re.findall(f"^{READING}: (\\d) rows, 0\\.0 of 0\\.0 MB \\((\\d+) %\\)$", ran.err, re.M)
    counts = [int(rows) for rows, _ in seen]
    assert len(counts) > 3 and counts == sorted(counts) and counts[-1] in (2, 3)
    assert int(seen[-1][1]) > int(seen[0][1])
    assert ("tokenising: 3 of 3 rows (100 %)" in ran.err) is bool(more)


@pytest.mark.usefixtures("often")
def test_resuming_and_ordering_show_their_rows(cli: Cli, prompts: Path, output: Path) -> None:
    rows = [{"prompt": f"def f{n}():", "max_tokens": 4 - n} for n in range(4)]  # last in, first out
    write_jsonl(prompts, rows)
    assert cli.generate(prompts, "-o", output, *FEW).code == 0
    lines = output.read_text().splitlines()
    output.write_text("".join(f"{line}\n" for line in lines[:2]))
    Path(f"{output}.manifest.json").write_text(
        json.dumps(json.loads(Path(f"{output}.manifest.json").read_text()) | {"complete": False})
    )
    ran = cli.generate(prompts, "-o", output, "--resume", *FEW)
    assert ran.code == 0, ran.err
    assert "finding what is left to draw: 3 of 4 rows (75 %)" in ran.err
    assert "putting the samples into order: 4 of 4 rows (100 %)" in ran.err
    assert output.read_text().splitlines() == lines


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("quiet", ["-q", "--no-progress"])
def test_it_can_be_left_out(cli: Cli, prompts: Path, quiet: str) -> None:
    assert " rows, " not in (err := cli.generate(prompts, "--dry-run", quiet).err)
    assert "tokenising" not in err


def test_a_terminal_gets_a_line_once_a_row_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.02)
    monkeypatch.setattr(ReadingProgress, "patience", 0.02)
    monkeypatch.setenv("FORCE_COLOR", "1")
    count = ReadCount()
    with ReadingProgress(count, 0, enabled=True):
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        count.rows, count.bytes = 2000, 5_400_000
        time.sleep(0.5)
    assert "2,000 rows, 5.4 MB" in capsys.readouterr().err.replace("\n", " ")


def test_a_short_pass_leaves_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "is_terminal", lambda: True)
    with RowsProgress("tokenising", 3, enabled=True) as shown:
        assert shown.line() == "tokenising"
        assert list(shown.over("abc")) == ["a", "b", "c"] and shown.reached() == (3, 3)
    assert capsys.readouterr().err == ""


def test_a_size_is_known_of_plain_lines_alone(tmp_path: Path) -> None:
    lines, packed, whole = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "c.json"
    lines.write_text("{}\n")
    packed.write_bytes(gzip.compress(b"{}\n"))
    whole.write_text("[]")

    def size(*paths: str | Path, **more: Any) -> int:
        return input_size(GenerateOptions(prompts=tuple(map(str, paths)), **more))

    assert size(lines) == 3 and size(lines, lines) == 6
    for others in ((packed,), (whole,), ("-",), (lines, "-"), (tmp_path / "absent.jsonl",)):
        assert size(*others) == 0
    assert size(lines, dataset="x") == 0
    assert rows_progress.percent(1, 0) == "" and rows_progress.percent(9, 8) == " (100 %)"


def test_every_row_and_byte_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x"}\nno row\n\n{"prompt": "y"}\n')
    count = ReadCount()
    read_prompts([str(path)], limit=1, count=count)
    assert (count.rows, count.bytes) == (3, path.stat().st_size)
