"""What a leader of another group tells rank 0 while it generates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from santagen.cli.console import Console
from santagen.cli.generate_inputs import Inputs
from santagen.cli.leaders import OtherLeader
from santagen.cli.options import GenerateOptions
from santagen.cli.settings import Resolved
from santagen.engine.llm_engine import EngineStats
from santagen.parallel.row_queue import RowPlan
from santagen.request import RowFailure, SamplingParams


def test_a_row_that_fails_twice_is_counted_once() -> None:
    board: dict[str, str] = {}
    watch = SimpleNamespace(board=SimpleNamespace(set=board.__setitem__))
    cluster = SimpleNamespace(world=SimpleNamespace(group=1), watch=watch)
    settings = Resolved(GenerateOptions(output="out.jsonl"), {})
    rank: Any = SimpleNamespace(
        settings=settings, console=Console(), interrupts=None, cluster=cluster
    )
    prompts: Any = None
    inputs = Inputs(SamplingParams(), prompts, prompts)
    leader = OtherLeader(rank, inputs, RowPlan(), rows=2)
    leader.stats = EngineStats()
    writer: Any = SimpleNamespace(fail=(told := []).append)
    for number in (0, 1, 0):
        leader._fail(writer, RowFailure(f"r{number}", number, number + 1, "bad", ""))
    leader._send_tally()
    assert board["tally/1"].split()[3] == "2"
    assert [failure.number for failure in told] == [0, 1]
