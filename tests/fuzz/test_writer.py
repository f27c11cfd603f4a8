"""The writer killed at drawn steps, several times in a row, between runs in other orders."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from santagen.io.manifest import manifest_path
from tests.fuzz.profile import fuzz
from tests.io.output_runs import files, in_child, kill_at, run

KILLS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 9)), min_size=1, max_size=5)


@fuzz(100)
@given(KILLS, st.sampled_from(["jsonl", "openai-batch"]), st.integers(4, 12), st.binary(max_size=9))
def test_any_kills_end_with_the_same_bytes(
    kills: list[tuple[int, int]], form: str, rows: int, torn: bytes
) -> None:
    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole.jsonl", Path(name) / "broken.jsonl"
        run(whole, rows=rows, format=form)
        for step, order in kills:

            def doomed(step: int = step, order: int = order) -> None:
                kill_at(step)
                run(broken, order, rows, resume=True, format=form)

            assert in_child(doomed) in (0, -signal.SIGKILL)
        if manifest_path(broken).exists():  # which comes before any line: the start of a next one
            with broken.open("ab") as file:
                file.write(torn.replace(b"\n", b""))
        run(broken, order=3, rows=rows, resume=True, format=form)
        assert files(broken) == files(whole)
        assert not [p.name for p in Path(name).iterdir() if p.suffix in (".lock", ".tmp")]
