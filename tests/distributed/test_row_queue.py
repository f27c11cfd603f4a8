"""The queue that groups draw rows from: every row once, evenly, in a store that all share."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from santagen.errors import SantagenError
from santagen.parallel.row_queue import LARGEST_CHUNK, RowPlan, chunk_rows, draw_rows
from santagen.parallel.world import World, check_gpus, sizes
from tests.benchmarks.simulate_scaling import equal_shares, lengths, rates, shared_queue


@given(st.sets(st.integers(0, 300)))
def test_a_plan_arrives_as_it_was(chosen: set[int]) -> None:
    numbers = np.array(sorted(chosen), np.int64)
    plan = RowPlan.of(numbers, {5: (1, 2)})
    assert plan.numbers().tolist() == sorted(chosen)
    assert len(plan.wanted) <= 301 // 8 + 1


@given(
    st.integers(0, 10**7), st.integers(1, 600), st.integers(1, 4096), st.integers(1, 200)
)
def test_chunks_leave_rows_for_every_group(rows: int, groups: int, seqs: int, n: int) -> None:
    chunk = chunk_rows(rows, groups, seqs, n)
    assert 1 <= chunk <= LARGEST_CHUNK
    assert chunk == 1 or chunk * groups * 8 <= rows
    assert chunk == 1 or chunk * n * 8 <= seqs


def test_every_row_is_drawn_once() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    numbers = np.arange(0, 2000, 2)
    drawn: list[list[int]] = [[], [], []]

    def draw(group: int) -> None:
        store = TCPStore("127.0.0.1", server.port, wait_for_workers=False)
        drawn[group] += draw_rows(numbers, 7, lambda count: store.add("rows", count))

    threads = [threading.Thread(target=draw, args=(group,)) for group in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row for rows in drawn for row in rows) == numbers.tolist()
    assert all(rows == sorted(rows) for rows in drawn)


def test_groups_end_together_whatever_their_rows_and_speed() -> None:
    tokens, speed = lengths(2_000_000), rates(100)
    queue, shares = shared_queue(tokens, speed), equal_shares(tokens, speed)
    assert queue.efficiency > 0.85
    assert shares.efficiency < 0.5


@pytest.mark.parametrize(
    ("asked", "launched", "found"),
    [
        ((None, None), None, (1, 1)), ((2, None), None, (2, 1)), ((None, 3), None, (1, 3)),
        ((None, None), 6, (1, 6)), ((2, None), 6, (2, 3)), ((None, 2), 6, (3, 2)),
        ((2, 3), 6, (2, 3)),
    ],
)  # fmt: skip
def test_sizes(
    asked: tuple[int | None, int | None], launched: int | None, found: tuple[int, int]
) -> None:
    assert sizes(*asked, launched) == found


@pytest.mark.parametrize("asked", [(4, None), (None, 4), (2, 2), (12, None)])
def test_sizes_that_do_not_multiply(asked: tuple[int | None, int | None]) -> None:
    with pytest.raises(SantagenError, match="6 processes were started"):
        sizes(*asked, 6)


def test_more_processes_than_gpus() -> None:
    check_gpus(2, 2)
    with pytest.raises(SantagenError, match="on a node, which has 1 GPU"):
        check_gpus(3, 1, "a node")


def test_who_a_rank_is() -> None:
    world = World(rank=3, size=6, local_rank=3, local_size=6, tensor_parallel=2)
    assert (world.group, world.shard, world.leads, world.data_parallel) == (1, 1, False, 3)
    assert World.from_environment({}) == World()
    with pytest.raises(SantagenError, match="RANK is 'one'"):
        World.from_environment({"RANK": "one", "WORLD_SIZE": "2"})
    with pytest.raises(SantagenError, match="don't fit together"):
        World.from_environment({"RANK": "2", "WORLD_SIZE": "2"})
