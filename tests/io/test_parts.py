"""Part files: taken in by a resume, merged by the end, refused where they have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from santagen.errors import SantagenError
from santagen.io.part_writer import PartWriter
from santagen.io.parts import index_path, part_path, part_paths
from tests.io.output_runs import BAD, IDENTITY, failure, open_writer, row_id, run, sample

ROWS = 6
GOOD = [number for number in range(ROWS) if number not in BAD]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """What one writer makes of it."""
    path = tmp_path / "whole.jsonl"
    run(path, rows=ROWS)
    return path


def part(output: Path, group: int) -> PartWriter:
    return PartWriter.create(
        output, group, model="tiny", echo=False, token_ids=False, format="jsonl"
    )


def write_parts(output: Path, *, end: bool) -> dict[int, int]:
    """Rows 0 and 5 in OUT, 2 in one part and 4 in another, their samples out of order."""
    samples = {}
    with open_writer(output) as writer:
        writer.begin()
        for number, index in ((5, 0), (0, 1), (5, 1), (0, 0)):
            writer.write(sample(number, index))
        for group, number in ((1, 4), (2, 2)):
            with part(output, group) as other:
                for index in (1, 0):
                    other.write(sample(number, index))
                samples[group] = other.samples
                if end:
                    other.end()
        if end:
            for number in BAD:
                writer.fail(failure(number))
            rows = ((row_id(n), n) for n in range(ROWS))
            writer.finish(rows, {"seconds": 1.0}, samples)
    return samples


def test_the_end_merges_parts_into_input_order(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert write_parts(output, end=True) == {1: 2, 2: 2}
    assert output.read_bytes() == whole.read_bytes()
    assert part_paths(output) == [] and not index_path(part_path(output, 1)).exists()


def test_a_resume_takes_parts_in(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "out.jsonl"
    write_parts(output, end=False)
    torn = part_path(output, 2)
    torn.write_bytes(torn.read_bytes()[:-5])  # killed in a write
    # Killed while an earlier resume took part 1 in: its lines are in OUT already.
    output.write_bytes(output.read_bytes() + part_path(output, 1).read_bytes())
    with open_writer(output, resume=True) as writer:
        assert part_paths(output) == []
        assert len(writer.done) == 7
        assert (row_id(2), 1) in writer.done and (row_id(2), 0) not in writer.done
    run(output, rows=ROWS, resume=True)
    assert output.read_bytes() == whole.read_bytes()


def test_parts_are_an_output_that_exists(tmp_path: Path, whole: Path) -> None:
    output = tmp_path / "out.jsonl"
    write_parts(output, end=False)
    output.unlink()
    with pytest.raises(SantagenError, match=rf"\.part-0000\d, a part of {output}, exists"):
        open_writer(output)
    with pytest.raises(SantagenError, match="prompts"):
        open_writer(output, resume=True, identity={**IDENTITY, "prompts": "q"})
    assert part_paths(output) and not output.exists()
    run(output, rows=ROWS, overwrite=True)
    assert output.read_bytes() == whole.read_bytes()
    assert part_paths(output) == []


def test_a_part_that_has_changed_is_not_merged(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with open_writer(output) as writer:
        writer.begin()
        with part(output, 1) as other:
            other.write(sample(0, 0))
            other.end()
        part_path(output, 1).open("ab").write(b"more\n")
        with pytest.raises(SantagenError, match="has changed"):
            writer.finish([], {}, {1: 1})
        part_path(output, 1).unlink()
        with pytest.raises(SantagenError, match="can't be read"):
            writer.finish([], {}, {1: 1})


def test_a_foreign_line_in_a_part_is_named(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    write_parts(output, end=False)
    part_path(output, 2).open("ab").write(b"not a record\n")
    with pytest.raises(SantagenError, match=r"out.jsonl.part-00002, line 3 is no record"):
        open_writer(output, resume=True)
    assert len(part_paths(output)) == 2
